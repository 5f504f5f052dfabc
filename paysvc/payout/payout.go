package payout

import (
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"fenceline/lockd/lock"
)

// Payout is one payment to be made from an account.
type Payout struct {
	ID             uuid.UUID
	AccountID      uuid.UUID
	Money          Money
	State          State
	ClaimedBy      string     // empty while nobody has claimed it
	ClaimToken     lock.Token // 0 while nobody has claimed it
	IdempotencyKey string
	AttemptCount   int
	CreatedAt      time.Time
	UpdatedAt      time.Time
}

// Direction is a leg's side of the ledger.
type Direction string

// The directions: a DEBIT takes from the account, a CREDIT gives to it.
const (
	Debit  Direction = "DEBIT"
	Credit Direction = "CREDIT"
)

// Entry is one leg in the ledger.
type Entry struct {
	ID        uuid.UUID
	PayoutID  uuid.UUID
	AccountID uuid.UUID
	Direction Direction
	Minor     Minor
	Fence     lock.Token // the token of the grant under which the leg was written
	CreatedAt time.Time
}

// Account is an account with its balance and the sum of its ledger entries, credits less debits. The two are equal unless
// something went wrong.
type Account struct {
	ID        uuid.UUID
	Balance   Money
	LedgerSum Minor
	UpdatedAt time.Time
}

// Holder is who writes: the worker, the token of its grant, and the request that it writes with.
type Holder struct {
	Owner   string
	Token   lock.Token
	Request *Request // nil when nobody would repeat it
}

// Posting is what posting a payout came to.
type Posting struct {
	Payout  Payout
	Balance Minor   // the payer's, after the debit
	Entries []Entry // the payout's legs, the DEBIT first
	// Already is true when the payout had been posted before, and nothing was done now. Only fenced mode can tell.
	Already bool
}

// Draft is a payout to be created.
type Draft struct {
	ID             uuid.UUID // used unless the idempotency key is known already
	AccountID      uuid.UUID
	Money          Money
	IdempotencyKey string
	Request        *Request // nil when nobody would repeat it
}

// Same says whether the payout is what the draft asks for.
func (d Draft) Same(p Payout) bool { return p.AccountID == d.AccountID && p.Money == d.Money }

// OpeningKeyPrefix begins the idempotency keys of the synthetic payouts whose one leg is an account's opening balance. No client may use it,
// since these are the only legs without a counterpart.
const OpeningKeyPrefix = "opening-balance:"

// Position is a place in the order (created_at, payout_id).
type Position struct {
	CreatedAt time.Time // to the microsecond, as PostgreSQL keeps it
	ID        uuid.UUID
}

// Query selects payouts in the order (created_at, payout_id).
type Query struct {
	State     State         // "" for every state
	AccountID uuid.NullUUID // not valid for every account
	After     *Position     // nil from the beginning
	Limit     int
}

// NotClaimableError means that the payout isn't in the state that the claim expects, or that this state can't be claimed.
type NotClaimableError struct {
	Payout   Payout
	Expected State
}

func (e *NotClaimableError) Error() string {
	return fmt.Sprintf("the payout is %s, the claim expects %s", e.Payout.State, e.Expected)
}

// InsufficientFundsError means that the account can't cover the payout. It is ErrInsufficientFunds with what was compared.
type InsufficientFundsError struct {
	Payout  Payout
	Balance Minor
}

func (e *InsufficientFundsError) Error() string {
	return fmt.Sprintf("%s: the balance is %d, the payout %d", ErrInsufficientFunds, e.Balance, e.Payout.Money.Minor)
}

// Unwrap gives the identity.
func (e *InsufficientFundsError) Unwrap() error { return ErrInsufficientFunds }

// Guard names a place where tokens are compared. The values are those of the label resource of lock_fenced_out_total.
type Guard string

// The guards of fenced mode.
const (
	GuardAccount Guard = "account" // account.fence, or the payout's claim
	GuardLedger  Guard = "ledger"  // the legs, or the payout's last transition
	GuardRail    Guard = "rail"    // rail_high_water, or the payout's claim
)

