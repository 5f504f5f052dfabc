package main

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/migrations"
)

// send sends a request with a token, "" for none, and returns status, decision and body.
func (s *sidecar) send(t *testing.T, method, path, token, body string) (status int, decision, text string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, "http://"+s.api+path, strings.NewReader(body))
	require.NoError(t, err)
	request.Header.Set("X-Owner-Id", "worker-a")
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Idempotency-Key", "idem-1")
	if token != "" {
		request.Header.Set("X-Fencing-Token", token)
	}
	client := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	require.NoError(t, err)
	defer func() { require.NoError(t, response.Body.Close()) }()
	var out strings.Builder
	require.NoError(t, response.Write(&out))
	return response.StatusCode, response.Header.Get("X-Fence-Decision"), out.String()
}

// Shadow decides, raises and records like enforce, and lets everything pass.
func TestShadowRecordsEveryDecisionAndRefusesNothing(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t, migrations.PayDB(), migrations.Fence())
	login, account := prepare(t, database)
	text := strings.Replace(configText, "admit: newer_or_same, key: { path: id } }", "admit: newer_or_same, key: { path: id }, mode: shadow }", 1)
	s := &sidecar{Process: spawn(t, map[string]string{"PAYDB_URL": login, "UPSTREAM": resource(t, nil)}, "run", "-c", write(t, text)), account: account}
	s.listening(t)
	for _, c := range []struct{ token, path, decision string }{
		{"5", account, "admitted"},
		{"5", account, "admitted"},
		{"4", account, "fenced_out"},
		{"", account, "invalid"},
		{"9223372036854775807", account, "invalid"},
		{"6", "not-a-key", "invalid"},
		{"6", uuid.NewString(), "invalid"},
		{"7", account, "admitted"},
	} {
		status, decision, body := s.send(t, http.MethodPost, "/accounts/"+c.path, c.token, "")
		require.Equal(t, http.StatusOK, status, body)
		require.Contains(t, body, "done", "it reached the resource")
		require.Equal(t, c.decision, decision, "token %s", c.token)
	}
	status, marks := s.adminPage(t, "/marks?guard=account&key="+account)
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, marks, `"token":7`)
	_, page := s.adminPage(t, "/metrics")
	for series, want := range map[string]string{
		`fence_decisions_total{decision="admitted",mode="shadow",route="write"}`:   "3",
		`fence_decisions_total{decision="fenced_out",mode="shadow",route="write"}`: "1",
		`fence_decisions_total{decision="invalid",mode="shadow",route="write"}`:    "4",
		`fence_decisions_total{decision="passed",mode="shadow",route="write"}`:     "0",
		`lock_fenced_out_total{resource="account"}`:                                "0",
	} {
		value, _ := sample(page, series)
		require.Equal(t, want, value, series)
	}
	require.Len(t, s.Events("shadow_decision"), 8)
	require.Empty(t, s.Events("fenced_out"))
	require.Equal(t, "fenced_out", s.Events("shadow_decision")[2].Text("decision"))
	require.Equal(t, "TOKEN_IMPLAUSIBLE", s.Events("shadow_decision")[4].Text("code"))
	warned := false
	for _, e := range s.Events("config_warning") {
		warned = warned || strings.Contains(e.Text("@message"), "route write is in shadow") && e.Text("@level") == "warn"
	}
	require.True(t, warned)
	s.eventually(t, "the rejection's row", func() bool {
		var rows int
		require.NoError(t, pgtest.Connect(t, database).QueryRow(t.Context(),
			"SELECT count(*) FROM fence.rejection WHERE mode = 'shadow' AND key = $1 AND presented_token = 4 AND highest_token = 5", account).Scan(&rows))
		return rows == 1
	})
}

// The same outage: an enforced route refuses, a shadowed one passes.
func TestStoreThatIsDownStopsEnforcedRoutesAndNoShadowedOnes(t *testing.T) {
	t.Parallel()
	for mode, want := range map[string]int{"shadow": http.StatusOK, "enforce": http.StatusServiceUnavailable} {
		text := strings.Replace(configText, "admit: newer_or_same, key: { path: id } }", "admit: newer_or_same, key: { path: id }, mode: "+mode+" }", 1)
		s := &sidecar{Process: spawn(t, map[string]string{"PAYDB_URL": "postgres://u:p@127.0.0.1:1/none", "UPSTREAM": resource(t, nil)}, "run", "-c", write(t, text))}
		s.listening(t)
		for range 3 {
			status, decision, body := s.send(t, http.MethodPost, "/accounts/"+uuid.NewString(), "5", "")
			require.Equal(t, want, status, "%s: %s", mode, body)
			require.Equal(t, "unavailable", decision, mode)
		}
	}
}

// railSidecar runs configs/sidecar.rail.yaml as it stands.
func railSidecar(t *testing.T) (s *sidecar, owner *pgx.Conn, account, payout string) {
	t.Helper()
	database := pgtest.Database(t, migrations.PayDB(), migrations.Fence())
	_, account = prepare(t, database)
	owner, payout = pgtest.Connect(t, database), uuid.NewString()
	_, err := owner.Exec(t.Context(), "INSERT INTO payout (payout_id, account_id, amount_minor, currency, idempotency_key) VALUES ($1, $2, 1, 'EUR', $3)", payout, account, payout)
	require.NoError(t, err)
	data, err := os.ReadFile(filepath.Join("..", "configs", "sidecar.rail.yaml"))
	require.NoError(t, err)
	env := map[string]string{
		"PAYDB_URL": pgtest.Login(t, database, "fence_rail"), "SIDECAR_LISTEN": "127.0.0.1:0", "SIDECAR_ADMIN": "127.0.0.1:0", "SIDECAR_UPSTREAM": resource(t, nil),
	}
	s = &sidecar{Process: spawn(t, env, "run", "-c", write(t, string(data)))}
	s.listening(t)
	return s, owner, account, payout
}

