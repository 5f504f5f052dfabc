package pgstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/internal/postgres"
	"fenceline/lockd/lock"
	"fenceline/lockd/lock/locktest"
	"fenceline/lockd/pgstore"
	"fenceline/migrations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func openPool(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := postgres.Open(t.Context(), postgres.Config{URL: url, MaxConns: 16})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// open returns a store on a fresh database and the URL of the database's owner.
func open(t *testing.T) (locktest.Store, string) {
	t.Helper()
	owner := pgtest.Database(t, migrations.LockDB())
	store := pgstore.New(openPool(t, pgtest.Login(t, owner, "lockapp")), 10*time.Second)
	t.Cleanup(store.Close)
	admin := pgtest.Connect(t, owner)
	return locktest.Store{Store: store, ExpireSession: func(ctx context.Context, id uuid.UUID) error {
		_, err := admin.Exec(ctx, "UPDATE lock_session SET created_at = now() - interval '2 s', expires_at = now() - interval '1 s' WHERE session_id = $1", id)
		return err
	}}, owner
}

// held opens a session and lets it hold the key.
func held(t *testing.T, store lock.Store, key string) (lock.Session, lock.Grant) {
	t.Helper()
	session, err := store.OpenSession(t.Context(), "alice", 30*time.Second)
	require.NoError(t, err)
	result, err := store.Insert(t.Context(), key, "alice", session.ID, 30*time.Second)
	require.NoError(t, err)
	require.True(t, result.Granted)
	return session, result.Grant
}

// closed closes a session.
func closed(t *testing.T, store lock.Store, session uuid.UUID) []lock.Ended {
	t.Helper()
	ended, err := store.CloseSession(t.Context(), session)
	require.NoError(t, err)
	return ended
}

func TestOwnerOfAnotherSessionGetsNoGrant(t *testing.T) {
	t.Parallel()
	store, _ := open(t)
	session, err := store.OpenSession(t.Context(), "alice", 10*time.Second)
	require.NoError(t, err)
	_, err = store.Insert(t.Context(), "key", "mallory", session.ID, time.Second)
	require.ErrorIs(t, err, lock.ErrInvalid)
	_, held, err := store.Read(t.Context(), "key")
	require.NoError(t, err)
	require.False(t, held)
}

// A refused acquire commits nothing: the token that its statement drew is on no row.
func TestRefusedSessionLeavesNoGrant(t *testing.T) {
	t.Parallel()
	store, _ := open(t)
	_, err := store.Insert(t.Context(), "key", "alice", uuid.New(), time.Second)
	require.ErrorIs(t, err, lock.ErrSessionUnknown)
	_, held, err := store.Read(t.Context(), "key")
	require.NoError(t, err)
	require.False(t, held)
}

// The reaper goes around a row that somebody is busy with; it doesn't wait for it.
func TestReaperWaitsForNobody(t *testing.T) {
	t.Parallel()
	good, owner := open(t)
	session, _ := held(t, good, "busy")
	for _, key := range []string{"idle", "idle too"} {
		_, err := good.Insert(t.Context(), key, "alice", session.ID, 30*time.Second)
		require.NoError(t, err)
	}
	dead, _ := held(t, good, "of a dead session")
	require.NoError(t, good.ExpireSession(t.Context(), dead.ID))
	admin := pgtest.Connect(t, owner)
	_, err := admin.Exec(t.Context(), "UPDATE lock_entry SET acquired_at = now() - interval '2 s', expires_at = now() - interval '1 s' WHERE lock_key <> 'of a dead session'")
	require.NoError(t, err)
	tx, err := admin.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "SELECT FROM lock_entry WHERE lock_key = 'busy' FOR UPDATE")
	require.NoError(t, err)
	store := pgstore.New(openPool(t, pgtest.Login(t, owner, "lockapp")), time.Second)
	keys := func() (keys []string) {
		expired, _, err := store.Reap(t.Context(), 100)
		require.NoError(t, err)
		for _, e := range expired {
			keys = append(keys, e.Key)
		}
		return keys
	}
	require.ElementsMatch(t, []string{"idle", "idle too", "of a dead session"}, keys())
	require.NoError(t, tx.Rollback(t.Context()))
	require.Equal(t, []string{"busy"}, keys())
	require.Empty(t, keys())
}
