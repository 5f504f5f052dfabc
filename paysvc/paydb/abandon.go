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
)

// Abandonment is the operator's part of paydb: giving payouts up. It runs under the role payoperator.
type Abandonment struct {
	pool *pgxpool.Pool
	tx   postgres.TxOptions
}

// NewAbandonment returns the store. timeout bounds each statement.
func NewAbandonment(pool *pgxpool.Pool, timeout time.Duration) *Abandonment {
	return &Abandonment{pool: pool, tx: postgres.TxOptions{StatementTimeout: timeout, LockTimeout: timeout}}
}

// Payout returns the payout, or payout.ErrPayoutNotFound.
func (a *Abandonment) Payout(ctx context.Context, id uuid.UUID) (payout.Payout, error) {
	rows, err := a.pool.Query(ctx, selectPayout, id)
	if err != nil {
		return payout.Payout{}, fmt.Errorf("read payout: %w", postgres.Classify(ctx, err))
	}
	p, err := pgx.CollectExactlyOneRow(rows, scanPayout)
	return p, wrap("read payout", orNotFound(postgres.Classify(ctx, err), payout.ErrPayoutNotFound))
}

// selectPayoutToAbandon: 0 or 1 row. FOR UPDATE, since the state and the token that are read decide.
const selectPayoutToAbandon = selectPayout + ` FOR UPDATE`

// abandonPayout: 1 row, which selectPayoutToAbandon holds. It names the state that it leaves and compares the token once more: the operator's grant must be newer than the
// one under which the payout was claimed. The stamp is what payout_claimed_ck wants of a payout that was never claimed.
const abandonPayout = `
UPDATE payout p
   SET state = 'ABANDONED', claimed_by = $3, claim_token = $4, updated_at = now()
 WHERE p.payout_id = $1 AND p.state = $2 AND (p.claim_token IS NULL OR p.claim_token < $4)
RETURNING ` + payoutColumns

// insertAbandonment: 1 row affected.
const insertAbandonment = `
INSERT INTO payout_abandonment (payout_id, operator, reason, from_state, fencing_token) VALUES ($1, $2, $3, $4, $5)`

// Abandon moves the payout to ABANDONED under the operator's grant, and keeps operator and reason with it, in one transaction. Errors, with each of which nothing has
// happened: payout.ErrPayoutNotFound, *payout.WrongStateError, *payout.FencedOutError.
func (a *Abandonment) Abandon(ctx context.Context, id uuid.UUID, holder payout.Holder, reason string) (payout.Payout, error) {
	var abandoned payout.Payout
	err := postgres.InTx(ctx, a.pool, a.tx, func(ctx context.Context, tx pgx.Tx) error {
		found, err := queryPayout(ctx, tx, selectPayoutToAbandon, id)
		if err != nil {
			return orNotFound(err, payout.ErrPayoutNotFound)
		}
		if _, err := payout.Next(found.State, payout.Abandon); err != nil {
			return &payout.WrongStateError{Payout: found, Event: payout.Abandon}
		}
		if found.ClaimToken >= holder.Token {
			return &payout.FencedOutError{Guard: payout.GuardAccount, AccountID: found.AccountID, Presented: holder.Token, Highest: found.ClaimToken}
		}
		abandoned, err = queryPayout(ctx, tx, abandonPayout, id, found.State, holder.Owner, int64(holder.Token))
		if err != nil {
			return fmt.Errorf("abandon: %w", err)
		}
		_, err = tx.Exec(ctx, insertAbandonment, id, holder.Owner, reason, found.State, int64(holder.Token))
		return err
	})
	return abandoned, wrap("abandon payout", err)
}

// Check says whether this is paydb, at a version that the statements know.
func (a *Abandonment) Check(ctx context.Context) error {
	return errors.Join(postgres.CheckContract(ctx, a.pool, Contract()), postgres.CheckWritable(ctx, a.pool), postgres.CheckDurability(ctx, a.pool))
}
