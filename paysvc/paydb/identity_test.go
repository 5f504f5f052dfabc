package paydb_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fenceline/internal/postgres"
	"fenceline/internal/postgres/contracttest"
	"fenceline/migrations"
	"fenceline/paysvc/paydb"
)

func program() contracttest.Program {
	return contracttest.Program{
		Sets: []migrations.Set{migrations.PayDB(), migrations.SeedPayDB()}, Role: "payapp", Window: paydb.Contract(), Other: migrations.LockDB(), OtherRole: "lockapp",
		Expansion: "ALTER TABLE payout ADD COLUMN note TEXT", Contraction: "ALTER TABLE payout DROP COLUMN claim_token",
		Check: func(t *testing.T, url string) error {
			pool, err := postgres.Open(t.Context(), postgres.Config{URL: url})
			require.NoError(t, err)
			defer pool.Close()
			return paydb.NewPlain(pool, clearingID, 3*time.Second).Check(t.Context())
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
