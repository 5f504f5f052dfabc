// Package relay tells others what has happened to payouts: it delivers the outbox to an HTTP endpoint, at least once.
//
// An event is leased first, by a committed statement, then delivered with no transaction open, then marked. A relay that dies between delivery and mark, or
// whose lease ends meanwhile, leaves the event to be delivered again, with the same key: it is never lost, and whoever receives it drops what he has seen by
// its key. The events of one payout are delivered one after the other in their order; a repetition may come late.
package relay

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/errgroup"

	"fenceline/paysvc/relay/event"
)

// Store keeps the outbox. Its errors are those of internal/postgres.
type Store interface {
	// Claim leases up to limit events that are due to the claim, the oldest of each payout only.
	Claim(ctx context.Context, claim uuid.UUID, limit int, lease time.Duration) ([]event.Event, error)
	// Delivered marks the event; once marked it is never claimed again.
	Delivered(ctx context.Context, id int64) error
	// Failed gives the event back, to be tried again after a while, or parks it; unless another claim has it by now.
	Failed(ctx context.Context, id int64, claim uuid.UUID, retryAfter time.Duration, park bool, why string) error
	// Unpark makes every parked event due again.
	Unpark(ctx context.Context) (int64, error)
	// Backlog says what isn't delivered.
	Backlog(ctx context.Context) (event.Backlog, error)
}

// Endpoint takes events.
type Endpoint interface {
	// Deliver returns nil when the event has certainly been taken.
	Deliver(ctx context.Context, e event.Event) error
}

// Recorder records metrics.
type Recorder interface {
	// Delivered counts a delivery.
	Delivered()
	// Failed counts a delivery that failed or whose outcome is unknown.
	Failed()
	// Backlog records what isn't delivered.
	Backlog(b event.Backlog)
}

// Options say how the relay works. All are above 0.
type Options struct {
	Batch       int           // events that are leased and delivered at a time
	Lease       time.Duration // how long an event is this relay's; above the endpoint's time limit
	Poll        time.Duration // pause when nothing is due
	MaxAttempts int           // after this many an event is parked
	MinBackoff  time.Duration // pause after the first failure; it doubles each time
	MaxBackoff  time.Duration // the most that it becomes
}

// Validate says what is wrong with the options.
func (o Options) Validate() error {
	if o.Batch < 1 || o.MaxAttempts < 1 || o.Lease <= 0 || o.Poll <= 0 || o.MinBackoff <= 0 || o.MaxBackoff < o.MinBackoff {
		return errors.New("relay: batch, max-attempts, lease, poll-interval and min-backoff: want more than 0; max-backoff: want min-backoff or more")
	}
	return nil
}

// Relay delivers.
type Relay struct {
	store    Store
	endpoint Endpoint
	options  Options
	logger   hclog.Logger
	recorder Recorder
}

// New returns a relay.
func New(store Store, endpoint Endpoint, options Options, logger hclog.Logger, recorder Recorder) *Relay {
	return &Relay{store: store, endpoint: endpoint, options: options, logger: logger, recorder: recorder}
}

// Run delivers until ctx ends. A database that is away only makes it wait.
func (r *Relay) Run(ctx context.Context) {
	for ctx.Err() == nil {
		n, err := r.Once(ctx)
		if err != nil && ctx.Err() == nil {
			r.logger.Warn("the outbox can't be worked on, trying again", "event", "relay_failed", "error", err)
		}
		if n == 0 || err != nil {
			if !sleep(ctx, r.options.Poll) {
				return
			}
		}
	}
}

// Once leases what is due, delivers it and returns how many events that were.
func (r *Relay) Once(ctx context.Context) (int, error) {
	if backlog, err := r.store.Backlog(ctx); err == nil {
		r.recorder.Backlog(backlog)
	}
	claim := uuid.New()
	leased := time.Now() // before the lease begins, so that it is never believed to last longer than it does
	events, err := r.store.Claim(ctx, claim, r.options.Batch, r.options.Lease)
	if err != nil {
		return 0, err
	}
	// A signal to stop doesn't cut off a delivery under way: its outcome would be unknown. The lease does, since after it another relay delivers.
	deliverCtx, cancel := context.WithDeadline(context.WithoutCancel(ctx), leased.Add(r.options.Lease))
	defer cancel()
	var group errgroup.Group
	for _, e := range events { // of different payouts, so their order among each other doesn't matter
		group.Go(func() error { return r.deliver(deliverCtx, claim, e) })
	}
	return len(events), group.Wait()
}

// markTimeout bounds how long a mark may take after the lease is over.
const markTimeout = 5 * time.Second

func (r *Relay) deliver(ctx context.Context, claim uuid.UUID, e event.Event) error {
	failure := r.endpoint.Deliver(ctx, e)
	markCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), markTimeout)
	defer cancel()
	if failure == nil {
		r.recorder.Delivered()
		r.logger.Info("event delivered", "event", "event_delivered", "eventKey", e.Key, "eventType", e.Type, "attempt", e.Attempt)
		return r.store.Delivered(markCtx, e.ID)
	}
	r.recorder.Failed()
	park := e.Attempt >= r.options.MaxAttempts
	retry := backoff(e.Attempt, r.options.MinBackoff, r.options.MaxBackoff)
	fields := []any{"eventKey", e.Key, "eventType", e.Type, "attempt", e.Attempt, "error", failure}
	if park {
		r.logger.Error("event parked: a person must look, then start a relay with --unpark", append(fields, "event", "event_parked")...)
	} else {
		r.logger.Warn("event not delivered", append(fields, "event", "event_not_delivered", "retryMillis", retry.Milliseconds())...)
	}
	if err := r.store.Failed(markCtx, e.ID, claim, retry, park, failure.Error()); err != nil {
		return fmt.Errorf("after a failed delivery: %w", err) // the lease ends by itself
	}
	return nil
}

// backoff is the pause after the attempt: it doubles from least to most, with jitter down to half, so that events that failed together don't return together.
func backoff(attempt int, least, most time.Duration) time.Duration {
	pause := least
	for i := 1; i < attempt && pause < most; i++ {
		pause *= 2
	}
	pause = min(pause, most)
	return pause/2 + rand.N(pause/2+1) //nolint:gosec // jitter
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
