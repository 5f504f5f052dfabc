package main

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/lockd/pgstore"
	"fenceline/migrations"
)

// A later release takes away what this lockd uses. One that runs stops being ready, and one that comes doesn't start; both name the two versions. What was ready before, and is
// again when the schema is put back, shows that nothing else was wrong.
func TestContractedSchemaIsRefusedByTheDaemon(t *testing.T) {
	t.Parallel()
	owner := pgtest.Database(t, migrations.LockDB())
	login := pgtest.Login(t, owner, "lockapp")
	_, _, admin := serve(t, login)
	conn := pgtest.Connect(t, owner)
	window := pgstore.Contract()
	change := func(sql string, version int) {
		t.Helper()
		_, err := conn.Exec(t.Context(), fmt.Sprintf("%s; UPDATE schema_contract SET version = %d", sql, version), pgx.QueryExecModeSimpleProtocol)
		require.NoError(t, err)
	}
	answers := func(want int) (reason string) {
		t.Helper()
		require.Eventually(t, func() bool {
			var status int
			status, reason = ready(t, admin)
			return status == want
		}, 30*time.Second, 20*time.Millisecond)
		return reason
	}
	answers(http.StatusOK)

	change("ALTER TABLE lock_session RENAME COLUMN ttl_millis TO gone", window.Max+1)
	refusal := fmt.Sprintf("contract lockdb is at version %d, this binary works with %d to %d", window.Max+1, window.Min, window.Max)
	require.Contains(t, answers(http.StatusServiceUnavailable), refusal)
	code, output := run(t, []string{"LOCKD_DATABASE_URL=" + login}, "serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0")
	require.Equal(t, 1, code, output)
	require.Contains(t, output, refusal)
	require.NotContains(t, output, password(t, login))

	change("ALTER TABLE lock_session RENAME COLUMN gone TO ttl_millis", window.Max)
	answers(http.StatusOK)
}
