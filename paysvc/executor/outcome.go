package executor

import (
	"errors"
	"fmt"

	"fenceline/lockd/lock"
	"fenceline/paysvc/payapi"
	"fenceline/paysvc/payout"
	"fenceline/paysvc/railproxy/railapi"
)

// Outcome is how work on one payout ended.
type Outcome string

// Outcomes. Only with Aborted may the same executor take the payout up again.
const (
	// Posted: the payout is POSTED, by us now or by somebody before.
	Posted Outcome = "posted"
	// Failed: the payout is FAILED, for a business reason such as missing funds.
	Failed Outcome = "failed"
	// Abandoned: an operator had moved the payout to ABANDONED.
	Abandoned Outcome = "abandoned"
	// FencedOut: a guard refused our token, since it had seen a newer one.
	FencedOut Outcome = "fenced_out"
	// LockLost: the lock service said that our grant is over, or its time ran out before the next step.
	LockLost Outcome = "lock_lost"
	// Ambiguous: nobody here knows what became of a claim, a submission or a posting. A person or the reconciler must look.
	Ambiguous Outcome = "ambiguous"
	// Skipped: another worker holds the lock.
	Skipped Outcome = "skipped"
	// Aborted: a fault or a refusal, and the step that met it is known to have had no effect.
	Aborted Outcome = "aborted"
)

// Step is a part of the work on a payout.
type Step string

// Steps. Claim, Submit and Post are the ones with side effects.
const (
	StepAcquire Step = "acquire"
	StepRead    Step = "read"
	StepClaim   Step = "claim"
	StepSubmit  Step = "submit"
	StepPost    Step = "post"
)

// Result is how work on one payout ended, and where.
type Result struct {
	PayoutID string
	Outcome  Outcome
	Step     Step
	Token    lock.Token // 0 when there was no grant
	// Refusal is the answer that ended the work, if one did.
	Refusal *Refusal
	Err     error // why, unless the payout is done
}

// Refusal is what an answer other than success said.
type Refusal struct {
	Status  int
	Code    string
	Message string
	// For FENCED_OUT: which guard, and both tokens as it saw them.
	Resource                     string
	PresentedToken, HighestToken lock.Token
	// outcome is details.outcome of a sidecar's 502 or 504.
	outcome string
}

func (r *Refusal) Error() string {
	return fmt.Sprintf("%s (status %d): %s", r.Code, r.Status, r.Message)
}

// errUnknown means that a request may have taken effect.
var errUnknown = errors.New("outcome is unknown")

// outcomeOf says what an error of a write means for the payout. A business refusal ends a payout only where the state machine lets
// it fail: not once it is claimed for missing funds, and never after the rail has paid.
func outcomeOf(step Step, expected payout.State, err error) (Outcome, *Refusal) {
	var refusal *Refusal
	errors.As(err, &refusal)
	switch {
	case errors.Is(err, errUnknown):
		return Ambiguous, refusal
	case errors.Is(err, lock.ErrLockLost):
		return LockLost, nil
	case refusal == nil:
		return Aborted, nil
	case refusal.Code == payapi.CodeFencedOut:
		return FencedOut, refusal
	case step == StepClaim && expected == payout.Pending && refusal.Code == payapi.CodeInsufficientFunds,
		step == StepSubmit && refusal.Code == railapi.CodeRailRejected:
		return Failed, refusal
	}
	return Aborted, refusal
}

// Exit codes of the executor.
const (
	ExitDone        = 0 // everything that was to do is done
	ExitError       = 1
	ExitFencedOut   = 3
	ExitLockLost    = 4
	ExitAmbiguous   = 5
	ExitNotAcquired = 6
)

// Summary counts how work on payouts ended.
type Summary map[Outcome]int

// ExitCode is the most serious of the outcomes: what a person must look into first. That a lock was held by another worker counts
// only when no payout at all could be worked on.
func (s Summary) ExitCode() int {
	switch {
	case s[Ambiguous] > 0:
		return ExitAmbiguous
	case s[FencedOut] > 0:
		return ExitFencedOut
	case s[LockLost] > 0:
		return ExitLockLost
	case s[Aborted] > 0:
		return ExitError
	case s[Skipped] > 0 && s[Posted]+s[Failed]+s[Abandoned] == 0:
		return ExitNotAcquired
	}
	return ExitDone
}
