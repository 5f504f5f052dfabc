package executor

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"fenceline/lockd/lock"
	"fenceline/lockd/lockapi"
	"fenceline/lockd/lockclient"
)

// fakeLocks is a lock service that does as it is told and counts.
type fakeLocks struct {
	mu                                    sync.Mutex
	acquireErr, renewErr, heartbeatErr    error
	acquires, renewals, heartbeats, ended int
	released                              []lock.Token
	renewTakes                            time.Duration
}

func (f *fakeLocks) set(change func()) { f.mu.Lock(); defer f.mu.Unlock(); change() }

func (f *fakeLocks) OpenSession(_ context.Context, ttl time.Duration) (lockapi.Session, error) {
	return lockapi.Session{SessionID: "s", TTLMillis: ttl.Milliseconds()}, nil
}

func (f *fakeLocks) Heartbeat(context.Context, string) (lockapi.Heartbeat, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.heartbeats++
	return lockapi.Heartbeat{}, f.heartbeatErr
}

func (f *fakeLocks) CloseSession(context.Context, string) error {
	f.set(func() { f.ended++ })
	return nil
}

func (f *fakeLocks) Acquire(_ context.Context, key, _ string, ttl time.Duration) (lockapi.LockGrant, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.acquires++
	return lockapi.LockGrant{Key: key, FencingToken: 7, TTLMillis: ttl.Milliseconds()}, f.acquireErr
}

func (f *fakeLocks) Renew(ctx context.Context, _ string, _ lock.Token, _ time.Duration) (lockapi.LockGrant, error) {
	f.mu.Lock()
	takes, err := f.renewTakes, f.renewErr
	f.renewals++
	f.mu.Unlock()
	if takes > 0 && !sleep(ctx, takes) {
		return lockapi.LockGrant{}, ctx.Err()
	}
	return lockapi.LockGrant{}, err
}

func (f *fakeLocks) Release(_ context.Context, _ string, token lock.Token) (lockapi.ReleaseResult, error) {
	f.set(func() { f.released = append(f.released, token) })
	return lockapi.ReleaseResult{Released: true}, nil
}

const (
	testSessionTTL = 15 * time.Second
	testLockTTL    = 30 * time.Second
)

// inLease runs fn in a bubble with its own clock, under a session and a lease.
func inLease(t *testing.T, fn func(t *testing.T, f *fakeLocks, l *lease)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &fakeLocks{}
		s, err := openSession(t.Context(), f, testSessionTTL, hclog.NewNullLogger())
		require.NoError(t, err)
		l, err := s.acquire(t.Context(), "payout:1", testLockTTL, time.Second)
		require.NoError(t, err)
		fn(t, f, l)
		l.release(t.Context())
		s.close(t.Context())
		require.Equal(t, []lock.Token{7}, f.released)
		require.Equal(t, 1, f.ended)
	})
}

func TestLeaseAndSessionAreKeptAliveWhileHeldAndNotAfter(t *testing.T) {
	t.Parallel()
	inLease(t, func(t *testing.T, f *fakeLocks, l *lease) {
		t.Helper()
		sleep(t.Context(), 61*time.Second)
		synctest.Wait()
		f.mu.Lock()
		defer f.mu.Unlock()
		require.Equal(t, 6, f.renewals, "every third of the lease's time")
		require.Equal(t, 12, f.heartbeats, "every third of the session's time")
		require.NoError(t, l.expired())
	})
}

func TestLeaseIsOverByItsOwnClockWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	inLease(t, func(t *testing.T, f *fakeLocks, l *lease) {
		t.Helper()
		f.set(func() { f.renewErr = errors.New("no answer") })
		sleep(t.Context(), testLockTTL-time.Millisecond)
		require.NoError(t, l.expired())
		require.NotErrorIs(t, l.check(t.Context()), lock.ErrLockLost, "a fault is no loss")
		require.Error(t, l.check(t.Context()), "nor is it a yes")
		sleep(t.Context(), time.Millisecond)
		require.ErrorIs(t, l.expired(), lock.ErrLockLost)
	})
}

func TestTrustCountsFromWhenTheRenewalWasSent(t *testing.T) {
	t.Parallel()
	inLease(t, func(t *testing.T, f *fakeLocks, l *lease) {
		t.Helper()
		l.stop() // its own renewals would count as well
		l.done.Wait()
		sleep(t.Context(), 20*time.Second)
		f.set(func() { f.renewTakes = 25 * time.Second })
		require.NoError(t, l.check(t.Context())) // sent at 20 s, answered at 45 s, so good until 50 s
		sleep(t.Context(), 5*time.Second-time.Millisecond)
		require.NoError(t, l.expired())
		sleep(t.Context(), time.Millisecond)
		require.ErrorIs(t, l.expired(), lock.ErrLockLost)
	})
}

func TestLostLockStaysLost(t *testing.T) {
	t.Parallel()
	inLease(t, func(t *testing.T, f *fakeLocks, l *lease) {
		t.Helper()
		f.set(func() { f.renewErr = lockLost() })
		require.ErrorIs(t, l.check(t.Context()), lock.ErrLockLost)
		f.set(func() { f.renewErr = nil })
		require.ErrorIs(t, l.check(t.Context()), lock.ErrLockLost)
		require.ErrorIs(t, l.expired(), lock.ErrLockLost)
		sleep(t.Context(), time.Minute)
		synctest.Wait()
		f.mu.Lock()
		defer f.mu.Unlock()
		require.LessOrEqual(t, f.renewals, 2, "a lost lock isn't renewed")
	})
}

func TestContendedLockIsTriedForABoundedTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fakeLocks{acquireErr: &lockclient.Refusal{Envelope: lockapi.Error{Code: lockapi.CodeLockContended}}}
		s, err := openSession(t.Context(), f, testSessionTTL, hclog.NewNullLogger())
		require.NoError(t, err)
		started := time.Now()
		_, err = s.acquire(t.Context(), "payout:1", testLockTTL, time.Second)
		require.ErrorIs(t, err, lockclient.ErrContended)
		require.LessOrEqual(t, time.Since(started), time.Second)
		require.Greater(t, f.acquires, 2)

		f.acquireErr, f.acquires = errors.New("no answer"), 0
		_, err = s.acquire(t.Context(), "payout:1", testLockTTL, time.Second)
		require.Error(t, err)
		require.NotErrorIs(t, err, lockclient.ErrContended)
		require.Equal(t, 1, f.acquires, "a fault isn't tried again: the answer that was lost may have been a grant")
		s.close(t.Context())
	})
}

func lockLost() error {
	return &lockclient.Refusal{Envelope: lockapi.Error{Code: lockapi.CodeLockLost}}
}
