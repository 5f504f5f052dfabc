package migrations

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// SQL returns every statement of the set in the order of its application, without the history table. A
// set that can't be read gives its error as an SQL comment; the embedded sets always can (a test reads them).
func SQL(set Set) string {
	all, err := set.load()
	if err != nil {
		return "-- " + err.Error() + "\n"
	}
	return sqlOf(all)
}

// Apply brings the database up to date and returns the scripts that it applied. Each migration is one transaction
// together with its row in the history; a failing one leaves nothing and ends the run. Two runners at once apply each script once.
//
// It refuses, before changing anything, when an applied file was changed since (the error names the file and both checksums),
// when the history holds a version that this program doesn't have, has a gap, or a failed entry.
func Apply(ctx context.Context, conn *pgx.Conn, set Set) (applied []string, err error) {
	all, err := set.load()
	if err != nil {
		return nil, err
	}
	if err := inTx(ctx, conn, set, func(tx pgx.Tx) error { return ensureHistory(ctx, tx, set) }); err != nil {
		return nil, fmt.Errorf("prepare history of %s: %w", set.name, err)
	}
	for {
		var script string
		err := inTx(ctx, conn, set, func(tx pgx.Tx) (err error) {
			script, err = applyNext(ctx, tx, set, all)
			return err
		})
		if err != nil {
			return applied, err
		}
		if script == "" {
			return applied, nil
		}
		applied = append(applied, script)
	}
}

// Pending returns the scripts that Apply would apply, and changes nothing. It refuses what Apply refuses.
func Pending(ctx context.Context, conn *pgx.Conn, set Set) ([]string, error) {
	all, err := set.load()
	if err != nil {
		return nil, err
	}
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{AccessMode: pgx.ReadOnly})
	if err != nil {
		return nil, fmt.Errorf("look at history of %s: %w", set.name, err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	exists, err := historyExists(ctx, tx, set)
	if err != nil {
		return nil, err
	}
	var done []historyRow
	if exists {
		if done, err = readHistory(ctx, tx, set); err != nil {
			return nil, err
		}
	}
	pending, err := plan(set, all, done)
	scripts := make([]string, 0, len(pending))
	for _, m := range pending {
		scripts = append(scripts, m.script)
	}
	return scripts, err
}

// lockKey serialises runners. It is transaction-scoped, so it is safe behind a pooler and gone when a runner dies.
const lockKey = `SELECT pg_advisory_xact_lock(hashtextextended('fenceline migrations ' || current_database(), 0))`

func inTx(ctx context.Context, conn *pgx.Conn, set Set, fn func(pgx.Tx) error) error {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer func() {
		rollbackCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = tx.Rollback(rollbackCtx)
	}()
	if _, err := tx.Exec(ctx, lockKey); err != nil {
		return fmt.Errorf("wait for other runners of %s: %w", set.name, err)
	}
	if err := fn(tx); err != nil {
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// applyNext applies the first pending migration and returns its script, or "" when nothing is pending. The history is
// read again each time, under the lock: another runner may have been faster.
func applyNext(ctx context.Context, tx pgx.Tx, set Set, all []migration) (string, error) {
	done, err := readHistory(ctx, tx, set)
	if err != nil {
		return "", err
	}
	pending, err := plan(set, all, done)
	if err != nil || len(pending) == 0 {
		return "", err
	}
	m := pending[0]
	start := time.Now()
	// Without arguments pgx sends the whole file as one simple query: several statements, one transaction.
	if _, err := tx.Conn().PgConn().Exec(ctx, m.sql).ReadAll(); err != nil {
		return "", fmt.Errorf("migration %s of %s failed and left nothing: %w", m.script, set.name, err)
	}
	if err := record(ctx, tx, set, m, time.Since(start)); err != nil {
		return "", err
	}
	return m.script, nil
}

// plan compares files with history and returns what is to be applied, in order.
func plan(set Set, all []migration, done []historyRow) ([]migration, error) {
	if err := checkHistory(set, all, done); err != nil {
		return nil, err
	}
	var pending []migration
	for _, m := range all {
		last, found := lastRun(done, m)
		if !found || m.repeatable() && last.checksum != m.checksum {
			pending = append(pending, m)
		}
	}
	return pending, nil
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
	var errs []error
	next := 1
	for _, row := range done {
		if i := slices.IndexFunc(all, row.is); i >= 0 && all[i].script != row.script {
			return fmt.Errorf("%s: version %d in the database is %s, in this program %s: is this another program's database?", set.name, row.version, row.script, all[i].script)
		}
	}
	for _, row := range done {
		if !row.success {
			errs = append(errs, fmt.Errorf("%s: the history says that %s failed; repair the database and remove that row", set.name, row.script))
		}
		if row.version == 0 {
			continue
		}
		if row.version != next {
			errs = append(errs, fmt.Errorf("%s: the history has version %d (%s) where version %d should stand", set.name, row.version, row.script, next))
		}
		next = row.version + 1
		i := slices.IndexFunc(all, row.is)
		switch {
		case i < 0 && set.hasVersions(all):
			errs = append(errs, fmt.Errorf("%s: the database has version %d (%s), which this program doesn't know; use the newer program", set.name, row.version, row.script))
		case i >= 0 && all[i].checksum != row.checksum:
			errs = append(errs, fmt.Errorf("%s: %s was changed after it was applied: checksum %d in the database, %d in the file; restore the file and add a new version instead",
				set.name, all[i].script, row.checksum, all[i].checksum))
		}
	}
	return errors.Join(errs...)
}

// hasVersions is false for a set of repeatables only, which shares another set's history.
func (s Set) hasVersions(all []migration) bool {
	return slices.ContainsFunc(all, func(m migration) bool { return !m.repeatable() })
}
