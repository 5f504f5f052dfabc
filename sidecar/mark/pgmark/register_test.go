package pgmark_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
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

// effectGuards order effects: one holds what is unsettled, one releases it; with marks in a column, or the sidecar's own.
func effectGuards(m config.Mark) []config.Guard {
	guard := func(name string, u config.Unsettled) config.Guard {
		return config.Guard{
			Name: name, Mark: m, Order: config.OrderEffects, Advance: config.AdvanceSidecar,
			Effects: config.Effects{Ownership: config.OwnershipShared, Unsettled: u},
		}
	}
	return []config.Guard{
		guard("hold", config.Unsettled{Then: config.Hold}), guard("release", config.Unsettled{Then: config.Release, After: 30 * time.Second}),
	}
}

func column() config.Mark {
	return config.Mark{Table: []string{"rail_high_water"}, Key: "account_id", KeyType: config.KeyUUID, Token: "highest_token", UpdatedAt: "updated_at", Missing: config.MissingInsert}
}

func ownMark() config.Mark {
	return config.Mark{KeyType: config.KeyText, Missing: config.MissingInsert}
}

// sidecar opens a store of its own on the database, as one sidecar among several, without a life.
func sidecar(t *testing.T, url, mode, id string, m config.Mark) *pgmark.Store {
	t.Helper()
	pool, err := postgres.Open(t.Context(), postgres.Config{URL: url, MaxConns: 6, QueryMode: mode})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	store := pgmark.New(pool, effectGuards(m), 5*time.Second, maxJump)
	store.Identify(id, url)
	return store
}

// registerEnv opens the sidecars at url, and does what only the owner may.
func registerEnv(t *testing.T, owner, url, mode string, m config.Mark) marktest.RegisterEnv {
	t.Helper()
	exec := func(ctx context.Context, sql string, args ...any) error {
		admin, err := pgx.Connect(ctx, owner)
		if err != nil {
			return err
		}
		defer func() { _ = admin.Close(context.WithoutCancel(ctx)) }()
		_, err = admin.Exec(ctx, sql, args...)
		return err
	}
	opened := map[string]*pgmark.Store{}
	return marktest.RegisterEnv{
		Hold: "hold", Release: "release",
		Open: func(ctx context.Context, id string) (mark.Register, error) {
			if s := opened[id]; s != nil {
				return s, nil
			}
			s := sidecar(t, url, mode, id, m) //nolint:contextcheck // the pool lives as long as the test
			opened[id] = s
			return s, s.Begin(ctx)
		},
		NewKey: func(ctx context.Context) (string, error) {
			id := uuid.NewString()
			return id, exec(ctx, "INSERT INTO account (account_id, currency, balance_minor) VALUES ($1, 'EUR', 100)", id)
		},
		Age: func(ctx context.Context) error {
			return exec(ctx, "UPDATE fence.inflight SET admitted_at = admitted_at - interval '1 hour', unsettled_at = unsettled_at - interval '1 hour'")
		},
	}
}

func TestRegisterConformance(t *testing.T) {
	t.Parallel()
	for name, m := range map[string]config.Mark{"column": column(), "fence.mark": ownMark()} {
		for _, scenario := range marktest.RegisterScenarios() {
			t.Run(name+"/"+scenario.Name, func(t *testing.T) {
				t.Parallel()
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
				defer cancel()
				owner := pgtest.Database(t, migrations.PayDB(), migrations.Fence())
				require.NoError(t, scenario.Run(ctx, registerEnv(t, owner, pgtest.Login(t, owner, "fence_rail", "fence_account"), "cache_describe", m)))
			})
		}
	}
}

func TestRegisterConformanceThroughAPoolerInTransactionMode(t *testing.T) {
	t.Parallel()
	for _, scenario := range marktest.RegisterScenarios() {
		t.Run(scenario.Name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
			defer cancel()
			owner := pgtest.Database(t, migrations.PayDB(), migrations.Fence())
			require.NoError(t, scenario.Run(ctx, registerEnv(t, owner, pgtest.Pooler(t, pgtest.Login(t, owner, "fence_rail", "fence_account")), "exec", column())))
		})
	}
}

