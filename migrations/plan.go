package migrations

import (
	"errors"
	"fmt"
	"slices"
)

// upTo returns the migrations up to and with version target, or all for 0. With a target there are no repeatables.
func (s Set) upTo(target int) ([]migration, error) {
	all, err := s.load()
	if err != nil || target == 0 {
		return all, err
	}
	i := slices.IndexFunc(all, func(m migration) bool { return m.version == target })
	if i < 0 || target < 0 {
		return nil, fmt.Errorf("%w: %s has no version %d in this program, the newest is %d", ErrTarget, s.name, target, newest(all))
	}
	return all[:i+1], nil
}

// newest is the highest version, 0 for a set of repeatables only.
func newest(all []migration) (version int) {
	for _, m := range all {
		version = max(version, m.version)
	}
	return version
}

// plan compares files with history and returns what is to be applied, in order. target as for ApplyUpTo.
func plan(set Set, all []migration, done []historyRow, target int) ([]migration, error) {
	if err := checkHistory(set, all, done); err != nil {
		return nil, err
	}
	from := baseline(done)
	var pending []migration
	for _, m := range all {
		if target != 0 && (m.repeatable() || m.version > target) {
			continue
		}
		if !m.repeatable() && m.version <= from {
			continue // it was there before the history began
		}
		last, found := lastRun(done, m)
		if !found || m.repeatable() && last.checksum != m.checksum {
			pending = append(pending, m)
		}
	}
	return pending, nil
}

// baseline is the version that a schema had when its history began, 0 for one that began empty.
func baseline(done []historyRow) int {
	if i := slices.IndexFunc(done, func(r historyRow) bool { return r.kind == kindBaseline }); i >= 0 {
		return done[i].version
	}
	return 0
}

func lastRun(done []historyRow, m migration) (historyRow, bool) {
	for _, row := range slices.Backward(done) {
		if row.is(m) {
			return row, true
		}
	}
	return historyRow{}, false
}

// checkHistory refuses a database that these files can't have made.
func checkHistory(set Set, all []migration, done []historyRow) error {
	for _, row := range done {
		if i := slices.IndexFunc(all, row.is); i >= 0 && all[i].script != row.script {
			return fmt.Errorf("%w: %s: version %d in the database is %s, in this program %s: is this another program's database?", ErrForeign, set.name, row.version, row.script, all[i].script)
		}
	}
	var errs []error
	next := 1
	for _, row := range done {
		switch {
		case row.kind != kindSQL && row.kind != kindBaseline:
			errs = append(errs, fmt.Errorf("%w: %s: the history has a row of type %s (%s), which Flyway has written for a purpose of its own; go on with Flyway", ErrForeign, set.name, row.kind, row.script))
			continue
		case !row.success:
			errs = append(errs, fmt.Errorf("%s: the history says that %s failed; repair the database and remove that row", set.name, row.script))
		case row.kind == kindBaseline && next == 1:
			next = row.version + 1
			continue
		}
		if row.version == 0 && row.kind == kindSQL {
			continue
		}
		if row.version != next {
			errs = append(errs, fmt.Errorf("%w: %s: the history has version %d (%s) where version %d should stand", ErrOrder, set.name, row.version, row.script, next))
		}
		next = row.version + 1
		if row.kind == kindSQL {
			errs = append(errs, checkApplied(set, all, row))
		}
	}
	return errors.Join(errs...)
}

// checkApplied compares one version in the history with its file. Versions of files have no gap, so one without a file is newer.
func checkApplied(set Set, all []migration, row historyRow) error {
	i := slices.IndexFunc(all, row.is)
	switch {
	case i < 0 && newest(all) > 0: // a set of repeatables only shares another set's history
		return fmt.Errorf("%w: %s: the database has version %d (%s), which this program doesn't know (its newest is %d); use the newer program",
			ErrNewer, set.name, row.version, row.script, newest(all))
	case i >= 0 && all[i].checksum != row.checksum:
		return fmt.Errorf("%w: %s: %s was changed after it was applied: checksum %d in the database, %d in the file; restore the file and add a new version instead",
			ErrChanged, set.name, all[i].script, row.checksum, all[i].checksum)
	}
	return nil
}
