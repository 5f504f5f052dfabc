package paydb

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"fenceline/internal/postgres"
	"fenceline/paysvc/payout"
	"fenceline/paysvc/railproxy/submission"
	"fenceline/paysvc/reconcile/finding"
)

// Reconciliation is the reconciler's part of paydb. It runs under the role reconcile. It wants a direct connection: the rail's transfers are kept in a temporary
// table, which belongs to a session.
type Reconciliation struct {
	pool *pgxpool.Pool
	tx   postgres.TxOptions
}

// NewReconciliation returns the store. timeout bounds each statement; those that compare everything take the longer the more there is.
func NewReconciliation(pool *pgxpool.Pool, timeout time.Duration) *Reconciliation {
	return &Reconciliation{pool: pool, tx: postgres.TxOptions{StatementTimeout: timeout, LockTimeout: timeout}}
}

// Check says whether this is paydb, at a version that the statements know.
func (r *Reconciliation) Check(ctx context.Context) error {
	return errors.Join(postgres.CheckContract(ctx, r.pool, Contract()), postgres.CheckWritable(ctx, r.pool))
}

// Look implements reconcile.Store. No transaction is open while the rail is asked; the comparison itself is one snapshot.
func (r *Reconciliation) Look(ctx context.Context, transfers func(add func([]finding.Transfer) error) error, limit int) (finding.Look, error) {
	conn, err := r.pool.Acquire(ctx)
	if err != nil {
		return finding.Look{}, fmt.Errorf("connect: %w", postgres.Classify(ctx, err))
	}
	defer conn.Release()
	defer func() {
		dropCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		_, _ = conn.Exec(dropCtx, dropTransfers) // a broken connection has lost it anyway
	}()
	if err := r.load(ctx, conn, transfers); err != nil {
		return finding.Look{}, fmt.Errorf("load the rail's transfers: %w", err)
	}
	look, err := r.compare(ctx, conn, limit)
	if err != nil {
		return look, fmt.Errorf("compare: %w", postgres.Classify(ctx, err))
	}
	return look, err
}

// load brings the rail's transfers into the temporary table, page by page.
func (r *Reconciliation) load(ctx context.Context, conn *pgxpool.Conn, transfers func(add func([]finding.Transfer) error) error) error {
	for _, sql := range []string{dropTransfers, createTransfers} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return postgres.Classify(ctx, err)
		}
	}
	columns := []string{"rail_reference", "client_reference", "payout_id", "amount_minor", "currency"}
	err := transfers(func(page []finding.Transfer) error {
		_, err := conn.CopyFrom(ctx, pgx.Identifier{"rail_transfer"}, columns, pgx.CopyFromSlice(len(page), func(i int) ([]any, error) {
			t := page[i]
			var id *uuid.UUID
			if parsed, err := payout.ParseID("clientReference", t.ClientReference); err == nil {
				id = &parsed
			}
			return []any{t.RailReference, t.ClientReference, id, int64(t.Money.Minor), string(t.Money.Currency)}, nil
		}))
		return postgres.Classify(ctx, err)
	})
	if err != nil {
		return err
	}
	for _, sql := range []string{indexTransfers, analyzeTransfers} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return postgres.Classify(ctx, err)
		}
	}
	return nil
}

// compare runs every statement on one snapshot.
func (r *Reconciliation) compare(ctx context.Context, conn *pgxpool.Conn, limit int) (look finding.Look, err error) {
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return look, err
	}
	defer func() {
		rollbackCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		_ = tx.Rollback(rollbackCtx)
	}()
	setup := &pgx.Batch{}
	postgres.QueueSetup(setup, r.tx)
	if err := tx.SendBatch(ctx, setup).Close(); err != nil {
		return look, err
	}
	err = tx.QueryRow(ctx, selectChecked).Scan(&look.At, &look.Checked.Payouts, &look.Checked.Submissions, &look.Checked.Transfers,
		&look.Checked.Entries, &look.Checked.Accounts, &look.Information.FencedSubmissions, &look.Information.AckedNotPosted,
		&look.Information.UndeliveredEvents, &look.Information.ParkedEvents)
	if err != nil {
		return look, err
	}
	if look.States, err = countStates(ctx, tx); err != nil {
		return look, err
	}
	if look.Totals, err = sumTotals(ctx, tx); err != nil {
		return look, err
	}
	found := map[finding.Class]finding.Discrepancies{}
	for _, d := range discrepancies() {
		if found[d.class], err = d.find(ctx, tx, limit); err != nil {
			return look, fmt.Errorf("%s: %w", d.class, err)
		}
	}
	for _, class := range finding.Classes() {
		look.Discrepancies = append(look.Discrepancies, found[class.Class])
	}
	return look, nil
}