// A submission that is fenced out leaves the audit row that the payment system wants, written by the sidecar's own role.
func TestFencedOutSubmissionLeavesItsAuditRow(t *testing.T) {
	t.Parallel()
	s, owner, account, payout := railSidecar(t)
	submit := func(token string) (int, string) {
		status, _, body := s.send(t, http.MethodPost, "/v1/rail/submissions", token, `{"payoutId":"`+payout+`"}`)
		return status, body
	}
	status, body := submit("34")
	require.Equal(t, http.StatusOK, status, body)
	for _, token := range []string{"33", "34"} {
		status, body = submit(token)
		require.Equal(t, http.StatusConflict, status, body)
	}
	rows, err := owner.Query(t.Context(), "SELECT presented_token, outcome, idempotency_key, resolved_at IS NOT NULL FROM rail_submission WHERE payout_id = $1 ORDER BY presented_token", payout)
	require.NoError(t, err)
	type row struct {
		Token        int64
		Outcome, Key string
		Resolved     bool
	}
	got, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	require.NoError(t, err)
	require.Equal(t, []row{{33, "FENCED", "idem-1", true}, {34, "FENCED", "idem-1", true}}, got)
	s.eventually(t, "rejections", func() bool {
		var n int
		require.NoError(t, owner.QueryRow(t.Context(), `SELECT count(*) FROM fence.rejection
			WHERE guard = 'rail' AND key = $1 AND route = 'submit' AND mode = 'enforce' AND highest_token = 34 AND owner_id = 'worker-a' AND trace_id <> '' AND sidecar_id = 'sidecar-rail'`, account).Scan(&n))
		return n == 2
	})
	_, page := s.adminPage(t, "/metrics")
	value, _ := sample(page, `fence_on_fenced_failures_total{route="submit"}`)
	require.Equal(t, "0", value)
}

// Neither a statement that fails nor rows that can't be written let a stale request through.
func TestRefusalStandsWhateverBecomesOfItsRecords(t *testing.T) {
	t.Parallel()
	s, owner, _, payout := railSidecar(t)
	_, err := owner.Exec(t.Context(), "DROP TABLE fence.rejection; ALTER TABLE rail_submission RENAME TO away")
	require.NoError(t, err)
	submit := func(token string) int {
		status, _, _ := s.send(t, http.MethodPost, "/v1/rail/submissions", token, `{"payoutId":"`+payout+`"}`)
		return status
	}
	require.Equal(t, http.StatusOK, submit("34"))
	require.Equal(t, http.StatusConflict, submit("33"))
	_, page := s.adminPage(t, "/metrics")
	value, _ := sample(page, `fence_on_fenced_failures_total{route="submit"}`)
	require.Equal(t, "1", value)
	require.Len(t, s.Events("on_fenced_failed"), 1)
	s.eventually(t, "the warning", func() bool { return len(s.Events("rejections_unavailable")) == 1 })
	require.Equal(t, http.StatusConflict, submit("33"))
}

// Where the resource raises the marks the sidecar needs no right but to read them, and leaves them alone.
func TestResourceThatAdvancesItsMarksKeepsThem(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t, migrations.PayDB())
	owner := pgtest.Connect(t, database)
	login, account := pgtest.Login(t, database), uuid.NewString()
	user, err := pgx.ParseConfig(login)
	require.NoError(t, err)
	_, err = owner.Exec(t.Context(), "INSERT INTO account (account_id, currency, balance_minor, fence) VALUES ('"+account+"', 'EUR', 100, 34); GRANT SELECT (account_id, fence) ON account TO "+user.User)
	require.NoError(t, err)
	text := strings.Replace(configText, "order: admissions", "order: admissions\n    advance: resource", 1)
	s := &sidecar{Process: spawn(t, map[string]string{"PAYDB_URL": login, "UPSTREAM": resource(t, nil)}, "run", "-c", write(t, text)), account: account}
	s.listening(t)
	for token, want := range map[int64]int{33: http.StatusConflict, 34: http.StatusOK, 50: http.StatusOK, 35: http.StatusOK} {
		status, body := s.write(t, strconv.FormatInt(token, 10))
		require.Equal(t, want, status, body)
	}
	status, marks := s.adminPage(t, "/marks?guard=account&key="+account)
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, marks, `"token":34`, "it is the resource's to raise")
	f := fileSidecar{sidecar: s}
	body, err := json.Marshal(map[string]any{"guard": "account", "key": account, "token": 60, "operator": "ana", "reason": "x"})
	require.NoError(t, err)
	status, answer := f.raise(t, "application/json", string(body))
	require.Equal(t, http.StatusBadRequest, status, answer)
	require.Equal(t, "resource", s.Events("guard_promise")[0].Text("order"))
}
