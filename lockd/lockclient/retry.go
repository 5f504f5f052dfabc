package lockclient

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"fenceline/lockd/lock"
)

// How often and how soon a call is sent again.
const (
	maxTries   = 5
	firstPause = 50 * time.Millisecond
	longPause  = time.Second
)

// backoff is the pause after the nth try, from half of its nominal length to all of it, so that clients don't meet again.
func backoff(n int) time.Duration {
	nominal := longPause
	if n < maxTries {
		nominal = min(firstPause<<(n-1), longPause)
	}
	return nominal/2 + rand.N(nominal/2) //nolint:gosec // jitter
}

// again says whether a call may and should be sent once more, and how long lockd asks to wait before. A call without an answer may
// be: every call that is retried has no second effect, or one that replaces the first.
func again(err error) (after time.Duration, ok bool) {
	if refusal, ok := errors.AsType[*Refusal](err); ok {
		transient := refusal.Status >= 500 || refusal.Status == 429 || refusal.Status == 408
		return time.Duration(min(refusal.Envelope.RetryAfterMillis, lock.MaxWait.Milliseconds())) * time.Millisecond, refusal.Envelope.RetrySafe && transient
	}
	return 0, errors.Is(err, ErrNoAnswer)
}

// retry calls try until it succeeds, gives an error that must not be retried, has been called five times, or ctx ends.
func retry(ctx context.Context, try func(context.Context) error) error {
	for n := 1; ; n++ {
		err := try(ctx)
		if err == nil {
			return nil
		}
		after, ok := again(err)
		if !ok || n == maxTries || ctx.Err() != nil || !sleep(ctx, max(after, backoff(n))) {
			return err
		}
	}
}
