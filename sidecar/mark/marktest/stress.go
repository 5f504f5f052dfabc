package marktest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"fenceline/lockd/lock"
	"fenceline/sidecar/mark"
)

// Counts are what a stress of one key has seen.
type Counts struct {
	Admissions int // requests that were admitted
	Forwarded  int // of those: nothing older was in flight
	// Admitted are those that were admitted although a higher token had been admitted before they were asked for (G0).
	Admitted int
	// Effects are those that were forwarded while a lower token was in flight, or after a higher one was forwarded (G1).
	Effects int
}

func (c Counts) String() string {
	return fmt.Sprintf("%d effects and %d admissions out of order / %d admissions, %d forwarded", c.Effects, c.Admitted, c.Admissions, c.Forwarded)
}

// competitors is how many sidecars meet. One sends one request of a key at a time to its store, so fewer would hardly meet.
const competitors = 4

// Stress lets the requests of several sidecars present tokens for one key until as many were admitted, and counts what is out of order. With stopAtFirst it ends when something
// is. A context that ends first is no error.
func Stress(ctx context.Context, env RegisterEnv, admissions int, stopAtFirst bool) (Counts, error) {
	key, err := env.NewKey(ctx)
	if err != nil {
		return Counts{}, err
	}
	var sidecars []mark.Register
	for i := range competitors {
		r, err := env.Open(ctx, fmt.Sprint("competitor-", i))
		if err != nil {
			return Counts{}, err
		}
		sidecars = append(sidecars, r)
	}
	s := &stress{want: admissions, stopAtFirst: stopAtFirst}
	group, groupCtx := errgroup.WithContext(ctx)
	for _, r := range sidecars {
		group.Go(func() error {
			for groupCtx.Err() == nil && !s.over() {
				token := lock.Token(s.next.Add(1))
				for range 3 { // again under the same token, until somebody else's is higher
					if err := s.turn(groupCtx, r, env.Hold, key, token); err != nil && groupCtx.Err() == nil {
						return err
					}
				}
			}
			return nil
		})
	}
	err = group.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts, err
}

// stress is one on its way.
type stress struct {
	want        int
	stopAtFirst bool
	next        atomic.Int64

	mu       sync.Mutex
	counts   Counts
	running  []lock.Token
	forward  lock.Token // the highest that was forwarded
	admitted lock.Token // the highest whose admission is known
}

func (s *stress) over() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts.Admissions >= s.want || s.stopAtFirst && s.counts.Effects+s.counts.Admitted > 0
}

// turn is one request.
func (s *stress) turn(ctx context.Context, r mark.Register, guard, key string, token lock.Token) error {
	s.mu.Lock()
	before := s.admitted
	s.mu.Unlock()
	got, err := r.Register(ctx, entry(guard, key, token, false))
	switch {
	case errors.Is(err, mark.ErrBusy), errors.Is(err, mark.ErrUnavailable): // a crowded key; a row may be left behind, which only blocks
		return nil
	case err != nil:
		return err
	case got.Verdict != mark.Admitted:
		return nil
	}
	s.mu.Lock()
	s.counts.Admissions++
	s.admitted = max(s.admitted, token)
	if token < before {
		s.counts.Admitted++
	}
	s.mu.Unlock()
	if len(got.Older) == 0 {
		s.run(ctx, token)
	}
	return r.Settle(ctx, []mark.Row{got.Row})
}

// effect is how long a request is in the resource at most: some are over before a newer one can have come, some not.
const effect = 10 * time.Millisecond

func (s *stress) run(ctx context.Context, token lock.Token) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts.Forwarded++
	if token < s.forward || slices.ContainsFunc(s.running, func(other lock.Token) bool { return other < token }) {
		s.counts.Effects++
	}
	s.forward, s.running = max(s.forward, token), append(s.running, token)
	s.mu.Unlock()
	timer := time.NewTimer(rand.N(effect)) //nolint:gosec // nothing secret
	select {
	case <-timer.C:
	case <-ctx.Done():
		timer.Stop()
	}
	s.mu.Lock()
	i := slices.Index(s.running, token)
	s.running = slices.Delete(s.running, i, i+1)
}
