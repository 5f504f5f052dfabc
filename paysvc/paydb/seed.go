package paydb

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"fenceline/internal/postgres"
	"fenceline/paysvc/payout"
)

// Opening is a synthetic account to be opened with a balance. The balance is a ledger row like any other: one CREDIT leg under a
// synthetic payout that is POSTED from the start, so that every balance equals the sum of its entries from the first row on.
type Opening struct {
	AccountID uuid.UUID
	PayoutID  uuid.UUID
	EntryID   uuid.UUID
	Balance   payout.Money
}

// The statements of seeding, 0 or 1 row each: what is there already stays as it is, so seeding twice changes nothing. The synthetic
// payout of an opening and its leg carry token 1, below every token that matters.
const (
	seedAccount = `
INSERT INTO account (account_id, currency, balance_minor) VALUES ($1, $2, $3) ON CONFLICT (account_id) DO NOTHING`
	seedOpening = `
INSERT INTO payout (payout_id, account_id, amount_minor, currency, state, claimed_by, claim_token, idempotency_key)
VALUES ($1, $2, $3, $4, 'POSTED', 'seed', 1, 'opening-balance:' || $2::uuid::text) ON CONFLICT (payout_id) DO NOTHING`
	seedOpeningLeg = `
INSERT INTO ledger_entry (entry_id, payout_id, account_id, direction, amount_minor, fence)
VALUES ($1, $2, $3, 'CREDIT', $4, 1) ON CONFLICT (payout_id, account_id, direction) DO NOTHING`
	seedPayout = `
INSERT INTO payout (payout_id, account_id, amount_minor, currency, idempotency_key)
VALUES ($1, $2, $3, $4, $5) ON CONFLICT (payout_id) DO NOTHING`
)

// seeded: 0 to len($1) rows, in the order of the given ids.
const seeded = `
SELECT ` + payoutColumns + `
  FROM unnest($1::uuid[]) WITH ORDINALITY AS wanted (payout_id, place) JOIN payout p USING (payout_id)
 ORDER BY wanted.place`

// seedBatch bounds how many statements travel together.
const seedBatch = 1000

// Seed opens the accounts, and the clearing account with an empty balance, creates the payouts, and returns them as they now stand, in the
// order given. All of it happens or none; what exists already stays as it is.
func (s *Plain) Seed(ctx context.Context, clearing payout.Currency, openings []Opening, drafts []payout.Draft) ([]payout.Payout, error) {
	var found []payout.Payout
	ids := make([]uuid.UUID, 0, len(drafts))
	queue := &pgx.Batch{}
	queue.Queue(seedAccount, s.clearing, clearing, 0)
	for _, o := range openings {
		queue.Queue(seedAccount, o.AccountID, o.Balance.Currency, o.Balance.Minor)
		queue.Queue(seedOpening, o.PayoutID, o.AccountID, o.Balance.Minor, o.Balance.Currency)
		queue.Queue(seedOpeningLeg, o.EntryID, o.PayoutID, o.AccountID, o.Balance.Minor)
	}
	for _, d := range drafts {
		ids = append(ids, d.ID)
		queue.Queue(seedPayout, d.ID, d.AccountID, d.Money.Minor, d.Money.Currency, d.IdempotencyKey)
	}
	err := s.inTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if err := sendInParts(ctx, tx, queue); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, seeded, ids)
		if err != nil {
			return err
		}
		found, err = pgx.CollectRows(rows, scanPayout)
		return err
	})
	if code, constraint := postgres.Constraint(err); code == postgres.UniqueViolation {
		return nil, fmt.Errorf("seed: data that wasn't seeded is in the way (%s); choose another --seed: %w", constraint, err)
	}
	return found, wrap("seed", err)
}

func sendInParts(ctx context.Context, tx pgx.Tx, queue *pgx.Batch) error {
	for from := 0; from < queue.Len(); from += seedBatch {
		part := &pgx.Batch{QueuedQueries: queue.QueuedQueries[from:min(from+seedBatch, queue.Len())]}
		if err := tx.SendBatch(ctx, part).Close(); err != nil {
			return errors.Join(err, ctx.Err())
		}
	}
	return nil
}
