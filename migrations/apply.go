package migrations

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// What a database can be refused for, told apart with errors.Is. The texts say which file or version, and what to do.
var (
	// ErrChanged means that an applied file was edited since.
	ErrChanged = errors.New("an applied migration was changed")
	// ErrNewer means that a newer program has migrated this database.
	ErrNewer = errors.New("the database is newer than this program")
	// ErrOrder means that versions are missing in the history, or stand in another order.
	ErrOrder = errors.New("the history has a gap or another order")
	// ErrForeign means that the database is another program's, or that Flyway has done to it what only Flyway can go on with.
	ErrForeign = errors.New("the history isn't this program's")
	// ErrTarget means that there is no such version to go to.
	ErrTarget = errors.New("no such version")
)

// SQL returns every statement of the set in the order of its application, without the history table. A
// set that can't be read gives its error as an SQL comment; the embedded sets always can (a test reads them).
func SQL(set Set) string {
	text, err := SQLUpTo(set, 0)
	if err != nil {
		return "-- " + err.Error() + "\n"
	}
	return text
}

// SQLUpTo is SQL up to and with version target; 0 means all.
func SQLUpTo(set Set, target int) (string, error) {
	all, err := set.upTo(target)
	if err != nil {
		return "", err
	}
	return sqlOf(all), nil
}

// Apply brings the database up to date and returns the scripts that it applied. Each migration is one transaction
// together with its row in the history; a failing one leaves nothing and ends the run. Two runners at once apply each script once.
//
// It refuses, before changing anything, when an applied file was changed since (the error names the file and both checksums),
// when the history holds a version that this program doesn't have, has a gap, or a failed entry.
func Apply(ctx context.Context, conn *pgx.Conn, set Set) (applied []string, err error) {
	return ApplyUpTo(ctx, conn, set, 0)
}

// ApplyUpTo is Apply up to and with version target; 0 means all. Repeatable migrations may need the newest version, so they
// are applied only without a target. A database that is past the target stays as it is: nothing is ever undone.
func ApplyUpTo(ctx context.Context, conn *pgx.Conn, set Set, target int) (applied []string, err error) {
	all, err := set.load()
	if err != nil {
		return nil, err
	}
	if _, err := set.upTo(target); err != nil {
		return nil, err
	}
	if err := inTx(ctx, conn, set, func(tx pgx.Tx) error { return ensureHistory(ctx, tx, set) }); err != nil {
		return nil, fmt.Errorf("prepare history of %s: %w", set.name, err)
	}
	for {
		var script string
		err := inTx(ctx, conn, set, func(tx pgx.Tx) (err error) {
			script, err = applyNext(ctx, tx, set, all, target)
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
	return PendingUpTo(ctx, conn, set, 0)
}

// PendingUpTo returns the scripts that ApplyUpTo would apply.
func PendingUpTo(ctx context.Context, conn *pgx.Conn, set Set, target int) ([]string, error) {
	all, err := set.load()
	if err != nil {
		return nil, err
	}
	if _, err := set.upTo(target); err != nil {
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
	pending, err := plan(set, all, done, target)
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
func applyNext(ctx context.Context, tx pgx.Tx, set Set, all []migration, target int) (string, error) {
	done, err := readHistory(ctx, tx, set)
	if err != nil {
		return "", err
	}
	pending, err := plan(set, all, done, target)
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
