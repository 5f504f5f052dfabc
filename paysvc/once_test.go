package main

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"fenceline/internal/faultnet"
	"fenceline/internal/pgserver/pgtest"
	"fenceline/migrations"
	"fenceline/paysvc/payapi"
)

// holdCommits makes every commit that changed a payout wait for the advisory lock 42, which the connection takes.
func holdCommits(t *testing.T, owner *pgx.Conn) {
	t.Helper()
	for _, sql := range []string{
		`CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock(42); RETURN NULL; END $$`,
		`CREATE CONSTRAINT TRIGGER hold AFTER INSERT OR UPDATE ON payout DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION hold()`,
	} {
		_, err := owner.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
}

// The process dies (kill -9) when the effect is committed and before it has told anybody. Whoever asks again is given the answer that was kept with
// the effect, and nothing happens a second time.
func TestAnswerSurvivesACrashBetweenEffectAndAnswer(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t, migrations.PayDB(), migrations.SeedPayDB())
	login, err := url.Parse(pgtest.Login(t, database, "payapp"))
	require.NoError(t, err)
	owner := pgtest.Connect(t, database)
	holdCommits(t, owner)

	id := "" // of the payout that the first request makes
	for _, one := range []struct{ operation, path, body string }{
		{"create", payapi.PathPayouts, `{"accountId":"` + payer + `","amountMinor":2500,"currency":"EUR"}`},
		{"claim", payapi.PathClaim, `{"expectedState":"PENDING"}`},
		{"post", payapi.PathPost, `{"railReference":"r","submissionId":"` + payer + `"}`},
	} {
		path := strings.Replace(one.path, "{id}", id, 1)
		headers := []string{payapi.HeaderOwner, "a", payapi.HeaderToken, "34", payapi.HeaderIdempotencyKey, "k"}
		crashAfterCommit(t, owner, *login, path, one.body, headers, one.operation)

		_, api, admin := resource(t, login.String())
		eventually(t, admin+"/readyz", 200)
		var kept string
		var status int
		require.NoError(t, owner.QueryRow(t.Context(), "SELECT convert_from(response, 'UTF8'), status FROM request_ledger WHERE operation = $1 AND key = 'k'", one.operation).
			Scan(&kept, &status))
		for range 2 {
			again, answer := call(t, "POST", api+path, one.body, headers...)
			require.Equal(t, status, again)
			require.Less(t, again, 300)
			require.Equal(t, kept, answer, "byte for byte")
		}
		require.NoError(t, owner.QueryRow(t.Context(), "SELECT payout_id::text FROM payout WHERE idempotency_key = 'k'").Scan(&id))
		_, err := owner.Exec(t.Context(), "UPDATE payout SET state = 'RAIL_ACKED' WHERE payout_id = $1 AND state = 'CLAIMED'", id) // the rail-proxy's part
		require.NoError(t, err)
	}
	var attempts, payouts, balance, sum int64
	require.NoError(t, owner.QueryRow(t.Context(), `
		SELECT p.attempt_count, (SELECT count(*) FROM payout WHERE account_id = a.account_id), a.balance_minor,
		       (SELECT sum(CASE direction WHEN 'CREDIT' THEN amount_minor ELSE -amount_minor END) FROM ledger_entry l WHERE l.account_id = a.account_id)
		  FROM payout p JOIN account a USING (account_id) WHERE p.payout_id = $1`, id).Scan(&attempts, &payouts, &balance, &sum))
	require.EqualValues(t, 1, attempts)
	require.EqualValues(t, 2, payouts, "the opening and one more")
	require.EqualValues(t, 100_000-2500, balance)
	require.Equal(t, balance, sum)
}

// crashAfterCommit sends the request to a process of its own and kills that one when the effect is committed; the answer never comes.
func crashAfterCommit(t *testing.T, owner *pgx.Conn, login url.URL, path, body string, headers []string, operation string) {
	t.Helper()
	proxy := faultnet.New(t, login.Host)
	login.Host = proxy.Addr()
	p, api, admin := resource(t, login.String())
	eventually(t, admin+"/readyz", 200)
	_, err := owner.Exec(t.Context(), "SELECT pg_advisory_lock(42)")
	require.NoError(t, err)
	failed := make(chan error, 1)
	go func() { failed <- send(t.Context(), api+path, body, headers) }()
	until(t, owner, "the commit waits", "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = 42 AND NOT granted)")
	proxy.Silence()
	_, err = owner.Exec(t.Context(), "SELECT pg_advisory_unlock(42)")
	require.NoError(t, err)
	until(t, owner, "the effect is committed", "SELECT EXISTS (SELECT FROM request_ledger WHERE response IS NOT NULL AND key = 'k' AND operation = '"+operation+"')")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	require.NoError(t, p.Kill(ctx))
	require.Error(t, <-failed, "nobody was answered")
}

// send sends a request and returns nil when there was an answer.
func send(ctx context.Context, target, body string, headers []string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, target, strings.NewReader(body))
	if err != nil {
		return err
	}
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := (&http.Transport{}).RoundTrip(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	_, err = io.ReadAll(response.Body)
	return err
}

// until waits for a condition in the database.
func until(t *testing.T, owner *pgx.Conn, what, sql string) {
	t.Helper()
	require.Eventually(t, func() bool {
		var yes bool
		require.NoError(t, owner.QueryRow(t.Context(), sql).Scan(&yes))
		return yes
	}, 20*time.Second, 5*time.Millisecond, what)
}

func containsAll(text string, parts ...string) bool {
	return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(text, part) })
}