func (d discrepancy) find(ctx context.Context, tx pgx.Tx, limit int) (finding.Discrepancies, error) {
	all := finding.Discrepancies{Class: d.class, Found: []finding.Found{}}
	rows, err := tx.Query(ctx, d.list(), limit)
	if err != nil {
		return all, err
	}
	var one finding.Found
	_, err = pgx.ForEachRow(rows, []any{&all.Count, &one.Subject, &one.Detail}, func() error {
		all.Found = append(all.Found, one)
		return nil
	})
	return all, err
}

func countStates(ctx context.Context, tx pgx.Tx) (map[string]int64, error) {
	states := map[string]int64{}
	for _, state := range payout.States() {
		states[string(state)] = 0
	}
	rows, err := tx.Query(ctx, selectStates)
	if err != nil {
		return nil, err
	}
	var state string
	var n int64
	_, err = pgx.ForEachRow(rows, []any{&state, &n}, func() error {
		states[state] = n
		return nil
	})
	return states, err
}

func sumTotals(ctx context.Context, tx pgx.Tx) ([]finding.Total, error) {
	rows, err := tx.Query(ctx, selectTotals)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (finding.Total, error) {
		var t finding.Total
		err := row.Scan(&t.Currency, (*string)(&t.TransferredMinor), (*string)(&t.DebitedMinor), (*string)(&t.OpenMinor))
		return t, err
	})
}

// Ambiguous implements reconcile.Store.
func (r *Reconciliation) Ambiguous(ctx context.Context, after uuid.UUID, limit int) ([]finding.Ambiguous, error) {
	rows, err := r.pool.Query(ctx, selectAmbiguous, after, limit)
	if err != nil {
		return nil, fmt.Errorf("list ambiguous payouts: %w", postgres.Classify(ctx, err))
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (finding.Ambiguous, error) {
		var a finding.Ambiguous
		var seconds float64
		err := row.Scan(&a.PayoutID, &a.Money.Minor, &a.Money.Currency, &seconds)
		a.Age = time.Duration(seconds * float64(time.Second))
		return a, err
	})
	if err != nil {
		return nil, fmt.Errorf("list ambiguous payouts: %w", postgres.Classify(ctx, err))
	}
	return list, nil
}

// errNoLongerAmbiguous: somebody else has decided, or the record isn't what an ambiguous payout's is.
var errNoLongerAmbiguous = errors.New("not ambiguous any more")

// Resolve implements reconcile.Store. The state machine's own arrow is taken under the payout's row lock, and the submission gets the outcome that the evidence shows, in one
// transaction: the executor then finds an acknowledged submission of a RAIL_ACKED payout, and posts it as any other.
func (r *Reconciliation) Resolve(ctx context.Context, e finding.Evidence) (moved bool, err error) {
	outcome := submission.Rejected
	if e.Event == payout.Acknowledge {
		outcome = submission.Acked
	}
	err = postgres.InTx(ctx, r.pool, r.tx, func(ctx context.Context, tx pgx.Tx) error {
		var state payout.State
		if err := tx.QueryRow(ctx, selectPayoutState, e.PayoutID).Scan(&state); err != nil {
			return fmt.Errorf("read state: %w", err)
		}
		next, err := payout.Next(state, e.Event)
		if err != nil || state != payout.RailAmbiguous {
			return errNoLongerAmbiguous
		}
		resolved, err := tx.Exec(ctx, resolveSubmission, e.PayoutID, outcome, e.RailReference)
		if err != nil {
			return fmt.Errorf("resolve submission: %w", err)
		}
		if resolved.RowsAffected() != 1 {
			return errNoLongerAmbiguous
		}
		if _, err := tx.Exec(ctx, movePayout, e.PayoutID, state, next); err != nil {
			return fmt.Errorf("move payout to %s: %w", next, err)
		}
		return nil
	})
	if errors.Is(err, errNoLongerAmbiguous) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("resolve payout %s: %w", e.PayoutID, err)
	}
	return true, nil
}
