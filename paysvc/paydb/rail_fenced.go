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

// FencedRail is the rail-proxy's part of paydb in fenced mode: a submission is admitted, with its intent on record, before anything is
// presented. It runs under the role railapp.
type FencedRail struct {
	*Rail
	sql railStatements
}

// NewFencedRail returns the rail-proxy's store. timeout bounds each statement.
func NewFencedRail(pool *pgxpool.Pool, timeout time.Duration) *FencedRail {
	return &FencedRail{Rail: NewRail(pool, timeout), sql: railStatements{advance: advanceMark, earlier: selectAttempt}}
}

// railStatements are the texts that a test may run wrong on purpose.
type railStatements struct {
	advance, earlier string
}

// advanceMark is (d) of C1 §1.6: 0 or 1 row. None means that a token at or above this one has submitted for the account. The < is
// strict: one grant, one submission. The row is locked to the transaction's end whether or not it changes, so admissions for
// one account come one after the other.
const advanceMark = `
INSERT INTO rail_high_water (account_id, highest_token, updated_at)
VALUES (@account_id, @token, now())
ON CONFLICT (account_id) DO UPDATE
   SET highest_token = EXCLUDED.highest_token,
       updated_at    = now()
 WHERE rail_high_water.highest_token < EXCLUDED.highest_token
RETURNING highest_token`

// selectMark: 1 row after advanceMark found none.
const selectMark = `SELECT highest_token FROM rail_high_water WHERE account_id = $1`

// selectAttempt: 0 or 1 row (rail_submission_attempt_uidx): the submission of this payout that was presented, or may have been.
const selectAttempt = `
SELECT submission_id, payout_id, idempotency_key, presented_token, coalesce(outcome, ''), coalesce(rail_reference, ''), submitted_at, resolved_at
  FROM rail_submission
 WHERE payout_id = $1 AND outcome IS DISTINCT FROM 'FENCED'`

// selectClaim: 1 row, held still, since what is read decides which arrow of the state machine is taken.
const selectClaim = `SELECT state, coalesce(claim_token, 0) FROM payout WHERE payout_id = $1 FOR NO KEY UPDATE`

// insertIntent: 1 row, without an outcome. A second attempt of the payout is 23505 on rail_submission_attempt_uidx.
const insertIntent = `
INSERT INTO rail_submission (submission_id, payout_id, idempotency_key, presented_token, submitted_at) VALUES ($1, $2, $3, $4, $5)`

// insertFenced: 1 row, for the audit. It is outside of rail_submission_attempt_uidx.
const insertFenced = `
INSERT INTO rail_submission (submission_id, payout_id, idempotency_key, presented_token, outcome, submitted_at, resolved_at)
VALUES ($1, $2, $3, $4, 'FENCED', $5, now())`

// resolveIntent: 0 or 1 row. None means that somebody has found evidence of the outcome meanwhile; that stays.
const resolveIntent = `
UPDATE rail_submission SET outcome = $2, rail_reference = NULLIF($3::text, ''), resolved_at = $4
 WHERE submission_id = $1 AND outcome IS NULL`

// Admit implements railproxy.FencedStore. What it refuses is a normal outcome whose transaction commits: the mark that was raised stays,
// and a fenced attempt is on record.
func (r *FencedRail) Admit(ctx context.Context, s submission.Submission, account uuid.UUID) (submission.Admission, error) {
	var admission submission.Admission
	err := postgres.InTx(ctx, r.pool, r.tx, func(ctx context.Context, tx pgx.Tx) error {
		var err error
		admission, err = r.admitIn(ctx, tx, s, account)
		return err
	})
	return admission, err
}

// admitIn is the whole effect of an admission, in this order: the token is above the mark and not below the claim, the payout has no earlier
// submission, its state allows one, and the intent is on record.
func (r *FencedRail) admitIn(ctx context.Context, tx pgx.Tx, s submission.Submission, account uuid.UUID) (submission.Admission, error) {
	var highest int64
	err := tx.QueryRow(ctx, r.sql.advance, pgx.NamedArgs{"account_id": account, "token": int64(s.Token)}).Scan(&highest)
	if errors.Is(err, pgx.ErrNoRows) {
		if err := tx.QueryRow(ctx, selectMark, account).Scan(&highest); err != nil {
			return submission.Admission{}, fmt.Errorf("read mark: %w", err)
		}
		return r.fence(ctx, tx, s, lock.Token(highest))
	}
	if err != nil {
		return submission.Admission{}, fmt.Errorf("advance mark: %w", err)
	}
	var state payout.State
	var claim int64
	if err := tx.QueryRow(ctx, selectClaim, s.PayoutID).Scan(&state, &claim); err != nil {
		return submission.Admission{}, fmt.Errorf("read payout: %w", err)
	}
	if lock.Token(claim) > s.Token {
		// A newer holder has claimed the payout and not submitted yet. The mark can't know of it; the payout does, and its
		// transitions never go back in their tokens.
		return r.fence(ctx, tx, s, lock.Token(claim))
	}
	earlier, err := r.attempt(ctx, tx, s.PayoutID)
	if err != nil || earlier != nil {
		return submission.Admission{Earlier: earlier}, err
	}
	next, err := payout.Next(state, payout.Submit)
	if err != nil {
		return submission.Admission{Refused: &submission.RefusedTransition{From: state, Event: payout.Submit}}, nil //nolint:nilerr // a normal outcome, for the caller to report
	}
	if _, err := tx.Exec(ctx, insertIntent, s.ID, s.PayoutID, s.IdempotencyKey, int64(s.Token), s.SubmittedAt); err != nil {
		return submission.Admission{}, fmt.Errorf("insert intent: %w", err)
	}
	if _, err := tx.Exec(ctx, movePayout, s.PayoutID, state, next); err != nil {
		return submission.Admission{}, fmt.Errorf("move payout to %s: %w", next, err)
	}
	return submission.Admission{}, nil
}

