package pgmark_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/internal/postgres"
	"fenceline/lockd/lock"
	"fenceline/migrations"
	"fenceline/sidecar/mark"
	"fenceline/sidecar/mark/marktest"
	"fenceline/sidecar/mark/pgmark"
)

func TestConformanceThroughAPoolerInTransactionMode(t *testing.T) {
	t.Parallel()
	for _, scenario := range append(marktest.Scenarios(), marktest.SharedScenarios()...) {
		t.Run(scenario.Name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
			defer cancel()
			owner := pgtest.Database(t, migrations.PayDB(), migrations.Fence())
			require.NoError(t, scenario.Run(ctx, envAt(t, owner, pgtest.Pooler(t, pgtest.Login(t, owner, "fence_account", "fence_rail")), "exec")))
		})
	}
}

// admitter is a store with a pool of its own, as one sidecar among several.
func admitter(t *testing.T, url string) *pgmark.Store {
	t.Helper()
	pool, err := postgres.Open(t.Context(), postgres.Config{URL: url, MaxConns: 8})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pgmark.New(pool, append(guards(), effectGuards(ownMark())...), 5*time.Second, maxJump)
}

// accounts makes so many of them.
func accounts(t *testing.T, owner string, n int) []string {
	t.Helper()
	conn := pgtest.Connect(t, owner)
	var out []string
	for range n {
		id := uuid.NewString()
		_, err := conn.Exec(t.Context(), "INSERT INTO account (account_id, currency, balance_minor) VALUES ($1, 'EUR', 100)", id)
		require.NoError(t, err)
		out = append(out, id)
	}
	return out
}

// A group in which the resource holds one key's row, another one has no account, and one is stale: each is answered for itself.
func TestEachMemberOfAGroupIsAnsweredForItself(t *testing.T) {
	t.Parallel()
	for _, how := range []pgmark.Mistake{pgmark.NoMistake, pgmark.WaitsForRows} {
		t.Run(string(how), func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			owner := pgtest.Database(t, migrations.PayDB(), migrations.Fence())
			s := admitter(t, pgtest.Login(t, owner, "fence_account", "fence_rail"))
			pgmark.Break(s, how)
			keys := accounts(t, owner, 5)
			a := func(i int, token lock.Token) mark.Admission {
				return mark.Admission{Guard: "account", Key: keys[i], Token: token, Newer: true}
			}
			_, _, err := pgmark.AdmitTogether(ctx, s, a(0, 5), a(1, 5), a(2, 5), a(3, 5), a(4, 5))
			require.NoError(t, err)
			tx, err := pgtest.Connect(t, owner).Begin(ctx)
			require.NoError(t, err)
			_, err = tx.Exec(ctx, "SELECT FROM account WHERE account_id = $1 FOR UPDATE", keys[1])
			require.NoError(t, err)
			answers, alone, err := pgmark.AdmitTogether(ctx, s,
				a(0, 6), a(1, 6), a(2, 4), a(3, 5), a(4, 5+2*maxJump), mark.Admission{Guard: "account", Key: uuid.NewString(), Token: 5})
			require.NoError(t, tx.Rollback(ctx))
			if how == pgmark.WaitsForRows {
				require.Error(t, err, "the whole group waited for the resource")
				return
			}
			require.NoError(t, err)
			require.Equal(t, []bool{false, true, false, false, false, false}, alone)
			require.Equal(t, []mark.Decision{
				{Verdict: mark.Admitted}, {}, {Verdict: mark.FencedOut, Highest: 5}, {Verdict: mark.FencedOut, Highest: 5}, {Verdict: mark.Implausible, Highest: 5}, {Verdict: mark.KeyNotFound},
			}, answers)
		})
	}
}

// A key that breaks a foreign key makes the whole group's transaction fail: its neighbours are admitted all the same.
func TestNeighboursOfAKeyThatCannotHaveAMarkAreAdmitted(t *testing.T) {
	t.Parallel()
	owner := pgtest.Database(t, migrations.PayDB(), migrations.Fence())
	s := admitter(t, pgtest.Login(t, owner, "fence_account", "fence_rail"))
	require.NoError(t, s.Check(t.Context()))
	group, ctx := errgroup.WithContext(t.Context())
	var mu sync.Mutex
	got := map[mark.Verdict]int{}
	for _, key := range append(accounts(t, owner, 30), uuid.NewString(), uuid.NewString()) {
		group.Go(func() error {
			decision, err := s.Admit(ctx, mark.Admission{Guard: "rail", Key: key, Token: 5, Newer: true})
			mu.Lock()
			defer mu.Unlock()
			got[decision.Verdict]++
			return err
		})
	}
	require.NoError(t, group.Wait())
	require.Equal(t, map[mark.Verdict]int{mark.Admitted: 30, mark.KeyNotFound: 2}, got)
}

