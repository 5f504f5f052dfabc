package mark

import (
	"context"
	"errors"
	"time"

	"fenceline/lockd/lock"
)

// Row identifies an admitted request in the register of a store. It is above 0, and never used twice.
type Row int64

// Entry is an admission whose request stays registered until it is settled.
type Entry struct {
	Admission
	// Raise is the token that the mark is raised to: the admission's token, or one less for a barrier where each token is admitted once (such a
	// barrier must leave its own token to be used, and closes the door to all lower ones all the same, since those must be above the mark). The entry is admitted by
	// comparing Token with the mark as ever; the mark is then raised to Raise where it is lower. 0 raises nothing.
	Raise lock.Token
	Route string // for people
	Owner string // for people
}

// Registration is what a store answers to an entry.
type Registration struct {
	Decision
	Row Row // of an admitted entry
	// Older are the rows of this key with a lower token, unsettled ones too, as they were seen after the entry itself was registered and committed
	// for everybody to see. While any of them stands the request must not be forwarded.
	Older []Row
}

// Sight is what a look at the register and the mark finds, in that order: first the mark, then the rows.
type Sight struct {
	// Present means that the request's own row is there, isn't unsettled, and belongs to a life that wasn't declared dead.
	Present bool
	Mark    lock.Token // as it stands; 0 for none
	Older   []Row
}

// Pulse is what a heartbeat brings back.
type Pulse struct {
	// Lost means that this life was declared dead, or is gone: nothing may be sent under it that wasn't begun. The store must Begin anew.
	Lost bool
	// Own are all rows of this life that were registered longer ago than any registration can take: the time limit of one and 5 s at least. Those that the sidecar doesn't know belong to
	// registrations whose answer was lost: nothing was sent, so they are to be settled. One that was among them and isn't any more was settled by somebody else.
	Own []Row
}

// Standing is a row as people see it.
type Standing struct {
	Row         Row
	Guard, Key  string
	Token       lock.Token
	Life        string
	Sidecar     string
	Route       string
	Owner       string
	AdmittedAt  time.Time
	UnsettledAt time.Time // zero: its outcome isn't called unknown
}

// Faults of a register. Nothing may be forwarded after any of them.
var (
	// ErrBusy means that somebody else holds the key's row or lock for longer than an admission waits. Nothing was decided.
	ErrBusy = errors.New("the key is held by somebody else")
	// ErrSameID means that a sidecar of the same id is alive.
	ErrSameID = errors.New("another sidecar with this id is alive")
	// ErrOtherDefinition means that requests are in flight under another definition of the guard.
	ErrOtherDefinition = errors.New("requests are in flight under another definition of this guard")
	// ErrNoLife means that this sidecar has no life that the store knows: Begin didn't succeed yet, or the life was declared dead.
	ErrNoLife = errors.New("this sidecar isn't registered as alive")
)

// Register keeps the requests that were admitted and may still take effect, beside the marks. Every sidecar on the same store sees the rows of all.
type Register interface {
	// Begin starts a life of this sidecar, and refuses a second live one of the same id (ErrSameID) and guards that are in flight under another definition
	// (ErrOtherDefinition). What is left of the sidecar's former lives that are silent is unsettled from then on. It can be tried again after an error, and
	// after a Pulse that says Lost.
	Begin(ctx context.Context) error
	// Beat says that the life goes on, declares silent lives of others dead (their rows are unsettled from that moment, by the store's clock), and removes
	// what was unsettled for longer than its guard allows, where the guard says release.
	Beat(ctx context.Context) (Pulse, error)
	// Silence is how long a life may go without a heartbeat before others may declare it dead.
	Silence() time.Duration
	// End ends the life in order. Rows that are still there are unsettled from then on.
	End(ctx context.Context) error
	// Register compares, raises and registers in one atomic, durable step, and looks for older rows after it. An error means that the request wasn't admitted; a row
	// may have been left behind, which Beat finds.
	Register(ctx context.Context, e Entry) (Registration, error)
	// Look looks again, for a registered request that waits or was delayed. It raises nothing.
	Look(ctx context.Context, e Entry, row Row) (Sight, error)
	// Settle removes rows: their requests can have no further effect. A row that is gone already is no error.
	Settle(ctx context.Context, rows []Row) error
	// Unsettle records that the outcome of these requests is unknown from now on (the store's clock; a moment that is recorded already stays).
	Unsettle(ctx context.Context, rows []Row) error
	// Hints calls hint when rows of a key were settled by another life while somebody waits for the key, until ctx ends. Hints may be lost, and may come for
	// nothing.
	Hints(ctx context.Context, hint func(guard, key string))
	// Standing lists at most limit rows, the oldest first, of one guard or of all (guard is empty).
	Standing(ctx context.Context, guard string, limit int) ([]Standing, error)
	// SettleUnsettled removes one row on an operator's word, if its request is unsettled: one that is still under way can't be. found is false when there is no such
	// row.
	SettleUnsettled(ctx context.Context, row Row, operator, reason string) (found bool, err error)
}
