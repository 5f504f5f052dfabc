package migrations_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/migrations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestEverySetAppliesOnceAndIsThenUpToDate(t *testing.T) {
	t.Parallel()
	for name, sets := range map[string][]migrations.Set{
		"lockdb": {migrations.LockDB()},
		"paydb":  {migrations.PayDB(), migrations.SeedPayDB(), migrations.Fence()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := pgtest.Connect(t, pgtest.Database(t))
			for _, set := range sets {
				pending, err := migrations.Pending(t.Context(), conn, set)
				require.NoError(t, err)
				applied, err := migrations.Apply(t.Context(), conn, set)
				require.NoError(t, err)
				require.Equal(t, pending, applied)
				require.NotEmpty(t, applied)
				again, err := migrations.Apply(t.Context(), conn, set)
				require.NoError(t, err)
				require.Empty(t, again)
			}
		})
	}
}
