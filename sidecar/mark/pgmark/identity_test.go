package pgmark_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fenceline/internal/postgres"
	"fenceline/internal/postgres/contracttest"
	"fenceline/migrations"
	"fenceline/sidecar/mark/pgmark"
)

func program() contracttest.Program {
	return contracttest.Program{
		Expansion: "ALTER TABLE fence.mark ADD COLUMN note TEXT", Contraction: "ALTER TABLE fence.mark DROP COLUMN updated_at",
		Sets: []migrations.Set{migrations.Fence()}, Role: "fence_sidecar", Window: pgmark.Contract(),
		Check: func(t *testing.T, url string) error {
			pool, err := postgres.Open(t.Context(), postgres.Config{URL: url})
			require.NoError(t, err)
			defer pool.Close()
			return pgmark.New(pool, ownGuards(), 3*time.Second, maxJump).Check(t.Context())
		},
	}
}

func TestVersionsOutsideOfTheWindowAreNotReady(t *testing.T) {
	t.Parallel()
	contracttest.Versions(t, program())
}

func TestExpandedSchemaIsWorkedWithAndAContractedOneRefused(t *testing.T) {
	t.Parallel()
	contracttest.Contracted(t, program())
}
