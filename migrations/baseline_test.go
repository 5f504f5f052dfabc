package migrations_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/migrations"
)

func three() map[string]string {
	return map[string]string{
		"V1__create_one.sql": "CREATE TABLE one (n int);", "V2__create_two.sql": "CREATE TABLE two (n int);",
		"V3__create_three.sql": "CREATE TABLE three (n int);", "R__fill.sql": "INSERT INTO three VALUES (1);",
	}
}

func TestTargetIsTheLastVersionThatIsApplied(t *testing.T) {
	t.Parallel()
	conn := pgtest.Connect(t, pgtest.Database(t))
	files := set(three())
	pending, err := migrations.PendingUpTo(t.Context(), conn, files, 2)
	require.NoError(t, err)
	applied, err := migrations.ApplyUpTo(t.Context(), conn, files, 2)
	require.NoError(t, err)
	require.Equal(t, []string{"V1__create_one.sql", "V2__create_two.sql"}, applied)
	require.Equal(t, applied, pending)
	require.False(t, exists(t, conn, "three"))

	applied, err = migrations.ApplyUpTo(t.Context(), conn, files, 1)
	require.NoError(t, err)
	require.Empty(t, applied)
	require.True(t, exists(t, conn, "two"), "nothing is undone")

	for _, target := range []int{4, -1} {
		_, err = migrations.ApplyUpTo(t.Context(), conn, files, target)
		require.ErrorIs(t, err, migrations.ErrTarget)
	}
	applied, err = migrations.Apply(t.Context(), conn, files)
	require.NoError(t, err)
	require.Equal(t, []string{"V3__create_three.sql", "R__fill.sql"}, applied)

	text, err := migrations.SQLUpTo(files, 2)
	require.NoError(t, err)
	require.Contains(t, text, "CREATE TABLE two")
	require.NotContains(t, text, "three")
}

// A schema that somebody made by hand from the printed statements gets its history, and goes on from there.
func TestBaselineBeginsTheHistoryOfASchemaThatIsThere(t *testing.T) {
	t.Parallel()
	conn := pgtest.Connect(t, pgtest.Database(t))
	files := set(three())
	require.ErrorContains(t, migrations.Baseline(t.Context(), conn, files, 2), "there is no table")
	require.False(t, exists(t, conn, "flyway_schema_history"), "a refusal leaves nothing")
	text, err := migrations.SQLUpTo(files, 2)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), text, pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err)
	_, err = migrations.Apply(t.Context(), conn, files)
	require.Error(t, err, "without a baseline the first script meets its own table")

	fresh := pgtest.Connect(t, pgtest.Database(t))
	_, err = fresh.Exec(t.Context(), text, pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err)
	for _, version := range []int{0, -1, 4} {
		require.ErrorIs(t, migrations.Baseline(t.Context(), fresh, files, version), migrations.ErrTarget)
	}
	require.NoError(t, migrations.Baseline(t.Context(), fresh, files, 2))
	applied, err := migrations.Apply(t.Context(), fresh, files)
	require.NoError(t, err)
	require.Equal(t, []string{"V3__create_three.sql", "R__fill.sql"}, applied)
	require.ErrorContains(t, migrations.Baseline(t.Context(), fresh, files, 3), "knows its version")

	// As Flyway writes it.
	var version, description, kind, script string
	var checksum *int32
	require.NoError(t, fresh.QueryRow(t.Context(), "SELECT version, description, type, script, checksum FROM flyway_schema_history WHERE installed_rank = 1").
		Scan(&version, &description, &kind, &script, &checksum))
	require.Equal(t, []string{"2", "<< Flyway Baseline >>", "BASELINE", "<< Flyway Baseline >>"}, []string{version, description, kind, script})
	require.Nil(t, checksum)
}

// The real schemas, made by hand and taken as they are.
func TestPrintedStatementsAndABaselineMakeACurrentDatabase(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		set     migrations.Set
		newest  int
		history string
	}{{migrations.LockDB(), migrations.Newest(migrations.LockDB()), "flyway_schema_history"}, {migrations.Fence(), migrations.Newest(migrations.Fence()), "fence.flyway_schema_history"}} {
		conn := pgtest.Connect(t, pgtest.Database(t))
		_, err := conn.Exec(t.Context(), migrations.SQL(c.set), pgx.QueryExecModeSimpleProtocol)
		require.NoError(t, err)
		require.False(t, exists(t, conn, c.history))
		require.NoError(t, migrations.Baseline(t.Context(), conn, c.set, c.newest))
		pending, err := migrations.Pending(t.Context(), conn, c.set)
		require.NoError(t, err)
		require.Empty(t, pending)
	}
}

// Rows of Flyway's that mean something this program can't do are refused, not overlooked.
func TestRowsThatOnlyFlywayUnderstandsAreRefused(t *testing.T) {
	t.Parallel()
	conn := pgtest.Connect(t, pgtest.Database(t))
	_, err := migrations.Apply(t.Context(), conn, set(one()))
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), "INSERT INTO flyway_schema_history VALUES (2, '1', 'create one', 'UNDO_SQL', 'U1__create_one.sql', 7, 'operator', now(), 3, true)")
	require.NoError(t, err)
	_, err = migrations.Apply(t.Context(), conn, set(one()))
	require.ErrorIs(t, err, migrations.ErrForeign)
	require.ErrorContains(t, err, "UNDO_SQL")
}

// Versions that stand in another order than their numbers were applied out of order.
func TestVersionsOutOfOrderAreRefused(t *testing.T) {
	t.Parallel()
	conn := pgtest.Connect(t, pgtest.Database(t))
	_, err := migrations.ApplyUpTo(t.Context(), conn, set(three()), 2)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), "UPDATE flyway_schema_history SET installed_rank = 9 WHERE version = '1'")
	require.NoError(t, err)
	_, err = migrations.Apply(t.Context(), conn, set(three()))
	require.ErrorIs(t, err, migrations.ErrOrder)
	require.ErrorContains(t, err, "the history has version 2 (V2__create_two.sql) where version 1 should stand")
	require.False(t, exists(t, conn, "three"))
}
