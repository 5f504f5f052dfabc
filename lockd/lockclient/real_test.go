package lockclient_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fenceline/lockd/lock"
	"fenceline/lockd/lockclient"
)

func session(t *testing.T, owner string, o lockclient.Options) *lockclient.Session {
	t.Helper()
	s, err := lockclient.Open(t.Context(), owner, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close(context.Background())) })
	return s
}

// Against a real lockd: many sessions, one key, waiting in lockd's queue. One holder at a time, tokens rise in the order of grants, and each
// lock outlives its time to live as long as it is held.
func TestManyHoldersOneAfterTheOther(t *testing.T) {
	t.Parallel()
	_, err := realLockd()
	require.NoError(t, err)
	var (
		inside atomic.Int64
		last   lock.Token // only the holder touches it
		all    sync.WaitGroup
		passes atomic.Int64
	)
	o := options()
	o.Lock = lockclient.AcquireOptions{TTL: 10 * time.Second, Wait: 50 * time.Second}
	for range 8 {
		s := session(t, "worker", o)
		all.Go(func() {
			for range 5 {
				err := s.Do(t.Context(), "hot", func(ctx context.Context, held *lockclient.Held) error {
					if inside.Add(1) != 1 || held.Token() <= last {
						t.Errorf("two inside, or token %d after %d", held.Token(), last)
					}
					last = held.Token()
					defer inside.Add(-1)
					return held.Check(ctx)
				})
				if err != nil {
					t.Error(err)
					return
				}
				passes.Add(1)
			}
		})
	}
	all.Wait()
	require.EqualValues(t, 40, passes.Load())
}

// A grant that waited counts from its grant, not from the request.
func TestWaitedForLockHasItsWholeTime(t *testing.T) {
	t.Parallel()
	_, err := realLockd()
	require.NoError(t, err)
	first, second := session(t, "first", options()), session(t, "second", options())
	held, err := first.Acquire(t.Context(), "waited", lockclient.AcquireOptions{TTL: 20 * time.Second})
	require.NoError(t, err)
	client, err := lockclient.Connect("watcher", options())
	require.NoError(t, err)
	t.Cleanup(client.CloseIdleConnections)
	released := make(chan struct{})
	go func() {
		defer close(released)
		for { // released once the other one has waited in the queue for a while
			info, err := client.Inspect(t.Context(), "waited")
			if err != nil || (info.WaiterCount != nil && *info.WaiterCount == 1) {
				break
			}
		}
		<-time.After(1500 * time.Millisecond)
		_ = held.Release(t.Context())
	}()
	started := time.Now()
	next, err := second.Acquire(t.Context(), "waited", lockclient.AcquireOptions{TTL: 2 * time.Second, Wait: 30 * time.Second})
	require.NoError(t, err)
	<-released
	require.Greater(t, time.Since(started), 1400*time.Millisecond, "longer than could be relied on if it counted from the request")
	require.NoError(t, next.Err())
	require.Greater(t, next.Token(), held.Token())
	require.NoError(t, next.Check(t.Context()))
	require.NoError(t, next.Release(t.Context()))
}
