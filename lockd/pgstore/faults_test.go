package pgstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/internal/postgres"
	"fenceline/lockd/lock"
	"fenceline/lockd/pgstore"
	"fenceline/migrations"
)

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

	store := pgstore.New(openPool(t, url), time.Second)
	require.ErrorIs(t, store.Check(t.Context()), postgres.ErrNotDurable)
	_, err = store.OpenSession(t.Context(), "alice", 10*time.Second)
	require.ErrorIs(t, err, lock.ErrUnavailable)
	require.ErrorContains(t, err, "synchronous_commit=off")
}

// Durability is asked in the transaction that hands out the token, so a server that loses it while lockd runs gives none, not even one; without
// that question it does.
func TestServerThatStopsBeingDurableGivesNoFurtherToken(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, nil)
	owner := pgtest.DatabaseOn(t, server, migrations.LockDB())
	admin := pgtest.Connect(t, owner)
	url := pgtest.Login(t, owner, "lockapp")
	store := pgstore.New(openPool(t, url), 5*time.Second)
	session, grant := held(t, store, "key")

	setFsync(t, admin, "off")
	acquire := func(s lock.Store) error {
		_, err := s.Insert(t.Context(), "key", "alice", session.ID, 30*time.Second)
		return err
	}
	require.ErrorIs(t, acquire(store), lock.ErrUnavailable)
	require.ErrorContains(t, acquire(store), "fsync=off", "from then on the whole check stands before everything")

	setFsync(t, admin, "on")
	require.NoError(t, acquire(store), "it recovers by itself")
	revocable, _, err := store.Read(t.Context(), "key")
	require.NoError(t, err)
	require.Greater(t, revocable.Token, grant.Token)
	setFsync(t, admin, "off")
	_, err = store.Revoke(t.Context(), lock.RevokeRequest{Key: "key", Operator: "op", Reason: "it is stuck"})
	require.ErrorIs(t, err, postgres.ErrNotDurable, "the floor is a token too")
	_, stillHeld, err := store.Read(t.Context(), "key")
	require.NoError(t, err)
	require.True(t, stillHeld, "nothing half done")

	setFsync(t, admin, "on")
	require.NoError(t, store.Check(t.Context()))
	breaks(t, owner, durability)
	setFsync(t, admin, "off")
	require.NoError(t, acquire(store), "the control: without the question a token is given")
}

// setFsync changes the setting under the running server and waits until sessions see it.
func setFsync(t *testing.T, admin *pgx.Conn, value string) {
	t.Helper()
	for _, sql := range []string{"ALTER SYSTEM SET fsync = " + value, "SELECT pg_reload_conf()"} {
		_, err := admin.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool {
		fresh, err := pgx.ConnectConfig(t.Context(), admin.Config())
		if err != nil {
			return false
		}
		defer func() { _ = fresh.Close(context.Background()) }()
		var now string
		err = fresh.QueryRow(t.Context(), "SHOW fsync").Scan(&now)
		return err == nil && now == value
	}, 10*time.Second, 10*time.Millisecond)
}

// What was confirmed survives a crash of the server: the grant is there, and no token comes twice.
func TestGrantsAndTokensSurviveACrash(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, nil)
	owner := pgtest.DatabaseOn(t, server, migrations.LockDB())
	store := pgstore.New(openPool(t, pgtest.Login(t, owner, "lockapp")), 5*time.Second)
	session, grant := held(t, store, "key")
	require.NoError(t, server.Crash(t.Context()))
	_, err := store.Extend(t.Context(), "key", grant.Token, 30*time.Second)
	require.ErrorIs(t, err, lock.ErrUnavailable)
	require.NotErrorIs(t, err, lock.ErrLockLost)
	require.NoError(t, server.Restart(t.Context()))
	require.Eventually(t, func() bool {
		_, err := store.Extend(t.Context(), "key", grant.Token, 30*time.Second)
		require.NotErrorIs(t, err, lock.ErrLockLost)
		return err == nil
	}, 20*time.Second, 20*time.Millisecond)
	again, err := store.Insert(t.Context(), "key", "alice", session.ID, 30*time.Second)
	require.NoError(t, err)
	require.Greater(t, again.Grant.Token, grant.Token)
}

// calls are all writes of a store under a grant.
func calls(session lock.Session, grant lock.Grant) map[string]func(ctx context.Context, s lock.Store) error {
	return map[string]func(ctx context.Context, s lock.Store) error{
		"open": func(ctx context.Context, s lock.Store) error {
			_, err := s.OpenSession(ctx, "bob", time.Minute)
			return err
		},
		"heartbeat": func(ctx context.Context, s lock.Store) error {
			_, _, _, err := s.Heartbeat(ctx, session.ID)
			return err
		},
		"close": func(ctx context.Context, s lock.Store) error { _, err := s.CloseSession(ctx, session.ID); return err },
		"acquire": func(ctx context.Context, s lock.Store) error {
			_, err := s.Insert(ctx, grant.Key, session.OwnerID, session.ID, time.Minute)
			return err
		},
		"renew": func(ctx context.Context, s lock.Store) error {
			_, err := s.Extend(ctx, grant.Key, grant.Token, time.Minute)
			return err
		},
		"release": func(ctx context.Context, s lock.Store) error {
			_, err := s.Delete(ctx, grant.Key, grant.Token)
			return err
		},
		"revoke": func(ctx context.Context, s lock.Store) error {
			_, err := s.Revoke(ctx, lock.RevokeRequest{Key: grant.Key, Operator: "op", Reason: "it is stuck"})
			return err
		},
	}
}

