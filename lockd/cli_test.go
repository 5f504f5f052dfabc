package main

import (
	"encoding/json"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/migrations"
)

func TestPortInUseIsSaid(t *testing.T) {
	t.Parallel()
	taken, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, taken.Close()) })
	databaseURL := pgtest.Login(t, pgtest.Database(t, migrations.LockDB()), "lockapp")
	code, output := run(t, []string{"LOCKD_DATABASE_URL=" + databaseURL, "LOCKD_LISTEN=" + taken.Addr().String()}, "serve", "--admin-listen", "127.0.0.1:0")
	require.Equal(t, 1, code)
	require.Contains(t, output, taken.Addr().String()+": the port is in use")
}

func TestCommandLineTeaches(t *testing.T) {
	t.Parallel()
	code, output := run(t, nil, "--help")
	require.Zero(t, code)
	for _, word := range []string{"lockd migrate", "lockd serve", "curl", "Exit codes", "migrate", "version"} {
		require.Contains(t, output, word)
	}
	code, output = run(t, nil, "serve")
	require.NotZero(t, code)
	require.Contains(t, output, "--database-url")
	code, output = run(t, nil, "version")
	require.Zero(t, code)
	require.Regexp(t, `^lockd \S+\n$`, output)
	code, _ = run(t, nil, "serve", "--database-url", "postgres://h/d", "--no-such-flag")
	require.NotZero(t, code)
	code, output = run(t, nil, "serve", "--database-url", "postgres://u:the-password@h:port/d")
	require.Equal(t, 1, code)
	require.NotContains(t, output, "the-password")
}

func TestMigrateAppliesChecksAndPrints(t *testing.T) {
	t.Parallel()
	databaseURL := pgtest.Database(t)
	env := []string{"LOCKD_DATABASE_URL=" + databaseURL}
	code, output := run(t, env, "migrate", "--check")
	require.Equal(t, 1, code)
	require.Contains(t, output, "V1__create_lock_session_and_lock_entry.sql")
	code, output = run(t, nil, "migrate", "--print-sql")
	require.Zero(t, code)
	require.Contains(t, output, "CREATE SEQUENCE fencing_token_seq")
	code, output = run(t, env, "migrate")
	require.Zero(t, code, output)
	code, output = run(t, env, "migrate", "--check", "--output", "json")
	require.Zero(t, code)
	require.JSONEq(t, `{"schemas":[{"schema":"lockdb","action":"pending","scripts":[]}],"pending":0}`, output)
	code, output = run(t, nil, "migrate")
	require.Equal(t, 1, code)
	require.Contains(t, output, "--database-url")
	_, base, _ := serve(t, databaseURL)
	_, err := acquire(t, client(t, base), "k", time.Minute)
	require.NoError(t, err)
}

// The example of the help text, with the tool that it names replaced: raw HTTP, no client of ours.
func TestRawHTTPIsEnough(t *testing.T) {
	t.Parallel()
	_, base, _ := serve(t, pgtest.Login(t, pgtest.Database(t, migrations.LockDB()), "lockapp"))
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+"/v1/locks/payout:42", nil)
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer func() { require.NoError(t, response.Body.Close()) }()
	require.Equal(t, 200, response.StatusCode)
	var info map[string]any
	require.NoError(t, json.NewDecoder(response.Body).Decode(&info))
	require.Equal(t, map[string]any{"key": "payout:42", "held": false}, info)
}
