package pgstore_test

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"fenceline/lockd/httpapi"
	"fenceline/lockd/lock"
	"fenceline/lockd/pgstore"
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
	service := lock.NewService(store, "pg", lock.Limits{}, hclog.NewNullLogger(), uncounted{})
	server := httpapi.NewServer(httpapi.Config{Service: service, Logger: hclog.NewNullLogger(), Registry: prometheus.NewRegistry()})
	target, stop, err := robustness.Serve(t.Context(), server)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, stop()) })
	return target
}

// workload is some seconds of several clients on few keys.
func workload(target func(*rand.Rand) string, window int) robustness.Workload {
	return robustness.Workload{
		Clients: 6, Keys: robustness.Keys(window, 3), For: 2 * time.Second, Think: 5 * time.Millisecond, Timeout: 5 * time.Second,
		ShortTTL: 100 * time.Millisecond, LongTTL: 2500 * time.Millisecond, SessionTTL: time.Second, Target: target, Since: time.Now(), Seed: uint64(window),
	}
}

// waiting is the same with clients that wait.
func waiting(target func(*rand.Rand) string, window int) robustness.Workload {
	w := workload(target, window)
	w.Wait = 500 * time.Millisecond
	return w
}

// outlived is the same with leases that last longer than sessions, so that what is left of a dead session is met by others.
func outlived(target func(*rand.Rand) string, window int) robustness.Workload {
	w := workload(target, window)
	w.ShortTTL, w.LongTTL, w.For, w.Keys = 20*time.Second, 20*time.Second, 4*time.Second, robustness.Keys(window, 12)
	return w
}

// hot is nothing but take and release, by many on one key.
func hot(target func(*rand.Rand) string, window int) robustness.Workload {
	w := workload(target, window)
	w.Hot, w.Clients, w.Keys, w.Think, w.LongTTL, w.SessionTTL, w.For = true, 8, w.Keys[:1], 0, 30*time.Second, 30*time.Second, time.Second
	return w
}

// Each rule broken on purpose leads to a history without an explanation, seen over HTTP alone.
func TestBrokenStoresYieldCounterexamples(t *testing.T) {
	t.Parallel()
	for name, broken := range map[string]struct {
		rules    []rule
		workload func(func(*rand.Rand) string, int) robustness.Workload
	}{
		"takeover keeps the token":  {[]rule{newTokenOnTakeover}, workload},
		"takeover of the living":    {[]rule{takeoverOfTheDead}, workload},
		"release forgets the token": {[]rule{releaseByToken}, workload},
		"renew revives the dead":    {[]rule{renewOfTheLiving}, workload},
		"revocation draws no token": {nil, workload},
		"dead holders stay":         {[]rule{endOfDeadAcquire, endOfDeadRenew}, outlived},
		"dead sessions acquire":     {[]rule{liveSession}, workload},
		"C1's acquire by itself":    {[]rule{orderedDraws}, hot}, // between replicas: within one a key is at the store once at a time
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, owner := openReplicas(t)
			breaks(t, owner, broken.rules...)
			if broken.rules == nil {
				pgstore.WithoutFloorOnRevoke(store.Store.(*replicas).Store.(*pgstore.Store))
			}
			target := serve(t, store)
			var err error
			for window := 0; window < 30 && !errors.Is(err, robustness.ErrViolation); window++ {
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
	store, _ := open(t)
	target := serve(t, store)
	for window, run := range []func(func(*rand.Rand) string, int) robustness.Workload{workload, waiting, hot, outlived} {
		history := run(target, window).Run(t.Context())
		ops, unknown, nothing := history.Count()
		t.Logf("%d operations", ops)
		require.Positive(t, ops)
		require.Zero(t, unknown+nothing)
		require.NoError(t, history.Check(30*time.Second).Err())
	}
}
