package etcdstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"fenceline/internal/etcdtest"
	"fenceline/lockd/etcdstore"
	"fenceline/lockd/lock"
)

// meddling is an etcd connection in which something happens between what a store has read and what it writes.
type meddling struct {
	clientv3.KV
	meddle func() // before the first writing transaction
}

func (m *meddling) Txn(ctx context.Context) clientv3.Txn { return &meddlingTxn{m.KV.Txn(ctx), m} }

type meddlingTxn struct {
	clientv3.Txn
	m *meddling
}

// If begins a transaction that writes: reading ones have no conditions.
func (t *meddlingTxn) If(conditions ...clientv3.Cmp) clientv3.Txn {
	if meddle := t.m.meddle; meddle != nil && len(conditions) > 1 {
		t.m.meddle = nil
		meddle()
	}
	return t.Txn.If(conditions...)
}

// between lets something happen in the middle of the store's next acquire or renewal.
func between(store *etcdstore.Store, meddle func()) {
	store.Client().KV = &meddling{KV: store.Client().KV, meddle: meddle}
}

// A session that ends between the look at it and the grant gets none; a store that compares only what it has read before gives one.
func TestSessionThatEndsUnderAnAcquireGetsNothing(t *testing.T) {
	t.Parallel()
	member := etcdtest.Start(t)
	acquire := func(breaks ...func(*etcdstore.Store)) error {
		store := openAt(t, etcdstore.Config{Endpoints: []string{member.Endpoint()}}, breaks...)
		session, _ := held(t, store, "warm "+t.Name())
		between(store, func() { require.NoError(t, store.ExpireSession(t.Context(), session.ID)) })
		_, err := store.Insert(t.Context(), "key", "alice", session.ID, time.Minute)
		return err
	}
	require.ErrorIs(t, acquire(), lock.ErrSessionExpired)
	require.NoError(t, acquire(etcdstore.WithoutSessionInAcquire), "the control")
}

// A source that is moved between the look at it and the grant is looked at again; a store that doesn't compare it hands out a token from below.
func TestSourceThatMovesUnderAnAcquireIsSeen(t *testing.T) {
	t.Parallel()
	const above lock.Token = 7_000_000
	acquire := func(breaks ...func(*etcdstore.Store)) lock.Token {
		member := etcdtest.Start(t)
		store := openAt(t, etcdstore.Config{Endpoints: []string{member.Endpoint()}}, breaks...)
		other := openAt(t, etcdstore.Config{Endpoints: []string{member.Endpoint()}})
		session, _ := held(t, store, "warm")
		between(store, func() {
			_, _, err := other.FastForward(t.Context(), lock.FastForwardRequest{Above: above, Operator: "op", Reason: "the marks are higher"})
			require.NoError(t, err)
		})
		result, err := store.Insert(t.Context(), "key", "alice", session.ID, time.Minute)
		require.NoError(t, err)
		return result.Grant.Token
	}
	require.Greater(t, acquire(), above)
	require.Less(t, acquire(etcdstore.WithoutSourceInAcquire), above, "the control")
}

// A renewal with another time to live keeps the token, both ways; one whose grant is released meanwhile is lost.
func TestRenewalKeepsTheTokenWithAnyTimeToLive(t *testing.T) {
	t.Parallel()
	member := etcdtest.Start(t)
	store := openAt(t, etcdstore.Config{Endpoints: []string{member.Endpoint()}})
	_, grant := held(t, store, "key")
	for _, ttl := range []time.Duration{5 * time.Minute, 10 * time.Second, 10 * time.Second} {
		renewed, err := store.Extend(t.Context(), "key", grant.Token, ttl)
		require.NoError(t, err)
		require.Equal(t, grant.Token, renewed.Token)
		require.Equal(t, ttl, renewed.TTL)
		read, live, err := store.Read(t.Context(), "key")
		require.NoError(t, err)
		require.True(t, live)
		require.Equal(t, renewed.ExpiresAt, read.ExpiresAt)
	}
	between(store, func() {
		released, err := openAt(t, etcdstore.Config{Endpoints: []string{member.Endpoint()}}).Delete(t.Context(), "key", grant.Token)
		require.NoError(t, err)
		require.False(t, released.Stale)
	})
	_, err := store.Extend(t.Context(), "key", grant.Token, 10*time.Second)
	require.ErrorIs(t, err, lock.ErrLockLost)
}

// A session with more grants than a transaction carries ends at once all the same.
func TestSessionWithManyGrantsEnds(t *testing.T) {
	t.Parallel()
	member := etcdtest.Start(t)
	store := openAt(t, etcdstore.Config{Endpoints: []string{member.Endpoint()}, Timeout: 30 * time.Second})
	session, _ := held(t, store, "key")
	for i := range 150 {
		_, err := store.Insert(t.Context(), "key:"+string(rune('a'+i%26))+string(rune('a'+i/26)), "alice", session.ID, time.Minute)
		require.NoError(t, err)
	}
	n, err := store.CountHeld(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 151, n)
	page, more, err := store.Grants(t.Context(), "key:", "key:ab", 20)
	require.NoError(t, err)
	require.True(t, more)
	require.Len(t, page, 20)
	require.Equal(t, "key:ac", page[0].Key)
	ended, err := store.CloseSession(t.Context(), session.ID)
	require.NoError(t, err)
	require.Len(t, ended, 151)
	n, err = store.CountHeld(t.Context())
	require.NoError(t, err)
	require.Zero(t, n)
	expired, _, err := store.Reap(t.Context(), 500)
	require.NoError(t, err)
	require.Empty(t, expired, "what was given back hasn't expired")
}
