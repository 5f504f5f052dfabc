package pgtest_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/migrations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// Test binaries run beside each other on one server: they share a template for the same migrations, and each test has its own database.
func TestDatabasesAreClonedAtOnceFromOneTemplateAndDropped(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, nil)
	admin := pgtest.Connect(t, server.URL("postgres"))
	count := func(t *testing.T, pattern string) (n int) {
		t.Helper()
		require.NoError(t, admin.QueryRow(t.Context(), "SELECT count(*) FROM pg_database WHERE datname LIKE $1", pattern).Scan(&n))
		return n
	}
	t.Run("clones", func(t *testing.T) {
		urls := make([]string, 4)
		var group sync.WaitGroup
		for i := range urls {
			group.Go(func() {
				urls[i] = pgtest.DatabaseOn(t, server, migrations.PayDB(), migrations.SeedPayDB(), migrations.Fence())
			})
		}
		group.Wait()
		for _, url := range urls {
			conn := pgtest.Connect(t, url)
			_, err := conn.Exec(t.Context(), "CREATE TABLE only_here ()")
			require.NoError(t, err, "nobody else's table is there")
		}
		require.Equal(t, 4, count(t, `test\_%`))
		require.Equal(t, 1, count(t, `template\_%`))
	})
	require.Zero(t, count(t, `test\_%`))
	require.Equal(t, 1, count(t, `template\_%`), "the template stays for the next test")
	pgtest.DatabaseOn(t, server, migrations.LockDB())
	require.Equal(t, 2, count(t, `template\_%`), "other migrations have another")
}

func TestLoginHasItsGroupsRightsAndGoesWithTheTest(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t, migrations.PayDB())
	admin := pgtest.Connect(t, database)
	var name string
	t.Run("login", func(t *testing.T) {
		conn := pgtest.Connect(t, pgtest.Login(t, database, "payapp", "fence_rail"))
		var member bool
		require.NoError(t, conn.QueryRow(t.Context(), `SELECT current_user, pg_has_role('payapp', 'MEMBER') AND pg_has_role('fence_rail', 'MEMBER')
			AND NOT pg_has_role('railapp', 'MEMBER')`).Scan(&name, &member))
		require.True(t, member)
	})
	var stays bool
	require.NoError(t, admin.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1)", name).Scan(&stays))
	require.False(t, stays)
}
