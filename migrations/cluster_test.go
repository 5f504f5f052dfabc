package migrations_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/internal/postgres"
	"fenceline/migrations"
)

func execute(ctx context.Context, databaseURL, sql string) error {
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	_, err = conn.Exec(ctx, sql)
	return err
}

func applyAll(ctx context.Context, databaseURL string, sets ...migrations.Set) error {
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	for _, set := range sets {
		if _, err := migrations.Apply(ctx, conn, set); err != nil {
			return err
		}
	}
	return nil
}

// Roles belong to the whole cluster: another database may be making the same ones at this very moment. Here it has made them and has
// neither committed nor given up when ours comes to the same point: ours waits, and ends with all its grants either way.
func TestRolesThatAnotherDatabaseIsMakingAreWaitedFor(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, nil)
	for _, c := range []struct {
		set         migrations.Set
		role, table string
		ends        []bool // whether the other one commits
	}{
		{migrations.LockDB(), "lockapp", "schema_contract", []bool{true, false}},
		{migrations.PayDB(), "fence_rail", "schema_contract", []bool{true}},
		{migrations.Fence(), "fence_sidecar", "fence.schema_contract", []bool{true}},
	} {
		for _, commits := range c.ends {
			for _, sql := range []string{"CREATE DATABASE other", "CREATE DATABASE ours"} {
				require.NoError(t, execute(t.Context(), server.URL("postgres"), sql))
			}
			other := beginAll(t, server.URL("other"), c.set)
			ours := make(chan error, 1)
			go func() { ours <- applyAll(t.Context(), server.URL("ours"), c.set) }()
			waitsForALock(t, server.URL("postgres"), "ours")
			if commits {
				require.NoError(t, other.Commit(t.Context()))
			} else {
				require.NoError(t, other.Rollback(t.Context()))
			}
			require.NoError(t, <-ours, "%s, commits %t", c.set.Name(), commits)
			var granted bool
			require.NoError(t, pgtest.Connect(t, server.URL("ours")).QueryRow(t.Context(),
				"SELECT has_table_privilege($1::name, $2::text, 'SELECT')", c.role, c.table).Scan(&granted))
			require.True(t, granted, "%s, commits %t", c.set.Name(), commits)
			for _, sql := range []string{
				"DROP DATABASE other WITH (FORCE)", "DROP DATABASE ours WITH (FORCE)",
				"DROP ROLE IF EXISTS lockapp, payapp, railapp, reconcile, fence_account, fence_rail, fence_sidecar",
			} {
				require.NoError(t, execute(t.Context(), server.URL("postgres"), sql))
			}
		}
	}
}

// beginAll runs the set's statements in a transaction that stays open.
func beginAll(t *testing.T, databaseURL string, set migrations.Set) pgx.Tx {
	t.Helper()
	conn := pgtest.Connect(t, databaseURL)
	tx, err := conn.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), migrations.SQL(set), pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err)
	return tx
}

func waitsForALock(t *testing.T, adminURL, database string) {
	t.Helper()
	conn := pgtest.Connect(t, adminURL)
	require.Eventually(t, func() bool {
		var waits bool
		err := conn.QueryRow(t.Context(),
			"SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = $1 AND wait_event_type = 'Lock')", database).Scan(&waits)
		return err == nil && waits
	}, 30*time.Second, 5*time.Millisecond, "comes to a role that another is making")
}

// An owner who may not make roles still gets the whole schema. Where somebody else has made the roles, they get their grants.
func TestOwnerWithoutTheRightToMakeRolesGetsTheSchema(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, nil)
	admin := server.URL("postgres")
	require.NoError(t, execute(t.Context(), admin, "CREATE ROLE plain_owner LOGIN PASSWORD 'of-this-test'"))
	owned := func(name string) string {
		require.NoError(t, execute(t.Context(), admin, "CREATE DATABASE "+name+" OWNER plain_owner"))
		require.NoError(t, execute(t.Context(), server.URL(name), "ALTER SCHEMA public OWNER TO plain_owner"))
		return server.URLFor(name, "plain_owner", "of-this-test")
	}
	require.NoError(t, applyAll(t.Context(), owned("plain_lockdb"), migrations.LockDB(), migrations.Fence()))
	require.NoError(t, applyAll(t.Context(), owned("plain_paydb"), migrations.PayDB(), migrations.SeedPayDB(), migrations.Fence()))
	require.ErrorContains(t, execute(t.Context(), admin, "SET ROLE lockapp"), "does not exist")

	require.NoError(t, execute(t.Context(), admin, "CREATE ROLE lockapp; CREATE ROLE fence_sidecar"))
	require.NoError(t, applyAll(t.Context(), owned("plain_later"), migrations.LockDB(), migrations.Fence()))
	login := pgtest.Login(t, server.URL("plain_later"), "lockapp")
	require.NoError(t, execute(t.Context(), login, "SELECT * FROM lock_entry"))
	err := execute(t.Context(), login, "SELECT * FROM fence.mark")
	require.Equal(t, "42501", postgres.State(err), "%v", err)
}
