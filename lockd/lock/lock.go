// Package lock is the domain of the lock service: grants with fencing tokens, the sessions that they
// hang on, and the store that decides. It knows no database and no HTTP.
package lock

import (
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

// AcquireRequest asks for a key.
type AcquireRequest struct {
	Key       string
	OwnerID   string
	SessionID uuid.UUID
	TTL       time.Duration
	// Wait is how long to wait while another session has the key, 0 to MaxWait.
	Wait time.Duration
}

// Acquired is the result of an acquire: a grant, or the key is held by another. Being
// contended is a normal outcome, not an error.
type Acquired struct {
	Granted bool
	Grant   Grant
	Holder  Holder // when not granted; empty when it isn't known any more
	// Ended is the grant that was over and whose place this one took; nil when the key was free. A reaper that finds the
	// same grant at the very same moment may report it too.
	Ended *Ended
	// Waited is how long the request waited before the attempt began that was granted. The lease began no earlier than that
	// attempt, so a client may add it to the time at which it sent its request. The attempt's own time is never part of it.
	Waited time.Duration
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

// Ended is a grant that ended without a call of its own: by its time, or with its session.
type Ended struct {
	Key     string
	Token   Token
	OwnerID string // empty when it isn't known
	// Expired says that it ended by its time: its own, or that of its session. Else its session was closed.
	Expired bool
	Overdue time.Duration // since its expiry, by the store's clock; 0 when it hadn't expired
	Held    time.Duration // how long it was held; 0 when it had expired
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
	// ErrTooManyWaiters means that the queue for a lock is full. Nothing has happened.
	ErrTooManyWaiters = errors.New("too many wait for locks")
	// ErrUnavailable means that the store can't be reached or may not be trusted now.
	// Nothing has happened.
	ErrUnavailable = errors.New("lock store is unavailable")
	// ErrUnknownOutcome means that the store's answer was lost: the change may or may not have
	// happened.
	ErrUnknownOutcome = errors.New("outcome is unknown")
)