// FencedOutError means that a newer token than the presented one has been seen: the holder's lease is over, and nothing was done. It is
// ErrFencedOut with what was compared. Never repeat the call, neither under this token nor under a fresh one.
type FencedOutError struct {
	Guard     Guard
	AccountID uuid.UUID
	Presented lock.Token
	Highest   lock.Token // never below Presented
}

func (e *FencedOutError) Error() string {
	return fmt.Sprintf("%s: token %d was presented for %s %s, the highest seen is %d", ErrFencedOut, e.Presented, e.Guard, e.AccountID, e.Highest)
}

// Unwrap gives the identity.
func (e *FencedOutError) Unwrap() error { return ErrFencedOut }

// WrongStateError means that the payout's state doesn't allow the event. It is ErrTransition with the payout as it was found; nothing was done.
type WrongStateError struct {
	Payout Payout
	Event  Event
}

func (e *WrongStateError) Error() string {
	return fmt.Sprintf("%s: the payout is %s, which %s doesn't start from", ErrTransition, e.Payout.State, e.Event)
}

// Unwrap gives the identity.
func (e *WrongStateError) Unwrap() error { return ErrTransition }

// Ways in which a call can fail. Callers branch on these with errors.Is.
var (
	// ErrInvalid means that a value given from outside isn't acceptable; the text names it.
	ErrInvalid = errors.New("invalid")
	// ErrPayoutNotFound means that there is no such payout.
	ErrPayoutNotFound = errors.New("no such payout")
	// ErrAccountNotFound means that there is no such account.
	ErrAccountNotFound = errors.New("no such account")
	// ErrFencedOut means that a newer token has been seen.
	ErrFencedOut = errors.New("fenced out")
	// ErrInsufficientFunds means that the account can't cover the amount.
	ErrInsufficientFunds = errors.New("insufficient funds")
	// ErrIdempotencyConflict means that the key was used before, for another request.
	ErrIdempotencyConflict = errors.New("idempotency key was used for another request")
	// ErrCurrency means that two currencies were mixed.
	ErrCurrency = errors.New("currencies differ")
	// ErrOverflow means that an amount would leave the range of 64 bits.
	ErrOverflow = errors.New("amount out of range")
	// ErrPostingIncomplete means that the payer has been debited, but that the ledger's legs weren't written. Only plain mode,
	// which posts in two transactions, can end like this.
	ErrPostingIncomplete = errors.New("debited, but the ledger entries aren't written")
)

const (
	maxOwner = 64
	maxText  = 128
	idLength = 36
)

// ParseID reads a UUID in its common form, 8-4-4-4-12 hexadecimal digits; name stands in the error. Other spellings that UUID libraries
// take (braces, urn:, no hyphens) are refused: one thing has one name.
func ParseID(name, text string) (uuid.UUID, error) {
	if len(text) != idLength {
		return uuid.UUID{}, errID(name)
	}
	id, err := uuid.Parse(text)
	if err != nil {
		return uuid.UUID{}, errID(name)
	}
	return id, nil
}

func errID(name string) error {
	return fmt.Errorf("%w: %s: want a UUID such as 7f3e2d1c-0000-4000-8000-000000000000", ErrInvalid, name)
}

// ValidOwner checks an owner's name: 1 to 64 characters.
func ValidOwner(name, text string) error { return validText(name, text, maxOwner) }

// ValidText checks an opaque text, such as a key or a reference: 1 to 128 characters.
func ValidText(name, text string) error { return validText(name, text, maxText) }

// validText wants UTF-8 without control characters: such text can be stored, logged and shown.
func validText(name, text string, most int) error {
	if !utf8.ValidString(text) {
		return fmt.Errorf("%w: %s: want UTF-8", ErrInvalid, name)
	}
	if n := utf8.RuneCountInString(text); n < 1 || n > most {
		return fmt.Errorf("%w: %s: want 1 to %d characters", ErrInvalid, name, most)
	}
	for _, r := range text {
		if r < ' ' || (r >= 0x7f && r < 0xa0) {
			return fmt.Errorf("%w: %s: control characters are not allowed", ErrInvalid, name)
		}
	}
	return nil
}
