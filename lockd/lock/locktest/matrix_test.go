package locktest_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/internal/postgres"
	"fenceline/lockd/lock/locktest"
	"fenceline/lockd/pgstore"
	"fenceline/migrations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// backends is the other axis of the matrix. A backend joins by giving a constructor.
func backends() map[string]func(t *testing.T) locktest.Store {
	return map[string]func(t *testing.T) locktest.Store{"pg": newPGStore}
}

func newPGStore(t *testing.T) locktest.Store {
	t.Helper()
	owner := pgtest.Database(t, migrations.LockDB())
	pool, err := postgres.Open(t.Context(), postgres.Config{URL: pgtest.Login(t, owner, "lockapp"), MaxConns: 16})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	admin := pgtest.Connect(t, owner)
	return locktest.Store{
		Store: pgstore.New(pool, 10*time.Second),
		ExpireSession: func(ctx context.Context, id uuid.UUID) error {
			_, err := admin.Exec(ctx, "UPDATE lock_session SET created_at = now() - interval '2 s', expires_at = now() - interval '1 s' WHERE session_id = $1", id)
			return err
		},
	}
}

func TestMatrix(t *testing.T) {
	t.Parallel()
	for backend, open := range backends() {
		for _, scenario := range locktest.Scenarios() {
			t.Run(backend+"/"+scenario.Name, func(t *testing.T) {
				t.Parallel()
				ctx, cancel := context.WithTimeout(t.Context(), 110*time.Second)
				defer cancel()
				require.NoError(t, scenario.Run(ctx, open(t)))
			})
		}
	}
}
