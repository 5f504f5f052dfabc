// Package migrations holds every schema of Fenceline and applies it. Names, history
// table and checksums are Flyway's, so that an operator can carry on with Flyway itself.
//
// There are separate histories that never share a location (C1 §1.8): lockdb, paydb, and the sidecar's own
// schema fence, which may stand in any database. Applied files are never edited; a mistake is mended by the next version.
package migrations

import (
	"embed"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

//go:embed lockdb/*.sql paydb/*.sql fence/*.sql seed/paydb/*.sql
var files embed.FS

// Set is one location of migration files with the history table that records them.
type Set struct {
	name    string
	fsys    fs.FS
	dir     string
	schema  string // created when missing; empty for the connection's default schema
	history pgx.Identifier
}

// Name is the set's name for people, such as "lockdb".
func (s Set) Name() string { return s.name }

const historyTable = "flyway_schema_history"

// LockDB is the lock service's database (C1 §1.2 and what came after).
func LockDB() Set {
	return Set{name: "lockdb", fsys: files, dir: "lockdb", history: pgx.Identifier{historyTable}}
}

// PayDB is the payment system's database (C1 §1.5 and what came after).
func PayDB() Set {
	return Set{name: "paydb", fsys: files, dir: "paydb", history: pgx.Identifier{historyTable}}
}

// Fence is the sidecar's own schema, with its history inside it.
func Fence() Set {
	return Set{name: "fence", fsys: files, dir: "fence", schema: "fence", history: pgx.Identifier{"fence", historyTable}}
}

// SeedPayDB is synthetic data for the demonstration and for tests, on top of PayDB. It shares paydb's history
// table, as a second location would in Flyway.
func SeedPayDB() Set {
	return Set{name: "paydb seed", fsys: files, dir: "seed/paydb", history: pgx.Identifier{historyTable}}
}

// migration is one file.
type migration struct {
	version     int // 0 for a repeatable one
	description string
	script      string // file name
	sql         string
	checksum    int32
}

func (m migration) repeatable() bool { return m.version == 0 }

// nullableVersion is the version as the history table stores it: null for a repeatable.
func (m migration) nullableVersion() *string {
	if m.repeatable() {
		return nil
	}
	v := strconv.Itoa(m.version)
	return &v
}

var (
	// C1 §1.8: V<n>__<snake_case_description>.sql, n a single increasing integer.
	versionedName  = regexp.MustCompile(`^V([1-9][0-9]{0,8})__([a-z0-9]+(?:_[a-z0-9]+)*)\.sql$`)
	repeatableName = regexp.MustCompile(`^R__([a-z0-9]+(?:_[a-z0-9]+)*)\.sql$`)
)

// load reads the set's files: versioned ones in the order of their number, then repeatables by name.
func (s Set) load() ([]migration, error) {
	entries, err := fs.ReadDir(s.fsys, s.dir)
	if err != nil {
		return nil, fmt.Errorf("read migrations of %s: %w", s.name, err)
	}
	var all []migration
	for _, entry := range entries {
		m, err := s.loadFile(entry.Name())
		if err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b migration) int {
		if a.repeatable() != b.repeatable() {
			if a.repeatable() {
				return 1
			}
			return -1
		}
		return cmpOr(a.version-b.version, strings.Compare(a.script, b.script))
	})
	return all, checkNumbers(s.name, all)
}

func cmpOr(first, second int) int {
	if first != 0 {
		return first
	}
	return second
}

func (s Set) loadFile(name string) (migration, error) {
	data, err := fs.ReadFile(s.fsys, path.Join(s.dir, name))
	if err != nil {
		return migration{}, fmt.Errorf("read migration %s: %w", name, err)
	}
	m := migration{script: name, sql: strings.TrimPrefix(string(data), byteOrderMark), checksum: checksum(string(data))}
	if parts := versionedName.FindStringSubmatch(name); parts != nil {
		m.version, err = strconv.Atoi(parts[1])
		m.description = strings.ReplaceAll(parts[2], "_", " ")
		return m, err
	}
	if parts := repeatableName.FindStringSubmatch(name); parts != nil {
		m.description = strings.ReplaceAll(parts[1], "_", " ")
		return m, nil
	}
	return migration{}, fmt.Errorf("migration file %s/%s: want V<n>__lower_case_description.sql or R__lower_case_description.sql", s.dir, name)
}

// checkNumbers wants versions 1, 2, 3 … without a gap and without a double.
func checkNumbers(set string, all []migration) error {
	next := 1
	for _, m := range all {
		if m.repeatable() {
			continue
		}
		if m.version != next {
			return fmt.Errorf("migrations of %s: %s stands where version %d should: versions go up by one, without a gap or a double", set, m.script, next)
		}
		next++
	}
	return nil
}
