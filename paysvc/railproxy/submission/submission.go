// Package submission says what the rail-proxy keeps about a submission to the rail. It knows no database and no HTTP.
package submission

import (
	"time"

	"github.com/google/uuid"

	"fenceline/lockd/lock"
	"fenceline/paysvc/payout"
)

// Outcome is what is known about a submission.
type Outcome string

// Outcomes, spelt as the column rail_submission.outcome wants them.
const (
	// Acked: the rail carried the transfer out and named it.
	Acked Outcome = "ACKED"
	// Rejected: the rail said that it did nothing.
	Rejected Outcome = "REJECTED"
	// Timeout: no answer that says anything. The transfer may have been carried out, or may still be.
	Timeout Outcome = "TIMEOUT"
	// Fenced: never presented, since a higher token had been seen for the account.
	Fenced Outcome = "FENCED"
)

// Event is what the outcome means in the payout's life; false for Fenced, which means nothing there.
func (o Outcome) Event() (payout.Event, bool) {
	switch o {
	case Acked:
		return payout.Acknowledge, true
	case Rejected:
		return payout.Reject, true
	case Timeout:
		return payout.LoseOutcome, true
	case Fenced:
	}
	return "", false
}

// Submission is one row of rail_submission.
type Submission struct {
	ID             uuid.UUID
	PayoutID       uuid.UUID
	IdempotencyKey string
	Token          lock.Token // the one that came with the request
	Outcome        Outcome    // "" while nothing is known
	RailReference  string     // "" unless Outcome is Acked
	SubmittedAt    time.Time
	ResolvedAt     time.Time // zero exactly when Outcome is ""
}

// Admission is what asking to submit came to, in fenced mode. All nil: the intent is on record, and the caller presents it, once.
type Admission struct {
	// Fenced: a newer holder than the asking one is known; the attempt is on record as FENCED.
	Fenced *FencedOut
	// Earlier is the submission that the payout has already.
	Earlier *Submission
	// Refused: the payout's state doesn't allow a submission.
	Refused *RefusedTransition
}

// FencedOut says against what an attempt lost.
type FencedOut struct {
	Highest lock.Token
	First   *Submission // the payout's own submission that may have been presented, nil when there is none
}

// Recorded is what recording a submission came to.
type Recorded struct {
	// Inserted is false when the payout had a submission on record already; that one stays as it is.
	Inserted bool
	// Refused is not nil when the payout's state doesn't allow the submission or its outcome; the state stays as it is.
	Refused *RefusedTransition
}

// RefusedTransition is a step that the state machine doesn't have.
type RefusedTransition struct {
	From  payout.State
	Event payout.Event
}
