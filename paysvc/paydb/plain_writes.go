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

// Plain is the payment-resource's part of paydb in plain mode. It runs under the role payapp. Its errors are those of payout where
// the answer is the domain's, else those of internal/postgres.
type Plain struct{ payments }

// NewPlain returns the store. Postings credit the account clearing; timeout bounds each statement.
func NewPlain(pool *pgxpool.Pool, clearing uuid.UUID, timeout time.Duration) *Plain {
	return &Plain{newPayments(pool, clearing, timeout)}
}

// balanceCheck is the constraint that keeps a balance from going below zero (C1 §1.5).
const balanceCheck = "account_balance_ck"

// Claim moves the payout from the state that the caller expects to CLAIMED and stamps the holder. Errors: payout.ErrPayoutNotFound,
// *payout.NotClaimableError, *payout.InsufficientFundsError. With the last one a PENDING payout has become FAILED; a CLAIMED
// one stays as it is, since the state machine has no way from CLAIMED to FAILED.
func (s *Plain) Claim(ctx context.Context, id uuid.UUID, expected payout.State, holder payout.Holder) (payout.Payout, error) {
	var claimed payout.Payout
	var refused error // an answer, whose transaction commits
	err := s.inTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		refused = nil
		once := scope{perGrant: true}
		if done, err := once.begin(ctx, tx, holder.Request); done || err != nil {
			return err
		}
		var err error
		claimed, err = queryPayout(ctx, tx, claimPayout, id, holder.Owner, int64(holder.Token), expected, claimable())
		if errors.Is(err, pgx.ErrNoRows) {
			refused, err = refuseClaim(ctx, tx, id, expected)
		}
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

// claimable are the states from which the state machine lets a payout be claimed.
func claimable() []string {
	var states []string
	for _, state := range payout.From(payout.Claim) {
		states = append(states, string(state))
	}
	return states
}

// refuseClaim tells why the claim found nothing, by one read and never by guessing.
func refuseClaim(ctx context.Context, tx pgx.Tx, id uuid.UUID, expected payout.State) (refused, err error) {
	rows, err := tx.Query(ctx, diagnoseClaim, id)
	if err != nil {
		return nil, err
	}
	var balance payout.Minor
	current, err := pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (payout.Payout, error) {
		return scanPayoutAnd(row, &balance)
	})
	if err != nil {
		return nil, orNotFound(err, payout.ErrPayoutNotFound)
	}
	_, notAllowed := payout.Next(current.State, payout.Claim)
	switch {
	case current.State != expected, notAllowed != nil:
		return &payout.NotClaimableError{Payout: current, Expected: expected}, nil
	case balance >= current.Money.Minor:
		return nil, errChanged // money came in between the two statements
	}
	if _, err := payout.Next(current.State, payout.RefuseFunds); err == nil {
		if current, err = queryPayout(ctx, tx, failPayout, id); err != nil {
			return nil, fmt.Errorf("fail payout: %w", err)
		}
	}
	return &payout.InsufficientFundsError{Payout: current, Balance: balance}, nil
}

// Post debits the payer and credits the clearing account in one transaction, then inserts both legs and sets POSTED in another: the
// ordinary carelessness of an application that trusts its lock. Neither transaction asks for the payout's state or compares the token,
// and legs that are there already are taken for its own. So a second posting, by a holder whose lease is over, debits a second
// time and leaves a balance that differs from the sum of its entries; a failure between the two leaves a debit without legs, which
// is payout.ErrPostingIncomplete. A sidecar keeps the first from happening; nothing here does.
//
// Other errors: payout.ErrPayoutNotFound, ErrInsufficientFunds, ErrOverflow: nothing has happened.
func (s *Plain) Post(ctx context.Context, id uuid.UUID, holder payout.Holder) (payout.Posting, error) {
	moved, done, err := s.moveMoneyOnce(ctx, id, holder)
	if done || err != nil {
		return payout.Posting{}, wrap("post payout: move money", err)
	}
	posting, err := s.writeLegs(ctx, id, moved, holder)
	if err != nil {
		return payout.Posting{}, fmt.Errorf("post payout: %w: %w", payout.ErrPostingIncomplete, err)
	}
	return posting, nil
}

