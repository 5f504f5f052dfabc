package locktest

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"

	"fenceline/lockd/lock"
)

func reapingIsIdempotent(ctx context.Context, s Store) error {
	a, err := newClient(ctx, s)
	if err != nil {
		return err
	}
	grant, err := a.must(ctx, newKey(), shortTTL)
	if err != nil {
		return err
	}
	count := func() (n int, err error) {
		expired, _, err := s.Reap(ctx, 1000)
		for _, e := range expired {
			if e.Key == grant.Key && e.Token == grant.Token {
				n++
			}
			if !e.Expired || e.Key == grant.Key && e.OwnerID != grant.OwnerID {
				err = errors.Join(err, fmt.Errorf("reaped %+v, want an expired grant with its owner", e))
			}
			if e.Overdue < 0 {
				err = errors.Join(err, fmt.Errorf("reaped %s before its time", -e.Overdue))
			}
		}
		return n, err
	}
	for n := 0; n == 0; {
		if n, err = count(); err != nil {
			return fmt.Errorf("reap: %w", err)
		}
		if err := pause(ctx); err != nil {
			return fmt.Errorf("the reaper doesn't find the expired grant: %w", err)
		}
	}
	if n, err := count(); n != 0 || err != nil {
		return fmt.Errorf("second reap found it again (%d, %w)", n, err)
	}
	return nil
}

const (
	reapers     = 4
	reapedBatch = 7
	doomed      = 60 // grants: half of them end by their own time, half by their session's
)

// everyExpiredGrantIsReapedOnce lets several replicas reap at once, in small batches. What is alive stays.
func everyExpiredGrantIsReapedOnce(ctx context.Context, s Store) error {
	survivor, err := newClient(ctx, s)
	if err != nil {
		return err
	}
	alive, err := survivor.must(ctx, newKey(), longTTL)
	if err != nil {
		return err
	}
	want, err := prepareDoomed(ctx, s, survivor)
	if err != nil {
		return err
	}

	var mu sync.Mutex
	found := map[lock.Token]int{}
	group, groupCtx := errgroup.WithContext(ctx)
	for range reapers {
		group.Go(func() error {
			for {
				expired, more, err := s.Reap(groupCtx, reapedBatch)
				if err != nil {
					return fmt.Errorf("reap: %w", err)
				}
				mu.Lock()
				for _, e := range expired {
					found[e.Token]++
				}
				enough := len(found) >= len(want)
				mu.Unlock()
				if !more && enough {
					return nil
				}
				if err := pause(groupCtx); err != nil {
					return fmt.Errorf("%d of %d grants were reaped: %w", len(found), len(want), err)
				}
			}
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for token, times := range found {
		if !want[token] || times != 1 {
			return fmt.Errorf("token %d was reaped %d times (doomed: %t)", token, times, want[token])
		}
	}
	return wantHolder(ctx, s, alive)
}

// prepareDoomed makes grants that are about to end, some by their own time and some by their session's.
func prepareDoomed(ctx context.Context, s Store, survivor *client) (map[lock.Token]bool, error) {
	dying, err := newClient(ctx, s)
	if err != nil {
		return nil, err
	}
	want := map[lock.Token]bool{}
	for i := range doomed {
		c, ttl := survivor, shortTTL
		if i%2 == 0 {
			c, ttl = dying, longTTL
		}
		grant, err := c.must(ctx, newKey(), ttl)
		if err != nil {
			return nil, err
		}
		want[grant.Token] = true
	}
	return want, s.ExpireSession(ctx, dying.session.ID)
}

// takeoverTellsWhatItEnded wants an expiry to be visible also when a takeover is faster than the reaper.
func takeoverTellsWhatItEnded(ctx context.Context, s Store) error {
	a, b, err := twoClients(ctx, s)
	if err != nil {
		return err
	}
	fresh, err := s.Insert(ctx, newKey(), a.session.OwnerID, a.session.ID, longTTL)
	if err != nil || fresh.Ended != nil {
		return fmt.Errorf("acquire of a free key: ended %+v, %w; want nothing ended", fresh.Ended, err)
	}
	stale := fresh.Grant
	if err := s.ExpireSession(ctx, a.session.ID); err != nil {
		return err
	}
	taken, err := s.Insert(ctx, stale.Key, b.session.OwnerID, b.session.ID, longTTL)
	if err != nil || !taken.Granted {
		return fmt.Errorf("takeover: %+v, %w", taken, err)
	}
	if taken.Ended == nil || taken.Ended.Token != stale.Token || taken.Ended.Overdue <= 0 || !taken.Ended.Expired || taken.Ended.OwnerID != stale.OwnerID {
		return fmt.Errorf("takeover ended %+v, want token %d of %s", taken.Ended, stale.Token, stale.OwnerID)
	}
	return nil
}
