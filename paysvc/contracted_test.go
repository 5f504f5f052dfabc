package main

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/migrations"
	"fenceline/paysvc/paydb"
)

// A later release takes away what this payment-resource uses. One that runs stops being ready, and one that comes never is; both name the two versions. What was ready before, and
// is again when the schema is put back, shows that nothing else was wrong.
func TestContractedSchemaIsRefusedByTheDaemon(t *testing.T) {
	t.Parallel()
	owner := pgtest.Database(t, migrations.PayDB(), migrations.SeedPayDB())
	login := pgtest.Login(t, owner, "payapp")
	_, _, admin := resource(t, login)
	conn := pgtest.Connect(t, owner)
	window := paydb.Contract()
	change := func(sql string, version int) {
		t.Helper()
		_, err := conn.Exec(t.Context(), fmt.Sprintf("%s; UPDATE schema_contract SET version = %d", sql, version), pgx.QueryExecModeSimpleProtocol)
		require.NoError(t, err)
	}
	eventually(t, admin+"/readyz", http.StatusOK)

	change("ALTER TABLE payout RENAME COLUMN claim_token TO gone", window.Max+1)
	refusal := fmt.Sprintf("contract paydb is at version %d, this binary works with %d to %d", window.Max+1, window.Min, window.Max)
	require.Contains(t, eventually(t, admin+"/readyz", http.StatusServiceUnavailable), refusal)
	_, _, late := resource(t, login)
	require.Contains(t, eventually(t, late+"/readyz", http.StatusServiceUnavailable), refusal)

	change("ALTER TABLE payout RENAME COLUMN gone TO claim_token", window.Max)
	for _, one := range []string{admin, late} {
		eventually(t, one+"/readyz", http.StatusOK)
	}
}
