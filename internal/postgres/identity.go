package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Querier is what a check needs: a pool, a connection or a transaction.
type Querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// ErrNotDurable means that the server may forget a commit that it has confirmed.
var ErrNotDurable = errors.New("commits are not durable")

const durabilitySettings = `SELECT current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit')`

// CheckDurability refuses a server that could lose a confirmed commit in a crash: a
// token or a mark that goes back is silent and undoes every promise. The error names each
// setting.
func CheckDurability(ctx context.Context, q Querier) error {
	var fsync, fullPageWrites, syncCommit string
	if err := q.QueryRow(ctx, durabilitySettings).Scan(&fsync, &fullPageWrites, &syncCommit); err != nil {
		return fmt.Errorf("read durability settings: %w", Classify(ctx, err))
	}
	var bad []string
	if fsync != "on" {
		bad = append(bad, "fsync="+fsync)
	}
	if fullPageWrites != "on" {
		bad = append(bad, "full_page_writes="+fullPageWrites)
	}
	if syncCommit == "off" {
		bad = append(bad, "synchronous_commit="+syncCommit)
	}
	if len(bad) > 0 {
		return fmt.Errorf("%w: %s; set each to on for this database and role", ErrNotDurable, strings.Join(bad, ", "))
	}
	return nil
}

// Contract is the schema version window that a binary can work with.
type Contract struct {
	// Table is the one-row contract table, as "schema.table".
	Table pgx.Identifier
	// Name is the contract's name that the row must carry.
	Name string
	// Min and Max bound the version, both included.
	Min, Max int
}

// CheckContract reads the schema contract and refuses a version outside the window.
func CheckContract(ctx context.Context, q Querier, c Contract) error {
	var version int
	var name string
	err := q.QueryRow(ctx, "SELECT version, name FROM "+c.Table.Sanitize()).Scan(&version, &name)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return fmt.Errorf("%w: %s is empty; run the migrations", ErrSchema, c.Table.Sanitize())
	case err != nil:
		err = Classify(ctx, err)
		if errors.Is(err, ErrSchema) {
			return fmt.Errorf("no contract table %s; run the migrations: %w", c.Table.Sanitize(), err)
		}
		return fmt.Errorf("read schema contract: %w", err)
	case name != c.Name:
		return fmt.Errorf("%w: contract is %q, want %q: wrong database?", ErrSchema, name, c.Name)
	case version < c.Min || version > c.Max:
		return fmt.Errorf("%w: contract %s is at version %d, this binary works with %d to %d", ErrSchema, name, version, c.Min, c.Max)
	}
	return nil
}

// writability asks for both ways of taking no writes: a standby takes none, and a server whose default says so takes none either, which is how hosted
// servers protect themselves when their disk is nearly full.
const writability = `SELECT pg_catalog.pg_is_in_recovery(), current_setting('transaction_read_only') = 'on'`

// CheckWritable refuses a server that would answer reads and lose writes: one in recovery, or one whose transactions are read-only by default.
func CheckWritable(ctx context.Context, q Querier) error {
	var inRecovery, readOnly bool
	if err := q.QueryRow(ctx, writability).Scan(&inRecovery, &readOnly); err != nil {
		return fmt.Errorf("read recovery state: %w", Classify(ctx, err))
	}
	switch {
	case inRecovery:
		return fmt.Errorf("%w: the server is in recovery (a standby)", ErrReadOnly)
	case readOnly:
		return fmt.Errorf("%w: transactions are read-only by default (default_transaction_read_only)", ErrReadOnly)
	}
	return nil
}