// postScope: the request is remembered under its grant only, so that a holder's own repetition is posted once, and another holder's posting is as
// careless as ever.
func postScope() scope { return scope{perGrant: true} }

// unansweredPause is how long a repetition waits before it looks again whether the first one has been answered.
const unansweredPause = 20 * time.Millisecond

// moveMoneyOnce is moveMoney, unless the request was made before: then it waits for that one's answer, for as long as a statement may take. Without an
// answer the first one was cut off after its debit.
func (s *Plain) moveMoneyOnce(ctx context.Context, id uuid.UUID, holder payout.Holder) (m movement, done bool, err error) {
	deadline := time.Now().Add(s.tx.StatementTimeout)
	for {
		m, done, err = s.moveMoney(ctx, id, holder)
		if !errors.Is(err, errUnanswered) {
			return m, done, err
		}
		if time.Now().After(deadline) {
			return m, false, fmt.Errorf("%w: %w", payout.ErrPostingIncomplete, err)
		}
		select {
		case <-time.After(unansweredPause):
		case <-ctx.Done():
			return m, false, fmt.Errorf("%w: %w", payout.ErrPostingIncomplete, context.Cause(ctx))
		}
	}
}

// movement is what the first transaction of a posting did.
type movement struct {
	payer   uuid.UUID
	amount  payout.Minor
	balance payout.Minor // the payer's, afterwards
}

// moveMoney is the first transaction of a posting. It writes the request down with the debit; the second one adds the answer.
func (s *Plain) moveMoney(ctx context.Context, id uuid.UUID, holder payout.Holder) (m movement, done bool, err error) {
	err = s.inTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if done, err = postScope().begin(ctx, tx, holder.Request); done || err != nil {
			return err
		}
		var currency payout.Currency
		err := tx.QueryRow(ctx, debitPayer, id).Scan(&m.payer, &m.balance, &m.amount, &currency)
		switch _, constraint := postgres.Constraint(err); {
		case constraint == balanceCheck:
			return fmt.Errorf("%w: %w", payout.ErrInsufficientFunds, err)
		case err != nil:
			return orNotFound(err, payout.ErrPayoutNotFound)
		}
		var balance payout.Minor
		err = tx.QueryRow(ctx, creditClearing, s.clearing, m.amount, currency).Scan(&balance)
		if errors.Is(err, pgx.ErrNoRows) {
			return fmt.Errorf("%w: the clearing account %s isn't there in %s", errClearing, s.clearing, currency)
		}
		return err
	})
	return m, done, err
}

func (s *Plain) writeLegs(ctx context.Context, id uuid.UUID, m movement, holder payout.Holder) (payout.Posting, error) {
	var posting payout.Posting
	legs := []struct {
		entry, account uuid.UUID
		direction      payout.Direction
	}{
		{uuid.New(), m.payer, payout.Debit},
		{uuid.New(), s.clearing, payout.Credit},
	}
	err := s.inTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		for _, leg := range legs {
			if _, err := tx.Exec(ctx, insertLeg, leg.entry, id, leg.account, leg.direction, m.amount, int64(holder.Token)); err != nil {
				return fmt.Errorf("insert %s leg: %w", leg.direction, err)
			}
		}
		var err error
		if posting.Payout, err = queryPayout(ctx, tx, markPosted, id); err != nil {
			return fmt.Errorf("mark payout as posted: %w", err)
		}
		if posting.Entries, err = readLegs(ctx, tx, id); err != nil {
			return err
		}
		posting.Balance = m.balance
		return postScope().finish(ctx, tx, holder.Request, posting)
	})
	return posting, err
}

func readLegs(ctx context.Context, tx pgx.Tx, id uuid.UUID) ([]payout.Entry, error) {
	rows, err := tx.Query(ctx, selectLegs, id)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanLeg)
}

func scanLeg(row pgx.CollectableRow) (payout.Entry, error) {
	var e payout.Entry
	err := row.Scan(&e.ID, &e.PayoutID, &e.AccountID, &e.Direction, &e.Minor, (*int64)(&e.Fence), &e.CreatedAt)
	return e, err
}
