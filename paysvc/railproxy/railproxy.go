// Package railproxy is the only part of the payment system that calls the rail.
//
// In plain mode it presents what it is told to present, exactly once, and records afterwards. It stamps the fencing token
// that came with the request and compares it with nothing; it asks neither for an earlier submission nor for the payout's state. An
// application that trusts its lock is written like this, and this is what a sidecar protects without changing it.
//
// In fenced mode it admits first: the token is above everything that the account has seen, the payout has no earlier submission, and
// the intent is on record, all in one transaction. Only then it presents, exactly once, and records what came of it. A submission whose
// outcome is unknown is never presented again, by anybody, under any token.
package railproxy

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"

	"fenceline/paysvc/payout"
	"fenceline/paysvc/railproxy/submission"
)

// Instruction is a checked request to pay.
type Instruction struct {
	PayoutID       uuid.UUID
	AccountID      uuid.UUID
	Money          payout.Money
	BeneficiaryRef string
	Holder         payout.Holder
	IdempotencyKey string
}

// Reader reads what both modes need. Its errors are those of internal/postgres.
type Reader interface {
	// Payout returns the payout with its id, account and money, or payout.ErrPayoutNotFound.
	Payout(ctx context.Context, id uuid.UUID) (payout.Payout, error)
	// Submissions returns a payout's submissions, at most limit: the one that was presented first, then the fenced ones, newest first.
	Submissions(ctx context.Context, payoutID uuid.UUID, limit int) ([]submission.Submission, error)
}

// Store keeps submissions in plain mode.
type Store interface {
	Reader
	// Record inserts the submission, unless the payout has one already, and takes the payout through the events Submit
	// and the outcome's, if its state allows that, in one transaction.
	Record(ctx context.Context, s submission.Submission) (submission.Recorded, error)
}

// FencedStore keeps submissions in fenced mode.
type FencedStore interface {
	Reader
	// Admit asks whether the submission may be presented, and puts the intent on record if so; s has no outcome yet. What it refuses is
	// final for this submission.
	Admit(ctx context.Context, s submission.Submission, account uuid.UUID) (submission.Admission, error)
	// Resolve records the outcome of an admitted submission and takes the payout through the outcome's event, if its state allows
	// that, in one transaction. Recorded.Inserted is false when the submission had an outcome already.
	Resolve(ctx context.Context, s submission.Submission) (submission.Recorded, error)
}

// Rail presents a transfer to the rail, at most once.
type Rail interface {
	Present(ctx context.Context, in Instruction) Verdict
}

// ReachableRail can also be asked whether it is there, without anything being presented.
type ReachableRail interface {
	Rail
	// Reachable returns ErrRailUnavailable when no connection can be made.
	Reachable(ctx context.Context) error
}

// Verdict is what presenting a transfer came to.
type Verdict struct {
	Outcome   submission.Outcome // Acked, Rejected or Timeout; "" when Err is ErrRailUnavailable
	Reference string             // the rail's, with Acked
	Err       error              // why, unless Acked; for the log
}

// Errors of Submit that mean that nothing was presented to the rail.
var (
	// ErrRailUnavailable: there was no connection to the rail.
	ErrRailUnavailable = errors.New("rail can't be reached")
	// ErrMismatch: account, amount or currency aren't the payout's; the text says which.
	ErrMismatch = errors.New("not what the payout says")
)

// UnrecordedError means that the submission was presented, and that its outcome may not be on record. It is neither
// success nor failure: repeating the request would pay again.
type UnrecordedError struct {
	Submission submission.Submission // with the outcome that the rail gave
	Err        error
}

func (e *UnrecordedError) Error() string {
	return fmt.Sprintf("record submission %s (%s): %s", e.Submission.ID, e.Submission.Outcome, e.Err)
}

// Unwrap returns the store's error.
func (e *UnrecordedError) Unwrap() error { return e.Err }

// Recorder counts.
type Recorder interface {
	// Submitted counts a submission by its outcome, those that were fenced out included.
	Submitted(outcome submission.Outcome)
	// Duplicate counts a submission that was presented although the payout had one on record, or, in fenced mode, was refused.
	Duplicate()
	// FencedOut counts a submission that was refused because of its token.
	FencedOut()
	// TransitionRefused counts a step that the state machine doesn't have.
	TransitionRefused()
}

// Service submits payouts.
type Service struct {
	reader       Reader
	submit       func(ctx context.Context, in Instruction) (submission.Submission, error)
	storeTimeout time.Duration
	logger       hclog.Logger
	recorder     Recorder
}

// NewService returns a service in plain mode. storeTimeout bounds each call of the store.
func NewService(store Store, rail Rail, storeTimeout time.Duration, logger hclog.Logger, recorder Recorder) *Service {
	s := &Service{reader: store, storeTimeout: storeTimeout, logger: logger, recorder: recorder}
	s.submit = (&plain{Service: s, store: store, rail: rail}).submitOnce
	return s
}

