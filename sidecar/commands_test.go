package main

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/migrations"
)

func TestExplainFollowsARequestThroughEveryStep(t *testing.T) {
	t.Parallel()
	f := newFileSidecar(t, resource(t, nil))
	explain := func(args ...string) string {
		code, output := run(t, f.env, append([]string{"explain", "-c", f.config}, args...)...)
		require.Equal(t, 0, code, output)
		return output
	}
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"PUT", "/docs/a%20b", "-H", "X-Fencing-Token: 34"}, []string{"write (guard doc, admit newer, mode enforce)", "token:    34", "key:      a b", "admitted if 34 is above the key's mark"}},
		{[]string{"PUT", "/docs/a"}, []string{"INVALID_TOKEN"}},
		{[]string{"PUT", "/docs/a", "-H", "X-Fencing-Token: 034"}, []string{"INVALID_TOKEN"}},
		{[]string{"PUT", "/docs/%00", "-H", "X-Fencing-Token: 34"}, []string{"refused: "}},
		{[]string{"PUT", "/docs/a/../b", "-H", "X-Fencing-Token: 34"}, []string{"MALFORMED_REQUEST"}},
		{[]string{"DELETE", "/docs/a"}, []string{"METHOD_NOT_ALLOWED"}},
		{[]string{"DELETE", "/other"}, []string{"ROUTE_NOT_ALLOWED"}},
		{[]string{"GET", "/other"}, []string{"reads (pass: true)", "without looking at tokens"}},
		{[]string{"PUT", "/docs/a", "-H", "X-Fencing-Token: 34", "--data", "{}", "--connect"}, []string{"mark:     none", "admitted, if nothing newer"}},
	} {
		output := explain(c.args...)
		for _, want := range c.want {
			require.Contains(t, output, want, "%v", c.args)
		}
	}
	f.start(t)
	status, body := f.put(t, "a", 34)
	require.Equal(t, http.StatusOK, status, body)
	code, output := run(t, f.env, "explain", "-c", f.config, "PUT", "/docs/a", "-H", "X-Fencing-Token: 33", "--connect")
	require.Equal(t, 1, code)
	require.Contains(t, output, "another process has the mark file open")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, f.Stop(ctx))
	require.Contains(t, explain("PUT", "/docs/a", "-H", "X-Fencing-Token: 33", "--connect"), "FENCED_OUT")
}

func TestExplainAndCheckAskTheDatabase(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t, migrations.PayDB(), migrations.Fence())
	login, account := prepare(t, database)
	owner := pgtest.Connect(t, database)
	_, err := owner.Exec(t.Context(), "UPDATE account SET fence = 34 WHERE account_id = $1", account)
	require.NoError(t, err)
	_, err = owner.Exec(t.Context(), "INSERT INTO payout (payout_id, account_id, amount_minor, currency, idempotency_key) VALUES ($1, $1, 1, 'EUR', 'k')", account)
	require.NoError(t, err)
	file := filepath.Join("..", "configs", "sidecar.account.yaml")
	env := map[string]string{"PAYDB_URL": login}
	code, output := run(t, env, "explain", "-c", file, "POST", "/v1/payouts/"+account+"/claim", "-H", "X-Fencing-Token: 33", "--connect")
	require.Equal(t, 0, code, output)
	for _, want := range []string{"found by SELECT account_id", "found:    " + account, "mark:     34", "FENCED_OUT"} {
		require.Contains(t, output, want)
	}
	var fence int
	require.NoError(t, owner.QueryRow(t.Context(), "SELECT fence FROM account WHERE account_id = $1", account).Scan(&fence))
	require.Equal(t, 34, fence, "nothing was raised")

	code, output = run(t, env, "check", "-c", file, "--connect")
	require.Equal(t, 0, code, output)
	require.Contains(t, output, "the store fits")
	for _, c := range []struct {
		from, to string
		want     []string
	}{
		{"token: fence", "token: balance_minor", []string{"our role may not"}},
		{"FROM payout", "FROM payouts", []string{"route claim: key.lookup", "route post: key.lookup", "payouts"}},
	} {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		code, output = run(t, env, "check", "-c", write(t, strings.ReplaceAll(string(data), c.from, c.to)), "--connect")
		require.Equal(t, 1, code, output)
		for _, want := range c.want {
			require.Contains(t, output, want)
		}
	}
	code, output = run(t, map[string]string{"PAYDB_URL": "postgres://u:topsecret@127.0.0.1:1/none"}, "check", "-c", file, "--connect")
	require.Equal(t, 1, code, output)
	require.NotContains(t, output, "topsecret")
}

// The way out of a poisoned mark, for a file that nobody serves.
func TestMarksResetNeedsNobodyServingAndEverythingSaid(t *testing.T) {
	t.Parallel()
	f := newFileSidecar(t, resource(t, nil))
	f.start(t)
	status, body := f.put(t, "a", 1_000_000)
	require.Equal(t, http.StatusOK, status, body)
	args := []string{"marks", "reset", "-c", f.config, "--guard", "doc", "--key", "a", "--to", "34", "--expected", "1000000", "--operator", "ana", "--reason", "typo"}
	code, output := run(t, f.env, append(args, "--confirm")...)
	require.Equal(t, 1, code, output)
	require.Contains(t, output, "another process has the mark file open")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, f.Stop(ctx))

	code, output = run(t, f.env, args...)
	require.NotEqual(t, 0, code)
	require.Contains(t, output, "--confirm")
	code, output = run(t, f.env, append(args, "--confirm", "--expected", "999999")...)
	require.Equal(t, 1, code, output)
	require.Contains(t, output, "it is 1000000, not 999999")
	code, output = run(t, f.env, append(args, "--confirm")...)
	require.Equal(t, 0, code, output)
	require.Contains(t, output, "the mark is 34 now")
	f.start(t)
	status, body = f.put(t, "a", 35)
	require.Equal(t, http.StatusOK, status, body)

	code, output = run(t, map[string]string{"PAYDB_URL": "postgres://h/x", "UPSTREAM": "http://127.0.0.1:1"}, "marks", "reset", "-c", write(t, configText),
		"--guard", "account", "--key", uuid.NewString(), "--to", "1", "--expected", "2", "--operator", "ana", "--reason", "x", "--confirm")
	require.Equal(t, 1, code)
	require.Contains(t, output, "orders admissions only")
}
