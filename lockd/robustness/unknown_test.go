package robustness

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/internal/postgres"
	"fenceline/lockd/httpapi"
	"fenceline/lockd/lock"
	"fenceline/lockd/pgstore"
	"fenceline/migrations"
)

// tightLipped is a store that does what it is asked, or doesn't, and now and then won't say which.
type tightLipped struct {
	lock.Store
	calls atomic.Int64
}

const tellEvery = 12

// mute says whether this answer is lost, and whether the request was, too.
func (s *tightLipped) mute() (answer, request bool) {
	n := s.calls.Add(1)
	return n%tellEvery == 0, n%(2*tellEvery) == 0
}

func (s *tightLipped) Insert(ctx context.Context, key, owner string, session uuid.UUID, ttl time.Duration) (lock.Acquired, error) {
	answer, request := s.mute()
	if request {
		return lock.Acquired{}, lock.ErrUnknownOutcome
	}
	acquired, err := s.Store.Insert(ctx, key, owner, session, ttl)
	if answer {
		return lock.Acquired{}, lock.ErrUnknownOutcome
	}
	return acquired, err
}

func (s *tightLipped) Delete(ctx context.Context, key string, token lock.Token) (lock.Released, error) {
	answer, request := s.mute()
	if request {
		return lock.Released{}, lock.ErrUnknownOutcome
	}
	released, err := s.Store.Delete(ctx, key, token)
	if answer {
		return lock.Released{}, lock.ErrUnknownOutcome
	}
	return released, err
}

type uncounted struct{}

func (uncounted) Acquired(string, time.Duration) {}
func (uncounted) LeasesExpired(int)              {}
func (uncounted) Held(int64)                     {}
func (uncounted) Waiting(int)                    {}

// readAs is the history with every unknown outcome of the kind taken for another.
func readAs(h *History, kind Kind, as Result) *History {
	other := &History{Above: h.Above, Late: h.Late}
	for _, op := range h.ops {
		changed := *op
		if op.Kind == kind && op.Result == Unknown {
			changed.Result = as
		}
		other.Add(changed)
	}
	return other
}

// Unknown is neither failure nor success: a checker that takes it for either finds fault with a store that has none.
func TestUnknownIsNeitherFailureNorSuccess(t *testing.T) {
	t.Parallel()
	pool, err := postgres.Open(t.Context(), postgres.Config{URL: pgtest.Login(t, pgtest.Database(t, migrations.LockDB()), "lockapp"), MaxConns: 8})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	service := lock.NewService(&tightLipped{Store: pgstore.New(pool, 10*time.Second)}, "pg", lock.Limits{}, hclog.NewNullLogger(), uncounted{})
	target, stop, err := Serve(t.Context(), httpapi.NewServer(httpapi.Config{Service: service, Logger: hclog.NewNullLogger(), Registry: prometheus.NewRegistry()}))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, stop()) })

	asFailure, asSuccess := false, false
	for window := 0; window < 15 && (!asFailure || !asSuccess); window++ {
		history := Workload{
			Clients: 4, Keys: Keys(window, 4), For: time.Second, Think: 10 * time.Millisecond, Timeout: 5 * time.Second,
			ShortTTL: 100 * time.Millisecond, LongTTL: 2500 * time.Millisecond, SessionTTL: 10 * time.Second,
			Target: func(rng *rand.Rand) string { return target(rng) }, Since: time.Now(), Seed: uint64(window),
		}.Run(t.Context())
		require.NoError(t, history.Check(30*time.Second).Err(), "kept apart, it has an explanation")
		asFailure = asFailure || readAs(readAs(history, Release, Nothing), Acquire, Nothing).Check(30*time.Second).Err() != nil
		asSuccess = asSuccess || readAs(history, Release, OK).Check(30*time.Second).Err() != nil
	}
	require.True(t, asFailure, "taken for a failure, it has none")
	require.True(t, asSuccess, "taken for a success, it has none")
}
