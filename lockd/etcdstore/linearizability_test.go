package etcdstore_test

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"fenceline/internal/etcdtest"
	"fenceline/lockd/etcdstore"
	"fenceline/lockd/httpapi"
	"fenceline/lockd/lock"
	"fenceline/lockd/robustness"
)

// uncounted drops what the service counts.
type uncounted struct{}

func (uncounted) Acquired(string, time.Duration) {}
func (uncounted) LeasesExpired(int)              {}
func (uncounted) Held(int64)                     {}
func (uncounted) Waiting(int)                    {}

// serve puts lockd's service and API over a store, in this process.
func serve(t *testing.T, store lock.Store) func(*rand.Rand) string {
	t.Helper()
	service := lock.NewService(store, "etcd", lock.Limits{}, hclog.NewNullLogger(), uncounted{})
	server := httpapi.NewServer(httpapi.Config{Service: service, Logger: hclog.NewNullLogger(), Registry: prometheus.NewRegistry()})
	target, stop, err := robustness.Serve(t.Context(), server)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, stop()) })
	return target
}

// workload is some seconds of several clients on few keys, with times as etcd grants them.
func workload(target func(*rand.Rand) string, window int) robustness.Workload {
	times := robustness.Etcd("")
	return robustness.Workload{
		Clients: 6, Keys: robustness.Keys(window, 3), For: 9 * time.Second, Think: 20 * time.Millisecond, Timeout: 15 * time.Second,
		ShortTTL: times.ShortTTL, LongTTL: times.LongTTL, SessionTTL: times.SessionTTL, Late: times.Late, Target: target, Since: time.Now(), Seed: uint64(window),
	}
}

// waiting is the same with clients that wait.
func waiting(target func(*rand.Rand) string, window int) robustness.Workload {
	w := workload(target, window)
	w.Wait, w.For = time.Second, 3*time.Second
	return w
}

// hot is nothing but take and release, by many on one key.
func hot(target func(*rand.Rand) string, window int) robustness.Workload {
	w := workload(target, window)
	w.Hot, w.Clients, w.Keys, w.Think, w.LongTTL, w.SessionTTL, w.For = true, 6, w.Keys[:1], 0, 30*time.Second, 30*time.Second, time.Second
	return w
}

// Each rule broken on purpose leads to a history without an explanation, seen over HTTP alone. Those about dead sessions are left to the matrix, which can
// end a session's time at once: from outside, a session that etcd is late to end looks alive.
func TestBrokenStoresYieldCounterexamples(t *testing.T) {
	t.Parallel()
	member := etcdtest.Start(t)
	for name, broken := range map[string]struct {
		breaks   func(*etcdstore.Store)
		workload func(func(*rand.Rand) string, int) robustness.Workload
	}{
		"takeover keeps the token":  {etcdstore.WithoutNewTokenOnTakeover, workload},
		"takeover of the living":    {etcdstore.WithTakeoverOfLiveGrants, workload},
		"release forgets the token": {etcdstore.WithReleaseByKeyOnly, workload},
		"revocation draws no token": {etcdstore.WithoutFloorOnRevoke, workload},
		"acquire compares no grant": {etcdstore.WithBlindAcquire, hot},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			target := serve(t, open(t, member, broken.breaks))
			var err error
			for window := 0; window < 10 && !errors.Is(err, robustness.ErrViolation); window++ {
				err = broken.workload(target, window).Run(t.Context()).Check(10 * time.Second).Err()
			}
			require.ErrorIs(t, err, robustness.ErrViolation)
			t.Log(err)
		})
	}
}

// The same workloads find nothing wrong with the store as it is.
func TestWholeStoreIsLinearizable(t *testing.T) {
	t.Parallel()
	member := etcdtest.Start(t)
	target := serve(t, open(t, member))
	for window, run := range []func(func(*rand.Rand) string, int) robustness.Workload{workload, waiting, hot} {
		history := run(target, window).Run(t.Context())
		ops, unknown, nothing := history.Count()
		t.Logf("%d operations, %d of unknown outcome, %d came to nothing", ops, unknown, nothing)
		require.Positive(t, ops)
		require.NoError(t, history.Check(30*time.Second).Err())
	}
}
