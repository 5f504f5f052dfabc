package migrate_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"fenceline/internal/migrate"
	"fenceline/internal/pgserver/pgtest"
	"fenceline/internal/strictjson"
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

// The same for programs: one object, whatever was done, and the same errors.
func TestOutputForProgramsIsOneObject(t *testing.T) {
	t.Parallel()
	lockdb := migrations.LockDB()
	url := pgtest.Database(t)
	report := func(want error, url string, flags migrate.Flags, sets ...migrations.Set) (got migrate.Report) {
		flags.Output = "json"
		out, err := run(t, url, flags, sets...)
		require.ErrorIs(t, err, want)
		require.NoError(t, strictjson.Decode([]byte(out), &got), out)
		require.Equal(t, 1, strings.Count(out, "\n"), out)
		return got
	}
	require.Equal(t, migrate.Report{Schemas: []migrate.Schema{{Schema: "lockdb", Action: "applied", Scripts: []string{
		"V1__create_lock_session_and_lock_entry.sql", "V2__create_lock_revocation.sql",
	}}}}, report(nil, url, migrate.Flags{Target: 2}, lockdb))
	require.Equal(t, migrate.Report{Schemas: []migrate.Schema{{Schema: "lockdb", Action: "pending", Scripts: []string{
		"V3__add_lock_session_ttl.sql", "V4__create_role_lockapp.sql",
	}}}, Pending: 2}, report(migrate.ErrPending, url, migrate.Flags{Check: true, Target: 4}, lockdb))
	require.Equal(t, migrate.Report{Schemas: []migrate.Schema{{Schema: "lockdb", Action: "applied", Scripts: []string{}}}}, report(nil, url, migrate.Flags{Target: 2}, lockdb))
	require.Equal(t, migrate.Report{Schemas: []migrate.Schema{{Schema: "fence", Action: "baseline", Scripts: []string{}, Version: 1}}},
		report(nil, withFence(t), migrate.Flags{Baseline: 1}, migrations.Fence()))
	printed := report(nil, "", migrate.Flags{PrintSQL: true}, lockdb)
	require.Equal(t, migrations.SQL(lockdb), printed.Schemas[0].SQL)

	// What was applied before a migration failed is told with the failure.
	_, err := pgtest.Connect(t, url).Exec(t.Context(), "CREATE TABLE schema_contract ()")
	require.NoError(t, err)
	out, err := run(t, url, migrate.Flags{Output: "json"}, lockdb)
	require.ErrorContains(t, err, "V5__")
	require.JSONEq(t, `{"schemas":[{"schema":"lockdb","action":"applied","scripts":["V3__add_lock_session_ttl.sql","V4__create_role_lockapp.sql"]}],"pending":0}`, out)
	out, err = run(t, "", migrate.Flags{Output: "json"}, lockdb)
	require.ErrorContains(t, err, "no database URL")
	require.Empty(t, out, "nothing was done, so nothing is told")
}

// withFence is a database with the first version of the schema fence, and without a history.
func withFence(t *testing.T) string {
	t.Helper()
	url := pgtest.Database(t)
	text, err := migrations.SQLUpTo(migrations.Fence(), 1)
	require.NoError(t, err)
	_, err = pgtest.Connect(t, url).Exec(t.Context(), text)
	require.NoError(t, err)
	return url
}
