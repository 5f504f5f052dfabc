package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fenceline/lockd/lockapi"
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
	require.Regexp(t, `^{"program":"lockd","version":"[^"]+"}\n$`, output)
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
