package marktest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"fenceline/lockd/lock"
	"fenceline/sidecar/mark"
)

// OrderOfEffects is the guarantee itself. Many sidecars' requests present tokens for one key; whoever found nothing older has the key for itself until it settles: no lower
// token is in flight, and none comes.
func OrderOfEffects(ctx context.Context, env RegisterEnv) error {
	a, b, key, err := env.two(ctx)
	if err != nil {
		return err
	}
	var next atomic.Int64
	watch := newInFlight()
	group, groupCtx := errgroup.WithContext(ctx)
	for i, r := range []mark.Register{a, b, a, b, a, b, a, b} {
		group.Go(func() error {
			for turn := 0; turn < 60 || turn < 3000 && watch.count() < 20; turn++ {
				token := lock.Token(next.Add(1)/3 + 1) // some equal ones
				got, err := r.Register(groupCtx, entry(env.Hold, key, token, i%4 == 3))
				if errors.Is(err, mark.ErrBusy) || errors.Is(err, mark.ErrUnavailable) {
					continue // a crowded key; a row may be left behind, which only blocks
				}
				if err != nil {
					return err
				}
				if got.Verdict != mark.Admitted {
					continue
				}
				if len(got.Older) > 0 {
					watch.registered(token)
				} else {
					if err := watch.run(groupCtx, token); err != nil {
						return err
					}
				}
				if err := r.Settle(groupCtx, []mark.Row{got.Row}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if ran := watch.count(); ran < 20 {
		return fmt.Errorf("only %d requests were let through, too few to say anything", ran)
	}
	return nil
}

// meetings is how many higher requests the first one meets.
const meetings = 40

// inFlight stands for the resource. The first request that it gets takes effect only after many higher ones were registered, so that they
// meet on every run.
type inFlight struct {
	mu      sync.Mutex
	running []lock.Token
	last    lock.Token
	ran     int
	first   lock.Token
	// higher is closed when as many as meetings higher ones were registered.
	higher   chan struct{}
	meetings int
}

func newInFlight() *inFlight { return &inFlight{higher: make(chan struct{})} }

func (f *inFlight) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ran
}

// registered is for requests that were registered and have to wait.
func (f *inFlight) registered(token lock.Token) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.came(token)
}

func (f *inFlight) came(token lock.Token) {
	if f.first == 0 || token <= f.first {
		return
	}
	if f.meetings++; f.meetings == meetings {
		close(f.higher)
	}
}

// run lets a request take effect, and says when it does so out of order: at its beginning, or at its end when a higher one began meanwhile.
func (f *inFlight) run(ctx context.Context, token lock.Token) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, other := range f.running {
		if other < token {
			return fmt.Errorf("token %d was let through while %d was in flight", token, other)
		}
	}
	if token < f.last {
		return fmt.Errorf("token %d was let through after %d", token, f.last)
	}
	f.last, f.ran = token, f.ran+1
	f.running = append(f.running, token)
	f.came(token)
	isFirst := f.first == 0
	if isFirst {
		f.first = token
	}
	f.mu.Unlock()
	f.pause(ctx, isFirst)
	f.mu.Lock()
	i := slices.Index(f.running, token)
	f.running = slices.Delete(f.running, i, i+1)
	if f.last > token {
		return fmt.Errorf("token %d took effect after %d", token, f.last)
	}
	return nil
}

// pause gives others the processor, so that effects take long enough to meet.
func (f *inFlight) pause(ctx context.Context, untilHigher bool) {
	if untilHigher {
		select {
		case <-f.higher:
		case <-ctx.Done():
		case <-time.After(5 * time.Second): // nobody comes
		}
	}
	for range 50 {
		f.mu.Lock()
		f.mu.Unlock() //nolint:staticcheck // it only lets others in
	}
}
