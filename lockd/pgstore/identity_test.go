package pgstore_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fenceline/internal/postgres"
	"fenceline/internal/postgres/contracttest"
	"fenceline/lockd/pgstore"
	"fenceline/migrations"
)

func program() contracttest.Program {
	return contracttest.Program{
		Sets: []migrations.Set{migrations.LockDB()}, Role: "lockapp", Window: pgstore.Contract(), Other: migrations.PayDB(), OtherRole: "payapp",
		Expansion: "ALTER TABLE lock_entry ADD COLUMN note TEXT", Contraction: "ALTER TABLE lock_session DROP COLUMN ttl_millis",
		Check: func(t *testing.T, url string) error {
			pool, err := postgres.Open(t.Context(), postgres.Config{URL: url})
			require.NoError(t, err)
			defer pool.Close()
			store := pgstore.New(pool, 3*time.Second)
			defer store.Close()
			return store.Check(t.Context())
		},
	}
}

func TestVersionsOutsideOfTheWindowAreNotReady(t *testing.T) {
	t.Parallel()
	contracttest.Versions(t, program())
}

func TestReadinessKnowsTheDatabaseByItsIdentity(t *testing.T) {
	t.Parallel()
	contracttest.Identity(t, program())
}

func TestExpandedSchemaIsWorkedWithAndAContractedOneRefused(t *testing.T) {
	t.Parallel()
	contracttest.Contracted(t, program())
}
