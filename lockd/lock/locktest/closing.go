package locktest

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"

	"fenceline/lockd/lock"
)

// told counts how often each grant was told to have ended.
type told struct {
	mu      sync.Mutex
	granted map[lock.Token]string // with their keys
	ended   map[lock.Token]int
}

func (t *told) grant(g lock.Grant) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.granted[g.Token] = g.Key
}

func (t *told) end(token lock.Token) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended[token]++
}

// everyGrantOfAClosedSessionIsToldOnce closes a session while it acquires and releases: each grant that it ever had is either released by the call that
// said so, or told by the close (or by a reaper that came between), and none of them twice.
func everyGrantOfAClosedSessionIsToldOnce(ctx context.Context, s Store) error {
	const busy, before = 4, 8
	a, err := newClient(ctx, s)
	if err != nil {
		return err
	}
	seen := &told{granted: map[lock.Token]string{}, ended: map[lock.Token]int{}}
	for range before {
		grant, err := a.must(ctx, newKey(), longTTL)
		if err != nil {
			return err
		}
		seen.grant(grant)
	}
	group, groupCtx := errgroup.WithContext(ctx)
	started := make(chan struct{}, busy)
	for range busy {
		group.Go(func() error { return a.takeAndReleaseUntilClosed(groupCtx, seen, started) })
	}
	for range busy {
		select {
		case <-started:
		case <-groupCtx.Done():
			return group.Wait()
		}
	}
	ended, err := s.CloseSession(ctx, a.session.ID)
	if err != nil {
		return fmt.Errorf("close: %w", err)
	}
	for _, e := range ended {
		seen.end(e.Token)
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return seen.check(ctx, s)
}

// takeAndReleaseUntilClosed acquires key after key and releases every second one, until its session is gone.
func (c *client) takeAndReleaseUntilClosed(ctx context.Context, seen *told, started chan<- struct{}) error {
	for n := 0; ; n++ {
		result, err := c.store.Insert(ctx, newKey(), c.session.OwnerID, c.session.ID, longTTL)
		if errors.Is(err, lock.ErrSessionUnknown) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("acquire: %w", err)
		}
		seen.grant(result.Grant)
		if n%2 == 0 {
			released, err := c.store.Delete(ctx, result.Grant.Key, result.Grant.Token)
			if err != nil {
				return fmt.Errorf("release: %w", err)
			}
			if !released.Stale {
				seen.end(result.Grant.Token)
			}
		}
		if n == 2 {
			started <- struct{}{}
		}
	}
}

// check wants each grant told once. What a reaper of this scenario's own finds is told, too.
func (t *told) check(ctx context.Context, s Store) error {
	reaped, _, err := s.Reap(ctx, 1000)
	if err != nil {
		return fmt.Errorf("reap: %w", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range reaped {
		if _, ours := t.granted[e.Token]; ours {
			t.ended[e.Token]++
		}
	}
	for token, key := range t.granted {
		if t.ended[token] != 1 {
			return fmt.Errorf("the end of token %d of %s was told %d times", token, key, t.ended[token])
		}
	}
	for token := range t.ended {
		if _, ours := t.granted[token]; !ours {
			return fmt.Errorf("the end of token %d was told, which nobody was granted", token)
		}
	}
	return nil
}
