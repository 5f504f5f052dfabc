package lockclient

import (
	"context"
	"time"
)

// marginPercent is the part of a lease's time that isn't relied on. It pays for what no client can measure: clocks that run at different
// speeds, and the time that work takes to stop once it is told to.
const marginPercent = 30

// moment is one instant on two clocks. The monotonic one can stand still while the machine sleeps, the wall clock can be set.
type moment struct {
	mono time.Duration // since some instant in the past
	wall time.Duration // since 1970
}

// systemClock reads both clocks of the system.
func systemClock() func() moment {
	start := time.Now()
	return func() moment {
		now := time.Now()
		return moment{mono: now.Sub(start), wall: time.Duration(now.UnixNano())}
	}
}

// lease is how long something that lockd granted may be relied on.
type lease struct {
	sent  moment // when the request was sent that was granted: lockd can't have granted it earlier
	lasts time.Duration
}

// trust gives the lease of a grant of ttl. waited is for how long lockd says that it made the request wait before it granted; it can't be more
// than what passed until the answer was there.
func trust(sent, answered moment, waited, ttl time.Duration) lease {
	return lease{sent: sent, lasts: min(max(waited, 0), answered.mono-sent.mono) + trusted(ttl)}
}

// trusted is the part of a time to live that is relied on.
func trusted(ttl time.Duration) time.Duration { return ttl - ttl*marginPercent/100 }

// left is how long the lease may still be relied on, by the clock that ran further; zero or less when it is over.
func (l lease) left(now moment) time.Duration {
	return l.lasts - max(now.mono-l.sent.mono, now.wall-l.sent.wall)
}

// Bounds of how often the clocks are looked at while nothing happens. A timer follows the monotonic clock, so a wall clock that ran ahead is
// noticed only by looking.
const (
	minLook = 10 * time.Millisecond
	maxLook = time.Second
)

// watch calls over once nothing is left, without asking anybody. It returns then, or when ctx ends.
func watch(ctx context.Context, window time.Duration, left func() time.Duration, over func()) {
	look := min(max(window/20, minLook), maxLook)
	for {
		l := left()
		if l <= 0 {
			over()
			return
		}
		if !sleep(ctx, min(l, look)) {
			return
		}
	}
}

// keep calls renew until ctx ends: a third of the window after the one that succeeded, sooner after one that didn't. Each call is given
// half of the window, so that one that is never answered leaves time for another.
func keep(ctx context.Context, window time.Duration, renew func(context.Context) error, failed func(error)) {
	pause, faults := window/3, 0
	for sleep(ctx, pause) {
		callCtx, cancel := context.WithTimeout(ctx, window/2)
		err := renew(callCtx)
		cancel()
		if err == nil {
			pause, faults = window/3, 0
			continue
		}
		if ctx.Err() == nil {
			failed(err)
		}
		faults++
		pause = min(backoff(faults), window/3)
	}
}

// within returns a context that ends with ctx and with life, and with the cause of whichever is first.
func within(ctx, life context.Context) (context.Context, context.CancelFunc) {
	merged, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(life, func() { cancel(context.Cause(life)) })
	return merged, func() { stop(); cancel(nil) }
}

// sleep waits; false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
