package pgmark_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/lockd/lock"
	"fenceline/migrations"
	"fenceline/sidecar/mark"
	"fenceline/sidecar/mark/marktest"
	"fenceline/sidecar/mark/pgmark"
)

// slowRegister makes every registration take a while between the raise and the commit, for all variants the same, so that what can meet does.
const slowRegister = `
CREATE FUNCTION fence.linger() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(random() * 0.004); RETURN NULL; END $$;
CREATE TRIGGER linger AFTER INSERT ON fence.inflight FOR EACH STATEMENT EXECUTE FUNCTION fence.linger()`

// stressed opens sidecars that make a mistake, on a database of their own.
func stressed(t *testing.T, how pgmark.Mistake) marktest.RegisterEnv {
	t.Helper()
	owner := pgtest.Database(t, migrations.PayDB(), migrations.Fence())
	_, err := pgtest.Connect(t, owner).Exec(t.Context(), slowRegister)
	require.NoError(t, err)
	env := registerEnv(t, owner, pgtest.Login(t, owner, "fence_rail"), "cache_describe", ownMark())
	open := env.Open
	env.Open = func(ctx context.Context, id string) (mark.Register, error) {
		r, err := open(ctx, id)
		pgmark.Break(r.(*pgmark.Store), how)
		return r, err
	}
	return env
}

// How much a stress admits: FENCELINE_STRESS for make test-long.
func admissions(t *testing.T) int {
	t.Helper()
	text := os.Getenv("FENCELINE_STRESS")
	if text == "" {
		return 150
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}

// The statements of the register are what they are because each other way was seen to break the order of effects. All variants run under the same stress: four sidecars,
// one key, each token presented again while nobody has a higher one. What is right has nothing out of order, however long it runs; each mistake is found.
func TestStressFindsEachMistakeInTheStatementsAndNoneInOurs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		how   pgmark.Mistake
		wrong bool
	}{
		{pgmark.NoMistake, false},
		{pgmark.LookWithinLock, false},
		{pgmark.EqualUnlocked, true},
		{pgmark.LookFirst, true},
		{pgmark.LookWithin, true},
		{pgmark.Unregistered, true},
	} {
		t.Run(string(c.how), func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			want, stopAtFirst := admissions(t), false
			if c.wrong && os.Getenv("FENCELINE_STRESS") == "" {
				want, stopAtFirst = 1_000_000, true // as long as it takes
			}
			got, err := marktest.Stress(ctx, stressed(t, c.how), want, stopAtFirst)
			require.NoError(t, err)
			t.Logf("%s: %s", c.how, got)
			require.Equal(t, c.wrong, got.Effects > 0, "%s", got)
			if !c.wrong {
				require.Zero(t, got.Admitted, "%s", got)
				require.GreaterOrEqual(t, got.Admissions, want, "too few to say anything")
				require.Greater(t, got.Forwarded, want/10, "too few to say anything")
			}
		})
	}
}

// fromMemory admits an equal token without asking the store, as only the one owner of an exclusive guard may.
type fromMemory struct {
	register
	seen lock.Token
}

func (f fromMemory) Register(ctx context.Context, e mark.Entry) (mark.Registration, error) {
	if e.Token == f.seen {
		return mark.Registration{Decision: mark.Decision{Verdict: mark.Admitted}}, nil
	}
	return f.register.Register(ctx, e)
}

// An equal token that is admitted from memory isn't in the register, so another sidecar's higher one doesn't see it, nor does it see the higher one.
func TestSharedGuardThatAdmitsEqualTokensFromMemoryLetsThemThroughAfterHigherOnes(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	env := stressed(t, pgmark.NoMistake)
	for _, broken := range []bool{false, true} {
		a, err := env.Open(ctx, "a")
		require.NoError(t, err)
		b, err := env.Open(ctx, "b")
		require.NoError(t, err)
		key := fmt.Sprint("key-", broken)
		e := func(token lock.Token) mark.Entry {
			return mark.Entry{Admission: mark.Admission{Guard: "hold", Key: key, Token: token}, Raise: token, Route: "r"}
		}
		first, err := a.Register(ctx, e(5))
		require.NoError(t, err)
		require.NoError(t, a.Settle(ctx, []mark.Row{first.Row}))
		higher, err := b.Register(ctx, e(6))
		require.NoError(t, err)
		require.Empty(t, higher.Older, "6 is forwarded")
		if broken {
			a = fromMemory{a, 5}
		}
		equal, err := a.Register(ctx, e(5))
		require.NoError(t, err)
		require.Equal(t, broken, equal.Verdict == mark.Admitted && len(equal.Older) == 0, "5 is forwarded after 6")
	}
}

// A group that has one key in it that somebody else holds: the resource its row, or another sidecar its lock.
func TestGroupWaitsForNobodyAndOneThatDoesIsFound(t *testing.T) {
	t.Parallel()
	for _, how := range []pgmark.Mistake{pgmark.NoMistake, pgmark.WaitsForRows, pgmark.WaitsForLocks} {
		t.Run(string(how), func(t *testing.T) {
			t.Parallel()
			owner := pgtest.Database(t, migrations.PayDB(), migrations.Fence())
			s := sidecar(t, pgtest.Login(t, owner, "fence_rail"), "cache_describe", "one", ownMark())
			pgmark.Break(s, how)
			require.NoError(t, s.Begin(t.Context()))
			errRow := neighbours(t, owner, s, "SELECT FROM fence.mark WHERE guard = 'hold' AND key = 'held' FOR UPDATE")
			errLock := neighbours(t, owner, s, "SELECT pg_advisory_xact_lock(hashtextextended('hold/held', 0))")
			require.Equal(t, how == pgmark.WaitsForRows, errRow != nil, "%v", errRow)
			require.Equal(t, how == pgmark.WaitsForLocks, errLock != nil, "%v", errLock)
		})
	}
}

// neighbours says why a group didn't admit the neighbours of a key that somebody else holds.
func neighbours(t *testing.T, owner string, s *pgmark.Store, hold string) error {
	t.Helper()
	ctx := t.Context()
	e := func(key string, token lock.Token) mark.Entry {
		return mark.Entry{Admission: mark.Admission{Guard: "hold", Key: key, Token: token}, Raise: token, Route: "r"}
	}
	first, _, err := s.Read(ctx, "hold", "held")
	require.NoError(t, err)
	_, _, err = pgmark.RegisterTogether(ctx, s, e("held", first+1))
	require.NoError(t, err)
	conn := pgtest.Connect(t, owner)
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, hold); err != nil {
			return err
		}
		answers, alone, err := pgmark.RegisterTogether(ctx, s, e("a", first+2), e("held", first+2), e("z", first+2))
		if err != nil {
			return fmt.Errorf("the whole group: %w", err)
		}
		require.Equal(t, []bool{false, true, false}, alone)
		require.Equal(t, mark.Admitted, answers[0].Verdict)
		require.Equal(t, mark.Admitted, answers[2].Verdict)
		return nil
	})
}
