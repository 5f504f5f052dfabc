package pgstore_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver"
	"fenceline/internal/pgserver/pgtest"
	"fenceline/lockd/lock"
	"fenceline/lockd/pgstore"
	"fenceline/migrations"
)

// acquireUntil lets eight clients acquire until enough tokens were handed out and the server is ended, and returns the highest token that was confirmed, also
// while it was ended.
func acquireUntil(t *testing.T, store *pgstore.Store, keys string, enough int, end func(context.Context) error) (highest lock.Token) {
	t.Helper()
	session, _ := held(t, store, keys)
	var mu sync.Mutex
	confirmed := 0
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			for {
				a, err := store.Insert(t.Context(), fmt.Sprint(keys, i), "alice", session.ID, 30*time.Second)
				if err != nil {
					return
				}
				mu.Lock()
				highest = max(highest, a.Grant.Token)
				confirmed++
				mu.Unlock()
			}
		})
	}
	require.Eventually(t, func() bool { mu.Lock(); defer mu.Unlock(); return confirmed > enough }, 60*time.Second, time.Millisecond)
	require.NoError(t, end(t.Context()))
	group.Wait()
	return highest
}

// nextAfter is the first token of a server that was started again; until it serves, callers are told so.
func nextAfter(t *testing.T, store *pgstore.Store, key string) lock.Token {
	t.Helper()
	var after lock.Acquired
	require.Eventually(t, func() bool {
		fresh, err := store.OpenSession(t.Context(), "bob", 30*time.Second)
		if err == nil {
			after, err = store.Insert(t.Context(), key, "bob", fresh.ID, 30*time.Second)
		}
		return err == nil
	}, 60*time.Second, 20*time.Millisecond)
	require.True(t, after.Granted)
	return after.Grant.Token
}

// The server is ended while many acquire, by an immediate shutdown and by SIGKILL. Every later token is above all that were confirmed.
func TestTokensIncreaseOverACrashUnderLoad(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*pgserver.Server) func(context.Context) error{
		"immediate shutdown": func(s *pgserver.Server) func(context.Context) error { return s.Crash },
		"SIGKILL":            func(s *pgserver.Server) func(context.Context) error { return s.Kill },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := pgtest.Server(t, nil)
			owner := pgtest.DatabaseOn(t, server, migrations.LockDB())
			store := pgstore.New(openPool(t, pgtest.Login(t, owner, "lockapp")), 5*time.Second)
			highest := acquireUntil(t, store, "k", 100, end(server))
			require.NoError(t, server.Restart(t.Context()))
			after := nextAfter(t, store, "after")
			require.Greater(t, after, highest)
			require.Less(t, after, highest+1_000_000, "a crash is no other incarnation")
		})
	}
}

// The control: where grants don't wait for the disk, SIGKILL takes confirmed tokens away, and they come again.
func TestGrantsThatDoNotWaitForTheDiskComeAgainAfterAKill(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, lazyDisk())
	owner := pgtest.DatabaseOn(t, server, migrations.LockDB())
	url := pgtest.Login(t, owner, "lockapp")
	breaks(t, owner, waitForTheDisk)
	for round := range 5 { // a server's own process may write the log at the last moment
		store := pgstore.New(openPool(t, url), 5*time.Second)
		highest := acquireUntil(t, store, fmt.Sprint("round ", round, " "), 200, server.Kill)
		require.NoError(t, server.Restart(t.Context()))
		if nextAfter(t, store, fmt.Sprint("after round ", round)) <= highest {
			return
		}
	}
	require.Fail(t, "no token was lost: the test above shows nothing")
}

// lazyDisk are settings of a server that writes its log when a commit waits for it, and otherwise hardly ever.
func lazyDisk() map[string]string {
	return map[string]string{
		"wal_writer_delay": "10s", "wal_writer_flush_after": "1GB", "wal_buffers": "32MB", "autovacuum": "off", "checkpoint_timeout": "1h", "bgwriter_lru_maxpages": "0",
	}
}

// Acquires that nobody was granted anything by change nothing that must survive, so they don't wait for the disk; without that rule
// they do.
func TestContendedAcquireDoesNotWaitForTheDisk(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, lazyDisk())
	owner := pgtest.DatabaseOn(t, server, migrations.LockDB())
	store := pgstore.New(openPool(t, pgtest.Login(t, owner, "lockapp")), 5*time.Second)
	held(t, store, "key")
	other, err := store.OpenSession(t.Context(), "bob", 30*time.Second)
	require.NoError(t, err)
	admin := pgtest.Connect(t, owner)
	contend := func() (flushed, written bool) {
		const position = "SELECT pg_current_wal_flush_lsn()::text, pg_current_wal_insert_lsn()::text"
		var flush, insert string
		require.NoError(t, admin.QueryRow(t.Context(), position).Scan(&flush, &insert))
		a, err := store.Insert(t.Context(), "key", "bob", other.ID, 30*time.Second)
		require.NoError(t, err)
		require.False(t, a.Granted)
		const moved = "SELECT pg_current_wal_flush_lsn() > $1::text::pg_lsn, pg_current_wal_insert_lsn() > $2::text::pg_lsn"
		require.NoError(t, admin.QueryRow(t.Context(), moved, flush, insert).Scan(&flushed, &written))
		return flushed, written
	}
	// The server's own processes may write the log at any time, but not every time.
	require.Eventually(t, func() bool { flushed, written := contend(); return !flushed && written }, 20*time.Second, time.Millisecond)
	breaks(t, owner, noWaitOfTheContended)
	for range 20 {
		flushed, _ := contend()
		require.True(t, flushed)
	}
}
