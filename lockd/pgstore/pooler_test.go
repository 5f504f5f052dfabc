package pgstore_test

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

// The whole matrix holds through a pooler in transaction mode, in every way of sending statements that works there. Notifications come past the
// pooler, which would never deliver them.
func TestMatrixHoldsBehindATransactionModePooler(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"cache_describe", "exec", "simple_protocol"} {
		for _, scenario := range locktest.Scenarios() {
			t.Run(mode+"/"+scenario.Name, func(t *testing.T) {
				t.Parallel()
				owner := pgtest.Database(t, migrations.LockDB())
				login := pgtest.Login(t, owner, "lockapp")
				pool, err := postgres.Open(t.Context(), postgres.Config{URL: pgtest.Pooler(t, login), MaxConns: 16, QueryMode: mode})
				require.NoError(t, err)
				t.Cleanup(pool.Close)
				store := pgstore.New(pool, 10*time.Second, pgstore.WithDirectURL(login))
				t.Cleanup(store.Close)
				admin := pgtest.Connect(t, owner)
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
				defer cancel()
				require.NoError(t, scenario.Run(ctx, locktest.Store{Store: store, ExpireSession: func(ctx context.Context, id uuid.UUID) error {
					_, err := admin.Exec(ctx, "UPDATE lock_session SET created_at = now() - interval '2 s', expires_at = now() - interval '1 s' WHERE session_id = $1", id)
					return err
				}}))
			})
		}
	}
}