// fence puts the refused attempt on record.
func (r *FencedRail) fence(ctx context.Context, tx pgx.Tx, s submission.Submission, highest lock.Token) (submission.Admission, error) {
	first, err := r.attempt(ctx, tx, s.PayoutID)
	if err != nil {
		return submission.Admission{}, err
	}
	if _, err := tx.Exec(ctx, insertFenced, s.ID, s.PayoutID, s.IdempotencyKey, int64(s.Token), s.SubmittedAt); err != nil {
		return submission.Admission{}, fmt.Errorf("insert fenced submission: %w", err)
	}
	return submission.Admission{Fenced: &submission.FencedOut{Highest: highest, First: first}}, nil
}

// attempt returns the payout's submission that was presented or may have been, nil when there is none.
func (r *FencedRail) attempt(ctx context.Context, tx pgx.Tx, payoutID uuid.UUID) (*submission.Submission, error) {
	rows, err := tx.Query(ctx, r.sql.earlier, payoutID)
	if err != nil {
		return nil, fmt.Errorf("read earlier submission: %w", err)
	}
	found, err := pgx.CollectRows(rows, scanSubmission)
	if err != nil {
		return nil, fmt.Errorf("read earlier submission: %w", err)
	}
	if len(found) == 0 {
		return nil, nil
	}
	return &found[0], nil
}

// Resolve implements railproxy.FencedStore.
func (r *FencedRail) Resolve(ctx context.Context, s submission.Submission) (submission.Recorded, error) {
	var recorded submission.Recorded
	err := postgres.InTx(ctx, r.pool, r.tx, func(ctx context.Context, tx pgx.Tx) error {
		var err error
		recorded, err = resolveIn(ctx, tx, s)
		return err
	})
	return recorded, err
}

// resolveIn is the whole effect of an outcome.
func resolveIn(ctx context.Context, tx pgx.Tx, s submission.Submission) (submission.Recorded, error) {
	var state payout.State
	if err := tx.QueryRow(ctx, selectPayoutState, s.PayoutID).Scan(&state); err != nil {
		return submission.Recorded{}, fmt.Errorf("read payout's state: %w", err)
	}
	tag, err := tx.Exec(ctx, resolveIntent, s.ID, string(s.Outcome), s.RailReference, s.ResolvedAt)
	if err != nil {
		return submission.Recorded{}, fmt.Errorf("record outcome: %w", err)
	}
	recorded := submission.Recorded{Inserted: tag.RowsAffected() > 0}
	if !recorded.Inserted {
		return recorded, nil
	}
	recorded.Refused, err = step(ctx, tx, s, state, s.Outcome)
	return recorded, err
}

// step takes the payout through the event that the outcome is.
func step(ctx context.Context, tx pgx.Tx, s submission.Submission, state payout.State, outcome submission.Outcome) (*submission.RefusedTransition, error) {
	event, ok := outcome.Event()
	if !ok {
		return nil, fmt.Errorf("a submission with outcome %q was never presented", outcome)
	}
	next, err := payout.Next(state, event)
	if err != nil {
		return &submission.RefusedTransition{From: state, Event: event}, nil //nolint:nilerr // a normal outcome, for the caller to report
	}
	if _, err := tx.Exec(ctx, movePayout, s.PayoutID, state, next); err != nil {
		return nil, fmt.Errorf("move payout to %s: %w", next, err)
	}
	return nil, nil
}

// checkFencedRailRole: 1 row. The rights that fenced mode's statements need.
const checkFencedRailRole = checkRailRole + `
   AND has_table_privilege('rail_high_water', 'SELECT') AND has_table_privilege('rail_high_water', 'INSERT')
   AND has_column_privilege('rail_high_water', 'highest_token', 'UPDATE') AND has_column_privilege('rail_submission', 'outcome', 'UPDATE')`

// Check is Rail's, with the rights that fenced mode needs.
func (r *FencedRail) Check(ctx context.Context) error { return r.check(ctx, checkFencedRailRole) }
