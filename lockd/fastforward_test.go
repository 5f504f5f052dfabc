package main

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/migrations"
)

// The step after a restore: above what the resources have seen, with no lockd running; a second time there is nothing to do, and never down.
func TestFastForwardMovesAboveTheMarksOfPaydb(t *testing.T) {
	t.Parallel()
	lockdb := pgtest.Login(t, pgtest.Database(t, migrations.LockDB()), "lockapp")
	paydb := pgtest.Database(t, migrations.PayDB(), migrations.SeedPayDB(), migrations.Fence())
	_, err := pgtest.Connect(t, paydb).Exec(t.Context(), "INSERT INTO fence.mark (guard, key, token) VALUES ('g', 'k', 7000)")
	require.NoError(t, err)
	env := []string{"LOCKD_DATABASE_URL=" + lockdb}

	code, output := run(t, env, "fast-forward", "--from-paydb", paydb, "--operator", "alice", "--reason", "snapshot restored", "--output", "json")
	require.Zero(t, code, output)
	var result fastForwarded
	require.NoError(t, json.Unmarshal([]byte(output), &result), output)
	require.True(t, result.Moved)
	require.EqualValues(t, 7000, result.To)
	require.EqualValues(t, 7000, result.Marks["fence.mark"])
	require.Contains(t, result.Marks, "account.fence")
	require.Contains(t, result.Marks, "rail_high_water.highest_token")

	code, output = run(t, env, "fast-forward", "--from-paydb", paydb)
	require.Zero(t, code, output)
	require.Contains(t, output, "nothing was changed")
	code, output = run(t, env, "fast-forward", "--above", "6999")
	require.Equal(t, 1, code, output)
	require.Contains(t, output, "never moves down")
	code, output = run(t, env, "fast-forward", "--above", "9007199254740992")
	require.Equal(t, 1, code, output)
	require.Contains(t, output, "ceiling")
	code, output = run(t, env, "fast-forward", "--from-paydb", lockdb)
	require.Equal(t, 1, code, output)
	require.Contains(t, output, "is it paydb?")
}