// Those that arrive together share commits, and a key is in a group once.
func TestAdmissionsThatArriveTogetherShareACommit(t *testing.T) {
	t.Parallel()
	owner := pgtest.Database(t, migrations.PayDB(), migrations.Fence())
	s := admitter(t, pgtest.Login(t, owner, "fence_account", "fence_rail"))
	var mu sync.Mutex
	groups, members, largest := 0, 0, 0
	s.ObserveGroups(func(_ string, n int) {
		mu.Lock()
		defer mu.Unlock()
		groups, members, largest = groups+1, members+n, max(largest, n)
	})
	require.NoError(t, s.Check(t.Context()))
	keys := accounts(t, owner, 40)
	group, ctx := errgroup.WithContext(t.Context())
	for turn := range 10 {
		for _, key := range keys {
			group.Go(func() error {
				_, err := s.Admit(ctx, mark.Admission{Guard: "account", Key: key, Token: lock.Token(turn + 1)})
				return err
			})
		}
	}
	require.NoError(t, group.Wait())
	t.Logf("%d admissions in %d groups, at most %d in one", members, groups, largest)
	require.Greater(t, members, 2*groups)
	require.LessOrEqual(t, largest, len(keys), "a key is in a group once")
}

// Groups of two sidecars over the same keys, new ones among them, and a resource that locks the rows in any order: nobody is ever chosen as a deadlock's victim, and the
// order of admissions holds for every key.
func TestGroupsOverTheSameKeysNeverDeadlock(t *testing.T) {
	t.Parallel()
	owner := pgtest.Database(t, migrations.PayDB(), migrations.Fence())
	keys := accounts(t, owner, 25)
	group, ctx := errgroup.WithContext(t.Context())
	var mu sync.Mutex
	highest := map[string]lock.Token{}
	for range 2 {
		s := admitter(t, pgtest.Login(t, owner, "fence_account", "fence_rail"))
		for range 12 {
			group.Go(func() error {
				for token := lock.Token(1); token <= 20; token++ {
					guard, key := []string{"account", "rail", "hold"}[rand.IntN(3)], keys[rand.IntN(len(keys))]
					mu.Lock()
					before := highest[guard+key]
					mu.Unlock()
					decision, err := s.Admit(ctx, mark.Admission{Guard: guard, Key: key, Token: token, Newer: token%2 == 0})
					if err != nil || decision.Verdict != mark.Admitted {
						continue // held for too long: a fault is no admission
					}
					mu.Lock()
					if token < before {
						mu.Unlock()
						return marktest.ErrOutOfOrder
					}
					highest[guard+key] = max(highest[guard+key], token)
					mu.Unlock()
				}
				return nil
			})
		}
	}
	resource := pgtest.Connect(t, owner)
	group.Go(func() error {
		for range 30 {
			a, b := rand.IntN(len(keys)), rand.IntN(len(keys))
			err := pgx.BeginFunc(ctx, resource, func(tx pgx.Tx) error {
				for _, i := range []int{a, b} {
					if _, err := tx.Exec(ctx, "SELECT FROM account WHERE account_id = $1 FOR UPDATE", keys[i]); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				return err // also when it was a victim
			}
		}
		return nil
	})
	require.NoError(t, group.Wait())
	require.NotEmpty(t, highest)
	var deadlocks int
	require.NoError(t, resource.QueryRow(t.Context(), "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").Scan(&deadlocks))
	require.Zero(t, deadlocks)
}

// A token below a mark that was seen is refused without the database; somebody who lowers the mark by hand is heard after a while.
func TestStaleTokenIsRefusedFromMemoryForAWhile(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	owner := pgtest.Database(t, migrations.PayDB(), migrations.Fence())
	s := admitter(t, pgtest.Login(t, owner, "fence_account", "fence_rail"))
	key := accounts(t, owner, 1)[0]
	pgmark.RememberMarks(s, time.Hour)
	admit := func(token lock.Token) mark.Decision {
		decision, err := s.Admit(ctx, mark.Admission{Guard: "account", Key: key, Token: token})
		require.NoError(t, err)
		return decision
	}
	conn := pgtest.Connect(t, owner)
	lower := func() {
		_, err := conn.Exec(ctx, "UPDATE account SET fence = 3 WHERE account_id = $1", key)
		require.NoError(t, err)
	}
	require.Equal(t, mark.Admitted, admit(9).Verdict)
	lower()
	require.Equal(t, mark.Decision{Verdict: mark.FencedOut, Highest: 9}, admit(5), "nobody was asked")
	require.Equal(t, mark.Admitted, admit(9).Verdict)
	highest, _, err := s.Read(ctx, "account", key)
	require.NoError(t, err)
	require.Equal(t, lock.Token(9), highest, "an equal token isn't admitted from memory")
	lower()
	pgmark.AgeMarks(s)
	require.Equal(t, mark.Admitted, admit(5).Verdict)
	require.Equal(t, mark.FencedOut, admit(4).Verdict)
}
