// Package contracttest proves what a store says of the schema that it works with: which versions it takes, and that it knows its database by its identity.
package contracttest

import (
	"context"
	"fmt"
	"net/url"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver"
	"fenceline/internal/pgserver/pgtest"
	"fenceline/internal/postgres"
	"fenceline/migrations"
)

// Program is a store as the readiness of its daemon sees it.
type Program struct {
	Sets   []migrations.Set // its schema
	Role   string           // that its statements need
	Window postgres.Contract
	Check  func(t *testing.T, url string) error // opens a store there and asks whether it is ready
	// Other is another program's schema, and OtherRole its role.
	Other     migrations.Set
	OtherRole string
	// Expansion adds to the schema what the program knows nothing of, and Contraction takes away what it uses, as the release after next would.
	Expansion, Contraction string
}

// Versions wants every version of the window to be ready, both ends included, and what is outside never. The reason names both. A binary before an expanding schema works on with it, one before a
// contracted schema (whose version skips a number) doesn't, and the same the other way round.
func Versions(t *testing.T, p Program) {
	t.Helper()
	owner := pgtest.Database(t, p.Sets...)
	conn := pgtest.Connect(t, owner)
	for version, ready := range map[int]bool{p.Window.Min - 1: false, p.Window.Min: true, p.Window.Max: true, p.Window.Max + 1: false} {
		if version < 1 {
			continue // no schema has it
		}
		_, err := conn.Exec(t.Context(), "UPDATE "+p.Window.Table.Sanitize()+" SET version = $1", version)
		require.NoError(t, err)
		err = p.Check(t, pgtest.Login(t, owner, p.Role))
		if ready {
			require.NoError(t, err, "version %d", version)
			continue
		}
		require.ErrorIs(t, err, postgres.ErrSchema)
		require.ErrorContains(t, err, fmt.Sprintf("at version %d, this binary works with %d to %d", version, p.Window.Min, p.Window.Max))
	}
}

// Contracted wants the program to work on with an expanded schema, and to be refused by a contracted one, by the version that the contraction set: before it finds out by what is missing.
func Contracted(t *testing.T, p Program) {
	t.Helper()
	owner := pgtest.Database(t, p.Sets...)
	conn := pgtest.Connect(t, owner)
	url := pgtest.Login(t, owner, p.Role)
	_, err := conn.Exec(t.Context(), p.Expansion, pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err)
	require.NoError(t, p.Check(t, url), "an expanded schema")
	_, err = conn.Exec(t.Context(), fmt.Sprintf("%s; UPDATE %s SET version = %d", p.Contraction, p.Window.Table.Sanitize(), p.Window.Max+1), pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err)
	err = p.Check(t, url)
	require.ErrorIs(t, err, postgres.ErrSchema)
	require.ErrorContains(t, err, fmt.Sprintf("at version %d, this binary works with %d to %d", p.Window.Max+1, p.Window.Min, p.Window.Max))
}

// Identity wants a reason for each thing that the database isn't what it should be, and no password in any.
func Identity(t *testing.T, p Program) {
	t.Helper()
	owner, unmarked := pgtest.Database(t, p.Sets...), pgtest.Database(t, p.Sets...)
	_, err := pgtest.Connect(t, unmarked).Exec(t.Context(), "DELETE FROM "+p.Window.Table.Sanitize())
	require.NoError(t, err)
	reader := pgtest.Login(t, owner)
	_, err = pgtest.Connect(t, owner).Exec(t.Context(), "GRANT SELECT ON "+p.Window.Table.Sanitize()+" TO "+pgtest.Connect(t, reader).Config().User)
	require.NoError(t, err)
	for name, c := range map[string]struct{ url, reason string }{
		"wrong database":  {pgtest.Login(t, pgtest.Database(t, p.Other), p.OtherRole), "wrong database?"},
		"empty database":  {pgtest.Login(t, pgtest.Database(t)), "run the migrations"},
		"missing marker":  {pgtest.Login(t, unmarked, p.Role), "is empty; run the migrations"},
		"wrong role":      {pgtest.Login(t, owner), "permission denied"},
		"role that reads": {reader, "isn't a member of the role " + p.Role},
		"replica":         {onReplica(t, p), "the server is in recovery (a standby)"},
	} {
		parsed, err := url.Parse(c.url)
		require.NoError(t, err)
		password, _ := parsed.User.Password()
		require.NotEmpty(t, password)
		err = p.Check(t, c.url)
		require.ErrorContains(t, err, c.reason, name)
		require.NotContains(t, err.Error(), password, name)
	}
	require.NoError(t, p.Check(t, pgtest.Login(t, owner, p.Role)))
}

// onReplica is a login to the program's database on a standby.
func onReplica(t *testing.T, p Program) string {
	t.Helper()
	server := pgtest.Server(t, nil)
	primary, err := url.Parse(pgtest.Login(t, pgtest.DatabaseOn(t, server, p.Sets...), p.Role))
	require.NoError(t, err)
	replica, err := server.BaseBackup(t.Context(), pgserver.Restore{Name: t.Name(), Signal: "standby.signal"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, replica.Stop(context.Background())) })
	require.NoError(t, replica.Restart(t.Context()))
	primary.Host = replica.Addr()
	return primary.String()
}
