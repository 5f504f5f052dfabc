package pgstore_test

import (
	"bytes"
	"context"
	"fmt"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/internal/postgres"
	"fenceline/lockd/lock"
	"fenceline/lockd/pgstore"
	"fenceline/migrations"
)

// restored makes a copy of the database under another name in the same cluster, as restoring a dump would, and returns its owner's URL.
func restored(t *testing.T, owner, name string) string {
	t.Helper()
	u, err := url.Parse(owner)
	require.NoError(t, err)
	from := u.Path[1:]
	u.Path = "/postgres"
	admin := pgtest.Connect(t, u.String())
	// A template must have no connections; the pool makes new ones.
	_, err = admin.Exec(t.Context(), "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = $1", from)
	require.NoError(t, err)
	_, err = admin.Exec(t.Context(), fmt.Sprintf("CREATE DATABASE %s TEMPLATE %s", name, from))
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = admin.Exec(context.Background(), "DROP DATABASE "+name+" WITH (FORCE)") })
	u.Path = "/" + name
	return u.String()
}

// next acquires the key under a session of its own and returns the token.
func next(t *testing.T, store lock.Store, key string) lock.Token {
	t.Helper()
	_, grant := held(t, store, key)
	return grant.Token
}

// A dump restored into the same cluster is behind. Its first token is far above everything that was handed out since the dump, and that is said once. Without
// the look at the incarnation the token goes back.
func TestRestoredDumpHandsOutNoTokenTwice(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, nil)
	owner := pgtest.DatabaseOn(t, server, migrations.LockDB())
	original := pgstore.New(openPool(t, owner), 10*time.Second)
	next(t, original, "before the dump")
	good, bad := restored(t, owner, "restored_good"), restored(t, owner, "restored_bad")
	original = pgstore.New(openPool(t, owner), 10*time.Second) // the copying ended the connections of the pool before
	highest := lock.Token(0)
	for i := range 5 {
		highest = next(t, original, fmt.Sprint("after the dump", i))
	}

	breaks(t, bad, incarnation)
	require.LessOrEqual(t, next(t, pgstore.New(openPool(t, bad), 10*time.Second), "k"), highest, "the control: the token goes back")

	var log bytes.Buffer
	logger := hclog.New(&hclog.LoggerOptions{Output: &log, JSONFormat: true})
	replicas := []*pgstore.Store{
		pgstore.New(openPool(t, pgtest.Login(t, good, "lockapp")), 10*time.Second, pgstore.WithLogger(logger)),
		pgstore.New(openPool(t, pgtest.Login(t, good, "lockapp")), 10*time.Second, pgstore.WithLogger(logger)),
	}
	var wg sync.WaitGroup
	tokens := make([]lock.Token, 8)
	for i := range tokens {
		wg.Go(func() {
			session, err := replicas[i%2].OpenSession(t.Context(), "bob", 30*time.Second)
			if err == nil {
				var a lock.Acquired
				a, err = replicas[i%2].Insert(t.Context(), fmt.Sprint("k", i), "bob", session.ID, 30*time.Second)
				tokens[i] = a.Grant.Token
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, token := range tokens {
		require.Greater(t, token, highest+999_000_000)
		require.Less(t, token, highest+2_000_000_000, "one jump, whichever replica was first")
	}
	require.Equal(t, 1, bytes.Count(log.Bytes(), []byte(`"event":"token_source_advanced"`)), log.String())
	require.Contains(t, log.String(), "database oid")

	session, _ := held(t, replicas[0], "revocable")
	_, err := pgtest.Connect(t, good).Exec(t.Context(), "UPDATE token_source SET timeline = 77")
	require.NoError(t, err)
	revocation, err := replicas[0].Revoke(t.Context(), lock.RevokeRequest{Key: "revocable", Operator: "op", Reason: "it is stuck"})
	require.NoError(t, err, session)
	require.Greater(t, revocation.NewTokenFloor, highest+1_999_000_000, "a revocation draws too, and looks too")
}

// Nobody draws while the source is moved, and nobody who draws afterwards gets a token from below, however many draw.
func TestFastForwardAmongDrawsNeverGoesBack(t *testing.T) {
	t.Parallel()
	store, owner := open(t)
	source := store.Store.(*pgstore.Store)
	session, first := held(t, store, "key")
	var stop atomic.Bool
	var group sync.WaitGroup
	for i := range 4 {
		replica := pgstore.New(openPool(t, pgtest.Login(t, owner, "lockapp")), 10*time.Second)
		group.Go(func() {
			last := first.Token
			for !stop.Load() {
				a, err := replica.Insert(t.Context(), fmt.Sprint("k", i), "alice", session.ID, 30*time.Second)
				if err != nil || a.Grant.Token <= last {
					t.Errorf("token %d after %d: %v", a.Grant.Token, last, err)
					return
				}
				last = a.Grant.Token
			}
		})
	}
	for range 10 {
		highest, err := source.HighestToken(t.Context())
		require.NoError(t, err)
		from, to, err := source.FastForward(t.Context(), lock.FastForwardRequest{Above: highest + 3, Operator: "op", Reason: "test"})
		if err != nil { // the others drew more than three meanwhile
			require.ErrorIs(t, err, lock.ErrInvalid)
			continue
		}
		require.GreaterOrEqual(t, from, highest)
		require.Equal(t, highest+3, to)
	}
	stop.Store(true)
	group.Wait()
}

// It never moves down, never beyond the ceiling, and records who moved it.
func TestFastForwardIsBoundedAndRecorded(t *testing.T) {
	t.Parallel()
	store, owner := open(t)
	source := store.Store.(*pgstore.Store)
	token := next(t, store, "key")
	for _, above := range []lock.Token{1, token, lock.MaxTokenFloor + 1} {
		_, _, err := source.FastForward(t.Context(), lock.FastForwardRequest{Above: above, Operator: "op", Reason: "test"})
		require.ErrorIs(t, err, lock.ErrInvalid, above)
	}
	from, to, err := source.FastForward(t.Context(), lock.FastForwardRequest{Above: 5_000_000_000, Operator: "alice", Reason: "snapshot restored"})
	require.NoError(t, err)
	require.Equal(t, []lock.Token{token, 5_000_000_000}, []lock.Token{from, to})
	highest, err := source.HighestToken(t.Context())
	require.NoError(t, err)
	require.Equal(t, to, highest)
	require.Greater(t, next(t, store, "key 2"), to)

	app := pgtest.Connect(t, pgtest.Login(t, owner, "lockapp"))
	var operator, reason string
	require.NoError(t, app.QueryRow(t.Context(), "SELECT operator, reason FROM token_source_change WHERE cause = 'fast-forward' AND to_token = $1", to).Scan(&operator, &reason))
	require.Equal(t, []string{"alice", "snapshot restored"}, []string{operator, reason})
	for _, sql := range []string{
		"UPDATE token_source_change SET reason = ''", "DELETE FROM token_source_change", "UPDATE token_source SET timeline = 1",
		"INSERT INTO token_source_change (from_token, to_token, cause, operator, reason) VALUES (1, 2, 'fast-forward', '', '')",
		"SELECT move_token_source(99, '', '', '')", "ALTER SEQUENCE fencing_token_seq RESTART",
	} {
		_, err := app.Exec(t.Context(), sql)
		require.Equal(t, "42501", postgres.State(err), "%s: %v", sql, err)
	}

	_, _, err = source.FastForward(t.Context(), lock.FastForwardRequest{Above: lock.MaxTokenFloor, Operator: "op", Reason: "test"})
	require.NoError(t, err)
	_, err = pgtest.Connect(t, owner).Exec(t.Context(), "UPDATE token_source SET timeline = 77")
	require.NoError(t, err)
	session, err := store.OpenSession(t.Context(), "bob", 30*time.Second)
	require.NoError(t, err)
	_, err = store.Insert(t.Context(), "beyond", "bob", session.ID, 30*time.Second)
	require.ErrorIs(t, err, lock.ErrUnavailable, "no jump beyond the ceiling, and no token without one")
}
