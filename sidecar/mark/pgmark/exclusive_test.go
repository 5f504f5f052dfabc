package pgmark_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/internal/postgres"
	"fenceline/lockd/lock"
	"fenceline/migrations"
	"fenceline/sidecar/config"
	"fenceline/sidecar/mark"
	"fenceline/sidecar/mark/marktest"
	"fenceline/sidecar/mark/pgmark"
)

func exclusively(guards []config.Guard) []config.Guard {
	for i := range guards {
		guards[i].Ownership = config.OwnershipExclusive
	}
	return guards
}

// owner opens a store of its own whose guards are exclusive.
func alone(t *testing.T, url, mode, id string, m config.Mark) *pgmark.Store {
	t.Helper()
	pool, err := postgres.Open(t.Context(), postgres.Config{URL: url, MaxConns: 6, QueryMode: mode})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	store := pgmark.New(pool, exclusively(effectGuards(m)), 5*time.Second, maxJump)
	store.Identify(id, url)
	return store
}

func exclusiveEnv(t *testing.T, owner, url, mode string, m config.Mark) marktest.RegisterEnv {
	t.Helper()
	env := registerEnv(t, owner, url, mode, m)
	var store *pgmark.Store
	env.Open = func(ctx context.Context, _ string) (mark.Register, error) { // one sidecar at a time
		if store != nil {
			return store, nil
		}
		store = alone(t, url, mode, "one", m) //nolint:contextcheck // the pool lives as long as the test
		return store, store.Begin(ctx)
	}
	env.Age = func(context.Context) error {
		pgmark.Age(store)
		return nil
	}
	return env
}

func TestRegisterConformanceOfExclusiveGuards(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		mark config.Mark
		mode string
		pool func(t testing.TB, url string) string
	}{
		"column":             {column(), "cache_describe", func(_ testing.TB, url string) string { return url }},
		"fence.mark, pooled": {ownMark(), "exec", pgtest.Pooler},
	} {
		for _, scenario := range marktest.RegisterScenarios() {
			if name != "column" && scenario.Name != "nothingOlderIsInFlightWhereNothingOlderWasSeen" {
				continue // the others ask memory alone for what differs from shared guards, and their statements went through a pooler with those
			}
			t.Run(name+"/"+scenario.Name, func(t *testing.T) {
				t.Parallel()
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
				defer cancel()
				owner := pgtest.Database(t, migrations.PayDB(), migrations.Fence())
				url := c.pool(t, pgtest.Login(t, owner, "fence_rail", "fence_account"))
				require.NoError(t, scenario.Run(ctx, exclusiveEnv(t, owner, url, c.mode, c.mark)))
			})
		}
	}
}

// The suite finds an exclusive register whose rows stand in nobody's way.
func TestRegisterConformanceFindsABrokenExclusiveOne(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
	defer cancel()
	owner := pgtest.Database(t, migrations.PayDB(), migrations.Fence())
	env := exclusiveEnv(t, owner, pgtest.Login(t, owner, "fence_rail"), "cache_describe", column())
	open := env.Open
	env.Open = func(ctx context.Context, id string) (mark.Register, error) {
		r, err := open(ctx, id)
		return lying{register: r, unregistered: true}, err
	}
	require.ErrorContains(t, marktest.OrderOfEffects(ctx, env), "let through")
}

func write(key string, token lock.Token) mark.Entry {
	return mark.Entry{Admission: mark.Admission{Guard: "release", Key: key, Token: token}, Raise: token}
}

// silence makes a life look as if its heartbeats had stayed away.
func silence(t *testing.T, owner string) {
	t.Helper()
	_, err := pgtest.Connect(t, owner).Exec(t.Context(), "UPDATE fence.sidecar SET heartbeat_at = heartbeat_at - interval '1 minute'")
	require.NoError(t, err)
}

