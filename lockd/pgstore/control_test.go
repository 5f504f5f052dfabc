package pgstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/internal/postgres"
	"fenceline/lockd/lock"
	"fenceline/lockd/lock/locktest"
	"fenceline/lockd/pgstore"
	"fenceline/migrations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func open(t *testing.T, breaks ...func(*pgstore.Store)) (locktest.Store, string) {
	t.Helper()
	owner := pgtest.Database(t, migrations.LockDB())
	pool, err := postgres.Open(t.Context(), postgres.Config{URL: pgtest.Login(t, owner, "lockapp"), MaxConns: 16})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	store := pgstore.New(pool, 10*time.Second)
	for _, b := range breaks {
		b(store)
	}
	admin := pgtest.Connect(t, owner)
	return locktest.Store{Store: store, ExpireSession: func(ctx context.Context, id uuid.UUID) error {
		_, err := admin.Exec(ctx, "UPDATE lock_session SET created_at = now() - interval '2 s', expires_at = now() - interval '1 s' WHERE session_id = $1", id)
		return err
	}}, owner
}

// Each rule broken on purpose fails the scenario that is there for it, so the matrix can fail.
func TestMatrixFindsEveryBrokenRule(t *testing.T) {
	t.Parallel()
	for name, broken := range map[string]struct {
		breaks   func(*pgstore.Store)
		scenario string
		finding  string
	}{
		"takeover keeps the token":  {pgstore.WithoutNewTokenOnTakeover, "expiredLeaseIsStolenWithHigherToken", "not above the old one's"},
		"release forgets the token": {pgstore.WithReleaseByKeyOnly, "staleReleaseLeavesTheNewHolderUntouched", "want stale"},
		"renew revives the dead":    {pgstore.WithRenewAfterExpiry, "renewAfterExpiryIsLostEvenIfNobodyTookTheKey", "want lock is lost"},
		"revocation draws no token": {pgstore.WithoutFloorOnRevoke, "tokenAfterARevocationExceedsTheRevokedOne", "revocation of"},
		"C1's acquire by itself":    {pgstore.WithoutOrderedGrants, "tokensIncreaseInTheOrderOfGrantsOnAHotKey", "was granted after"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
			defer cancel()
			store, _ := open(t, broken.breaks)
			require.ErrorContains(t, scenario(t, broken.scenario).Run(ctx, store), broken.finding)
		})
	}
}

func scenario(t *testing.T, name string) locktest.Scenario {
	t.Helper()
	for _, s := range locktest.Scenarios() {
		if s.Name == name {
			return s
		}
	}
	require.Fail(t, "no such scenario", name)
	return locktest.Scenario{}
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

// A database that may forget commits gives no tokens, whether lockd learns it at the start or later.
func TestNothingIsGrantedByADatabaseThatIsNotDurable(t *testing.T) {
	t.Parallel()
	owner := pgtest.Database(t, migrations.LockDB())
	url := pgtest.Login(t, owner, "lockapp")
	admin := pgtest.Connect(t, owner)
	var user string
	require.NoError(t, pgtest.Connect(t, url).QueryRow(t.Context(), "SELECT current_user").Scan(&user))
	_, err := admin.Exec(t.Context(), "ALTER ROLE "+user+" SET synchronous_commit = off")
	require.NoError(t, err)

	pool, err := postgres.Open(t.Context(), postgres.Config{URL: url})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	store := pgstore.New(pool, time.Second)
	require.ErrorIs(t, store.Check(t.Context()), postgres.ErrNotDurable)
	_, err = store.OpenSession(t.Context(), "alice", 10*time.Second)
	require.ErrorIs(t, err, lock.ErrUnavailable)
	require.ErrorContains(t, err, "synchronous_commit=off")
}
