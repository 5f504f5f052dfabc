package pgstore_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/internal/postgres"
	"fenceline/lockd/lock"
	"fenceline/lockd/pgstore"
	"fenceline/migrations"
)

// gathered is a store whose only connection is held back, so that calls pile up: two leave with the first two flights and wait, the
// rest forms the third group.
type gathered struct {
	t     *testing.T
	store *pgstore.Store
	owner string
	held  *pgxpool.Conn
	wg    sync.WaitGroup
	mu    sync.Mutex
	found map[string]result
}

type result struct {
	lock.Acquired
	err error
}

func gather(t *testing.T, timeout time.Duration, firstCaller ...context.Context) (*gathered, lock.Session) {
	t.Helper()
	first := append(firstCaller, t.Context())[0]
	owner := pgtest.Database(t, migrations.LockDB())
	pool, err := postgres.Open(t.Context(), postgres.Config{URL: pgtest.Login(t, owner, "lockapp"), MaxConns: 1})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	g := &gathered{t: t, store: pgstore.New(pool, timeout), owner: owner, found: map[string]result{}}
	t.Cleanup(g.store.Close)
	session, _ := held(t, g.store, "held by alice")
	g.store.Close() // no notice of its own takes the connection meanwhile
	g.held, err = pool.Acquire(t.Context())
	require.NoError(t, err)
	g.acquire(first, "first flight", session.OwnerID, session.ID)
	g.acquire(t.Context(), "second flight", session.OwnerID, session.ID)
	require.Eventually(t, func() bool { return g.store.Flying() == 2 }, 20*time.Second, time.Millisecond)
	return g, session
}

// acquire starts an acquire and waits until it stands in the queue or has left.
func (g *gathered) acquire(ctx context.Context, key, owner string, session uuid.UUID) {
	g.t.Helper()
	before := g.store.Pending() + g.store.Flying()
	g.wg.Go(func() {
		a, err := g.store.Insert(ctx, key, owner, session, 30*time.Second)
		g.mu.Lock()
		defer g.mu.Unlock()
		g.found[key] = result{a, err}
	})
	require.Eventually(g.t, func() bool { return g.store.Pending()+g.store.Flying() > before }, 20*time.Second, time.Millisecond)
}

// letGo sends everything and waits for all outcomes.
func (g *gathered) letGo() map[string]result {
	g.held.Release()
	g.wg.Wait()
	return g.found
}

// Acquires that arrive together are one transaction, which their common now() shows.
func TestAcquiresThatArriveTogetherShareATransaction(t *testing.T) {
	t.Parallel()
	g, session := gather(t, 10*time.Second)
	const n = 40
	for i := range n {
		g.acquire(t.Context(), fmt.Sprint("key", i), "alice", session.ID)
	}
	times, tokens := map[time.Time]int{}, map[lock.Token]bool{}
	for key, r := range g.letGo() {
		require.NoError(t, r.err, key)
		require.True(t, r.Granted, key)
		times[r.Grant.AcquiredAt]++
		tokens[r.Grant.Token] = true
	}
	require.Len(t, times, 3, "three transactions: %v", times)
	require.Len(t, tokens, n+2, "each has its own token")
}

// A refused session gets no grant, and spoils nobody else's.
func TestRefusedMemberDoesNotSpoilItsGroup(t *testing.T) {
	t.Parallel()
	g, session := gather(t, 10*time.Second)
	admin := pgtest.Connect(t, g.owner)
	var expired uuid.UUID
	require.NoError(t, admin.QueryRow(t.Context(), `INSERT INTO lock_session (session_id, owner_id, created_at, expires_at)
		VALUES (gen_random_uuid(), 'bob', now() - interval '2 s', now() - interval '1 s') RETURNING session_id`).Scan(&expired))
	for i := range 5 {
		g.acquire(t.Context(), fmt.Sprint("good", i), "alice", session.ID)
	}
	g.acquire(t.Context(), "unknown", "alice", uuid.New())
	g.acquire(t.Context(), "expired", "bob", expired)
	g.acquire(t.Context(), "another's", "mallory", session.ID)
	g.acquire(t.Context(), "held by alice", "alice", session.ID)
	for key, r := range g.letGo() {
		want := map[string]error{"unknown": lock.ErrSessionUnknown, "expired": lock.ErrSessionExpired, "another's": lock.ErrInvalid}[key]
		if want != nil {
			require.ErrorIs(t, r.err, want, key)
			_, isHeld, err := g.store.Read(t.Context(), key)
			require.NoError(t, err)
			require.False(t, isHeld, key)
			continue
		}
		require.NoError(t, r.err, key)
		require.True(t, r.Granted, key)
	}
}

