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

// DuplicateError means that the payout has a submission already, so nothing was presented. Where that one's outcome isn't known it never
// will be by submitting again.
type DuplicateError struct {
	Earlier submission.Submission
}

func (e *DuplicateError) Error() string {
	return fmt.Sprintf("payout %s was submitted before, as %s with outcome %q", e.Earlier.PayoutID, e.Earlier.ID, e.Earlier.Outcome)
}

// Ambiguous says whether nobody knows what became of the earlier submission: the rail's answer was lost, or hasn't come yet, or
// never reached the record.
func (e *DuplicateError) Ambiguous() bool {
	return e.Earlier.Outcome == submission.Timeout || e.Earlier.Outcome == ""
}

// NewFencedService returns a service in fenced mode. storeTimeout bounds everything before a presentation, and the recording after it.
func NewFencedService(store FencedStore, rail ReachableRail, storeTimeout time.Duration, logger hclog.Logger, recorder Recorder) *Service {
	s := &Service{reader: store, storeTimeout: storeTimeout, logger: logger, recorder: recorder}
	s.submit = (&fenced{Service: s, store: store, rail: rail}).submitOnce
	return s
}

// fenced is fenced mode.
type fenced struct {
	*Service
	store FencedStore
	rail  ReachableRail
}

func (s *fenced) submitOnce(ctx context.Context, in Instruction) (submission.Submission, error) {
	intent := submission.Submission{
		ID: uuid.New(), PayoutID: in.PayoutID, IdempotencyKey: in.IdempotencyKey, Token: in.Holder.Token, SubmittedAt: time.Now(),
	}
	if err := s.admit(ctx, in, intent); err != nil {
		return submission.Submission{}, err
	}
	// From here on the intent is on record: whatever happens to this process, nobody presents this payout again.
	verdict := s.rail.Present(ctx, in)
	unreachable := errors.Is(verdict.Err, ErrRailUnavailable)
	if unreachable {
		// It was there a moment ago. No byte left, so no transfer was or will be carried out; the intent can't be taken back, as the
		// state machine has no way back to CLAIMED.
		verdict.Outcome = submission.Rejected
	}
	intent.Outcome, intent.RailReference, intent.ResolvedAt = verdict.Outcome, verdict.Reference, time.Now()
	s.report(intent, in.Holder.Owner, verdict.Err)
	recorded, err := s.record(ctx, intent, s.store.Resolve)
	switch {
	case err != nil:
		return intent, err
	case !recorded.Inserted:
		s.logger.Warn("the outcome was on record before the rail-proxy could write it", "event", "rail_already_resolved",
			"payoutId", intent.PayoutID.String(), "submissionId", intent.ID.String(), "outcome", string(intent.Outcome), "railReference", intent.RailReference)
	case unreachable:
		return submission.Submission{}, &WithdrawnError{Submission: intent, Err: verdict.Err}
	}
	return intent, nil
}

// WithdrawnError means that the rail went away between the admission and the presentation. Nothing was presented; the submission is on record as
// rejected, and the payout is FAILED.
type WithdrawnError struct {
	Submission submission.Submission
	Err        error
}

func (e *WithdrawnError) Error() string {
	return fmt.Sprintf("submission %s was admitted and not presented: %s", e.Submission.ID, e.Err)
}

// Unwrap gives ErrRailUnavailable.
func (e *WithdrawnError) Unwrap() error { return e.Err }

// admit checks everything and puts the intent on record. Any error means that nothing may be presented.
//
// Whether the rail is there at all is asked first, since an intent can't be taken back; no remote call is made inside the transaction.
func (s *fenced) admit(ctx context.Context, in Instruction, intent submission.Submission) error {
	if err := s.compare(ctx, in); err != nil {
		return err
	}
	if err := s.rail.Reachable(ctx); err != nil {
		s.logger.Warn("the rail can't be reached; nothing was presented", "event", "rail_unavailable", "payoutId", in.PayoutID.String(), "error", err)
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.storeTimeout)
	defer cancel()
	admission, err := s.store.Admit(ctx, intent, in.AccountID)
	switch {
	case err != nil:
		return fmt.Errorf("admit submission: %w", err)
	case admission.Fenced != nil:
		return s.fencedOut(in, *admission.Fenced)
	case admission.Earlier != nil:
		s.recorder.Duplicate()
		s.duplicate(in, int64(admission.Earlier.Token), admission.Earlier)
		return &DuplicateError{Earlier: *admission.Earlier}
	case admission.Refused != nil:
		s.refused(intent, *admission.Refused, false)
		return &payout.WrongStateError{Payout: payout.Payout{ID: in.PayoutID, State: admission.Refused.From}, Event: admission.Refused.Event}
	}
	return nil
}

func (s *fenced) fencedOut(in Instruction, by submission.FencedOut) error {
	s.recorder.Submitted(submission.Fenced)
	s.recorder.FencedOut()
	s.recorder.Duplicate()
	s.logger.Error("fenced out", "event", "fenced_out", "resource", string(payout.GuardRail), "resourceId", in.AccountID.String(),
		"presentedToken", int64(in.Holder.Token), "highestToken", int64(by.Highest), "ownerId", in.Holder.Owner, "route", "submit",
		"payoutId", in.PayoutID.String())
	s.duplicate(in, int64(by.Highest), by.First)
	return &payout.FencedOutError{Guard: payout.GuardRail, AccountID: in.AccountID, Presented: in.Holder.Token, Highest: by.Highest}
}

// duplicate reports an attempt that would have been one submission too many. first is the payout's own, if it has one.
func (s *fenced) duplicate(in Instruction, highest int64, first *submission.Submission) {
	submittedAt := ""
	if first != nil {
		submittedAt = first.SubmittedAt.UTC().Format(time.RFC3339Nano)
	}
	s.logger.Error("a submission was refused that would have been one too many", "event", "duplicate_rail_submission_attempted",
		"payoutId", in.PayoutID.String(), "presentedToken", int64(in.Holder.Token), "highestToken", highest, "firstSubmittedAt", submittedAt,
		"ownerId", in.Holder.Owner)
}
