package main

import (
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fenceline/internal/credential/credtest"
	"fenceline/internal/pgserver/pgtest"
	"fenceline/lockd/lockapi"
	"fenceline/migrations"
)

func TestInspectShowsTheHolderAndRevokeEndsIt(t *testing.T) {
	t.Parallel()
	_, api := lockService(t)
	env := []string{"LOCKD_URL=" + api}
	grant, err := acquire(t, client(t, api), "payout:42", time.Minute)
	require.NoError(t, err)

	code, output := run(t, env, "inspect", "payout:42")
	require.Zero(t, code)
	require.Contains(t, output, fmt.Sprintf("payout:42: held by worker with token %d since ", grant.FencingToken))
	code, output = run(t, env, "inspect", "payout:42", "-o", "json")
	require.Zero(t, code)
	var info lockapi.LockInfo
	require.NoError(t, json.Unmarshal([]byte(output), &info))
	require.Equal(t, grant.FencingToken, info.FencingToken)

	revoke := []string{"revoke", "payout:42", "--operator", "alice", "--reason", "host lost for good"}
	code, output = run(t, env, append(revoke, "--expected-token", fmt.Sprint(grant.FencingToken+1), "-o", "json")...)
	require.Equal(t, 1, code)
	var refusal lockapi.Error
	require.NoError(t, json.Unmarshal([]byte(output), &refusal))
	require.Equal(t, "TOKEN_MISMATCH", refusal.Code)
	require.NotEmpty(t, refusal.TraceID)
	require.True(t, held(t, api, "payout:42"))

	code, output = run(t, env, append(revoke, "--expected-token", fmt.Sprint(grant.FencingToken))...)
	require.Zero(t, code, output)
	require.Contains(t, output, fmt.Sprintf("payout:42: token %d is revoked; every later token is above ", grant.FencingToken))
	code, output = run(t, env, "inspect", "payout:42")
	require.Zero(t, code)
	require.Equal(t, "payout:42: nobody holds it\n", output)
	code, output = run(t, env, revoke...)
	require.Equal(t, 1, code)
	require.Contains(t, output, "LOCK_NOT_HELD")
}

func TestInspectWithoutAKeyListsEveryLock(t *testing.T) {
	t.Parallel()
	// What L9 answers, on any store; a page has 100 locks.
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var keys []string
		for n := range 101 {
			keys = append(keys, fmt.Sprintf("a:%03d", n))
		}
		if r.FormValue("prefix") == "" {
			keys = append(keys, "b")
		}
		page := lockapi.LockPage{}
		for _, key := range keys {
			if key <= r.FormValue("cursor") {
				continue
			}
			if len(page.Locks) == 100 {
				page.NextCursor = page.Locks[99].Key
				break
			}
			page.Locks = append(page.Locks, lockapi.HeldLock{Key: key, OwnerID: "worker", FencingToken: 7})
		}
		_ = json.NewEncoder(w).Encode(page)
	}))
	t.Cleanup(server.Close)
	env := []string{"LOCKD_URL=" + server.URL}

	code, output := run(t, env, "inspect")
	require.Zero(t, code, output)
	lines := strings.Split(strings.TrimSpace(output), "\n")
	require.Len(t, lines, 103)
	require.Contains(t, lines[0], "TOKEN")
	require.Contains(t, lines[102], "worker")
	code, output = run(t, env, "inspect", "--prefix", "a:", "-o", "json")
	require.Zero(t, code, output)
	lines = strings.Split(strings.TrimSpace(output), "\n")
	require.Len(t, lines, 101)
	var last lockapi.HeldLock
	require.NoError(t, json.Unmarshal([]byte(lines[100]), &last))
	require.Equal(t, "a:100", last.Key)
}

