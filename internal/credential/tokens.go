package credential

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"strings"
)

// Bounds of a file with tokens.
const (
	MinToken  = 16 // characters; a shorter one can be guessed
	MaxToken  = 512
	maxTokens = 100
)

// Tokens are bearer tokens, any of which is accepted, so that a new one can be handed out before the old one is taken away. The tokens
// themselves aren't kept.
type Tokens struct{ hashes [][sha256.Size]byte }

// Has says whether the token is one of them, in a time that depends on neither.
func (t Tokens) Has(token string) bool {
	hash, found := sha256.Sum256([]byte(token)), 0
	for i := range t.hashes {
		found |= subtle.ConstantTimeCompare(hash[:], t.hashes[i][:])
	}
	return found == 1
}

// ParseTokens reads one token a line. Empty lines and lines that begin with # are left out.
func ParseTokens(contents [][]byte) (Tokens, error) {
	var t Tokens
	line := 0
	for text := range strings.Lines(string(contents[0])) {
		line++
		token := strings.TrimRight(text, "\r\n")
		if token == "" || strings.HasPrefix(token, "#") {
			continue
		}
		if !ValidToken(token) {
			return Tokens{}, fmt.Errorf("line %d: want %d to %d of the characters A-Z a-z 0-9 - . _ ~ + / = and nothing else on the line", line, MinToken, MaxToken)
		}
		t.hashes = append(t.hashes, sha256.Sum256([]byte(token)))
	}
	switch {
	case len(t.hashes) == 0:
		return Tokens{}, errors.New("there is no token in it; write one a line, for example from: openssl rand -hex 32")
	case len(t.hashes) > maxTokens:
		return Tokens{}, fmt.Errorf("more than %d tokens", maxTokens)
	}
	return t, nil
}

// ValidToken says whether the text can be a bearer token here (the grammar is that of RFC 6750, 2.1).
func ValidToken(token string) bool {
	const characters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~+/="
	return len(token) >= MinToken && len(token) <= MaxToken && strings.Trim(token, characters) == ""
}
