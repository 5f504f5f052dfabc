package migrate_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"fenceline/internal/migrate"
	"fenceline/internal/pgserver/pgtest"
	"fenceline/migrations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func run(t *testing.T, url string, flags migrate.Flags, sets ...migrations.Set) (string, error) {
	t.Helper()
	var out strings.Builder
	err := migrate.Command{Flags: flags, DatabaseURL: url, Sets: sets}.Run(t.Context(), &out)
	return out.String(), err
}

// The way of somebody who lets no program touch a schema, and of somebody who goes step by step.
func TestTargetPrintAndBaselineWorkTogether(t *testing.T) {
	t.Parallel()
	lockdb := migrations.LockDB()
	url := pgtest.Database(t)
	text, err := run(t, "", migrate.Flags{PrintSQL: true, Target: 4}, lockdb)
	require.NoError(t, err)
	require.NotContains(t, text, "-- V5__")
	_, err = pgtest.Connect(t, url).Exec(t.Context(), text)
	require.NoError(t, err)
	out, err := run(t, url, migrate.Flags{Baseline: 4}, lockdb)
	require.NoError(t, err)
	require.Equal(t, "baseline lockdb version 4\n", out)

	out, err = run(t, url, migrate.Flags{Check: true, Target: 5}, lockdb)
	require.ErrorIs(t, err, migrate.ErrPending)
	require.Equal(t, "pending  lockdb V5__create_schema_contract.sql\n", out)
	out, err = run(t, url, migrate.Flags{Target: 5}, lockdb)
	require.NoError(t, err)
	require.Equal(t, "applied  lockdb V5__create_schema_contract.sql\n", out)
	_, err = run(t, url, migrate.Flags{Check: true, Target: 5}, lockdb)
	require.NoError(t, err)
	_, err = run(t, url, migrate.Flags{Check: true}, lockdb)
	require.ErrorIs(t, err, migrate.ErrPending)

	for _, flags := range []migrate.Flags{{Target: 99}, {PrintSQL: true, Target: 99}, {Check: true, Target: -1}} {
		_, err = run(t, url, flags, lockdb)
		require.ErrorIs(t, err, migrations.ErrTarget)
	}
	_, err = run(t, url, migrate.Flags{Target: 5, Baseline: 4}, lockdb)
	require.ErrorContains(t, err, "two steps")
	_, err = run(t, url, migrate.Flags{Target: 5}, migrations.PayDB(), migrations.SeedPayDB())
	require.ErrorContains(t, err, "without the seed")
}
