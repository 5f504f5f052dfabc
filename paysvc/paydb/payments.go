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
	"fenceline/lockd/lock"
	"fenceline/paysvc/payout"
)

// payments is what both modes of the payment-resource do in the same way: reading, and creating a payout, which is under no grant. Its
// errors are those of payout where the answer is the domain's, else those of internal/postgres.
type payments struct {
	pool     *pgxpool.Pool
	clearing uuid.UUID
	tx       postgres.TxOptions
}

func newPayments(pool *pgxpool.Pool, clearing uuid.UUID, timeout time.Duration) payments {
	return payments{pool: pool, clearing: clearing, tx: postgres.TxOptions{StatementTimeout: timeout, LockTimeout: timeout}}
}

// Payout returns the payout, or payout.ErrPayoutNotFound.
func (s *payments) Payout(ctx context.Context, id uuid.UUID) (payout.Payout, error) {
	var found payout.Payout
	err := s.read(ctx, selectPayout, []any{id}, func(rows pgx.Rows) error {
		var err error
		found, err = pgx.CollectExactlyOneRow(rows, scanPayout)
		return orNotFound(err, payout.ErrPayoutNotFound)
	})
	return found, wrap("read payout", err)
}

// Payouts returns a page of payouts in the order (created_at, payout_id), and whether another one exists after it.
func (s *payments) Payouts(ctx context.Context, q payout.Query) (page []payout.Payout, more bool, err error) {
	var state *string
	if q.State != "" {
		state = (*string)(&q.State)
	}
	var after *time.Time
	var afterID *uuid.UUID
	if q.After != nil {
		after, afterID = &q.After.CreatedAt, &q.After.ID
	}
	err = s.read(ctx, listPayouts, []any{state, q.AccountID, after, afterID, q.Limit + 1}, func(rows pgx.Rows) error {
		page, err = pgx.CollectRows(rows, scanPayout)
		return err
	})
	if len(page) > q.Limit {
		page, more = page[:q.Limit], true
	}
	return page, more, wrap("list payouts", err)
}

// Account returns the account with the sum of its entries, or payout.ErrAccountNotFound.
func (s *payments) Account(ctx context.Context, id uuid.UUID) (payout.Account, error) {
	var a payout.Account
	err := s.read(ctx, selectAccount, []any{id}, func(rows pgx.Rows) error {
		var err error
		a, err = pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (payout.Account, error) {
			var a payout.Account
			err := row.Scan(&a.ID, &a.Balance.Currency, &a.Balance.Minor, &a.UpdatedAt, &a.LedgerSum)
			return a, err
		})
		return orNotFound(err, payout.ErrAccountNotFound)
	})
	return a, wrap("read account", err)
}

// Create makes a PENDING payout, or returns the one that was made under the same key (created is then false). Errors:
// payout.ErrIdempotencyConflict when that one is another, ErrAccountNotFound, ErrInvalid for a currency that isn't the account's and for
// the clearing account. A request that was answered before gives its first answer in d.Request.Replayed and no payout.
func (s *payments) Create(ctx context.Context, d payout.Draft) (p payout.Payout, created bool, err error) {
	if d.AccountID == s.clearing {
		return p, false, fmt.Errorf("%w: accountId: the clearing account pays nothing out", payout.ErrInvalid)
	}
	err = s.inTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		once := scope{}
		if done, err := once.begin(ctx, tx, d.Request); done || err != nil {
			return err
		}
		p, err = queryPayout(ctx, tx, insertPayout, d.ID, d.AccountID, d.Money.Minor, d.Money.Currency, d.IdempotencyKey)
		created = err == nil
		if errors.Is(err, pgx.ErrNoRows) { // made before there was a ledger of requests, or refused
			p, err = s.known(ctx, tx, d)
		}
		if err != nil {
			return err
		}
		return once.finish(ctx, tx, d.Request, p)
	})
	if err != nil {
		return payout.Payout{}, false, wrap("create payout", err)
	}
	return p, created, nil
}

// known tells why nothing was inserted.
func (s *payments) known(ctx context.Context, tx pgx.Tx, d payout.Draft) (payout.Payout, error) {
	existing, err := queryPayout(ctx, tx, selectPayoutByKey, d.IdempotencyKey)
	switch {
	case err == nil && d.Same(existing):
		return existing, nil
	case err == nil:
		return existing, payout.ErrIdempotencyConflict
	case !errors.Is(err, pgx.ErrNoRows):
		return existing, err
	}
	var currency payout.Currency
	err = tx.QueryRow(ctx, selectCurrency, d.AccountID).Scan(&currency)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return existing, payout.ErrAccountNotFound
	case err != nil:
		return existing, err
	case currency != d.Money.Currency:
		return existing, fmt.Errorf("%w: currency: the account is kept in %s", payout.ErrInvalid, currency)
	}
	return existing, errChanged
}

// errChanged means that what a statement stumbled over was gone when it was looked for: the transaction runs again, whole.
var errChanged = fmt.Errorf("%w: the rows changed between two statements", postgres.ErrSerialization)

// inTx runs fn in a transaction and gives amounts out of range their identity.
func (s *payments) inTx(ctx context.Context, fn func(ctx context.Context, tx pgx.Tx) error) error {
	return outOfRange(postgres.InTx(ctx, s.pool, s.tx, fn))
}

// read runs one query, bounded like a transaction's statements.
func (s *payments) read(ctx context.Context, sql string, args []any, collect func(pgx.Rows) error) error {
	batch := &pgx.Batch{}
	postgres.QueueSetup(batch, s.tx)
	batch.Queue(sql, args...)
	results := s.pool.SendBatch(ctx, batch)
	err := func() error {
		if _, err := results.Exec(); err != nil {
			return err
		}
		rows, err := results.Query()
		if err != nil {
			return err
		}
		return collect(rows)
	}()
	closeErr := results.Close()
	if err == nil {
		err = closeErr
	}
	return outOfRange(postgres.Classify(ctx, err))
}

// numericOutOfRange is the SQLSTATE of a BIGINT that would overflow.
const numericOutOfRange = "22003"

func outOfRange(err error) error {
	if postgres.State(err) == numericOutOfRange {
		return fmt.Errorf("%w: %w", payout.ErrOverflow, err)
	}
	return err
}

func wrap(doing string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return nil
}

func orNotFound(err, notFound error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return notFound
	}
	return err
}

func queryPayout(ctx context.Context, tx pgx.Tx, sql string, args ...any) (payout.Payout, error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return payout.Payout{}, err
	}
	return pgx.CollectExactlyOneRow(rows, scanPayout)
}

// scanPayout reads payoutColumns and whatever follows them into extra.
func scanPayout(row pgx.CollectableRow) (payout.Payout, error) { return scanPayoutAnd(row) }

func scanPayoutAnd(row pgx.CollectableRow, extra ...any) (payout.Payout, error) {
	var p payout.Payout
	var token int64
	err := row.Scan(append([]any{
		&p.ID, &p.AccountID, &p.Money.Minor, &p.Money.Currency, &p.State, &p.ClaimedBy, &token,
		&p.IdempotencyKey, &p.AttemptCount, &p.CreatedAt, &p.UpdatedAt,
	}, extra...)...)
	p.ClaimToken = lock.Token(token)
	return p, err
}
