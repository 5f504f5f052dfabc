package pgmark_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/lockd/lock"
	"fenceline/migrations"
	"fenceline/sidecar/mark"
	"fenceline/sidecar/mark/pgmark"
)

// Under a snapshot for the whole transaction the look would miss whoever registered while this registration waited for the key. Which isolation the
// database or the role has as its default must not matter.
func TestRegistrationSeesWhoeverItWaitedForWhateverTheDefaultIsolation(t *testing.T) {
	t.Parallel()
	for _, isolation := range []string{"read committed", "repeatable read", "serializable"} {
		for _, mode := range []string{"cache_describe", "cache_statement", "exec", "simple_protocol", "pooler"} {
			t.Run(isolation+"/"+mode, func(t *testing.T) {
				t.Parallel()
				owner := pgtest.Database(t, migrations.PayDB(), migrations.Fence())
				_, err := pgtest.Connect(t, owner).Exec(t.Context(), "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = %L', current_database(), '"+isolation+"'); END $$")
				require.NoError(t, err)
				url, mode := pgtest.Login(t, owner, "fence_rail"), mode
				if mode == "pooler" {
					url, mode = pgtest.Pooler(t, url), "exec"
				}
				registersBehindAnEqualToken(t, owner, sidecar(t, url, mode, "one", ownMark()))
			})
		}
	}
}

func registersBehindAnEqualToken(t *testing.T, owner string, s *pgmark.Store) {
	t.Helper()
	ctx := t.Context()
	entry := func(token lock.Token) mark.Entry {
		return mark.Entry{Admission: mark.Admission{Guard: "hold", Key: "k", Token: token}, Raise: token}
	}
	require.NoError(t, s.Begin(ctx))
	first, err := s.Register(ctx, entry(5))
	require.NoError(t, err)
	require.NoError(t, s.Settle(ctx, []mark.Row{first.Row}))

	conn, watcher := pgtest.Connect(t, owner), pgtest.Connect(t, owner)
	for range 20 {
		// Another sidecar registers an equal token: it shares the key's lock, and writes nothing to the mark.
		tx, err := conn.Begin(ctx)
		require.NoError(t, err)
		_, err = tx.Exec(ctx, "SELECT pg_advisory_xact_lock_shared(hashtextextended('hold/k', 0))")
		require.NoError(t, err)
		var got mark.Registration
		done := make(chan error, 1)
		go func() {
			var err error
			got, err = s.Register(ctx, entry(6))
			done <- err
		}()
		require.Eventually(t, func() bool {
			var waiting bool
			err := watcher.QueryRow(ctx, advisoryWaits).Scan(&waiting)
			return err == nil && waiting || len(done) > 0
		}, 30*time.Second, time.Millisecond, "the higher token waits for the key's lock")
		var older mark.Row
		require.NoError(t, tx.QueryRow(ctx, "INSERT INTO fence.inflight (guard, key, token, life, route) SELECT 'hold', 'k', 5, life, 'r' FROM fence.sidecar RETURNING id").Scan(&older))
		require.NoError(t, tx.Commit(ctx))
		err = <-done
		if errors.Is(err, mark.ErrBusy) { // a slow machine: it waited for too long, and saw nothing
			require.NoError(t, s.Settle(ctx, []mark.Row{older}))
			continue
		}
		require.NoError(t, err)
		require.Equal(t, []mark.Row{older}, got.Older)
		return
	}
	t.Fatal("it was busy every time")
}

const advisoryWaits = `
SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))`

// loses lets every transaction that writes a mark of the rail lose against a concurrent one, so often. A sequence counts, since no rollback takes that back.
func loses(t *testing.T, owner string, times string) {
	t.Helper()
	_, err := pgtest.Connect(t, owner).Exec(t.Context(), `
CREATE SEQUENCE lost;
CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  IF nextval('lost') <= TG_ARGV[0]::int THEN RAISE EXCEPTION 'lost' USING ERRCODE = '40001'; END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER lose AFTER INSERT OR UPDATE ON rail_high_water FOR EACH ROW EXECUTE FUNCTION lose(`+times+`)`)
	require.NoError(t, err)
}

// A transaction that the server rolls back in favour of another one has done nothing, so it runs again, whole; a client needn't be sent away for that. It doesn't
// do so for ever.
func TestAdmissionThatLosesAgainstAConcurrentOneRunsAgain(t *testing.T) {
	t.Parallel()
	for times, works := range map[string]bool{"2": true, "1000000": false} {
		for _, order := range []string{"admissions", "effects"} {
			t.Run(order+"/"+times, func(t *testing.T) {
				t.Parallel()
				owner := pgtest.Database(t, migrations.PayDB(), migrations.Fence())
				env := newEnv(t, owner)
				key, err := env.NewKey(t.Context())
				require.NoError(t, err)
				store := sidecar(t, pgtest.Login(t, owner, "fence_rail"), "", "one", column())
				require.NoError(t, store.Begin(t.Context()))
				loses(t, owner, times)
				var decision mark.Decision
				admission := mark.Admission{Guard: "rail", Key: key, Token: 5, Newer: true}
				if order == "admissions" {
					decision, err = env.Admit(t.Context(), admission)
				} else {
					var registration mark.Registration
					admission.Guard = "hold"
					registration, err = store.Register(t.Context(), mark.Entry{Admission: admission, Raise: 5, Route: "r"})
					decision = registration.Decision
				}
				if works {
					require.NoError(t, err)
					require.Equal(t, mark.Admitted, decision.Verdict)
				} else {
					require.ErrorIs(t, err, mark.ErrUnavailable)
				}
				highest, _, err := env.Read(t.Context(), "rail", key)
				require.NoError(t, err)
				require.Equal(t, works, highest == 5, "%d", highest)
			})
		}
	}
}
