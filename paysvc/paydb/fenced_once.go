package paydb

import (
	"context"
	"errors"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"fenceline/lockd/lock"
	"fenceline/paysvc/payout"
)

// selectPayoutFence: 0 or 1 row.
const selectPayoutFence = `
SELECT a.account_id, a.fence FROM payout p JOIN account a ON a.account_id = p.account_id WHERE p.payout_id = $1`

// claimScope and postScope say which requests count as the same in fenced mode, and look at the fence before a stored answer is given out.
//
// A claim is good only while its token is above the fence, like the claim itself. A posting has set the fence to its own token, so its repetition is
// refused above that only; one by a later holder is the same request, since which rail transfer is posted doesn't depend on who posts it.
func (s *Fenced) claimScope(ctx context.Context, tx pgx.Tx, id uuid.UUID, token lock.Token) scope {
	return scope{perGrant: true, fence: func() error { return s.checkFence(ctx, tx, id, token, token-1) }}
}

func (s *Fenced) postScope(ctx context.Context, tx pgx.Tx, id uuid.UUID, token lock.Token) scope {
	return scope{fence: func() error { return s.checkFence(ctx, tx, id, token, token) }}
}

// checkFence refuses the token when the payout's account has a fence above highest.
func (s *Fenced) checkFence(ctx context.Context, tx pgx.Tx, id uuid.UUID, token, highest lock.Token) error {
	var account uuid.UUID
	var fence int64
	err := tx.QueryRow(ctx, s.sql.replay, id).Scan(&account, &fence)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return payout.ErrPayoutNotFound
	case err != nil:
		return err
	case lock.Token(fence) > highest:
		return &payout.FencedOutError{Guard: payout.GuardAccount, AccountID: account, Presented: token, Highest: lock.Token(fence)}
	}
	return nil
}
