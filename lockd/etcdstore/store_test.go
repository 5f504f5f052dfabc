package etcdstore_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fenceline/internal/etcdtest"
	"fenceline/lockd/etcdstore"
	"fenceline/lockd/lock"
	"fenceline/lockd/lock/locktest"
)

// openAt returns a store, broken as asked, that is closed when the test ends.
func openAt(t *testing.T, config etcdstore.Config, breaks ...func(*etcdstore.Store)) *etcdstore.Store {
	t.Helper()
	store, err := etcdstore.Open(config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	for _, b := range breaks {
		b(store)
	}
	return store
}

// open returns a store under a prefix of its own.
func open(t *testing.T, member *etcdtest.Member, breaks ...func(*etcdstore.Store)) locktest.Store {
	t.Helper()
	store := openAt(t, etcdstore.Config{Endpoints: []string{member.Endpoint()}, Prefix: uuid.NewString(), Timeout: 10 * time.Second}, breaks...)
	return locktest.Store{Store: store, ExpireSession: store.ExpireSession}
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