func TestSecondSidecarStandsByAndSaysWhoOwnsTheGuard(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	owner := pgtest.Database(t, migrations.PayDB(), migrations.Fence())
	url := pgtest.Login(t, owner, "fence_rail")
	first, second := alone(t, url, "", "first", ownMark()), alone(t, url, "", "second", ownMark())
	var changes []pgmark.ClaimChange
	second.ObserveClaims(func(c pgmark.ClaimChange) {
		if c.Guard == "release" { // the other guard's come in any order
			changes = append(changes, c)
		}
	})
	require.NoError(t, first.Begin(ctx))
	require.NoError(t, first.Standby())
	require.NoError(t, second.Begin(ctx), "standing by is no fault")
	require.ErrorIs(t, second.Standby(), mark.ErrStandby)
	require.ErrorContains(t, second.Standby(), "is served by first")
	_, err := second.Register(ctx, write("k", 5))
	require.ErrorIs(t, err, mark.ErrStandby)
	_, err = second.Raise(ctx, "release", "k", 9)
	require.ErrorIs(t, err, mark.ErrStandby, "marks that the owner knows from memory are the owner's")
	_, err = second.Admit(ctx, mark.Admission{Guard: "release", Key: "k", Token: 9})
	require.ErrorIs(t, err, mark.ErrStandby, "also for a request in shadow")
	got, err := first.Register(ctx, write("k", 5))
	require.NoError(t, err)
	require.Equal(t, mark.Admitted, got.Verdict)
	require.Empty(t, got.Older, "there was no owner before, so nothing is waited for")

	// While the first is alive heartbeats change nothing. Then it ends with a request in flight.
	pulse, err := second.Beat(ctx)
	require.NoError(t, err)
	require.False(t, pulse.Lost)
	require.ErrorIs(t, second.Standby(), mark.ErrStandby)
	require.NoError(t, first.End(ctx))
	_, err = second.Beat(ctx)
	require.NoError(t, err)
	require.NoError(t, second.Standby())
	last := changes[len(changes)-1]
	require.True(t, last.Ours)
	require.Equal(t, int64(2), last.Epoch)
	require.Equal(t, 30*time.Second, last.Wait)

	// Every key counts as unsettled: the new owner doesn't know what was in flight.
	rows := map[string]mark.Row{}
	for _, key := range []string{"k", "another"} {
		got, err = second.Register(ctx, write(key, 6))
		require.NoError(t, err)
		require.Equal(t, mark.Admitted, got.Verdict)
		require.NotEmpty(t, got.Older, key)
		sight, err := second.Look(ctx, write(key, 6), got.Row)
		require.NoError(t, err)
		require.NotEmpty(t, sight.Older)
		rows[key] = got.Row
	}
	got, err = second.Register(ctx, write("k", 6))
	require.NoError(t, err)
	require.NotEmpty(t, got.Older, "also for a token that memory admits")
	require.NoError(t, second.Settle(ctx, []mark.Row{got.Row}))
	pgmark.Age(second)
	for key, row := range rows {
		sight, err := second.Look(ctx, write(key, 6), row)
		require.NoError(t, err)
		require.Empty(t, sight.Older, "after unsettled.after")
		require.True(t, sight.Present)
		require.NoError(t, second.Settle(ctx, []mark.Row{row}))
	}

	// An end in order with nothing in flight lets the next one go on at once.
	require.NoError(t, second.End(ctx))
	require.NoError(t, first.Begin(ctx))
	got, err = first.Register(ctx, write("k", 7))
	require.NoError(t, err)
	require.Empty(t, got.Older)
}

// A sidecar that was stopped for long, and wakes: its writes come to nothing, and it learns that it owns nothing.
func TestFormerOwnerRaisesNothing(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	owner := pgtest.Database(t, migrations.PayDB(), migrations.Fence())
	url := pgtest.Login(t, owner, "fence_rail")
	former, next := alone(t, url, "", "former", ownMark()), alone(t, url, "", "next", ownMark())
	require.NoError(t, former.Begin(ctx))
	waiting, err := former.Register(ctx, write("k", 5))
	require.NoError(t, err)
	silence(t, owner)
	require.NoError(t, next.Begin(ctx))
	require.NoError(t, next.Standby())

	_, err = former.Register(ctx, write("k", 8))
	require.ErrorIs(t, err, mark.ErrNoLife)
	_, err = former.Raise(ctx, "release", "k", 9)
	require.ErrorIs(t, err, mark.ErrStandby)
	token, _, err := next.Read(ctx, "release", "k")
	require.NoError(t, err)
	require.Equal(t, lock.Token(5), token, "neither write reached the mark")
	pulse, err := former.Beat(ctx)
	require.NoError(t, err)
	require.True(t, pulse.Lost)
	sight, err := former.Look(ctx, write("k", 5), waiting.Row)
	require.NoError(t, err)
	require.False(t, sight.Present, "what waited there must not be sent")
	require.NoError(t, former.Begin(ctx))
	require.ErrorContains(t, former.Standby(), "is served by next")
}