func TestClientCommandsTeach(t *testing.T) {
	t.Parallel()
	for command, words := range map[string][]string{
		"inspect": {"LOCKD_URL", "LOCKD_TOKEN_FILE", "never act on it", "Exit codes"},
		"revoke":  {"--expected-token", "isn't told", "It is sent once", "Exit codes"},
	} {
		code, output := run(t, nil, command, "--help")
		require.Zero(t, code)
		for _, word := range words {
			require.Contains(t, output, word)
		}
	}
	code, output := run(t, nil, "version", "--output", "json")
	require.Zero(t, code)
	require.Regexp(t, `^{"program":"lockd","version":"[^"]+","database":{"contract":"lockdb","contractMin":3,"contractMax":4,"statementsSha256":"[0-9a-f]{64}",`+
		`"driver":"github.com/jackc/pgx/v5 [^"]+","queryMode":"cache_describe","pooling":"transaction"}}\n$`, output)
	_, short := run(t, nil, "version", "--json")
	require.Equal(t, output, short)
	for name, args := range map[string][]string{
		"short reason": {"revoke", "k", "--operator", "alice", "--reason", "short"},
		"bad token":    {"revoke", "k", "--operator", "alice", "--reason", "long enough", "--expected-token", "07"},
		"no operator":  {"revoke", "k", "--reason", "long enough"},
	} {
		code, _ := run(t, nil, args...)
		require.Equal(t, 80, code, name)
	}
	code, output = run(t, nil, "revoke", "k", "--operator", "alice", "--reason", "long enough", "--url", "http://127.0.0.1:1")
	require.Equal(t, 1, code)
	require.Contains(t, output, "inspect before you try again")
	code, output = run(t, nil, "inspect", "k", "--ca-file", "/nowhere")
	require.Equal(t, 1, code)
	require.Contains(t, output, "ca-file")
}

// Every client command against a lockd that asks who calls, in all of its ways at once.
func TestClientCommandsSayWhoCalls(t *testing.T) {
	t.Parallel()
	authority := credtest.NewAuthority(t)
	serverCert, serverKey := authority.Issue("lockd", x509.ExtKeyUsageServerAuth, time.Hour)
	clientCert, clientKey := authority.Issue("worker", x509.ExtKeyUsageClientAuth, time.Hour)
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		credtest.Write(t, path, content)
		return path
	}
	ca := file("ca.pem", string(authority.PEM()))
	client, operator := file("client-token", "client-token-0123456789"), file("operator-token", "operator-token-0123456789")
	_, api, _ := serve(t, pgtest.Login(t, pgtest.Database(t, migrations.LockDB()), "lockapp"),
		"--tls-cert", serverCert, "--tls-key", serverKey, "--tls-client-ca", ca, "--client-token-file", client, "--operator-token-file", operator)
	api = strings.Replace(api, "http:", "https:", 1)
	transport := []string{"LOCKD_URL=" + api, "LOCKD_CA_FILE=" + ca, "LOCKD_CERT_FILE=" + clientCert, "LOCKD_KEY_FILE=" + clientKey}
	transport = slices.Clip(transport)
	asClient, asOperator := append(transport, "LOCKD_TOKEN_FILE="+client), append(transport, "LOCKD_TOKEN_FILE="+operator)

	holder := start(t, asClient, "exec", "--key", "k", "--", "/bin/sh", "-c", hello+"read x")
	token := says(t, holder, "hello").Text("token")
	code, output := run(t, asClient, "inspect", "k")
	require.Zero(t, code, output)
	require.Contains(t, output, "token "+token)

	revoke := []string{"revoke", "k", "--operator", "alice", "--reason", "host lost for good", "--expected-token", token}
	for name, c := range map[string]struct {
		env  []string
		args []string
		says string
	}{
		"no token":                    {transport, []string{"inspect", "k"}, "UNAUTHENTICATED"},
		"no certificate":              {[]string{"LOCKD_URL=" + api, "LOCKD_CA_FILE=" + ca, "LOCKD_TOKEN_FILE=" + client}, []string{"inspect", "k"}, "certificate"},
		"unknown authority":           {[]string{"LOCKD_URL=" + api, "LOCKD_TOKEN_FILE=" + client}, []string{"inspect", "k"}, "certificate"},
		"revoke needs an operator":    {asClient, revoke, "FORBIDDEN"},
		"a list needs an operator":    {asClient, []string{"inspect"}, "FORBIDDEN"},
		"exec isn't for nobody":       {transport, []string{"exec", "--key", "other", "--", "true"}, "UNAUTHENTICATED"},
		"certificate without a key":   {slices.Clip(asClient[:3]), []string{"inspect", "k"}, "key-file"},
		"token file that isn't there": {append(transport, "LOCKD_TOKEN_FILE=/nowhere"), []string{"inspect", "k"}, "bearer token"},
	} {
		code, output := run(t, c.env, c.args...)
		require.NotZero(t, code, name)
		require.Contains(t, output, c.says, name)
		require.NotContains(t, output, "0123456789", name)
	}
	code, output = run(t, asOperator, revoke...)
	require.Zero(t, code, output)
	require.Equal(t, 75, ends(t, holder))
}
