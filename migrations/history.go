package migrations

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// historyRow is one line of flyway_schema_history, as far as it matters here.
type historyRow struct {
	kind     string // Flyway's type
	version  int    // 0 for a repeatable
	script   string
	checksum int32
	success  bool
}

// Flyway's types of rows that this program writes. An SQL row is a migration; a baseline says which version a schema had when its history began.
const (
	kindSQL      = "SQL"
	kindBaseline = "BASELINE"
)

// is says whether the row records this migration.
func (r historyRow) is(m migration) bool {
	if r.kind != kindSQL {
		return false
	}
	if m.repeatable() {
		return r.version == 0 && r.script == m.script
	}
	return r.version == m.version
}

// createHistory is the table as Flyway makes it, so that Flyway can go on with it.
const createHistory = `
CREATE TABLE IF NOT EXISTS %[1]s (
    installed_rank INTEGER                NOT NULL,
    version        CHARACTER VARYING(50),
    description    CHARACTER VARYING(200) NOT NULL,
    type           CHARACTER VARYING(20)  NOT NULL,
    script         CHARACTER VARYING(1000) NOT NULL,
    checksum       INTEGER,
    installed_by   CHARACTER VARYING(100) NOT NULL,
    installed_on   TIMESTAMP WITHOUT TIME ZONE NOT NULL DEFAULT now(),
    execution_time INTEGER                NOT NULL,
    success        BOOLEAN                NOT NULL,
    CONSTRAINT flyway_schema_history_pk PRIMARY KEY (installed_rank)
)`

const createHistoryIndex = `CREATE INDEX IF NOT EXISTS flyway_schema_history_s_idx ON %s (success)`

func ensureHistory(ctx context.Context, tx pgx.Tx, set Set) error {
	exists, err := historyExists(ctx, tx, set)
	if err != nil || exists {
		return err
	}
	if set.schema != "" {
		if _, err := tx.Exec(ctx, "CREATE SCHEMA IF NOT EXISTS "+pgx.Identifier{set.schema}.Sanitize()); err != nil {
			return fmt.Errorf("create schema %s: %w", set.schema, err)
		}
	}
	for _, statement := range []string{createHistory, createHistoryIndex} {
		if _, err := tx.Exec(ctx, fmt.Sprintf(statement, set.history.Sanitize())); err != nil {
			return fmt.Errorf("create history table: %w", err)
		}
	}
	return nil
}

func historyExists(ctx context.Context, tx pgx.Tx, set Set) (bool, error) {
	var exists bool
	if err := tx.QueryRow(ctx, "SELECT to_regclass($1) IS NOT NULL", set.history.Sanitize()).Scan(&exists); err != nil {
		return false, fmt.Errorf("look for the history of %s: %w", set.name, err)
	}
	return exists, nil
}

// readHistory returns the rows in the order of their application, but for Flyway's note that it has created the schema itself.
func readHistory(ctx context.Context, tx pgx.Tx, set Set) ([]historyRow, error) {
	rows, err := tx.Query(ctx, "SELECT type, version, script, checksum, success FROM "+set.history.Sanitize()+" WHERE type <> 'SCHEMA' ORDER BY installed_rank")
	if err != nil {
		return nil, fmt.Errorf("read history of %s: %w", set.name, err)
	}
	history, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (historyRow, error) {
		var h historyRow
		var version *string
		var checksum *int32
		if err := row.Scan(&h.kind, &version, &h.script, &checksum, &h.success); err != nil {
			return h, err
		}
		if checksum != nil {
			h.checksum = *checksum
		}
		if version != nil {
			n, err := strconv.Atoi(*version)
			if err != nil {
				return h, fmt.Errorf("version %q isn't a whole number", *version)
			}
			h.version = n
		}
		return h, nil
	})
	if err != nil {
		return nil, fmt.Errorf("read history of %s: %w", set.name, err)
	}
	return history, nil
}

func record(ctx context.Context, tx pgx.Tx, set Set, m migration, took time.Duration) error {
	table := set.history.Sanitize()
	_, err := tx.Exec(ctx, `
INSERT INTO `+table+` (installed_rank, version, description, type, script, checksum, installed_by, execution_time, success)
SELECT coalesce(max(installed_rank), 0) + 1, $1, $2, 'SQL', $3, $4, current_user, $5, true FROM `+table,
		m.nullableVersion(), m.description, m.script, m.checksum, took.Milliseconds())
	if err != nil {
		return fmt.Errorf("record %s in the history: %w", m.script, err)
	}
	return nil
}
