package paydb_test

import (
	"context"
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver"
	"fenceline/internal/pgserver/pgtest"
	"fenceline/internal/postgres"
	"fenceline/migrations"
	"fenceline/paysvc/paydb"
)

// The schema's version decides, both ends of the window included: a binary before an expanding schema works on with it, one before a contracted schema
// (whose version skips a number) never becomes ready, and the same the other way round. The reason names both.
func TestVersionsOutsideOfTheWindowAreNotReady(t *testing.T) {
	t.Parallel()
	owner := pgtest.Database(t, migrations.PayDB(), migrations.SeedPayDB())
	conn := pgtest.Connect(t, owner)
	window := paydb.Contract()
	check := func(url string) error {
		pool, err := postgres.Open(t.Context(), postgres.Config{URL: url})
		require.NoError(t, err)
		defer pool.Close()
		return paydb.NewPlain(pool, clearingID, 3*time.Second).Check(t.Context())
	}
	for version, ready := range map[int]bool{window.Min - 1: false, window.Min: true, window.Max: true, window.Max + 1: false} {
		_, err := conn.Exec(t.Context(), "UPDATE schema_contract SET version = $1", version)
		require.NoError(t, err)
		err = check(pgtest.Login(t, owner, "payapp"))
		if ready {
			require.NoError(t, err, "version %d", version)
			continue
		}
		require.ErrorIs(t, err, postgres.ErrSchema)
		require.ErrorContains(t, err, fmt.Sprintf("at version %d, this binary works with %d to %d", version, window.Min, window.Max))
	}
}

// Each thing that the database isn't what it should be has its reason, and none shows the password.
func TestReadinessKnowsTheDatabaseByItsIdentity(t *testing.T) {
	t.Parallel()
	check := func(url string) error {
		pool, err := postgres.Open(t.Context(), postgres.Config{URL: url})
		require.NoError(t, err)
		defer pool.Close()
		return paydb.NewPlain(pool, clearingID, 3*time.Second).Check(t.Context())
	}
	owner := pgtest.Database(t, migrations.PayDB(), migrations.SeedPayDB())
	unmarked := pgtest.Database(t, migrations.PayDB(), migrations.SeedPayDB())
	_, err := pgtest.Connect(t, unmarked).Exec(t.Context(), "DELETE FROM schema_contract")
	require.NoError(t, err)
	server := pgtest.Server(t, nil)
	onPrimary := pgtest.Login(t, pgtest.DatabaseOn(t, server, migrations.PayDB(), migrations.SeedPayDB()), "payapp")
	replica, err := server.BaseBackup(t.Context(), pgserver.Restore{Name: t.Name(), Signal: "standby.signal"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, replica.Stop(context.Background())) })
	require.NoError(t, replica.Restart(t.Context()))
	there := must(url.Parse(onPrimary))
	there.Host = replica.Addr()
	replicaURL := there.String()

	reader := pgtest.Login(t, owner)
	_, err = pgtest.Connect(t, owner).Exec(t.Context(), "GRANT SELECT ON schema_contract TO "+pgtest.Connect(t, reader).Config().User)
	require.NoError(t, err)
	for name, c := range map[string]struct{ url, reason string }{
		"wrong database":  {pgtest.Login(t, pgtest.Database(t, migrations.LockDB()), "lockapp"), "wrong database?"},
		"empty database":  {pgtest.Login(t, pgtest.Database(t)), "run the migrations"},
		"missing marker":  {pgtest.Login(t, unmarked, "payapp"), "is empty; run the migrations"},
		"wrong role":      {pgtest.Login(t, owner), "permission denied"},
		"role that reads": {reader, "isn't a member of the role payapp"},
		"replica":         {replicaURL, "the server is in recovery (a standby)"},
	} {
		password, _ := must(url.Parse(c.url)).User.Password()
		require.NotEmpty(t, password)
		err := check(c.url)
		require.ErrorContains(t, err, c.reason, name)
		require.NotContains(t, err.Error(), password, name)
	}
	require.NoError(t, check(pgtest.Login(t, owner, "payapp")))
}

func must(u *url.URL, _ error) *url.URL { return u }
