package lock

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// Store keeps sessions and grants and is the only one who judges expiry, by its own
// clock. Every method is one atomic step, durable when it returns without error. Besides the errors named at each
// method, all return ErrUnavailable when nothing happened because the store can't be used, the writing ones
// ErrUnknownOutcome when the answer to a change was lost, and all an error of no identity for a defect of the deployment (a missing
// permission, another schema).
type Store interface {
	// OpenSession creates a session.
	OpenSession(ctx context.Context, ownerID string, ttl time.Duration) (Session, error)
	// Heartbeat extends a live session by its own time to live and counts its grants. It returns ErrSessionUnknown
	// or ErrSessionExpired.
	Heartbeat(ctx context.Context, id uuid.UUID) (session Session, held int, now time.Time, err error)
	// CloseSession ends a session and all its grants, and returns those that it ended itself: a reaper that comes between may have ended some of them. It
	// returns ErrSessionUnknown.
	CloseSession(ctx context.Context, id uuid.UUID) ([]Ended, error)

	// Insert grants the key when it is free, expired, held under a dead session, or held by
	// the same session (which then gets a new, higher token). Tokens of one key increase in
	// the order of grants. It returns ErrSessionUnknown or ErrSessionExpired for a session that isn't live, and ErrInvalid
	// for an owner that isn't the session's.
	Insert(ctx context.Context, key, ownerID string, session uuid.UUID, ttl time.Duration) (Acquired, error)
	// Extend lets a live grant last ttl from now on; the token stays. It returns ErrLockLost when the grant is over,
	// even by a millisecond and even if nobody took the key.
	Extend(ctx context.Context, key string, token Token, ttl time.Duration) (Grant, error)
	// Delete ends the grant if key and token match, and compares nothing else.
	Delete(ctx context.Context, key string, token Token) (Released, error)
	// Read returns the live grant of the key, if any. Advisory: it may be over by the time that it is read.
	Read(ctx context.Context, key string) (grant Grant, held bool, err error)
	// Revoke ends the holder's grant, records it, and draws a new token as the floor. It returns ErrNotHeld or ErrTokenMismatch.
	Revoke(ctx context.Context, request RevokeRequest) (Revocation, error)
	// Reap removes at most batch expired grants and at most batch expired sessions with all that they hold, and says whether there may
	// be more. It is idempotent, and safe on several replicas at once: each grant is reported once. What a closed session has left behind is among them.
	Reap(ctx context.Context, batch int) (ended []Ended, more bool, err error)
	// CountHeld returns the number of live grants.
	CountHeld(ctx context.Context) (int64, error)
}

// Watcher tells when a key may have become free, so that waiters needn't ask again and again.
type Watcher interface {
	// Watch calls freed with every key whose grant has ended by a release, a revocation, the end of its session or the reaper, on whichever
	// replica that happened, and with the token of that grant; 0 when it isn't known, an empty key when any grant may have ended. It calls ready once it
	// sees what happens from then on, and returns when ctx ends or the watching broke. What it says is a hint: one may be missing (the
	// connection broke; a pooler stands in between), come twice, or be out of date, so whoever waits looks for itself too, now and then.
	// freed doesn't block.
	Watch(ctx context.Context, ready func(), freed func(key string, token Token)) error
}

// RevocationRecord is one entry of the append-only record of revocations.
type RevocationRecord struct {
	ID            int64
	Key           string
	PreviousOwner string
	PreviousToken Token
	Operator      string
	Reason        string
	RevokedAt     time.Time // by the store's clock
}

// Lister reads pages, for operators. All of it is advisory.
type Lister interface {
	// Grants returns at most limit live grants whose keys begin with prefix and come after the key after, in the order of the keys' bytes, and
	// whether there is another one.
	Grants(ctx context.Context, prefix, after string, limit int) (grants []Grant, more bool, err error)
	// Revocations returns at most limit records with an id above after, in the order of ids, and whether there is another one.
	Revocations(ctx context.Context, after int64, limit int) (records []RevocationRecord, more bool, err error)
}

// MaxTokenFloor is the highest value that FastForward moves the token source to: 2^53 − 1. A mark above it isn't a token that anybody
// was granted but a poisoned one, and copying it would bring all grants to an end.
const MaxTokenFloor Token = 1<<53 - 1

// FastForwardRequest says how far the token source is to move, who wants it, and why.
type FastForwardRequest struct {
	Above    Token // every later token is above this one
	Operator string
	Reason   string
}

// TokenSource is where tokens come from. It never goes back (INV-04).
type TokenSource interface {
	// HighestToken returns the highest token that may have been handed out; 0 when there is none.
	HighestToken(ctx context.Context) (Token, error)
	// FastForward moves the token source above request.Above and writes an audit record, in one durable step. It returns
	// ErrInvalid when the source is there already (it never moves down) or the value is above MaxTokenFloor.
	FastForward(ctx context.Context, request FastForwardRequest) (from, to Token, err error)
}