// The control: without the look at the sessions, dead ones and other people's get grants.
func TestGroupThatIgnoresSessionsGrantsToTheDead(t *testing.T) {
	t.Parallel()
	store, owner := open(t)
	session, _ := held(t, store, "key")
	breaks(t, owner, liveSession, ownSession)
	require.NoError(t, store.ExpireSession(t.Context(), session.ID))
	for key, ownerID := range map[string]string{"dead": "alice", "another's": "mallory"} {
		got, err := store.Insert(t.Context(), key, ownerID, session.ID, time.Second)
		require.NoError(t, err)
		require.True(t, got.Granted)
	}
}

// A row that somebody else holds keeps its own key waiting and nobody else: the group goes on without it, and later groups aren't held up.
func TestKeyThatIsStuckKeepsNobodyElseWaiting(t *testing.T) {
	t.Parallel()
	good, owner := open(t)
	session, _ := held(t, good, "stuck")
	store := pgstore.New(openPool(t, pgtest.Login(t, owner, "lockapp")), 30*time.Second)
	require.NoError(t, store.Check(t.Context()))
	tx, err := pgtest.Connect(t, owner).Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "SELECT FROM lock_entry WHERE lock_key = 'stuck' FOR UPDATE")
	require.NoError(t, err)
	stuck := make(chan error, 2)
	for range cap(stuck) {
		go func() {
			_, err := store.Insert(t.Context(), "stuck", "alice", session.ID, 30*time.Second)
			stuck <- err
		}()
	}
	for i := range 10 {
		got, err := store.Insert(t.Context(), fmt.Sprint("free", i), "alice", session.ID, 30*time.Second)
		require.NoError(t, err)
		require.True(t, got.Granted)
		_, err = store.Delete(t.Context(), fmt.Sprint("free", i), got.Grant.Token)
		require.NoError(t, err)
	}
	require.Empty(t, stuck, "still waiting, within its own time")
	require.NoError(t, tx.Rollback(t.Context()))
	for range cap(stuck) {
		require.NoError(t, <-stuck)
	}
}

// A commit whose answer was lost is unknown to everybody who may have been granted something; whoever was contended is that.
func TestLostCommitOfAGroupIsUnknownToEveryWriter(t *testing.T) {
	t.Parallel()
	g, session := gather(t, 10*time.Second)
	admin := pgtest.Connect(t, g.owner)
	var other uuid.UUID
	require.NoError(t, admin.QueryRow(t.Context(), `INSERT INTO lock_session (session_id, owner_id, expires_at)
		VALUES (gen_random_uuid(), 'bob', now() + interval '1 min') RETURNING session_id`).Scan(&other))
	loseCommits(t, admin)
	for i := range 3 {
		g.acquire(t.Context(), fmt.Sprint("key", i), "alice", session.ID)
	}
	g.acquire(t.Context(), "held by alice", "bob", other)
	for key, r := range g.letGo() {
		if key == "held by alice" {
			require.NoError(t, r.err)
			require.False(t, r.Granted)
			require.Equal(t, "alice", r.Holder.OwnerID)
			continue
		}
		require.ErrorIs(t, r.err, lock.ErrUnknownOutcome, key)
		require.NotErrorIs(t, r.err, lock.ErrUnavailable, key)
	}
}

// Whoever gives up before its group has left was never there. Afterwards it learns what became of it all the same.
func TestCallerThatGivesUpIsLeftOutOrLearnsTheTruth(t *testing.T) {
	t.Parallel()
	g, session := gather(t, 10*time.Second)
	gone, cancel := context.WithCancel(t.Context())
	g.acquire(gone, "gone before", "alice", session.ID)
	g.acquire(t.Context(), "stays", "alice", session.ID)
	cancel()
	require.Eventually(t, func() bool { return g.store.Pending() == 1 }, 20*time.Second, time.Millisecond)
	found := g.letGo()
	require.ErrorIs(t, found["gone before"].err, lock.ErrUnavailable)
	require.ErrorIs(t, found["gone before"].err, context.Canceled)
	require.True(t, found["stays"].Granted)
	_, isHeld, err := g.store.Read(t.Context(), "gone before")
	require.NoError(t, err)
	require.False(t, isHeld)

	left, leave := context.WithCancel(t.Context())
	g, _ = gather(t, 10*time.Second, left)
	leave()
	found = g.letGo()
	require.True(t, found["first flight"].Granted, "it was under way: the grant is there, and the caller is told")
	require.NoError(t, found["first flight"].err)
}