type register = mark.Register // under another name, since it has a method of its own

// lying breaks a register in one way each.
type lying struct {
	register
	unregistered, blind bool
}

func (l lying) Register(ctx context.Context, e mark.Entry) (mark.Registration, error) {
	var before mark.Sight
	if l.blind { // looks before it raises
		var err error
		if before, err = l.Look(ctx, e, 0); err != nil {
			return mark.Registration{}, err
		}
	}
	got, err := l.register.Register(ctx, e)
	switch {
	case err != nil || got.Verdict != mark.Admitted:
	case l.blind:
		got.Older = before.Older
	case l.unregistered:
		err = l.Settle(ctx, []mark.Row{got.Row})
	}
	return got, err
}

func TestRegisterConformanceFindsBrokenOnes(t *testing.T) {
	t.Parallel()
	for name, broken := range map[string]lying{"nothing is registered": {unregistered: true}, "looks before it raises": {blind: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
			defer cancel()
			owner := pgtest.Database(t, migrations.PayDB(), migrations.Fence())
			env := registerEnv(t, owner, pgtest.Login(t, owner, "fence_rail"), "cache_describe", column())
			open := env.Open
			env.Open = func(ctx context.Context, id string) (mark.Register, error) {
				r, err := open(ctx, id)
				own := broken
				own.register = r
				return own, err
			}
			var err error
			for range 10 {
				if err = marktest.OrderOfEffects(ctx, env); err != nil {
					break
				}
			}
			require.ErrorContains(t, err, "let through")
		})
	}
}

func TestSecondLiveSidecarOfOneIDIsRefusedAndASilentOneIsReplaced(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	owner := pgtest.Database(t, migrations.PayDB(), migrations.Fence())
	url := pgtest.Login(t, owner, "fence_rail")
	first, second := sidecar(t, url, "", "same", ownMark()), sidecar(t, url, "", "same", ownMark())
	require.NoError(t, first.Begin(ctx))
	got, err := first.Register(ctx, mark.Entry{Admission: mark.Admission{Guard: "hold", Key: "k", Token: 5}, Raise: 5})
	require.NoError(t, err)
	require.ErrorIs(t, second.Begin(ctx), mark.ErrSameID)

	_, err = pgtest.Connect(t, owner).Exec(ctx, "UPDATE fence.sidecar SET heartbeat_at = heartbeat_at - interval '1 minute'")
	require.NoError(t, err)
	require.NoError(t, second.Begin(ctx))
	list, err := second.Standing(ctx, "", 10)
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.False(t, list[0].UnsettledAt.IsZero(), "what the silent life left is unsettled")

	// The silent one wakes: it may register nothing, and learns why.
	_, err = first.Register(ctx, mark.Entry{Admission: mark.Admission{Guard: "hold", Key: "k", Token: 5}, Raise: 5})
	require.ErrorIs(t, err, mark.ErrNoLife)
	sight, err := first.Look(ctx, mark.Entry{Admission: mark.Admission{Guard: "hold", Key: "k", Token: 5}, Raise: 5}, got.Row)
	require.NoError(t, err)
	require.False(t, sight.Present)
	pulse, err := first.Beat(ctx)
	require.NoError(t, err)
	require.True(t, pulse.Lost)
}

