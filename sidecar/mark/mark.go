// Package mark says what a store of marks promises. A mark is the highest token that was admitted for a key.
package mark

import (
	"context"
	"errors"

	"fenceline/lockd/lock"
)

// Admission is one request for admission.
type Admission struct {
	Guard string
	Key   string // canonical
	Token lock.Token
	// Newer wants the token to be above the mark; otherwise a token equal to it is admitted too.
	Newer bool
}

// Verdict is the store's decision. A fault is never one.
type Verdict int

// The decisions.
const (
	// Admitted means that the mark is now the request's token, durably.
	Admitted Verdict = iota + 1
	// FencedOut means that a higher token (or, where each token is admitted once, this one) was admitted before.
	FencedOut
	// Implausible means that the token is so far above the mark that it can't come from the same source. Nothing was changed.
	Implausible
	// KeyNotFound means that the key has no mark and may not get one.
	KeyNotFound
)

// String names the decision.
func (v Verdict) String() string {
	return [...]string{"none", "admitted", "fenced out", "implausible", "key not found"}[v]
}

// Judge is the rule of every store, for a mark that can't change meanwhile. A key without a mark counts as having 0, or isn't known where reject is
// set. The distance is compared as token - mark, so nothing is added to a number that may be the largest.
func (a Admission) Judge(highest lock.Token, found, reject bool, maxJump int64) Decision {
	switch {
	case !found && reject:
		return Decision{Verdict: KeyNotFound}
	case highest > a.Token, highest == a.Token && a.Newer:
		return Decision{Verdict: FencedOut, Highest: highest}
	case int64(a.Token)-int64(highest) > maxJump:
		return Decision{Verdict: Implausible, Highest: highest}
	}
	return Decision{Verdict: Admitted}
}

// Decision is a verdict with the mark as it was seen with it.
type Decision struct {
	Verdict Verdict
	Highest lock.Token // for FencedOut and Implausible; 0 when there is no mark yet
}

// Faults of a store. Nothing may be forwarded after any of them.
var (
	// ErrUnavailable means that the store can't be used, or its answer was lost. The mark may have been raised or
	// not; either way the request wasn't admitted.
	ErrUnavailable = errors.New("mark store is unavailable")
	// ErrWentBack means that a mark was seen to be lower than a moment before: somebody else writes it.
	ErrWentBack = errors.New("mark went back")
	// ErrStandby means that another sidecar owns the guard alone.
	ErrStandby = errors.New("this sidecar stands by")
	// ErrAmbiguousKey means that a lookup found more than one key.
	ErrAmbiguousKey = errors.New("lookup found more than one key")
)

// OperatedStore is a Store with what operators may do.
type OperatedStore interface {
	Store
	// Raise sets a key's mark to a higher token, however much higher, durably. It never lowers: a token that isn't above the mark is FencedOut.
	Raise(ctx context.Context, guard, key string, token lock.Token) (Decision, error)
}

// Store holds the marks of the configured guards.
type Store interface {
	// Admit compares and raises in one atomic step. It returns Admitted only when the raise is durable: after that, and also after
	// a crash of everything, no lower token is ever admitted for the key.
	Admit(ctx context.Context, admission Admission) (Decision, error)
	// Lookup runs a configured query and returns the key that it finds; found is false when there is none. It returns ErrAmbiguousKey
	// for more than one.
	Lookup(ctx context.Context, query string, args []string) (key string, found bool, err error)
	// Read returns a key's mark, for people. found is false when there is none.
	Read(ctx context.Context, guard, key string) (token lock.Token, found bool, err error)
}

// StatementRunner is a store that also runs what a route wants to happen when a request is fenced out.
type StatementRunner interface {
	// Run runs one statement in a transaction of its own, durably.
	Run(ctx context.Context, statement string, args []any) error
}