// Submit presents the payout to the rail once and records what came of it. The submission's outcome is Acked, Rejected or
// Timeout; with Timeout nobody knows, and nobody may submit this payout again. After an *UnrecordedError the submission was
// presented as well; after any other error nothing was.
//
// In fenced mode the errors include *payout.FencedOutError, *DuplicateError and *payout.WrongStateError.
func (s *Service) Submit(ctx context.Context, in Instruction) (submission.Submission, error) {
	return s.submit(ctx, in)
}

// plain is plain mode.
type plain struct {
	*Service
	store Store
	rail  Rail
}

func (s *plain) submitOnce(ctx context.Context, in Instruction) (submission.Submission, error) {
	if err := s.compare(ctx, in); err != nil {
		return submission.Submission{}, err
	}
	presented := submission.Submission{
		ID: uuid.New(), PayoutID: in.PayoutID, IdempotencyKey: in.IdempotencyKey, Token: in.Holder.Token, SubmittedAt: time.Now(),
	}
	verdict := s.rail.Present(ctx, in)
	if errors.Is(verdict.Err, ErrRailUnavailable) {
		s.logger.Warn("the rail can't be reached; nothing was presented", "event", "rail_unavailable", "payoutId", in.PayoutID.String(), "error", verdict.Err)
		return submission.Submission{}, verdict.Err
	}
	presented.Outcome, presented.RailReference, presented.ResolvedAt = verdict.Outcome, verdict.Reference, time.Now()
	s.report(presented, in.Holder.Owner, verdict.Err)
	recorded, err := s.record(ctx, presented, s.store.Record)
	if err == nil && !recorded.Inserted {
		s.recorder.Duplicate()
	}
	return presented, err
}

// compare refuses an instruction that isn't what the payout says, as any application does. It doesn't ask for the payout's state.
func (s *Service) compare(ctx context.Context, in Instruction) error {
	ctx, cancel := context.WithTimeout(ctx, s.storeTimeout)
	defer cancel()
	p, err := s.reader.Payout(ctx, in.PayoutID)
	switch {
	case err != nil:
		return fmt.Errorf("read payout: %w", err)
	case p.AccountID != in.AccountID:
		return fmt.Errorf("accountId: %w", ErrMismatch)
	case p.Money.Minor != in.Money.Minor:
		return fmt.Errorf("amountMinor: %w", ErrMismatch)
	case p.Money.Currency != in.Money.Currency:
		return fmt.Errorf("currency: %w", ErrMismatch)
	}
	return nil
}

// record writes down what the rail said. The money may have moved by now, so the caller's patience no longer matters.
func (s *Service) record(ctx context.Context, presented submission.Submission,
	write func(context.Context, submission.Submission) (submission.Recorded, error),
) (submission.Recorded, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.storeTimeout)
	defer cancel()
	recorded, err := write(ctx, presented)
	if err != nil {
		s.logger.Error("a presented submission may not be on record", "event", "rail_unrecorded", "payoutId", presented.PayoutID.String(),
			"submissionId", presented.ID.String(), "outcome", string(presented.Outcome), "railReference", presented.RailReference, "error", err)
		return recorded, &UnrecordedError{Submission: presented, Err: err}
	}
	if recorded.Refused != nil {
		s.refused(presented, *recorded.Refused, recorded.Inserted)
	}
	return recorded, nil
}

// refused reports a step that the state machine doesn't have.
func (s *Service) refused(of submission.Submission, step submission.RefusedTransition, onRecord bool) {
	s.recorder.TransitionRefused()
	s.logger.Warn("the payout's state doesn't allow this", "event", "transition_refused", "payoutId", of.PayoutID.String(),
		"state", string(step.From), "transition", string(step.Event), "presentedToken", int64(of.Token), "submissionRecorded", onRecord)
}

func (s *Service) report(presented submission.Submission, owner string, why error) {
	s.recorder.Submitted(presented.Outcome)
	fields := []any{
		"payoutId", presented.PayoutID.String(), "submissionId", presented.ID.String(), "presentedToken", int64(presented.Token),
		"ownerId", owner, "elapsedMillis", presented.ResolvedAt.Sub(presented.SubmittedAt).Milliseconds(),
	}
	if presented.Outcome == submission.Timeout {
		s.logger.Error("the rail gave no answer that says what happened", append(fields, "event", "rail_ambiguous", "error", why)...)
		return
	}
	s.logger.Info("submitted to the rail", append(fields, "event", "rail_submitted",
		"outcome", string(presented.Outcome), "railReference", presented.RailReference)...)
}

// Submissions returns a payout's submissions, at most limit (see Store).
func (s *Service) Submissions(ctx context.Context, payoutID uuid.UUID, limit int) ([]submission.Submission, error) {
	ctx, cancel := context.WithTimeout(ctx, s.storeTimeout)
	defer cancel()
	return s.reader.Submissions(ctx, payoutID, limit)
}
