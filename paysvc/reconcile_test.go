package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/migrations"
)

// A scheduler tells by the exit code whether everything agrees, and by the JSON on standard output what doesn't.
func TestReconcileTellsASchedulerByItsExitCode(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t, migrations.PayDB(), migrations.SeedPayDB())
	owner := pgtest.Connect(t, database)
	stub := start(t, nil, "rail-stub", "--listen", "127.0.0.1:0", "--log", filepath.Join(t.TempDir(), "transfers.jsonl"))
	rail, err := stub.Address(t.Context(), "api")
	require.NoError(t, err)
	env := []string{"PAYSVC_DATABASE_URL=" + pgtest.Login(t, database, "reconcile"), "PAYSVC_RAIL_URL=http://" + rail}

	code, output := run(t, env, "reconcile")
	require.Zero(t, code, output)
	require.Contains(t, output, "clean: everything agrees")

	_, err = owner.Exec(t.Context(), "UPDATE account SET balance_minor = balance_minor + 1 WHERE account_id = $1", payer)
	require.NoError(t, err)
	code, output = run(t, env, "reconcile", "--output", "json", "--settle", "10ms")
	require.Equal(t, 2, code, output)
	document, rest, found := strings.Cut(output, "\n}\n")
	require.True(t, found, output)
	require.Contains(t, rest, "1 discrepancies")
	var report struct {
		Clean         bool
		Looks         int
		Discrepancies []struct {
			Class string
			Count int
			Found []struct{ Subject, Detail string }
		}
	}
	require.NoError(t, json.Unmarshal([]byte(document+"}"), &report))
	require.False(t, report.Clean)
	require.Equal(t, 2, report.Looks)
	for _, d := range report.Discrepancies {
		if d.Class == "balance_mismatch" {
			require.Equal(t, 1, d.Count)
			require.Equal(t, payer, d.Found[0].Subject)
			require.Equal(t, "balance 100001, entries 100000", d.Found[0].Detail)
		} else {
			require.Zero(t, d.Count, d.Class)
		}
	}

	code, output = run(t, env, "reconcile", "--rail", "http://127.0.0.1:1")
	require.Equal(t, 1, code)
	require.Contains(t, output, "rail")
	code, _ = run(t, []string{"PAYSVC_DATABASE_URL=" + pgtest.Login(t, database, "fence_rail"), "PAYSVC_RAIL_URL=http://" + rail}, "reconcile")
	require.Equal(t, 1, code, "another role reads nothing")
	code, output = run(t, env, "reconcile", "--limit", "0")
	require.Equal(t, 1, code)
	require.Contains(t, output, "limit")
}
