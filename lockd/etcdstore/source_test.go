package etcdstore_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"fenceline/internal/etcdtest"
	"fenceline/lockd/etcdstore"
	"fenceline/lockd/lock"
)

// copyKeys copies all keys as a mirror does: with values, without revisions and leases.
func copyKeys(t *testing.T, from, to *etcdtest.Member) {
	t.Helper()
	all, err := etcdtest.Connect(t, from.Endpoint()).Get(t.Context(), "", clientv3.WithPrefix())
	require.NoError(t, err)
	target := etcdtest.Connect(t, to.Endpoint())
	for _, kv := range all.Kvs {
		_, err := target.Put(t.Context(), string(kv.Key), string(kv.Value))
		require.NoError(t, err)
	}
}

// Another etcd, whose revisions begin again at 1, has the keys of the old one: tokens go on above all that were handed out, and the
// log says why.
func TestTokensJumpInAnotherEtcdWithTheOldKeys(t *testing.T) {
	t.Parallel()
	old, fresh := etcdtest.Start(t), etcdtest.Start(t)
	_, grant := held(t, openAt(t, etcdstore.Config{Endpoints: []string{old.Endpoint()}}), "key")
	copyKeys(t, old, fresh)
	var log bytes.Buffer
	store := openAt(t, etcdstore.Config{Endpoints: []string{fresh.Endpoint()}, Logger: hclog.New(&hclog.LoggerOptions{Output: &log, JSONFormat: true})})
	_, next := held(t, store, "another key")
	require.Greater(t, next.Token, grant.Token+1_000_000)
	require.Contains(t, log.String(), `"event":"token_source_advanced"`)
	require.Contains(t, log.String(), "cluster id is")
	_, after := held(t, store, "a third key")
	require.Less(t, after.Token, next.Token+1000, "it jumps once")
}

// A running lockd meets an etcd that has lost all: what it remembers is enough to go on above it.
func TestTokensJumpWhenTheKeysAreGone(t *testing.T) {
	t.Parallel()
	member := etcdtest.Start(t)
	store := openAt(t, etcdstore.Config{Endpoints: []string{member.Endpoint()}})
	_, grant := held(t, store, "key")
	_, err := etcdtest.Connect(t, member.Endpoint()).Delete(t.Context(), "", clientv3.WithPrefix())
	require.NoError(t, err)
	_, next := held(t, store, "key")
	require.Greater(t, next.Token, grant.Token+1_000_000)
}

func TestFastForwardMovesUpOnlyAndIsRecorded(t *testing.T) {
	t.Parallel()
	member := etcdtest.Start(t)
	store := openAt(t, etcdstore.Config{Endpoints: []string{member.Endpoint()}})
	highest, err := store.HighestToken(t.Context())
	require.NoError(t, err)
	require.Zero(t, highest, "nothing was handed out")
	session, grant := held(t, store, "key")
	highest, err = store.HighestToken(t.Context())
	require.NoError(t, err)
	require.GreaterOrEqual(t, highest, grant.Token)

	forward := func(above lock.Token) error {
		from, to, err := store.FastForward(t.Context(), lock.FastForwardRequest{Above: above, Operator: "op", Reason: "the marks are higher"})
		if err == nil {
			require.GreaterOrEqual(t, from, grant.Token)
			require.Equal(t, above, to)
		}
		return err
	}
	require.ErrorIs(t, forward(1), lock.ErrInvalid)
	require.ErrorIs(t, forward(lock.MaxTokenFloor+1), lock.ErrInvalid)
	const above lock.Token = 5_000_000
	require.NoError(t, forward(above))
	require.ErrorIs(t, forward(above), lock.ErrInvalid, "it is there already")

	renewed, err := store.Extend(t.Context(), "key", grant.Token, 30*time.Second)
	require.NoError(t, err)
	require.Equal(t, grant.Token, renewed.Token, "a grant keeps its token")
	again, err := store.Insert(t.Context(), "key", "alice", session.ID, 30*time.Second)
	require.NoError(t, err)
	require.Greater(t, again.Grant.Token, above)
	records, err := etcdtest.Connect(t, member.Endpoint()).Get(t.Context(), etcdstore.DefaultPrefix+"advance/", clientv3.WithPrefix())
	require.NoError(t, err)
	require.Len(t, records.Kvs, 1)
	require.Contains(t, string(records.Kvs[0].Value), "the marks are higher")
}

// Killed, the member comes back with what it confirmed: no jump, and tokens go on.
func TestTokensGoOnAfterACrash(t *testing.T) {
	t.Parallel()
	member := etcdtest.Start(t)
	store := openAt(t, etcdstore.Config{Endpoints: []string{member.Endpoint()}, Timeout: 10 * time.Second})
	_, grant := held(t, store, "key")
	member.Kill(t)
	_, err := openAt(t, etcdstore.Config{Endpoints: []string{member.Endpoint()}, Timeout: 200 * time.Millisecond}).Extend(t.Context(), "key", grant.Token, time.Minute)
	require.ErrorIs(t, err, lock.ErrUnavailable)
	require.NotErrorIs(t, err, lock.ErrUnknownOutcome, "it never left")
	member.Restart(t)
	_, next := held(t, store, "another key")
	require.Greater(t, next.Token, grant.Token)
	require.Less(t, next.Token, grant.Token+1000)
}
