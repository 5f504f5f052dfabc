package pgstore_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/lockd/lock"
	"fenceline/lockd/pgstore"
)

// hint is one call of a watcher.
type hint struct {
	key   string
	token lock.Token
}

// watch starts watching and returns the hints, once it is ready.
func watch(t *testing.T, store *pgstore.Store) chan hint {
	t.Helper()
	hints, ready, ended := make(chan hint, 1000), make(chan struct{}), make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		ended <- store.Watch(ctx, func() { close(ready) }, func(key string, token lock.Token) { hints <- hint{key, token} })
	}()
	t.Cleanup(func() {
		stop()
		require.ErrorIs(t, <-ended, context.Canceled)
	})
	select {
	case <-ready:
	case <-time.After(30 * time.Second):
		require.Fail(t, "not ready")
	}
	return hints
}

func hears(t *testing.T, hints chan hint, want hint) {
	t.Helper()
	for {
		select {
		case got := <-hints:
			if got == want {
				return
			}
		case <-time.After(30 * time.Second):
			require.Fail(t, "no hint", "%+v", want)
		}
	}
}

// Another replica hears of every way in which a grant ends, with the grant's token.
func TestOtherReplicasHearOfEveryFreedKey(t *testing.T) {
	t.Parallel()
	store, owner := open(t)
	hints := watch(t, pgstore.New(openPool(t, pgtest.Login(t, owner, "lockapp")), 10*time.Second))

	_, grant := held(t, store, "released")
	_, err := store.Delete(t.Context(), "released", grant.Token)
	require.NoError(t, err)
	hears(t, hints, hint{"released", grant.Token})

	_, grant = held(t, store, "revoked")
	_, err = store.Revoke(t.Context(), lock.RevokeRequest{Key: "revoked", Operator: "op", Reason: "it is stuck"})
	require.NoError(t, err)
	hears(t, hints, hint{"revoked", grant.Token})

	session, grant := held(t, store, "closed")
	closed(t, store, session.ID)
	hears(t, hints, hint{"closed", grant.Token})

	session, grant = held(t, store, "reaped")
	require.NoError(t, store.ExpireSession(t.Context(), session.ID))
	_, _, err = store.Reap(t.Context(), 10)
	require.NoError(t, err)
	hears(t, hints, hint{"reaped", grant.Token})

	dead, _ := held(t, store, "of a dead holder")
	require.NoError(t, store.ExpireSession(t.Context(), dead.ID))
	held(t, store, "of a dead holder")
	hears(t, hints, hint{}) // what else it held isn't known: any
}

// A watcher whose connection is cut says so; it doesn't wait for ever.
func TestWatcherWhoseConnectionIsCutEnds(t *testing.T) {
	t.Parallel()
	store, owner := open(t)
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- store.Store.(*pgstore.Store).Watch(t.Context(), func() { close(ready) }, func(string, lock.Token) {})
	}()
	<-ready
	_, err := pgtest.Connect(t, owner).Exec(t.Context(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'")
	require.NoError(t, err)
	require.ErrorContains(t, <-ended, "watch for freed locks")
}

// Many keys are told of in few notices, each within PostgreSQL's limit.
func TestManyFreedKeysAreAllHeardOf(t *testing.T) {
	t.Parallel()
	store, _ := open(t)
	hints := watch(t, store.Store.(*pgstore.Store))
	session, first := held(t, store, "first")
	want := map[string]lock.Token{"first": first.Token}
	for i := range 150 {
		key := fmt.Sprintf("%0128d", i)
		got, err := store.Insert(t.Context(), key, "alice", session.ID, 30*time.Second)
		require.NoError(t, err)
		want[key] = got.Grant.Token
	}
	closed(t, store, session.ID)
	for len(want) > 0 {
		select {
		case got := <-hints:
			require.Equal(t, want[got.key], got.token)
			delete(want, got.key)
		case <-time.After(30 * time.Second):
			require.Fail(t, "not heard of", "%d keys", len(want))
		}
	}
}

func TestListsAreInTheOrderOfBytesAndThePrefixIsNoPattern(t *testing.T) {
	t.Parallel()
	store, _ := open(t)
	lister := store.Store.(*pgstore.Store)
	none, more, err := lister.Grants(t.Context(), "", "", 10)
	require.NoError(t, err)
	require.Empty(t, none)
	require.False(t, more)
	dead, _ := held(t, store, "a.dead")
	require.NoError(t, store.ExpireSession(t.Context(), dead.ID))
	session, _ := held(t, store, "a_c")
	for _, key := range []string{"abc", "B", "a-b", "aBc", "a_b", "Z"} {
		_, err := store.Insert(t.Context(), key, "alice", session.ID, 30*time.Second)
		require.NoError(t, err)
	}
	list := func(prefix, after string, limit int) (keys []string, more bool) {
		grants, more, err := lister.Grants(t.Context(), prefix, after, limit)
		require.NoError(t, err)
		for _, g := range grants {
			read, isHeld, err := store.Read(t.Context(), g.Key)
			require.NoError(t, err)
			require.True(t, isHeld)
			require.Equal(t, read, g)
			keys = append(keys, g.Key)
		}
		return keys, more
	}
	keys, more := list("", "", 3)
	require.Equal(t, []string{"B", "Z", "a-b"}, keys)
	require.True(t, more)
	keys, more = list("", "a-b", 4)
	require.Equal(t, []string{"aBc", "a_b", "a_c", "abc"}, keys)
	require.False(t, more, "exactly the rest")
	keys, _ = list("a_", "", 10)
	require.Equal(t, []string{"a_b", "a_c"}, keys)
	keys, _ = list("%", "", 10)
	require.Empty(t, keys)

	for _, key := range []string{"abc", "B"} {
		_, err := store.Revoke(t.Context(), lock.RevokeRequest{Key: key, Operator: "op", Reason: "it is stuck"})
		require.NoError(t, err)
	}
	records, more, err := lister.Revocations(t.Context(), 0, 1)
	require.NoError(t, err)
	require.True(t, more)
	require.Equal(t, "abc", records[0].Key)
	require.Equal(t, "alice", records[0].PreviousOwner)
	require.WithinDuration(t, time.Now(), records[0].RevokedAt, time.Minute)
	records, more, err = lister.Revocations(t.Context(), records[0].ID, 1)
	require.NoError(t, err)
	require.False(t, more)
	require.Equal(t, "B", records[0].Key)
}
