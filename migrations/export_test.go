package migrations

import (
	"io/fs"

	"github.com/jackc/pgx/v5"
)

// SetOf is a set of other files, for the tests of the runner.
func SetOf(fsys fs.FS, dir string) Set {
	return Set{name: "test", fsys: fsys, dir: dir, history: pgx.Identifier{historyTable}}
}

// Checksum is checksum.
func Checksum(text string) int32 { return checksum(text) }

// Load reads a set's files and returns how many there are.
func Load(set Set) (int, error) {
	all, err := set.load()
	return len(all), err
}

// Newest is a set's highest version.
func Newest(set Set) int {
	all, err := set.load()
	if err != nil {
		return 0
	}
	return newest(all)
}
