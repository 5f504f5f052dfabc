package etcdstore_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"fenceline/internal/etcdtest"
	"fenceline/lockd/etcdstore"
	"fenceline/lockd/lock"
)

// spend acquires and releases a key some times and returns the last token.
func spend(t *testing.T, store lock.Store, times int) (last lock.Token) {
	t.Helper()
	session, err := store.OpenSession(t.Context(), "alice", time.Minute)
	require.NoError(t, err)
	for range times {
		result, err := store.Insert(t.Context(), "spent", "alice", session.ID, time.Minute)
		require.NoError(t, err)
		require.Greater(t, result.Grant.Token, last)
		last = result.Grant.Token
		_, err = store.Delete(t.Context(), "spent", last)
		require.NoError(t, err)
	}
	return last
}

// bare is the revision that etcd stands at: what a token would be that is the revision and nothing else.
func bare(t *testing.T, member *etcdtest.Member) lock.Token {
	t.Helper()
	response, err := etcdtest.Connect(t, member.Endpoint()).Get(t.Context(), "any")
	require.NoError(t, err)
	return lock.Token(response.Header.Revision)
}

const spent = 30 // grants that a backup doesn't know; each takes two revisions

// An etcd that was restored from a snapshot, with the same name, addresses and cluster id, stands at an earlier revision: the tokens of after the snapshot would be handed
// out once more. A store that runs on and one that starts on it both notice, and jump above all that there ever was, once.
func TestRestoredSnapshotHandsOutNoTokenTwice(t *testing.T) {
	t.Parallel()
	for name, runs := range map[string]bool{"store that runs on": true, "store that starts": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			member := etcdtest.Start(t)
			var log bytes.Buffer
			open := func() *etcdstore.Store {
				return openAt(t, etcdstore.Config{
					Endpoints: []string{member.Endpoint()}, Timeout: 30 * time.Second, Logger: hclog.New(&hclog.LoggerOptions{Output: &log, JSONFormat: true}),
				})
			}
			store := open()
			spend(t, store, 2)
			snapshot := member.Snapshot(t)
			highest := spend(t, store, spent)
			member.Kill(t)
			member.Restore(t, snapshot)
			member.Restart(t)
			require.Less(t, bare(t, member)+spent, highest, "the control: bare revisions would repeat")
			if !runs {
				store = open()
			}
			next := spend(t, store, 1)
			require.Greater(t, next, highest)
			require.Contains(t, log.String(), `"event":"token_source_advanced"`)
			require.Less(t, spend(t, store, 1), next+1000, "it jumps once")
		})
	}
}

// A copy of the disk that is started later differs in nothing from the member that it was taken from. A store that runs on remembers more than it; one that
// starts on it can't, and the documented step before it is fast-forward.
func TestCopyOfTheDiskNeedsFastForwardAndAStoreThatRunsOnDoesNot(t *testing.T) {
	t.Parallel()
	scene := func() (member *etcdtest.Member, store *etcdstore.Store, highest lock.Token) {
		member = etcdtest.Start(t)
		store = openAt(t, etcdstore.Config{Endpoints: []string{member.Endpoint()}, Timeout: 30 * time.Second})
		spend(t, store, 2)
		member.Kill(t)
		disk := member.CopyDisk(t)
		member.Restart(t)
		require.Eventually(t, func() bool { return store.Check(t.Context()) == nil }, time.Minute, 10*time.Millisecond)
		highest = spend(t, store, spent)
		member.Kill(t)
		member.Use(t, disk)
		member.Restart(t)
		return member, store, highest
	}
	_, store, highest := scene()
	require.Eventually(t, func() bool { return store.Check(t.Context()) == nil }, time.Minute, 10*time.Millisecond)
	require.Greater(t, spend(t, store, 1), highest, "a store that runs on remembers")

	member, _, highest := scene()
	fresh := openAt(t, etcdstore.Config{Endpoints: []string{member.Endpoint()}, Timeout: 30 * time.Second})
	require.Less(t, spend(t, fresh, 1), highest, "the control: nothing tells, and tokens repeat")
	_, _, err := fresh.FastForward(t.Context(), lock.FastForwardRequest{Above: highest, Operator: "op", Reason: "the disk was restored"})
	require.NoError(t, err)
	require.Greater(t, spend(t, fresh, 1), highest)
}
