package paydb

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"fenceline/lockd/lock"
	"fenceline/paysvc/payout"
)

// The request ledger makes a write take effect once. Its row is the first thing that the effect's transaction writes, under the primary key
// (operation, key): of requests that come at once one inserts it, and the others wait there until that one has committed, and then read its
// answer, or has rolled back, and then it is their turn. A transaction takes one such row, and before any other, so that two never wait
// for each other.

// insertRequest: 0 or 1 row affected. None means that the key is known; a concurrent transaction with the same key has ended by then.
const insertRequest = `
INSERT INTO request_ledger (operation, key, subject, token, fingerprint) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (operation, key) DO NOTHING`

// selectRequest: 0 or 1 row. FOR UPDATE, since what is read decides whether the row is taken over.
const selectRequest = `
SELECT subject, token, fingerprint, coalesce(status, 0), response FROM request_ledger WHERE operation = $1 AND key = $2 FOR UPDATE`

// takeOverRequest: 1 row affected; selectRequest holds it.
const takeOverRequest = `
UPDATE request_ledger SET token = $3, fingerprint = $4, status = NULL, response = NULL, updated_at = now() WHERE operation = $1 AND key = $2`

// answerRequest: 1 row affected in the transaction that began the request. In plain mode's second transaction none when another grant has taken
// the row over in between; that one's answer isn't touched.
const answerRequest = `
UPDATE request_ledger SET status = $3, response = $4, updated_at = now() WHERE operation = $1 AND key = $2 AND fingerprint = $5`

// scope says which requests count as the same.
type scope struct {
	// perGrant makes the same request under another grant another request, which takes the row over. Claims are like this: the key stays the
	// same for the payout's whole life, and a later holder's claim must neither be answered with the earlier one's nor be refused.
	perGrant bool
	// fence, when not nil, refuses a token that is older than the newest that was seen. It is asked as soon as a row is found, hence before any
	// stored answer is given out.
	fence func() error
}

// errUnanswered means that the request has begun in another transaction and isn't answered. Only plain mode's posting can be found like this.
var errUnanswered = errors.New("the same request is under way, or was cut off between its two transactions")

// begin writes the request down. done is true when it had its effect before; r.Replayed is then its first answer, and the caller does nothing.
// Errors: payout.ErrIdempotencyConflict, errUnanswered, and those of the fence.
func (s scope) begin(ctx context.Context, tx pgx.Tx, r *payout.Request) (done bool, err error) {
	if r == nil {
		return false, nil
	}
	r.Replayed = nil
	fingerprint := r.Fingerprint(s.perGrant)
	inserted, err := tx.Exec(ctx, insertRequest, r.Operation, r.Key, r.Subject, int64(r.Token), fingerprint)
	if err != nil {
		return false, fmt.Errorf("insert request: %w", err)
	}
	if inserted.RowsAffected() == 1 {
		return false, nil
	}
	var subject string
	var token int64
	var known []byte
	var answer payout.Answer
	err = tx.QueryRow(ctx, selectRequest, r.Operation, r.Key).Scan(&subject, &token, &known, &answer.Status, &answer.Body)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return false, errChanged // rows are never deleted, so this is somebody's hand
	case err != nil:
		return false, fmt.Errorf("read request: %w", err)
	}
	if s.fence != nil {
		if err := s.fence(); err != nil {
			return false, err
		}
	}
	switch {
	case string(known) == string(fingerprint) && answer.Status == 0:
		return false, errUnanswered
	case string(known) == string(fingerprint):
		r.Replayed = &answer
		return true, nil
	case !s.perGrant || subject != r.Subject || lock.Token(token) == r.Token:
		return false, payout.ErrIdempotencyConflict
	}
	if _, err := tx.Exec(ctx, takeOverRequest, r.Operation, r.Key, int64(r.Token), fingerprint); err != nil {
		return false, fmt.Errorf("take request over: %w", err)
	}
	return false, nil
}

// finish keeps the answer to what the request came to.
func (s scope) finish(ctx context.Context, tx pgx.Tx, r *payout.Request, result any) error {
	if r == nil {
		return nil
	}
	answer, err := r.Render(result)
	if err != nil {
		return fmt.Errorf("render answer: %w", err)
	}
	if _, err := tx.Exec(ctx, answerRequest, r.Operation, r.Key, answer.Status, answer.Body, r.Fingerprint(s.perGrant)); err != nil {
		return fmt.Errorf("keep answer: %w", err)
	}
	return nil
}

// finishClaim keeps the answer to a claim: that the payout is claimed, or that it has failed for lack of funds. Any other refusal has changed nothing; as the
// transaction's error it takes the request's row back as well.
func finishClaim(ctx context.Context, tx pgx.Tx, once scope, r *payout.Request, claimed payout.Payout, refused error) error {
	var funds *payout.InsufficientFundsError
	switch {
	case refused == nil:
		return once.finish(ctx, tx, r, claimed)
	case errors.As(refused, &funds) && funds.Payout.State == payout.Failed:
		return once.finish(ctx, tx, r, funds)
	}
	return refused
}
