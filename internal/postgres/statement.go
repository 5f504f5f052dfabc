package postgres

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
)

// Cardinality is how many rows a statement gives back, or writes where it gives nothing back.
type Cardinality string

// The cardinalities.
const (
	One       Cardinality = "1"
	ZeroOrOne Cardinality = "0..1"
	Many      Cardinality = "0..n"
	// Effect is a statement without rows: a temporary table, an index on it.
	Effect Cardinality = "none"
)

// Statement is one named statement of a store.
type Statement struct {
	Name string // the constant's
	SQL  string
	Rows Cardinality
}

// Checksum identifies a bundle of statements: SHA-256 in hexadecimal over names and texts, whatever their order. Two binaries with the same checksum
// ask a database the same questions.
func Checksum(statements []Statement) string {
	sorted := slices.SortedFunc(slices.Values(statements), func(a, b Statement) int { return strings.Compare(a.Name, b.Name) })
	hash := sha256.New()
	for _, s := range sorted {
		hash.Write([]byte(s.Name + "\x00" + s.SQL + "\x00")) // a hash never fails
	}
	return hex.EncodeToString(hash.Sum(nil))
}
