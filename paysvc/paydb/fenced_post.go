package paydb

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"fenceline/internal/postgres"
	"fenceline/lockd/lock"
	"fenceline/paysvc/payout"
)

// legConstraint makes a leg unique in its payout (C1 §1.5).
const legConstraint = "ledger_leg_uq"

// postAttempts bounds how often a posting starts over because what refused it was gone when it was looked for.
const postAttempts = 5

// What ended a posting's transaction, to be classified by the read that follows the rollback.
var (
	errNoDebit      = errors.New("(a) found no row")
	errLegThere     = errors.New("(b) found the leg there")
	errNoTransition = errors.New("(c) found no row")
)

// Post debits the payer, credits the clearing account, writes both legs and sets POSTED, in one transaction: all of it or nothing. When the
// payout has been posted by another holder that is success as well, with Already set.
//
// Errors, with each of which nothing has happened: payout.ErrPayoutNotFound, ErrOverflow, *payout.FencedOutError, *payout.InsufficientFundsError,
// *payout.WrongStateError.
func (s *Fenced) Post(ctx context.Context, id uuid.UUID, holder payout.Holder) (payout.Posting, error) {
	var err error
	for range postAttempts {
		var posting payout.Posting
		err = s.inTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
			once := s.postScope(ctx, tx, id, holder.Token)
			if done, err := once.begin(ctx, tx, holder.Request); done || err != nil {
				return err
			}
			var err error
			if posting, err = s.postIn(ctx, tx, id, holder); err != nil {
				return err
			}
			return once.finish(ctx, tx, holder.Request, posting)
		})
		if errors.Is(err, errNoDebit) || errors.Is(err, errLegThere) || errors.Is(err, errNoTransition) {
			posting, err = s.refusePosting(ctx, id, holder.Token, err)
		}
		if !errors.Is(err, errChanged) {
			return posting, wrap("post payout", err)
		}
	}
	return payout.Posting{}, fmt.Errorf("post payout: gave up after %d attempts: %w", postAttempts, err)
}

// postIn is the whole effect of a posting: (a), (b) and (c) of C1 §1.6. Any error rolls all of it back.
func (s *Fenced) postIn(ctx context.Context, tx pgx.Tx, id uuid.UUID, holder payout.Holder) (payout.Posting, error) {
	var posting payout.Posting
	p, err := queryPayout(ctx, tx, selectPayout, id) // account and money never change, so no lock is needed
	if err != nil {
		return posting, orNotFound(err, payout.ErrPayoutNotFound)
	}
	token := int64(holder.Token)
	var fence int64
	err = tx.QueryRow(ctx, s.sql.debit, pgx.NamedArgs{
		"account_id": p.AccountID, "amount_minor": int64(p.Money.Minor), "currency": string(p.Money.Currency), "token": token,
	}).Scan(&posting.Balance, &fence)
	if err != nil {
		return posting, as(err, errNoDebit)
	}
	if err := s.legIn(ctx, tx, p, p.AccountID, payout.Debit, holder.Token); err != nil {
		return posting, err
	}
	// The clearing account belongs to no lock: it only receives, from everybody, so no token is compared or stamped for it here.
	var clearing payout.Minor
	if err := tx.QueryRow(ctx, creditClearing, s.clearing, p.Money.Minor, p.Money.Currency).Scan(&clearing); err != nil {
		return posting, as(err, fmt.Errorf("%w: the clearing account %s isn't there in %s", errClearing, s.clearing, p.Money.Currency))
	}
	if err := s.legIn(ctx, tx, p, s.clearing, payout.Credit, holder.Token); err != nil {
		return posting, err
	}
	var state payout.State
	if err := tx.QueryRow(ctx, s.sql.transition, pgx.NamedArgs{"payout_id": id, "token": token}).Scan(&state); err != nil {
		return posting, as(err, errNoTransition)
	}
	if posting.Payout, err = queryPayout(ctx, tx, selectPayout, id); err != nil {
		return posting, fmt.Errorf("read posted payout: %w", err)
	}
	posting.Entries, err = readLegs(ctx, tx, id)
	return posting, err
}

