package pgmark_test

import (
	"context"
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

// ownGuards have their marks in fence.mark.
func ownGuards() []config.Guard {
	return []config.Guard{
		{Name: "known", Mark: config.Mark{KeyType: config.KeyText, Missing: config.MissingReject}},
		{Name: "any-key", Mark: config.Mark{KeyType: config.KeyText, Missing: config.MissingInsert}},
	}
}

// newOwnEnv opens a store on the sidecar's own table under the sidecar's own role.
func newOwnEnv(t *testing.T, owner string) marktest.Env {
	t.Helper()
	pool, err := postgres.Open(t.Context(), postgres.Config{URL: pgtest.Login(t, owner, "fence_sidecar"), MaxConns: 12})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	e := newEnv(t, owner)
	e.OperatedStore, e.Reject, e.Insert = pgmark.New(pool, ownGuards(), 2*time.Second, maxJump), "known", "any-key"
	e.Base, e.TakesStrangers = 1, true
	e.NewKey = func(ctx context.Context) (string, error) {
		key := "Konto '" + uuid.NewString() + "' ü"
		_, err := e.Raise(ctx, e.Reject, key, e.Base)
		return key, err
	}
	e.Set = func(ctx context.Context, key string, token lock.Token) error {
		conn, err := pgx.Connect(ctx, owner)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
		_, err = conn.Exec(ctx, "UPDATE fence.mark SET token = $2 WHERE guard = 'known' AND key = $1", key, token)
		return err
	}
	e.Block = func(ctx context.Context, key string) (func() error, error) {
		conn, err := pgx.Connect(ctx, owner)
		if err != nil {
			return nil, err
		}
		_, err = conn.Exec(ctx, "BEGIN")
		if err == nil {
			_, err = conn.Exec(ctx, "SELECT FROM fence.mark WHERE guard = 'known' AND key = $1 FOR UPDATE", key)
		}
		return func() error { return conn.Close(ctx) }, err
	}
	return e
}

// The sidecar's own table is known by its contract, and by what our role may do with it.
func TestOwnTableMustBeThereAndOurs(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sets   []migrations.Set
		change string
		want   string
	}{
		"no tables":        {nil, "", "sidecar migrate"},
		"another version":  {[]migrations.Set{migrations.Fence()}, "UPDATE fence.schema_contract SET version = 99", "at version 99"},
		"no right to mark": {[]migrations.Set{migrations.Fence()}, "REVOKE UPDATE (token) ON fence.mark FROM fence_sidecar", "our role may not"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			owner := pgtest.Database(t, c.sets...)
			if c.change != "" {
				_, err := pgtest.Connect(t, owner).Exec(t.Context(), c.change)
				require.NoError(t, err)
			}
			groups := []string{"fence_sidecar"}
			if c.sets == nil {
				groups = nil // the role may not be there yet
			}
			pool, err := postgres.Open(t.Context(), postgres.Config{URL: pgtest.Login(t, owner, groups...)})
			require.NoError(t, err)
			t.Cleanup(pool.Close)
			require.ErrorContains(t, pgmark.New(pool, ownGuards(), time.Second, maxJump).Check(t.Context()), c.want)
		})
	}
}

// ownReadThenWrite is the same on the sidecar's own table.
func ownReadThenWrite(t *testing.T, owner string, e marktest.Env) mark.OperatedStore {
	t.Helper()
	pool, err := postgres.Open(t.Context(), postgres.Config{URL: owner, MaxConns: 12})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return broken{e.OperatedStore, marktest.ReadThenWrite(e, func(ctx context.Context, a mark.Admission) error {
		_, err := pool.Exec(ctx, `INSERT INTO fence.mark (guard, key, token) VALUES ($1, $2, $3)
			ON CONFLICT (guard, key) DO UPDATE SET token = EXCLUDED.token`, a.Guard, a.Key, a.Token)
		return err
	})}
}
