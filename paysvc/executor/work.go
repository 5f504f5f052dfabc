package executor

import (
	"context"
	"errors"
	"fmt"

	"fenceline/lockd/lock"
	"fenceline/lockd/lockclient"
	"fenceline/paysvc/payapi"
	"fenceline/paysvc/payout"
	"fenceline/paysvc/railproxy/railapi"
	"fenceline/paysvc/railproxy/submission"
)

// plan is what is left to do for a payout: steps, or nothing and why.
type plan struct {
	steps   []Step
	outcome Outcome // when there are no steps
	why     error
}

// next decides by the payout's state and by what is on record at the rail-proxy, never by elapsed time. attempt is the submission that was
// presented to the rail, if any; a payout that has one is never submitted again.
func next(state payout.State, attempt *payapi.Submission) plan {
	acked := attempt != nil && attempt.Outcome == string(submission.Acked)
	switch state {
	case payout.Posted:
		return plan{outcome: Posted}
	case payout.Failed:
		return plan{outcome: Failed}
	case payout.Abandoned:
		return plan{outcome: Abandoned}
	case payout.Pending, payout.Claimed:
		switch {
		case attempt == nil:
			return plan{steps: []Step{StepClaim, StepSubmit, StepPost}}
		case acked && state == payout.Claimed:
			return plan{steps: []Step{StepPost}}
		}
	case payout.RailSubmitted, payout.RailAcked:
		if acked {
			return plan{steps: []Step{StepPost}}
		}
	case payout.RailAmbiguous:
	}
	recorded := "no submission"
	if attempt != nil {
		recorded = fmt.Sprintf("a submission with outcome %q", attempt.Outcome)
	}
	return plan{outcome: Ambiguous, why: fmt.Errorf("the payout is %s with %s on record: only evidence from the rail or a person can decide", state, recorded)}
}

// attemptOf returns the submission that was presented to the rail. Fenced ones never were.
func attemptOf(list railapi.List) *payapi.Submission {
	for _, record := range list.Submissions {
		if record.Outcome != string(submission.Fenced) {
			return &record.Submission
		}
	}
	return nil
}

// work is the work on one payout under one grant.
type work struct {
	*pass
	held       *lockclient.Held
	payout     payapi.Payout
	submission payapi.Submission // what was acknowledged
}

// Write is what every write carries.
type Write struct {
	Payout payapi.Payout
	Owner  string
	Token  lock.Token
}

// execute takes the lock, reads, decides and works, and gives the lock back whatever happens.
func (p *pass) execute(ctx context.Context, listed payapi.Payout) Result {
	session, err := p.ensureSession(ctx)
	if err != nil {
		return Result{Outcome: Aborted, Step: StepAcquire, Err: err}
	}
	held, err := session.Acquire(ctx, "payout:"+listed.AccountID, lockclient.AcquireOptions{TTL: p.options.LockTTL, Wait: p.options.AcquireWait})
	switch {
	case errors.Is(err, lockclient.ErrContended):
		return Result{Outcome: Skipped, Step: StepAcquire, Err: err}
	case err != nil:
		return Result{Outcome: Aborted, Step: StepAcquire, Err: err}
	}
	defer func() { _ = held.Release(ctx) }() // a failure is logged as an event; the lease ends by itself
	w := &work{pass: p, held: held}
	var result Result
	if err := w.passBarriers(ctx, listed.AccountID); err != nil {
		result = Result{Outcome: Aborted, Step: StepRead, Err: err} // nothing was written
	} else {
		result = w.run(ctx, listed.PayoutID)
	}
	result.Token = held.Token()
	return result
}

// passBarriers waits until nothing of a former holder is under way at any guard that will be written through. Without that, what is read could be older than
// a write that is still to come, and the decision wrong, however well the writes themselves are ordered.
func (w *work) passBarriers(ctx context.Context, accountID string) error {
	addresses := make([]string, 0, len(w.options.Barriers))
	for _, b := range w.options.Barriers {
		addresses = append(addresses, lockclient.BarrierURL(b.Sidecar, b.Guard, accountID))
	}
	if len(addresses) == 0 {
		return nil
	}
	return w.held.Barrier(ctx, addresses...)
}

// run decides on what is read under the lock; what was listed before may be old.
func (w *work) run(ctx context.Context, payoutID string) Result {
	read, err := w.resource.Payout(ctx, payoutID)
	if err != nil {
		return Result{Outcome: Aborted, Step: StepRead, Err: fmt.Errorf("read payout: %w", err)}
	}
	list, err := w.rail.Submissions(ctx, payoutID)
	if err != nil {
		return Result{Outcome: Aborted, Step: StepRead, Err: fmt.Errorf("read submissions: %w", err)}
	}
	w.payout = read
	attempt := attemptOf(list)
	if attempt != nil {
		w.submission = *attempt
	}
	plan := next(payout.State(read.State), attempt)
	for _, step := range plan.steps {
		if err := w.do(ctx, step); err != nil {
			outcome, refusal := outcomeOf(step, payout.State(read.State), err)
			return Result{Outcome: outcome, Step: step, Refusal: refusal, Err: fmt.Errorf("%s: %w", step, err)}
		}
	}
	if len(plan.steps) > 0 {
		return Result{Outcome: Posted, Step: StepPost}
	}
	return Result{Outcome: plan.outcome, Step: StepRead, Err: plan.why}
}

// do asks the lock service and then sends the step's request, once. The request isn't cut off by a signal to stop: an answer that
// nobody reads would be an unknown outcome.
func (w *work) do(ctx context.Context, step Step) error {
	if ctx.Err() != nil {
		return errStopping
	}
	if !w.options.SkipLockCheck {
		if err := w.held.Check(ctx); err != nil {
			return fmt.Errorf("check the lock: %w", err)
		}
	}
	if err := w.pauser.at(ctx, step, w.payout.PayoutID, w.held.Token()); err != nil {
		return err
	}
	if !w.options.SkipLockCheck {
		if err := w.held.Err(); err != nil {
			return fmt.Errorf("check the lock: %w", err)
		}
	}
	ctx = context.WithoutCancel(ctx)
	write := Write{Payout: w.payout, Owner: w.options.Owner, Token: w.held.Token()}
	switch step {
	case StepClaim:
		return w.resource.Claim(ctx, write, payout.State(w.payout.State))
	case StepSubmit:
		var err error
		w.submission, err = w.rail.Submit(ctx, write)
		return err
	case StepPost:
		return w.resource.Post(ctx, write, w.submission)
	case StepAcquire, StepRead:
	}
	return fmt.Errorf("%s has no request", step)
}
