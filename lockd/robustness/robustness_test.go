package robustness_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fenceline/internal/etcdtest"
	"fenceline/internal/pgserver/pgtest"
	"fenceline/internal/process"
	"fenceline/lockd/robustness"
	"fenceline/migrations"
)

// backends are the stores that lockd is tried on.
func backends() map[string]func(t *testing.T) robustness.Backend {
	return map[string]func(t *testing.T) robustness.Backend{"pg": onPostgres, "etcd": onEtcd}
}

func onPostgres(t *testing.T) robustness.Backend {
	t.Helper()
	backend, err := robustness.Postgres(pgtest.Login(t, pgtest.Database(t, migrations.LockDB()), "lockapp"))
	require.NoError(t, err)
	return backend
}

func onEtcd(t *testing.T) robustness.Backend {
	t.Helper()
	return robustness.Etcd(strings.TrimPrefix(etcdtest.Start(t).Endpoint(), "http://"))
}

// wantsMore says whether a busy machine needs more time to bring about everything.
func wantsMore(total robustness.Total) bool {
	for _, fault := range robustness.Faults() {
		if total.Faults[fault.Name] == 0 {
			return true
		}
	}
	return total.Ops < 300 || total.Unknown == 0
}

// Several clients on few keys, two lockd, kills, pauses, and connections to the store that break, fall silent and lag: every answer that
// anybody got is one that a fenced mutex with expiry could have given. `make soak` does the same for longer.
func TestLockdIsAFencedMutexInTrouble(t *testing.T) {
	t.Parallel()
	program := process.Build(t, "fenceline/lockd")
	for name, open := range backends() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			backend := open(t)
			dir, err := os.MkdirTemp("", "fenceline-robustness-") // kept when the test fails: the history is the finding
			require.NoError(t, err)
			system, err := robustness.NewSystem(ctx, backend, program, dir, 2)
			require.NoError(t, err)
			total, err := robustness.Soak{
				System: system, Backend: backend, For: 10 * time.Second, More: wantsMore, Window: 3 * time.Second, Clients: 6, Keys: 3,
				Pause: 300 * time.Millisecond, Wait: 500 * time.Millisecond, Seed: 1, Limit: 30 * time.Second, Dir: dir, Out: t.Output(),
			}.Run(ctx)
			require.NoError(t, system.Stop(ctx))
			t.Log(total)
			require.NoError(t, err)
			require.False(t, wantsMore(total), "every fault has happened, and trouble makes outcomes unknown")
			require.NoError(t, os.RemoveAll(dir))
		})
	}
}