// An equal token is admitted from memory: the database isn't asked, and needn't be there.
func TestOwnerAdmitsEqualAndRefusesStaleTokensFromMemory(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	owner := pgtest.Database(t, migrations.PayDB(), migrations.Fence())
	pool, err := postgres.Open(ctx, postgres.Config{URL: pgtest.Login(t, owner, "fence_rail")})
	require.NoError(t, err)
	store := pgmark.New(pool, exclusively(effectGuards(ownMark())), 5*time.Second, maxJump)
	store.Identify("one", "")
	require.NoError(t, store.Begin(ctx))
	first, err := store.Register(ctx, write("k", 5))
	require.NoError(t, err)
	pool.Close()
	same, err := store.Register(ctx, write("k", 5))
	require.NoError(t, err)
	require.Equal(t, mark.Admitted, same.Verdict)
	require.NotEqual(t, first.Row, same.Row)
	require.Empty(t, same.Older)
	stale, err := store.Register(ctx, write("k", 4))
	require.NoError(t, err)
	require.Equal(t, mark.Decision{Verdict: mark.FencedOut, Highest: 5}, stale.Decision)
	_, err = store.Register(ctx, write("k", 6))
	require.ErrorIs(t, err, mark.ErrUnavailable)
	_, err = store.Register(ctx, write("k", 5))
	require.ErrorIs(t, err, mark.ErrUnavailable, "6 may have been raised, so memory isn't trusted any more")
	require.Len(t, onlyRows(store.Standing(ctx, "release", 10)), 0, "the list needs the database, too")
}

// What the owner's operator and its routes in shadow raise, memory doesn't outlive.
func TestOwnerSeesWhatItRaisesBesideTheRegister(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	owner := pgtest.Database(t, migrations.PayDB(), migrations.Fence())
	store := alone(t, pgtest.Login(t, owner, "fence_rail"), "", "one", ownMark())
	require.NoError(t, store.Begin(ctx))
	for name, raise := range map[string]func(key string) (mark.Decision, error){
		"operator": func(key string) (mark.Decision, error) { return store.Raise(ctx, "release", key, 9) },
		"shadow": func(key string) (mark.Decision, error) {
			return store.Admit(ctx, mark.Admission{Guard: "release", Key: key, Token: 9})
		},
	} {
		for range 2 {
			got, err := store.Register(ctx, write(name, 5))
			require.NoError(t, err)
			require.Equal(t, mark.Admitted, got.Verdict)
			require.NoError(t, store.Settle(ctx, []mark.Row{got.Row}))
		}
		decision, err := raise(name)
		require.NoError(t, err)
		require.Equal(t, mark.Admitted, decision.Verdict)
		got, err := store.Register(ctx, write(name, 5))
		require.NoError(t, err)
		require.Equal(t, mark.Decision{Verdict: mark.FencedOut, Highest: 9}, got.Decision, name)
	}
}

func onlyRows(list []mark.Standing, _ error) []mark.Standing { return list }

func TestOperatorSettlesWhatAnOwnerKeepsInMemory(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	owner := pgtest.Database(t, migrations.PayDB(), migrations.Fence())
	store := alone(t, pgtest.Login(t, owner, "fence_rail"), "", "one", ownMark())
	require.NoError(t, store.Begin(ctx))
	got, err := store.Register(ctx, write("k", 5))
	require.NoError(t, err)
	require.NoError(t, store.Unsettle(ctx, []mark.Row{got.Row}))
	list, err := store.Standing(ctx, "", 10)
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, []any{"release", "k", lock.Token(5), "one"}, []any{list[0].Guard, list[0].Key, list[0].Token, list[0].Sidecar})
	found, err := store.SettleUnsettled(ctx, got.Row, "carol", "looked it up")
	require.NoError(t, err)
	require.True(t, found)
	var operator string
	require.NoError(t, pgtest.Connect(t, owner).QueryRow(ctx, "SELECT operator FROM fence.settlement WHERE guard = 'release' AND token = 5").Scan(&operator))
	require.Equal(t, "carol", operator)
	next, err := store.Register(ctx, write("k", 6))
	require.NoError(t, err)
	require.Empty(t, next.Older)
}

// What an owner had in flight is in no table, so a configuration that shares the guard must wait until it can have no effect any more.
func TestGuardIsSharedAgainOnlyWhenNothingOfItsOwnerCanTakeEffect(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	owner := pgtest.Database(t, migrations.PayDB(), migrations.Fence())
	url := pgtest.Login(t, owner, "fence_rail")
	exclusive, shared := alone(t, url, "", "exclusive", ownMark()), sidecar(t, url, "", "shared", ownMark())
	require.NoError(t, exclusive.Begin(ctx))
	require.ErrorIs(t, shared.Begin(ctx), mark.ErrOtherDefinition, "somebody alive owns it")
	_, err := exclusive.Register(ctx, write(uuid.NewString(), 5))
	require.NoError(t, err)
	silence(t, owner)
	require.ErrorIs(t, shared.Begin(ctx), mark.ErrOtherDefinition)
	require.ErrorContains(t, shared.Begin(ctx), "30s after its end")
	// The first of these attempts declared the owner dead; its time passes.
	_, err = pgtest.Connect(t, owner).Exec(ctx, "UPDATE fence.sidecar SET ended_at = ended_at - interval '31 seconds'")
	require.NoError(t, err)
	require.NoError(t, shared.Begin(ctx))
}
