package pgmark_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/lockd/lock"
	"fenceline/migrations"
	"fenceline/sidecar/mark"
	"fenceline/sidecar/mark/pgmark"
)

// hangs makes whoever registers token 5 wait, between its registration and its look, for as long as the test holds the lock.
const hangs = `
CREATE FUNCTION fence.hang() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock_shared(5); RETURN NULL; END $$;
CREATE TRIGGER hang AFTER INSERT ON fence.inflight FOR EACH ROW WHEN (NEW.token = 5) EXECUTE FUNCTION fence.hang()`

// One sidecar has registered 5 and hasn't committed yet; 6 comes to another one; 5 goes on. Which of the two is forwarded must not be both while neither is settled. Each
// mistake in the statements is found where it matters: 5 may be new, which raises the mark, or equal to it, which writes nothing to it.
func TestHigherTokenThatComesBetweenRegistrationAndCommitOfAnOlderOneSeesIt(t *testing.T) {
	t.Parallel()
	for how, wrong := range map[pgmark.Mistake]struct{ fresh, equal bool }{
		pgmark.NoMistake:      {false, false},
		pgmark.LookWithinLock: {false, false},
		pgmark.EqualUnlocked:  {false, true},
		pgmark.LookFirst:      {true, true},
		pgmark.LookWithin:     {true, true},
		pgmark.Unregistered:   {true, true},
	} {
		for name, want := range map[string]bool{"5 is new": wrong.fresh, "5 is equal": wrong.equal} {
			t.Run(string(how)+"/"+name, func(t *testing.T) {
				t.Parallel()
				require.Equal(t, want, meet(t, how, name == "5 is equal"), "both are forwarded")
			})
		}
	}
}

// meet says whether both were let through.
func meet(t *testing.T, how pgmark.Mistake, equal bool) bool {
	t.Helper()
	ctx := t.Context()
	owner := pgtest.Database(t, migrations.PayDB(), migrations.Fence())
	url := pgtest.Login(t, owner, "fence_rail")
	a, b := sidecar(t, url, "cache_describe", "a", ownMark()), sidecar(t, url, "cache_describe", "b", ownMark())
	for _, s := range []*pgmark.Store{a, b} {
		pgmark.Break(s, how)
		require.NoError(t, s.Begin(ctx))
	}
	conn, watcher := pgtest.Connect(t, owner), pgtest.Connect(t, owner)
	_, err := conn.Exec(ctx, hangs)
	require.NoError(t, err)
	register := func(s *pgmark.Store, key string, token lock.Token) (mark.Registration, error) {
		return s.Register(ctx, mark.Entry{Admission: mark.Admission{Guard: "hold", Key: key, Token: token}, Raise: token, Route: "r"})
	}
	for range 20 {
		key := uuid.NewString()
		before := lock.Token(4)
		if equal {
			before = 5
		}
		first, err := register(a, key, before)
		require.NoError(t, err)
		require.NoError(t, a.Settle(ctx, []mark.Row{first.Row}))
		_, err = conn.Exec(ctx, "SELECT pg_advisory_lock(5)")
		require.NoError(t, err)
		type answer struct {
			mark.Registration
			error
		}
		old, next := make(chan answer, 1), make(chan answer, 1)
		waiters := func(n int) func() bool {
			return func() bool {
				var waiting int
				err := watcher.QueryRow(ctx, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'").Scan(&waiting)
				return err == nil && waiting >= n
			}
		}
		go func() {
			got, err := register(a, key, 5)
			old <- answer{got, err}
		}()
		require.Eventually(t, func() bool { return len(old) > 0 || waiters(1)() }, 30*time.Second, time.Millisecond, "5 is registered")
		go func() {
			got, err := register(b, key, 6)
			next <- answer{got, err}
		}()
		require.Eventually(t, func() bool { return len(next) > 0 || waiters(2)() || len(old) > 0 && waiters(1)() }, 30*time.Second, time.Millisecond, "6 waits, or doesn't")
		_, err = conn.Exec(ctx, "SELECT pg_advisory_unlock(5)")
		require.NoError(t, err)
		five, six := <-old, <-next
		if errors.Is(six.error, mark.ErrBusy) || errors.Is(five.error, mark.ErrBusy) || errors.Is(five.error, mark.ErrUnavailable) || errors.Is(six.error, mark.ErrUnavailable) {
			continue // a slow machine: it waited for too long, and nothing was decided
		}
		require.NoError(t, five.error)
		require.NoError(t, six.error)
		require.Equal(t, mark.Admitted, six.Verdict)
		return five.Verdict == mark.Admitted && len(five.Older) == 0 && len(six.Older) == 0
	}
	t.Fatal("it was busy every time")
	return false
}
