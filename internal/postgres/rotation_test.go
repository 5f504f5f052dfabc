package postgres_test

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/internal/postgres"
)

// A password that is changed at the server and in the password file is used by the next connection; the process goes on.
func TestPasswordFileIsReadForEveryConnection(t *testing.T) {
	t.Parallel()
	owner := pgtest.Database(t)
	login, err := url.Parse(pgtest.Login(t, owner))
	require.NoError(t, err)
	user := login.User.Username()
	password, _ := login.User.Password()
	file := filepath.Join(t.TempDir(), "pgpass")
	keep := func(password string) {
		require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, "*:*:*:%s:%s\n", user, password), 0o600))
	}
	keep(password)
	login.User = url.User(user)
	pool := open(t, login.String()+"&passfile="+url.QueryEscape(file))
	require.NoError(t, exec(t, pool, "SELECT 1"))

	admin := pgtest.Connect(t, owner)
	_, err = admin.Exec(t.Context(), "ALTER ROLE "+user+" PASSWORD 'changed'")
	require.NoError(t, err)
	require.NoError(t, exec(t, pool, "SELECT 1"), "connections that are open stay")
	pool.Reset()
	require.ErrorIs(t, exec(t, pool, "SELECT 1"), postgres.ErrPermission, "the file has the old one")
	keep("changed")
	require.NoError(t, exec(t, pool, "SELECT 1"))
}
