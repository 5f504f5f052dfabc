package paydb

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"fenceline/lockd/lock"
	"fenceline/paysvc/payout"
)

// Fenced is the payment-resource's part of paydb in fenced mode: every write to a payout compares the token with what the account has
// seen. It runs under the role payapp_fenced. Its errors are those of payout where the answer is the domain's, else those of internal/postgres.
type Fenced struct {
	payments
	sql fencedStatements
}

// NewFenced returns the store. Postings credit the account clearing; timeout bounds each statement.
func NewFenced(pool *pgxpool.Pool, clearing uuid.UUID, timeout time.Duration) *Fenced {
	return &Fenced{payments: newPayments(pool, clearing, timeout), sql: newFencedStatements()}
}

// Claim moves the payout from the state that the caller expects to CLAIMED, stamps the holder, and shuts older tokens out of the
// account. Errors: payout.ErrPayoutNotFound, *payout.FencedOutError, *payout.NotClaimableError, *payout.InsufficientFundsError. With the
// last one a PENDING payout has become FAILED; with all others nothing has happened.
func (s *Fenced) Claim(ctx context.Context, id uuid.UUID, expected payout.State, holder payout.Holder) (payout.Payout, error) {
	var claimed payout.Payout
	var refused error // an answer, whose transaction commits
	err := s.inTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		refused = nil
		once := s.claimScope(ctx, tx, id, holder.Token)
		if done, err := once.begin(ctx, tx, holder.Request); done || err != nil {
			return err
		}
		var err error
		claimed, refused, err = s.claimIn(ctx, tx, id, expected, holder)
		if err != nil {
			return err
		}
		return finishClaim(ctx, tx, once, holder.Request, claimed, refused)
	})
	if err == nil {
		err = refused
	}
	return claimed, wrap("claim payout", err)
}

// claimIn is the whole effect of a claim. refused is an answer whose transaction commits, err one whose transaction rolls back.
func (s *Fenced) claimIn(ctx context.Context, tx pgx.Tx, id uuid.UUID, expected payout.State, holder payout.Holder) (claimed payout.Payout, refused, err error) {
	args := pgx.NamedArgs{
		"payout_id": id, "token": int64(holder.Token), "owner": holder.Owner, "expected": string(expected), "claimable": claimable(),
	}
	var account uuid.UUID
	err = tx.QueryRow(ctx, s.sql.raise, args).Scan(&account)
	if err == nil {
		claimed, err = queryPayout(ctx, tx, s.sql.claim, args)
	}
	if errors.Is(err, pgx.ErrNoRows) {
		refused, err = refuseFencedClaim(ctx, tx, id, expected, holder.Token)
	}
	return claimed, refused, err
}

// refuseFencedClaim tells why the claim found nothing, by one read and never by guessing.
func refuseFencedClaim(ctx context.Context, tx pgx.Tx, id uuid.UUID, expected payout.State, token lock.Token) (refused, err error) {
	found, err := diagnose(ctx, tx, diagnoseFencedClaim, id)
	if err != nil {
		return nil, err
	}
	_, notAllowed := payout.Next(found.payout.State, payout.Claim)
	switch {
	case found.fence >= token:
		return nil, found.fencedOut(payout.GuardAccount, token, found.fence)
	case found.payout.State != expected, notAllowed != nil:
		return nil, &payout.NotClaimableError{Payout: found.payout, Expected: expected}
	case found.payout.ClaimToken > token:
		return nil, found.fencedOut(payout.GuardAccount, token, found.payout.ClaimToken)
	case found.balance >= found.payout.Money.Minor:
		return nil, errChanged // money came in between the two statements
	}
	if _, err := payout.Next(found.payout.State, payout.RefuseFunds); err == nil {
		if found.payout, err = queryPayout(ctx, tx, failPayout, id); err != nil {
			return nil, fmt.Errorf("fail payout: %w", err)
		}
	}
	return &payout.InsufficientFundsError{Payout: found.payout, Balance: found.balance}, nil
}

// diagnosis is what the one read after a statement without a row finds.
type diagnosis struct {
	payout   payout.Payout
	balance  payout.Minor
	fence    lock.Token
	currency payout.Currency // the account's
}

func (d diagnosis) fencedOut(guard payout.Guard, presented, highest lock.Token) error {
	return &payout.FencedOutError{Guard: guard, AccountID: d.payout.AccountID, Presented: presented, Highest: highest}
}

// querier is a transaction, or something that reads outside of one.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

func diagnose(ctx context.Context, q querier, sql string, id uuid.UUID) (diagnosis, error) {
	rows, err := q.Query(ctx, sql, id)
	if err != nil {
		return diagnosis{}, err
	}
	return collectDiagnosis(rows)
}

// collectDiagnosis gives payout.ErrPayoutNotFound for no row.
func collectDiagnosis(rows pgx.Rows) (diagnosis, error) {
	found, err := pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (diagnosis, error) {
		var d diagnosis
		var err error
		d.payout, err = scanPayoutAnd(row, &d.balance, (*int64)(&d.fence), &d.currency)
		return d, err
	})
	return found, orNotFound(err, payout.ErrPayoutNotFound)
}
