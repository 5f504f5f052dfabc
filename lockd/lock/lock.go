// Package lock is the domain of the lock service: grants with fencing tokens, the sessions that they
// hang on, and the store that decides. It knows no database and no HTTP.
package lock

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"
	"unicode/utf8"

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
	Holder  Holder // when not granted
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

// Expired is what the reaper removed.
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
// method, all return ErrUnavailable when nothing happened because the store can't be used, and the writing ones
// ErrUnknownOutcome when the answer to a change was lost.
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
	// Reap removes a batch of expired sessions and grants. It is idempotent and safe on several
	// replicas at once.
	Reap(ctx context.Context, batch int) ([]Expired, error)
	// CountHeld returns the number of live grants.
	CountHeld(ctx context.Context) (int64, error)
}

// Bounds of what a client may ask for.
const (
	MinSessionTTL     = time.Second
	MaxSessionTTL     = 60 * time.Second
	DefaultSessionTTL = 15 * time.Second
	MinLockTTL        = 100 * time.Millisecond
	MaxLockTTL        = 300 * time.Second
	DefaultLockTTL    = 30 * time.Second
	MaxWait           = 30 * time.Second
	MaxOwnerLength    = 64
	MinReasonLength   = 8
	MaxReasonLength   = 1024
)

var keyGrammar = regexp.MustCompile(`^[A-Za-z0-9:._-]{1,128}$`)

// ValidKey returns ErrInvalid unless the key is 1 to 128 of A-Z a-z 0-9 : . _ -
func ValidKey(key string) error {
	if !keyGrammar.MatchString(key) {
		return fmt.Errorf("%w: key: want 1 to 128 of the characters A-Z a-z 0-9 : . _ -", ErrInvalid)
	}
	return nil
}

// ValidOwner returns ErrInvalid unless the owner id is 1 to 64 printable characters.
func ValidOwner(name, owner string) error { return validText(name, owner, 1, MaxOwnerLength) }

func validText(name, text string, least, most int) error {
	if n := utf8.RuneCountInString(text); n < least || n > most || !utf8.ValidString(text) {
		return fmt.Errorf("%w: %s: want %d to %d characters", ErrInvalid, name, least, most)
	}
	for _, r := range text {
		if r < ' ' || r == 0x7f {
			return fmt.Errorf("%w: %s: control characters are not allowed", ErrInvalid, name)
		}
	}
	return nil
}

// ValidDuration returns ErrInvalid unless least ≤ d ≤ most.
func ValidDuration(name string, d, least, most time.Duration) error {
	if d < least || d > most {
		return fmt.Errorf("%w: %s: want %d to %d", ErrInvalid, name, least.Milliseconds(), most.Milliseconds())
	}
	return nil
}

// Validate checks a revocation's texts.
func (r RevokeRequest) Validate() error {
	return errors.Join(ValidKey(r.Key), ValidOwner("operator", r.Operator), validText("reason", r.Reason, MinReasonLength, MaxReasonLength))
}
