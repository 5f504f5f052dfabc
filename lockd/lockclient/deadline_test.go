package lockclient

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// brokenRules are the mistakes that home-made lock clients make.
func brokenRules() map[string]trustRule {
	return map[string]trustRule{
		"time stamped after the answer": func(_, answered moment, waited, ttl time.Duration) lease {
			return trust(answered, answered, waited, ttl)
		},
		"no margin": func(sent, _ moment, waited, ttl time.Duration) lease {
			return lease{sent: sent, lasts: waited + ttl}
		},
	}
}

// deadlineTable checks the arithmetic. Times are in milliseconds; the request is sent at 1000 on both clocks.
func deadlineTable(rule trustRule) error {
	for _, c := range []struct {
		name         string
		answered     int // on the monotonic clock
		answeredWall int
		waited, ttl  int
		mono, wall   int // now
		left         int
	}{
		{name: "just granted", answered: 1000, answeredWall: 1000, ttl: 10000, mono: 1000, wall: 1000, left: 7000},
		{name: "both clocks advance", answered: 1000, answeredWall: 1000, ttl: 10000, mono: 4000, wall: 4000, left: 4000},
		{name: "counts from when it was sent", answered: 6000, answeredWall: 6000, ttl: 10000, mono: 6000, wall: 6000, left: 2000},
		{name: "at the deadline", answered: 1000, answeredWall: 1000, ttl: 10000, mono: 8000, wall: 8000, left: 0},
		{name: "after it", answered: 1000, answeredWall: 1000, ttl: 10000, mono: 8001, wall: 8001, left: -1},
		{name: "wall clock ahead", answered: 1000, answeredWall: 1000, ttl: 10000, mono: 2000, wall: 9000, left: -1000},
		{name: "monotonic clock ahead", answered: 1000, answeredWall: 1000, ttl: 10000, mono: 9000, wall: 2000, left: -1000},
		{name: "wall clock set back", answered: 1000, answeredWall: 1000, ttl: 10000, mono: 2000, wall: -500000, left: 6000},
		{name: "wall clock jumped before the answer", answered: 1000, answeredWall: 6000, ttl: 10000, mono: 1000, wall: 6000, left: 2000},
		{name: "waited before the grant", answered: 6000, answeredWall: 6000, waited: 5000, ttl: 10000, mono: 6000, wall: 6000, left: 7000},
		{name: "waited, and the answer was slow", answered: 7500, answeredWall: 7500, waited: 5000, ttl: 10000, mono: 7500, wall: 7500, left: 5500},
		{name: "said to have waited longer than it took", answered: 2000, answeredWall: 2000, waited: 60000, ttl: 10000, mono: 2000, wall: 2000, left: 7000},
		{name: "negative wait", answered: 2000, answeredWall: 2000, waited: -60000, ttl: 10000, mono: 2000, wall: 2000, left: 6000},
		{name: "shortest", answered: 1000, answeredWall: 1000, ttl: 100, mono: 1000, wall: 1000, left: 70},
		{name: "one millisecond", answered: 1000, answeredWall: 1000, ttl: 1, mono: 1001, wall: 1001, left: 0},
		{name: "longest", answered: 1000, answeredWall: 1000, ttl: 300000, mono: 1000, wall: 1000, left: 210000},
	} {
		at := func(mono, wall int) moment {
			return moment{mono: time.Duration(mono) * time.Millisecond, wall: time.Duration(wall) * time.Millisecond}
		}
		l := rule(at(1000, 1000), at(c.answered, c.answeredWall), time.Duration(c.waited)*time.Millisecond, time.Duration(c.ttl)*time.Millisecond)
		got := l.left(at(c.mono, c.wall))
		if want := time.Duration(c.left) * time.Millisecond; got.Truncate(time.Millisecond) != want {
			return fmt.Errorf("%s: %s left, want %s", c.name, got, want)
		}
	}
	return nil
}

func TestLocalDeadlineCountsFromWhenTheRequestWasSent(t *testing.T) {
	t.Parallel()
	require.NoError(t, deadlineTable(trust))
	for name, rule := range brokenRules() {
		require.Error(t, deadlineTable(rule), name)
	}
}

// reliedOnInVain works under one lock, with a network that delays and loses what it likes and a lockd whose clock is fast, and looks
// all the time whether the lock is relied on while lockd would give it to somebody else.
func reliedOnInVain(t *testing.T, seed uint64, rule trustRule) error {
	t.Helper()
	var found error
	synctest.Test(t, func(t *testing.T) {
		random := rand.New(rand.NewPCG(seed, 1))
		b := newBubble(t, testSessionTTL, rule)
		b.lockd.set(func() {
			b.lockd.speed = 1.2
			b.lockd.to = func(string) time.Duration { return time.Duration(random.ExpFloat64() * float64(2*time.Second)) }
			b.lockd.back = func(string) time.Duration { return time.Duration(random.ExpFloat64() * float64(3*time.Second)) }
			b.lockd.fault = func(string) (error, bool) {
				switch random.IntN(6) {
				case 0:
					return errRefused, false
				case 1:
					return errSilence, random.IntN(2) == 0
				}
				return nil, true
			}
		})
		h, err := b.session.Acquire(t.Context(), "k", AcquireOptions{TTL: 10 * time.Second})
		if err != nil {
			return // nothing is relied on
		}
		for range 6000 {
			if h.Err() != nil {
				break
			}
			if !b.lockd.valid("k", h.Token()) {
				found = errors.New("the lock was relied on although lockd would have given it to another")
				break
			}
			sleep(t.Context(), 10*time.Millisecond)
		}
		_ = h.Release(t.Context())
	})
	return found
}

func TestLockIsNeverReliedOnLongerThanItLasts(t *testing.T) {
	t.Parallel()
	const runs = 60
	for seed := range uint64(runs) {
		require.NoError(t, reliedOnInVain(t, seed, trust), "seed %d", seed)
	}
	for name, rule := range brokenRules() {
		var found error
		for seed := uint64(0); seed < runs && found == nil; seed++ {
			found = reliedOnInVain(t, seed, rule)
		}
		require.Error(t, found, "%s isn't noticed in %d runs", name, runs)
	}
}
