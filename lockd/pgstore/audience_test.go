package pgstore_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/internal/postgres"
	"fenceline/lockd/lock"
	"fenceline/lockd/pgstore"
	"fenceline/migrations"
)

// A replica counts as gone after four of them; on a busy machine one may be late.
const helloPause = 500 * time.Millisecond

func alone(t *testing.T, store *pgstore.Store) {
	t.Helper()
	require.Eventually(t, store.Alone, 30*time.Second, 5*time.Millisecond)
}

// A replica that knows of no other tells its own waiters at once, and the database nothing.
func TestReplicaThatIsAloneSparesTheDatabaseItsNotices(t *testing.T) {
	t.Parallel()
	opened, owner := open(t)
	store := opened.Store.(*pgstore.Store)
	pgstore.SayHelloEvery(store, helloPause)
	require.False(t, store.Alone(), "it doesn't listen")
	hints := watch(t, store)
	require.False(t, store.Alone(), "it hasn't listened for long enough to know")
	alone(t, store)

	listener := pgtest.Connect(t, owner)
	_, err := listener.Exec(t.Context(), "LISTEN lockd_freed")
	require.NoError(t, err)
	session, grant := held(t, store, "quiet")
	_, err = store.Delete(t.Context(), "quiet", grant.Token)
	require.NoError(t, err)
	require.Equal(t, hint{"quiet", grant.Token}, <-hints)
	again, err := store.Insert(t.Context(), "closed", "alice", session.ID, 30*time.Second)
	require.NoError(t, err)
	closed(t, store, session.ID)
	require.Equal(t, hint{"closed", again.Grant.Token}, <-hints)

	store.Close() // what is still to be told is told
	_, err = pgtest.Connect(t, owner).Exec(t.Context(), "NOTIFY lockd_freed, 'last'")
	require.NoError(t, err)
	for payload := ""; payload != "last"; {
		notice, err := listener.WaitForNotification(t.Context())
		require.NoError(t, err)
		payload = notice.Payload
		require.True(t, payload == "last" || strings.HasPrefix(payload, "!"), payload)
	}
}

// As soon as another one listens it is told, and when it has gone it isn't any more.
func TestReplicaThatComesIsToldOfFreedKeys(t *testing.T) {
	t.Parallel()
	opened, owner := open(t)
	first := opened.Store.(*pgstore.Store)
	pgstore.SayHelloEvery(first, helloPause)
	watch(t, first)
	alone(t, first)

	second := pgstore.New(openPool(t, pgtest.Login(t, owner, "lockapp")), 10*time.Second)
	t.Cleanup(second.Close)
	pgstore.SayHelloEvery(second, helloPause)
	hints, ready, ended := make(chan hint, 100), make(chan struct{}), make(chan error, 1)
	ctx, leave := context.WithCancel(t.Context())
	go func() {
		ended <- second.Watch(ctx, func() { close(ready) }, func(key string, token lock.Token) { hints <- hint{key, token} })
	}()
	<-ready
	require.Eventually(t, func() bool { return !first.Alone() }, 30*time.Second, time.Millisecond)
	_, grant := held(t, first, "handed-over")
	_, err := first.Delete(t.Context(), "handed-over", grant.Token)
	require.NoError(t, err)
	hears(t, hints, hint{"handed-over", grant.Token})

	leave()
	require.ErrorIs(t, <-ended, context.Canceled)
	alone(t, first)
}

// One that doesn't hear itself can't know who else is there.
func TestReplicaThatIsDeafTellsEverybody(t *testing.T) {
	t.Parallel()
	owner := pgtest.Database(t, migrations.LockDB())
	pool, err := postgres.Open(t.Context(), postgres.Config{URL: pgtest.Login(t, owner, "lockapp"), MaxConns: 1})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	store := pgstore.New(pool, 10*time.Second)
	t.Cleanup(store.Close)
	pgstore.SayHelloEvery(store, helloPause)
	watch(t, store)
	alone(t, store)
	only, err := pool.Acquire(t.Context()) // no hello goes out any more
	require.NoError(t, err)
	require.Eventually(t, func() bool { return !store.Alone() }, 30*time.Second, 5*time.Millisecond)
	only.Release()
	alone(t, store)
}
