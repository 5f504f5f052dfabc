// Package lock is the domain of the lock service: grants with fencing tokens, the sessions that they
// hang on, and the store that decides. It knows no database and no HTTP.
package lock

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
)

// Session is a client's liveness: grants attach to it and end with it.
type Session struct {
	ID        uuid.UUID
	OwnerID   string
	TTL       time.Duration
	ExpiresAt time.Time // by the store's clock
}

// Grant is one successful acquire. No other grant ever has its token.
type Grant struct {
	Key        string
	OwnerID    string
	SessionID  uuid.UUID
	Token      Token
	AcquiredAt time.Time // by the store's clock
	ExpiresAt  time.Time
	TTL        time.Duration // as given by the store
}

// Holder is what is known of whoever holds a key.
type Holder struct {
	OwnerID   string
	ExpiresAt time.Time
}

// Acquired is the result of an acquire: a grant, or the key is held by another. Being
// contended is a normal outcome, not an error.
type Acquired struct {
	Granted bool
	Grant   Grant
	Holder  Holder // when not granted; empty when it isn't known any more
	// Ended is the expired grant whose place this one took; nil when the key was free. A reaper that finds the
	// same grant at the very same moment may report it too.
	Ended *Expired
}

// Released is the result of a release. A grant that is no longer the caller's is not
// an error (C1 §1.4): the caller wanted not to hold the key, and doesn't.
type Released struct {
	Stale bool
	Held  time.Duration // how long the grant was held; 0 when stale
}

// Revocation is the record of a grant that an operator ended.
type Revocation struct {
	ID           int64
	RevokedToken Token
	// NewTokenFloor is drawn from the token source: every later grant is above it.
	NewTokenFloor Token
	PreviousOwner string
}

// RevokeRequest says which grant is to end, who wants it, and why.
type RevokeRequest struct {
	Key      string
	Operator string
	Reason   string
	// Expected, when not 0, is the token that the holder must have.
	Expected Token
}

// Expired is a grant that ended by its time: its own, or that of its session.
type Expired struct {
	Key     string
	Token   Token
	Overdue time.Duration // since its expiry, by the store's clock
}

// Outcomes that refuse a request. Each is an answer of the store, known for certain; a store
// that didn't answer gives ErrUnavailable or ErrUnknownOutcome instead, never one of these.
var (
	// ErrSessionUnknown means that no session has this id (any more).
	ErrSessionUnknown = errors.New("session is unknown")
	// ErrSessionExpired means that the session has ended by its time to live.
	ErrSessionExpired = errors.New("session has expired")
	// ErrLockLost means that the grant is over: expired, taken over, revoked or released. It
	// never means that the store couldn't be asked.
	ErrLockLost = errors.New("lock is lost")
	// ErrNotHeld means that nobody holds the key.
	ErrNotHeld = errors.New("lock is not held")
	// ErrTokenMismatch means that the holder has another token than the one expected.
	ErrTokenMismatch = errors.New("the holder has another token")
	// ErrInvalid means that an argument is out of its bounds; the text names it.
	ErrInvalid = errors.New("invalid argument")
	// ErrUnavailable means that the store can't be reached or may not be trusted now.
	// Nothing has happened.
	ErrUnavailable = errors.New("lock store is unavailable")
	// ErrUnknownOutcome means that the store's answer was lost: the change may or may not have
	// happened.
	ErrUnknownOutcome = errors.New("outcome is unknown")
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
	// CloseSession ends a session and all its grants. It returns ErrSessionUnknown.
	CloseSession(ctx context.Context, id uuid.UUID) error

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
	// be more. It is idempotent, and safe on several replicas at once: each grant is reported once.
	Reap(ctx context.Context, batch int) (expired []Expired, more bool, err error)
	// CountHeld returns the number of live grants.
	CountHeld(ctx context.Context) (int64, error)
}
