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
	"fenceline/paysvc/railproxy/submission"
)

// Rail is the rail-proxy's part of paydb in plain mode. It runs under the role railapp.
type Rail struct {
	pool *pgxpool.Pool
	tx   postgres.TxOptions
}

// NewRail returns the rail-proxy's store. timeout bounds each statement.
func NewRail(pool *pgxpool.Pool, timeout time.Duration) *Rail {
	return &Rail{pool: pool, tx: postgres.TxOptions{StatementTimeout: timeout, LockTimeout: timeout}}
}

// selectRailPayout: 0 or 1 row. What is read never changes in a payout's life, so no lock is needed.
const selectRailPayout = `SELECT payout_id, account_id, amount_minor, currency FROM payout WHERE payout_id = $1`

// Payout implements railproxy.Store.
func (r *Rail) Payout(ctx context.Context, id uuid.UUID) (payout.Payout, error) {
	var p payout.Payout
	err := r.pool.QueryRow(ctx, selectRailPayout, id).Scan(&p.ID, &p.AccountID, &p.Money.Minor, &p.Money.Currency)
	if errors.Is(err, pgx.ErrNoRows) {
		return p, payout.ErrPayoutNotFound
	}
	return p, postgres.Classify(ctx, err)
}

// insertSubmission: 0 or 1 row. An attempt that the payout has on record already (rail_submission_attempt_uidx) stays as it is: plain
// mode finds out about an earlier submission only here, after the money has moved. The transaction may run again with the same id.
const insertSubmission = `
INSERT INTO rail_submission (submission_id, payout_id, idempotency_key, presented_token, outcome, rail_reference, submitted_at, resolved_at)
VALUES ($1, $2, $3, $4, $5, NULLIF($6::text, ''), $7, $8)
ON CONFLICT (payout_id) WHERE outcome IS DISTINCT FROM 'FENCED' DO NOTHING
RETURNING submission_id`

// movePayout: 0 or 1 row. It names the state that it leaves, so only this one arrow of the state machine is taken and a terminal
// state stays terminal.
const movePayout = `UPDATE payout SET state = $3, updated_at = now() WHERE payout_id = $1 AND state = $2`

// selectPayoutState: 1 row. FOR UPDATE, since the state that is read decides which arrow is taken.
const selectPayoutState = `SELECT state FROM payout WHERE payout_id = $1 FOR UPDATE`

// Record implements railproxy.Store.
func (r *Rail) Record(ctx context.Context, s submission.Submission) (submission.Recorded, error) {
	var recorded submission.Recorded
	err := postgres.InTx(ctx, r.pool, r.tx, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, insertSubmission, s.ID, s.PayoutID, s.IdempotencyKey, int64(s.Token), string(s.Outcome),
			s.RailReference, s.SubmittedAt, s.ResolvedAt)
		if err != nil {
			return fmt.Errorf("insert submission: %w", err)
		}
		recorded = submission.Recorded{Inserted: tag.RowsAffected() > 0}
		recorded.Refused, err = advance(ctx, tx, s)
		return err
	})
	return recorded, err
}

// advance takes the payout through both steps that a submission with a known end has: submitted, then the outcome.
func advance(ctx context.Context, tx pgx.Tx, s submission.Submission) (*submission.RefusedTransition, error) {
	var state payout.State
	if err := tx.QueryRow(ctx, selectPayoutState, s.PayoutID).Scan(&state); err != nil {
		return nil, fmt.Errorf("read payout's state: %w", err)
	}
	ended, ok := s.Outcome.Event()
	if !ok {
		return nil, fmt.Errorf("a submission with outcome %q was never presented", s.Outcome)
	}
	for _, event := range []payout.Event{payout.Submit, ended} {
		next, err := payout.Next(state, event)
		if err != nil {
			return &submission.RefusedTransition{From: state, Event: event}, nil //nolint:nilerr // a normal outcome, for the caller to report
		}
		if _, err := tx.Exec(ctx, movePayout, s.PayoutID, state, next); err != nil {
			return nil, fmt.Errorf("move payout to %s: %w", next, err)
		}
		state = next
	}
	return nil, nil
}

// selectSubmissions: at most $2 rows. The attempt, of which a payout has at most one, comes first, so that no number of fenced ones can
// hide it.
const selectSubmissions = `
SELECT submission_id, payout_id, idempotency_key, presented_token, coalesce(outcome, ''), coalesce(rail_reference, ''), submitted_at, resolved_at
  FROM rail_submission
 WHERE payout_id = $1
 ORDER BY (outcome IS NOT DISTINCT FROM 'FENCED'), submitted_at DESC, submission_id
 LIMIT $2`

// Submissions implements railproxy.Store.
func (r *Rail) Submissions(ctx context.Context, payoutID uuid.UUID, limit int) ([]submission.Submission, error) {
	rows, err := r.pool.Query(ctx, selectSubmissions, payoutID, limit)
	if err != nil {
		return nil, fmt.Errorf("read submissions: %w", postgres.Classify(ctx, err))
	}
	list, err := pgx.CollectRows(rows, scanSubmission)
	if err != nil {
		return nil, fmt.Errorf("read submissions: %w", postgres.Classify(ctx, err))
	}
	return list, nil
}

func scanSubmission(row pgx.CollectableRow) (submission.Submission, error) {
	var s submission.Submission
	var token int64
	var outcome string
	var resolved *time.Time
	err := row.Scan(&s.ID, &s.PayoutID, &s.IdempotencyKey, &token, &outcome, &s.RailReference, &s.SubmittedAt, &resolved)
	s.Token, s.Outcome = lock.Token(token), submission.Outcome(outcome)
	if resolved != nil {
		s.ResolvedAt = *resolved
	}
	return s, err
}
