package lockclient

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"fenceline/lockd/lock"
	"fenceline/lockd/lockapi"
)

// ErrContended means that another session holds the lock.
var ErrContended = errors.New("lock is held by another session")

// Refusals of who calls.
var (
	// ErrUnauthenticated means that lockd doesn't know who calls: no bearer token or certificate, or a wrong one.
	ErrUnauthenticated = errors.New("lockd doesn't know who calls")
	// ErrForbidden means that the caller may not do this.
	ErrForbidden = errors.New("the caller may not do this")
)

// ErrNoAnswer means that no answer of lockd's was understood: the connection failed, the answer was cut off, or whoever answered isn't
// lockd. A change may or may not have happened. It never means that a lock is lost.
var ErrNoAnswer = errors.New("no answer from lockd")

// Refusal is an answer of lockd that isn't success. errors.Is finds the domain's error behind it, such as
// lock.ErrLockLost. A call that got no answer gives ErrNoAnswer, never a Refusal: not knowing
// whether a lock is lost isn't the same as having lost it.
type Refusal struct {
	Status   int
	Envelope lockapi.Error
	by       string // who answered, if not lockd
}

// Error gives code and message.
func (r *Refusal) Error() string {
	return fmt.Sprintf("%s: %s: %s", cmp.Or(r.by, "lockd"), r.Envelope.Code, r.Envelope.Message)
}

// Unwrap returns the domain's error for the code, or nil.
func (r *Refusal) Unwrap() error {
	switch r.Envelope.Code {
	case lockapi.CodeLockLost:
		return lock.ErrLockLost
	case lockapi.CodeSessionUnknown:
		return lock.ErrSessionUnknown
	case lockapi.CodeSessionExpired:
		return lock.ErrSessionExpired
	case lockapi.CodeLockContended:
		return ErrContended
	case lockapi.CodeLockNotHeld:
		return lock.ErrNotHeld
	case lockapi.CodeTokenMismatch:
		return lock.ErrTokenMismatch
	case lockapi.CodeBackendUnavailable:
		if r.Envelope.Details["outcome"] == lockapi.OutcomeUnknown {
			return lock.ErrUnknownOutcome
		}
		return lock.ErrUnavailable
	case lockapi.CodeUnauthenticated:
		return ErrUnauthenticated
	case lockapi.CodeForbidden:
		return ErrForbidden
	case lockapi.CodeInvalidToken:
		return lock.ErrInvalidToken
	case lockapi.CodeValidationFailed:
		return lock.ErrInvalid
	}
	return nil
}

// refused reads an answer that isn't the success that was expected.
func refused(doing string, status int, answer []byte) error {
	refusal := &Refusal{Status: status}
	if err := json.Unmarshal(answer, &refusal.Envelope); err != nil || refusal.Envelope.Code == "" || status < http.StatusBadRequest {
		return fmt.Errorf("%s: %w: status %d without an error envelope: is this lockd?", doing, ErrNoAnswer, status)
	}
	return refusal
}
