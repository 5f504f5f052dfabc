package failuretest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver"
	"fenceline/internal/pgserver/pgtest"
	"fenceline/migrations"
)

// Deployment is a daemon's database as its tests set it up, and the section of the document about its failures.
type Deployment struct {
	Section string
	Role    string
	Sets    []migrations.Set
}

// document is where every daemon's tests, in a folder below the project's, find it.
const document = "../docs/failures.md"

func (d Deployment) bench(t testing.TB, owner string) *Bench {
	t.Helper()
	return New(t, owner, pgtest.Login(t, owner, d.Role))
}

// Bench is one on the server that tests share.
func (d Deployment) Bench(t testing.TB) *Bench {
	t.Helper()
	return d.bench(t, pgtest.Database(t, d.Sets...))
}

// OwnServer is a bench on a server that nobody else uses.
func (d Deployment) OwnServer(t testing.TB) (*Bench, *pgserver.Server) {
	t.Helper()
	server := pgtest.Server(t, nil)
	return d.bench(t, pgtest.DatabaseOn(t, server, d.Sets...)), server
}

// Meet has a daemon meet every fault of the table, each of which is a row of the document.
func (d Deployment) Meet(t testing.TB, b *Bench, daemon Daemon, table ...Row) {
	t.Helper()
	Documented(t, document, d.Section, table)
	for _, row := range table {
		require.NoError(t, b.Meet(t.Context(), daemon, row))
	}
}
