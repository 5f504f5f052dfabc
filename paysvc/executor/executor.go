// Package executor is the worker of the payment system. It has no database: it takes a lock, reads, decides, and writes over
// HTTP under the grant's fencing token.
//
// For one payout: acquire payout:{accountId} → read the payout and what is on record at the rail-proxy → claim → submit → post →
// release. Before each of the three writes the lock service is asked. A write is sent once, whatever happens to it: what is refused with
// FENCED_OUT or has an unknown outcome ends the work on that payout, under this token and under any other.
package executor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"fenceline/lockd/lockclient"
	"fenceline/paysvc/payapi"
	"fenceline/paysvc/payout"
	"fenceline/paysvc/railproxy/railapi"
)

// Resource is the payment-resource. Reads give *Refusal for an answer other than success; writes as well, or an error that wraps
// errUnknown when they may have taken effect.
type Resource interface {
	// Payouts returns a page of P1.
	Payouts(ctx context.Context, q Query) (payapi.PayoutPage, error)
	Payout(ctx context.Context, id string) (payapi.Payout, error)
	Claim(ctx context.Context, w Write, expected payout.State) error
	Post(ctx context.Context, w Write, s payapi.Submission) error
}

// RailProxy is the rail-proxy; its errors are like those of Resource.
type RailProxy interface {
	Submissions(ctx context.Context, payoutID string) (railapi.List, error)
	Submit(ctx context.Context, w Write) (payapi.Submission, error)
}

// Query says which payouts to list.
type Query struct {
	State     payout.State
	AccountID string // "" for all
	Cursor    string // "" for the first page
}

// Options say what an executor does.
type Options struct {
	Owner       string
	AccountID   string // work on this account's payouts only
	PayoutID    string // work on this payout only
	SessionTTL  time.Duration
	LockTTL     time.Duration
	AcquireWait time.Duration // how long to try to get a lock
	// Barriers are passed after a lock is taken and before anything is read that a decision is based on. The key is the account.
	Barriers []Barrier
	// PollInterval is the pause between two passes over the backlog.
	PollInterval time.Duration
	// SkipLockCheck writes without asking the lock service and whatever it says. For experiments: it stands for a pause between the
	// check and the write, which no check can exclude.
	SkipLockCheck bool
	// PauseBefore, when not "", is the step before whose request the executor waits for a line from PauseInput.
	PauseBefore Step
	PauseInput  io.Reader
}

// Barrier is a guard of a sidecar that orders effects.
type Barrier struct{ Guard, Sidecar string }

// ParseBarrier reads GUARD=URL.
func ParseBarrier(text string) (Barrier, error) {
	guard, sidecar, ok := strings.Cut(text, "=")
	if !ok || guard == "" || !strings.HasPrefix(sidecar, "http") {
		return Barrier{}, fmt.Errorf("barrier %q: want GUARD=URL of the sidecar, such as account=http://127.0.0.1:8081", text)
	}
	return Barrier{Guard: guard, Sidecar: sidecar}, nil
}

// Recorder records metrics.
type Recorder interface {
	// Executed records how work on a payout ended and how long it took.
	Executed(outcome Outcome, took time.Duration)
	// BacklogAge records the age of the oldest PENDING payout, 0 when there is none.
	BacklogAge(age time.Duration)
	// LockLost records that a lock was lost while it was held.
	LockLost()
}

// Executor works on payouts, one at a time.
type Executor struct {
	options  Options
	locks    lockclient.Options
	resource Resource
	rail     RailProxy
	logger   hclog.Logger
	recorder Recorder
	pauser   *pauser
}

// New returns an executor. locks say how to reach the lock service; times to live and waiting are those of the options.
func New(options Options, locks lockclient.Options, resource Resource, rail RailProxy, logger hclog.Logger, recorder Recorder) *Executor {
	locks.SessionTTL = options.SessionTTL
	locks.Observer = lockEvents{logger, recorder}
	return &Executor{
		options: options, locks: locks, resource: resource, rail: rail, logger: logger, recorder: recorder,
		pauser: newPauser(options.PauseBefore, options.PauseInput, logger),
	}
}

// states are those of payouts with something left to do, the oldest obligation first: where the rail has paid, only the posting is missing.
func states() []payout.State {
	return []payout.State{payout.RailAcked, payout.RailSubmitted, payout.Claimed, payout.Pending}
}

// Once makes one pass: it works once on the payout of the options, or on every payout with something left to do. The error means
// that the pass itself couldn't be made or finished.
func (e *Executor) Once(ctx context.Context) (Summary, error) {
	p := e.newPass(nil)
	defer p.close(ctx)
	err := p.all(ctx)
	return p.summary, err
}

// Run makes passes until ctx ends. A payout whose work ended with FencedOut, LockLost or Ambiguous isn't touched again by
// this executor: somebody newer is at work, or another attempt could pay twice.
func (e *Executor) Run(ctx context.Context) Summary {
	total := Summary{}
	givenUp := map[string]bool{}
	for {
		p := e.newPass(givenUp)
		err := p.all(ctx)
		p.close(ctx)
		if err == nil {
			givenUp = p.stillGivenUp // what isn't listed any more is done, by whomever
		} else if ctx.Err() == nil {
			e.logger.Warn("pass ended early", "event", "poll_failed", "error", err)
		}
		for outcome, n := range p.summary {
			total[outcome] += n
		}
		if !sleep(ctx, e.options.PollInterval) {
			return total
		}
	}
}