func TestGuardInFlightUnderAnotherDefinitionIsRefused(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	owner := pgtest.Database(t, migrations.PayDB(), migrations.Fence())
	url := pgtest.Login(t, owner, "fence_rail")
	one, other := sidecar(t, url, "", "one", ownMark()), sidecar(t, url, "", "other", column())
	require.NoError(t, one.Begin(ctx))
	require.ErrorIs(t, other.Begin(ctx), mark.ErrOtherDefinition, "somebody alive serves it")
	got, err := one.Register(ctx, mark.Entry{Admission: mark.Admission{Guard: "hold", Key: "k", Token: 5}, Raise: 5})
	require.NoError(t, err)
	require.NoError(t, one.End(ctx))
	require.ErrorIs(t, other.Begin(ctx), mark.ErrOtherDefinition, "a request is in flight")
	require.NoError(t, one.Settle(ctx, []mark.Row{got.Row}))
	require.NoError(t, other.Begin(ctx))
}

func TestMarkIsResetOnlyWhileNobodyServesTheGuard(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	owner := pgtest.Database(t, migrations.PayDB(), migrations.Fence())
	store := sidecar(t, pgtest.Login(t, owner, "fence_rail"), "", "one", ownMark())
	require.NoError(t, store.Begin(ctx))
	got, err := store.Register(ctx, mark.Entry{Admission: mark.Admission{Guard: "hold", Key: "k", Token: 500_000}, Raise: 500_000})
	require.NoError(t, err)
	require.NoError(t, store.Settle(ctx, []mark.Row{got.Row}))
	require.ErrorIs(t, store.ResetMark(ctx, "hold", "k", 7, 500_000, "carol", "mistyped"), pgmark.ErrServed)
	require.NoError(t, store.End(ctx))
	require.ErrorIs(t, store.ResetMark(ctx, "hold", "k", 7, 6, "carol", "mistyped"), pgmark.ErrOtherMark)
	require.NoError(t, store.ResetMark(ctx, "hold", "k", 7, 500_000, "carol", "mistyped"))
	require.NoError(t, store.Begin(ctx))
	got, err = store.Register(ctx, mark.Entry{Admission: mark.Admission{Guard: "hold", Key: "k", Token: 8}, Raise: 8})
	require.NoError(t, err)
	require.Equal(t, mark.Admitted, got.Verdict, "also where the old mark had been remembered")
	var operator string
	require.NoError(t, pgtest.Connect(t, owner).QueryRow(ctx, "SELECT operator FROM fence.settlement WHERE reset_to = 7 AND token = 500000").Scan(&operator))
	require.Equal(t, "carol", operator)
}

// The resource holds the mark's row in a transaction of its own: an equal token needs no write and passes, a higher one is busy, and its neighbours in the group pass.
func TestRowThatTheResourceHoldsStopsNobodyButWhoeverRaisesIt(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	owner := pgtest.Database(t, migrations.PayDB(), migrations.Fence())
	env := registerEnv(t, owner, pgtest.Login(t, owner, "fence_rail"), "", column())
	r, err := env.Open(ctx, "one")
	require.NoError(t, err)
	key, err := env.NewKey(ctx)
	require.NoError(t, err)
	register := func(key string, token lock.Token) error {
		got, err := r.Register(ctx, mark.Entry{Admission: mark.Admission{Guard: "hold", Key: key, Token: token}, Raise: token})
		if err == nil && got.Verdict != mark.Admitted {
			err = errors.New(got.Verdict.String())
		}
		return err
	}
	require.NoError(t, register(key, 5))
	resource := pgtest.Connect(t, owner)
	tx, err := resource.Begin(ctx)
	require.NoError(t, err)
	_, err = tx.Exec(ctx, "SELECT FROM rail_high_water WHERE account_id = $1 FOR UPDATE", key)
	require.NoError(t, err)
	require.NoError(t, register(key, 5))
	busy := make(chan error, 1)
	go func() { busy <- register(key, 6) }()
	for range 10 {
		neighbour, err := env.NewKey(ctx)
		require.NoError(t, err)
		require.NoError(t, register(neighbour, 6))
	}
	require.ErrorIs(t, <-busy, mark.ErrBusy)
	require.NoError(t, tx.Rollback(ctx))
	require.NoError(t, register(key, 6))
}
