package migrations_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/migrations"
)

// A migration is one transaction, its lock included, so it may go through a pooler in transaction mode.
func TestMigrationsApplyThroughAPooler(t *testing.T) {
	t.Parallel()
	for _, sets := range [][]migrations.Set{{migrations.LockDB()}, {migrations.PayDB(), migrations.SeedPayDB(), migrations.Fence()}} {
		database := pgtest.Database(t)
		conn := pgtest.Connect(t, pgtest.Pooler(t, database)+"&default_query_exec_mode=exec")
		for _, set := range sets {
			applied, err := migrations.Apply(t.Context(), conn, set)
			require.NoError(t, err)
			require.NotEmpty(t, applied)
		}
		direct := pgtest.Connect(t, database)
		for _, set := range sets {
			pending, err := migrations.Pending(t.Context(), direct, set)
			require.NoError(t, err)
			require.Empty(t, pending)
		}
	}
}
