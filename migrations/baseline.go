package migrations

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// baselineText is what Flyway writes as description and script of a baseline.
const baselineText = "<< Flyway Baseline >>"

// Baseline begins the history of a schema that was made without one (by hand, from SQL's text, or from a dump that left the history out):
// versions up to and with version count as applied. It believes the operator; that the schema is whole is what a program's readiness checks.
//
// It refuses a version that this program doesn't have, a schema in which nothing stands, and a history that holds anything already.
func Baseline(ctx context.Context, conn *pgx.Conn, set Set, version int) error {
	if version == 0 {
		return fmt.Errorf("%w: a baseline is a version from 1 on", ErrTarget)
	}
	if _, err := set.upTo(version); err != nil {
		return err
	}
	return inTx(ctx, conn, set, func(tx pgx.Tx) error { return beginHistoryAt(ctx, tx, set, version) })
}

// countTables counts the tables in the set's schema, or in the default one. One row.
const countTables = `
SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p') AND n.nspname = coalesce(nullif($1, ''), current_schema()) AND c.relname <> 'flyway_schema_history'`

func beginHistoryAt(ctx context.Context, tx pgx.Tx, set Set, version int) error {
	var tables int
	if err := tx.QueryRow(ctx, countTables, set.schema).Scan(&tables); err != nil {
		return fmt.Errorf("look for tables of %s: %w", set.name, err)
	}
	if tables == 0 {
		return fmt.Errorf("%w: %s: there is no table, so nothing to take as version %d; run migrate without a baseline", ErrTarget, set.name, version)
	}
	if err := ensureHistory(ctx, tx, set); err != nil {
		return fmt.Errorf("prepare history of %s: %w", set.name, err)
	}
	done, err := readHistory(ctx, tx, set)
	if err != nil {
		return err
	}
	if len(done) > 0 {
		return fmt.Errorf("%w: %s: the history has %d rows already, so the database knows its version; run migrate without a baseline", ErrOrder, set.name, len(done))
	}
	table := set.history.Sanitize()
	_, err = tx.Exec(ctx, `
INSERT INTO `+table+` (installed_rank, version, description, type, script, installed_by, execution_time, success)
SELECT coalesce(max(installed_rank), 0) + 1, $1::int::text, $2, $3, $2, current_user, 0, true FROM `+table, version, baselineText, kindBaseline)
	if err != nil {
		return fmt.Errorf("record the baseline of %s: %w", set.name, err)
	}
	return nil
}
