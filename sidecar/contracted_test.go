package main

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/migrations"
	"fenceline/sidecar/mark/pgmark"
)

// A later release takes away what this sidecar uses, of its own tables or of the resource's. One that runs stops being ready, and one that comes doesn't start; both name what doesn't
// fit. What was ready before, and is again when the schema is put back, shows that nothing else was wrong.
func TestContractedSchemaIsRefusedByTheDaemon(t *testing.T) {
	t.Parallel()
	window := pgmark.Contract()
	set := func(version int) string {
		return fmt.Sprintf("; UPDATE fence.schema_contract SET version = %d", version)
	}
	for name, c := range map[string]struct{ config, contract, restore, refusal string }{
		"its own tables": {
			effectsText("test", "then: hold"),
			"ALTER TABLE fence.inflight RENAME COLUMN route TO gone" + set(window.Max+1), "ALTER TABLE fence.inflight RENAME COLUMN gone TO route" + set(window.Max),
			fmt.Sprintf("contract fence is at version %d, this binary works with %d to %d", window.Max+1, window.Min, window.Max),
		},
		"the resource's table": {
			configText, "ALTER TABLE account RENAME COLUMN fence TO gone", "ALTER TABLE account RENAME COLUMN gone TO fence",
			"there is no column fence in ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			owner := pgtest.Database(t, migrations.PayDB(), migrations.Fence())
			login, _ := prepare(t, owner)
			env := map[string]string{"PAYDB_URL": login, "UPSTREAM": resource(t, nil)}
			path := write(t, c.config)
			s := &sidecar{Process: spawn(t, env, "run", "-c", path)}
			s.listening(t)
			conn := pgtest.Connect(t, owner)
			change := func(sql string) {
				t.Helper()
				_, err := conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
				require.NoError(t, err)
			}
			s.eventually(t, "it is ready", func() bool { return s.ready(t) })

			change(c.contract)
			s.eventually(t, "it isn't ready", func() bool { return !s.ready(t) })
			status, body := s.adminPage(t, "/readyz")
			require.Equal(t, http.StatusServiceUnavailable, status)
			require.Contains(t, body, c.refusal)
			code, output := run(t, env, "run", "-c", path)
			require.Equal(t, 1, code, output)
			require.Contains(t, output, c.refusal)

			change(c.restore)
			s.eventually(t, "it is ready again", func() bool { return s.ready(t) })
		})
	}
}