// loseCommits ends every session that commits a change, while its commit is under way.
func loseCommits(t *testing.T, admin *pgx.Conn) {
	t.Helper()
	_, err := admin.Exec(t.Context(), `
CREATE FUNCTION lose_commit() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END';
CREATE CONSTRAINT TRIGGER lose_commit AFTER INSERT OR UPDATE OR DELETE ON lock_entry DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION lose_commit();
CREATE CONSTRAINT TRIGGER lose_commit AFTER INSERT OR UPDATE OR DELETE ON lock_session DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION lose_commit()`)
	require.NoError(t, err)
}

// The connection is lost while the server works on the commit: nobody can say how it ended, and the store doesn't.
func TestCommitWhoseAnswerIsLostIsAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	store, owner := open(t)
	session, grant := held(t, store, "key")
	loseCommits(t, pgtest.Connect(t, owner))
	for name, call := range calls(session, grant) {
		err := call(t.Context(), store)
		require.ErrorIs(t, err, lock.ErrUnknownOutcome, name)
		require.NotErrorIs(t, err, lock.ErrUnavailable, name)
		require.NotErrorIs(t, err, lock.ErrLockLost, name)
	}
}

// A role without a grant, or a table that isn't there, is a defect of the deployment: no answer of the domain's, and nothing to try again.
func TestDeploymentDefectHasNoIdentityOfTheDomain(t *testing.T) {
	t.Parallel()
	for name, sql := range map[string]string{
		"permission": "REVOKE UPDATE, INSERT, DELETE, SELECT ON lock_entry, lock_session FROM lockapp",
		"table":      "DROP TABLE lock_entry, lock_session",
	} {
		store, owner := open(t)
		session, grant := held(t, store, "key")
		_, err := pgtest.Connect(t, owner).Exec(t.Context(), sql)
		require.NoError(t, err)
		for call, run := range calls(session, grant) {
			err := run(t.Context(), store)
			require.Error(t, err)
			for _, answer := range []error{lock.ErrUnavailable, lock.ErrUnknownOutcome, lock.ErrLockLost, lock.ErrSessionUnknown, lock.ErrNotHeld} {
				require.NotErrorIs(t, err, answer, "%s: %s", name, call)
			}
		}
	}
}

// A row that somebody else holds for too long is neither a loss nor a refusal, and nothing is left behind.
func TestWaitThatTakesTooLongIsUnavailable(t *testing.T) {
	t.Parallel()
	good, owner := open(t)
	session, grant := held(t, good, "key")
	store := pgstore.New(openPool(t, pgtest.Login(t, owner, "lockapp")), 50*time.Millisecond)
	require.NoError(t, store.Check(t.Context()))
	admin := pgtest.Connect(t, owner)
	tx, err := admin.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "SELECT FROM lock_entry e JOIN lock_session USING (session_id) FOR UPDATE")
	require.NoError(t, err)
	for name, call := range calls(session, grant) {
		if name == "open" {
			continue // touches no row of somebody else's
		}
		err := call(t.Context(), store)
		require.ErrorIs(t, err, lock.ErrUnavailable, name)
		require.NotErrorIs(t, err, lock.ErrUnknownOutcome, name)
	}
	require.NoError(t, tx.Rollback(t.Context()))
	after, stillHeld, err := good.Read(t.Context(), "key")
	require.NoError(t, err)
	require.True(t, stillHeld)
	require.Equal(t, grant, after)
}

// Should a session go in the middle of an acquire, whoever made that possible, the foreign key refuses the grant (23503), and that is an answer of the domain's.
func TestForeignKeyThatRefusesAGrantMeansThatTheSessionIsGone(t *testing.T) {
	t.Parallel()
	store, owner := open(t)
	session, err := store.OpenSession(t.Context(), "alice", time.Minute)
	require.NoError(t, err)
	_, err = pgtest.Connect(t, owner).Exec(t.Context(), `
CREATE FUNCTION end_session() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS 'BEGIN DELETE FROM lock_session WHERE session_id = NEW.session_id; RETURN NEW; END';
CREATE TRIGGER end_session BEFORE INSERT ON lock_entry FOR EACH ROW EXECUTE FUNCTION end_session()`)
	require.NoError(t, err)
	_, err = store.Insert(t.Context(), "key", "alice", session.ID, time.Minute)
	require.ErrorIs(t, err, lock.ErrSessionUnknown)
	require.Equal(t, postgres.ForeignKeyViolation, postgres.State(err))
	_, held, err := store.Read(t.Context(), "key")
	require.NoError(t, err)
	require.False(t, held)
}