// legIn writes one leg. No row means that the fence is past the token, whatever moved it: the fence is read for the answer, and everything
// is rolled back.
func (s *Fenced) legIn(ctx context.Context, tx pgx.Tx, p payout.Payout, account uuid.UUID, direction payout.Direction, token lock.Token) error {
	var entry uuid.UUID
	err := tx.QueryRow(ctx, s.sql.leg, pgx.NamedArgs{
		"entry_id": uuid.New(), "payout_id": p.ID, "account_id": account, "direction": string(direction),
		"amount_minor": int64(p.Money.Minor), "token": int64(token),
	}).Scan(&entry)
	code, constraint := postgres.Constraint(err)
	switch {
	case err == nil:
		return nil
	case code == postgres.UniqueViolation && constraint == legConstraint:
		return fmt.Errorf("%w: %w", errLegThere, err)
	case !errors.Is(err, pgx.ErrNoRows):
		return fmt.Errorf("insert %s leg: %w", direction, err)
	}
	var fence int64
	if err := tx.QueryRow(ctx, selectFence, account).Scan(&fence); err != nil {
		return fmt.Errorf("read fence: %w", err)
	}
	return &payout.FencedOutError{Guard: payout.GuardLedger, AccountID: account, Presented: token, Highest: lock.Token(fence)}
}

// as gives an error another identity when it means that there was no row.
func as(err, noRow error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return noRow
	}
	return err
}

// refusePosting tells why a posting, which is rolled back by now, was refused: by one read and never by guessing. The order of the
// questions matters: a stale holder is told so whatever else is true, and what is POSTED was done by somebody with the right to.
// Both facts stay true once they are, so reading them after the rollback can't make them wrong.
func (s *Fenced) refusePosting(ctx context.Context, id uuid.UUID, token lock.Token, ended error) (payout.Posting, error) {
	found := diagnosis{}
	if err := s.read(ctx, diagnoseFenced, []any{id}, func(rows pgx.Rows) (err error) {
		found, err = collectDiagnosis(rows)
		return err
	}); err != nil {
		return payout.Posting{}, err
	}
	p := found.payout
	switch {
	case errors.Is(ended, errNoDebit) && found.fence >= token:
		return payout.Posting{}, found.fencedOut(payout.GuardAccount, token, found.fence)
	case p.State == payout.Posted:
		return s.already(ctx, found)
	case found.fence >= token:
		return payout.Posting{}, found.fencedOut(payout.GuardAccount, token, found.fence)
	case p.State != payout.RailAcked:
		return payout.Posting{}, &payout.WrongStateError{Payout: p, Event: payout.Post}
	case p.ClaimToken > token:
		return payout.Posting{}, found.fencedOut(payout.GuardLedger, token, p.ClaimToken)
	case found.currency != p.Money.Currency:
		return payout.Posting{}, fmt.Errorf("%w: the payout is in %s, its account in %s", payout.ErrCurrency, p.Money.Currency, found.currency)
	case errors.Is(ended, errLegThere):
		return payout.Posting{}, fmt.Errorf("the ledger has legs of payout %s, which is %s: the tables contradict each other; reconcile", id, p.State)
	case found.balance < p.Money.Minor:
		// The state machine has no way from RAIL_ACKED to FAILED: the rail has paid. The payout stays, for an operator to fund the account.
		return payout.Posting{}, &payout.InsufficientFundsError{Payout: p, Balance: found.balance}
	}
	return payout.Posting{}, errChanged
}

// already is the answer to a posting that another holder has finished.
func (s *Fenced) already(ctx context.Context, found diagnosis) (payout.Posting, error) {
	posting := payout.Posting{Payout: found.payout, Balance: found.balance, Already: true}
	err := s.read(ctx, selectLegs, []any{found.payout.ID}, func(rows pgx.Rows) (err error) {
		posting.Entries, err = pgx.CollectRows(rows, scanLeg)
		return err
	})
	return posting, err
}