// pass is one round over the backlog, under one session of the lock service that is opened when it is first needed.
type pass struct {
	*Executor
	session *lockclient.Session
	summary Summary
	givenUp map[string]bool
	// stillGivenUp are the payouts that were listed in this pass and aren't to be touched in the next.
	stillGivenUp map[string]bool
}

func (e *Executor) newPass(givenUp map[string]bool) *pass {
	return &pass{Executor: e, summary: Summary{}, givenUp: givenUp, stillGivenUp: map[string]bool{}}
}

func (p *pass) close(ctx context.Context) {
	if p.session != nil {
		_ = p.session.Close(ctx) // a failure is logged as an event; the session ends by itself
	}
}

// all works on the payout of the options, or on the backlog.
func (p *pass) all(ctx context.Context) error {
	if p.options.PayoutID == "" {
		return p.backlog(ctx)
	}
	read, err := p.resource.Payout(ctx, p.options.PayoutID)
	if err != nil {
		return fmt.Errorf("read payout %s: %w", p.options.PayoutID, err)
	}
	p.work(ctx, read)
	return nil
}

// backlog works on each payout with something left to do. Payouts only move to states that have been listed by then, so none comes twice.
func (p *pass) backlog(ctx context.Context) error {
	for _, state := range states() {
		for q := (Query{State: state, AccountID: p.options.AccountID}); ; {
			page, err := p.resource.Payouts(ctx, q)
			if err != nil {
				return fmt.Errorf("list payouts: %w", err)
			}
			if state == payout.Pending && q.Cursor == "" {
				p.recorder.BacklogAge(age(page.Payouts))
			}
			for _, listed := range page.Payouts {
				if err := ctx.Err(); err != nil {
					return err
				}
				p.work(ctx, listed)
			}
			if q.Cursor = page.NextCursor; q.Cursor == "" {
				break
			}
		}
	}
	return nil
}

func age(page []payapi.Payout) time.Duration {
	if len(page) == 0 {
		return 0
	}
	return max(time.Since(page[0].CreatedAt.Time), 0)
}

// work works on one payout and reports how that ended.
func (p *pass) work(ctx context.Context, listed payapi.Payout) {
	if p.givenUp[listed.PayoutID] {
		p.stillGivenUp[listed.PayoutID] = true
		return
	}
	started := time.Now()
	result := p.execute(ctx, listed)
	result.PayoutID = listed.PayoutID
	p.summary[result.Outcome]++
	if result.Outcome != Skipped {
		p.recorder.Executed(result.Outcome, time.Since(started))
	}
	switch result.Outcome {
	case FencedOut, LockLost, Ambiguous:
		p.stillGivenUp[listed.PayoutID] = true
	case Posted, Failed, Abandoned, Skipped, Aborted:
	}
	p.report(result, time.Since(started))
}

func (p *pass) report(r Result, took time.Duration) {
	fields := []any{
		"event", "payout_outcome", "payoutId", r.PayoutID, "outcome", string(r.Outcome), "step", string(r.Step),
		"token", int64(r.Token), "ownerId", p.options.Owner, "elapsedMillis", took.Milliseconds(),
	}
	if r.Refusal != nil {
		fields = append(fields, "code", r.Refusal.Code)
	}
	if r.Outcome == FencedOut && r.Refusal != nil {
		fields = append(fields, "resource", r.Refusal.Resource,
			"presentedToken", int64(r.Refusal.PresentedToken), "highestToken", int64(r.Refusal.HighestToken))
	}
	if r.Err != nil {
		fields = append(fields, "error", r.Err)
	}
	log := p.logger.Info
	switch r.Outcome {
	case FencedOut, LockLost, Ambiguous:
		log = p.logger.Error
	case Aborted:
		log = p.logger.Warn
	case Posted, Failed, Abandoned, Skipped:
	}
	log("work on the payout ended", fields...)
}

// ensureSession opens the pass's session, and another one in place of one that is over.
func (p *pass) ensureSession(ctx context.Context) (*lockclient.Session, error) {
	if p.session != nil && p.session.Err() == nil {
		return p.session, nil
	}
	p.close(ctx)
	p.session = nil
	s, err := lockclient.Open(ctx, p.options.Owner, p.locks)
	if err != nil {
		return nil, err
	}
	p.session = s
	return s, nil
}

// lockEvents logs and counts what happens to locks by itself.
type lockEvents struct {
	logger   hclog.Logger
	recorder Recorder
}

// Observe implements lockclient.Observer.
func (l lockEvents) Observe(e lockclient.Event) {
	if e.Name == lockclient.EventSessionLost {
		l.recorder.LockLost()
	}
	l.logger.Warn("the lock service", "event", e.Name, "lockKey", e.Key, "token", int64(e.Token), "cause", e.Err)
}

// sleep waits; false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// errStopping means that the process is told to stop.
var errStopping = errors.New("the executor is stopping")
