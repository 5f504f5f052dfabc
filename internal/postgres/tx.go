package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// TxOptions bound a transaction. The limits are set inside it, since a
// transaction-mode pooler refuses start-up parameters and shares sessions.
type TxOptions struct {
	// StatementTimeout ends a single statement; 0 means 5 s. It also ends a transaction whose client is silent for as long
	// between two statements: a process that is stopped there must not keep its locks from everybody else.
	StatementTimeout time.Duration
	// LockTimeout ends a wait for a row or advisory lock; 0 means 2 s.
	LockTimeout time.Duration
	// Attempts is how often the whole transaction may run when it loses against a
	// concurrent one (40001, 40P01); 0 means 5. The function must be safe to run again.
	Attempts int
}

// setupTx makes the transaction's commit durable whatever the role's or the database's
// default is, and bounds every wait in it. set_config(…, true) is SET LOCAL
// as a query, so it goes into a pipeline with the statements that follow.
const setupTx = `
SELECT set_config('synchronous_commit', CASE WHEN current_setting('synchronous_commit') IN ('off', 'local') THEN 'on' ELSE current_setting('synchronous_commit') END, true),
       set_config('statement_timeout', $1, true),
       set_config('idle_in_transaction_session_timeout', $1, true),
       set_config('lock_timeout', $2, true)`

// QueueSetup puts the transaction's settings at the head of a batch that runs as one
// implicit transaction (one pipeline, one Sync).
func QueueSetup(b *pgx.Batch, opts TxOptions) {
	b.Queue(setupTx, Millis(orDefault(opts.StatementTimeout, 5*time.Second)), Millis(orDefault(opts.LockTimeout, 2*time.Second)))
}

// Millis writes a time limit as the server's settings take it, at least a millisecond.
func Millis(d time.Duration) string { return fmt.Sprintf("%dms", max(d.Milliseconds(), 1)) }

// InTx runs fn in one READ COMMITTED transaction and commits durably. fn's error
// rolls back and is returned classified. A transaction that lost against a
// concurrent one is run again, whole, up to Attempts times. An error during the commit itself
// is ErrOutcomeUnknown unless the server said that it rolled back.
func InTx(ctx context.Context, pool *pgxpool.Pool, opts TxOptions, fn func(ctx context.Context, tx pgx.Tx) error) error {
	attempts := orDefault(opts.Attempts, 5)
	var err error
	for i := range attempts {
		if i > 0 && !pause(ctx, i) {
			return Classify(ctx, err)
		}
		err = once(ctx, pool, opts, fn)
		if !errors.Is(err, ErrSerialization) {
			return err
		}
	}
	return fmt.Errorf("gave up after %d attempts: %w", attempts, err)
}

func once(ctx context.Context, pool *pgxpool.Pool, opts TxOptions, fn func(ctx context.Context, tx pgx.Tx) error) error {
	tx, err := pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return fmt.Errorf("begin: %w", Classify(ctx, err))
	}
	defer func() {
		// The rollback must reach the server also when the caller has given up. After a commit it does nothing.
		rollbackCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		_ = tx.Rollback(rollbackCtx)
	}()
	setup := &pgx.Batch{}
	QueueSetup(setup, opts)
	if err := tx.SendBatch(ctx, setup).Close(); err != nil {
		return fmt.Errorf("set up transaction: %w", Classify(ctx, err))
	}
	if err := fn(ctx, tx); err != nil {
		return Classify(ctx, err)
	}
	return commit(ctx, tx)
}

// idleInTransaction is the SQLSTATE with which the server has ended a transaction before it read our commit.
const idleInTransaction = "25P03"

func commit(ctx context.Context, tx pgx.Tx) error {
	err := tx.Commit(ctx)
	if err == nil {
		return nil
	}
	classified := Classify(ctx, err)
	if code, _ := Constraint(err); code != "" || State(err) == idleInTransaction || errors.Is(classified, ErrSerialization) || errors.Is(err, pgx.ErrTxCommitRollback) {
		return fmt.Errorf("commit: %w", classified) // the server answered: it was rolled back
	}
	return fmt.Errorf("commit: %w: %w", ErrOutcomeUnknown, classified)
}

// pause waits before another attempt, a little longer each time; false when ctx ended.
func pause(ctx context.Context, attempt int) bool {
	timer := time.NewTimer(time.Duration(attempt*attempt) * 5 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
