package railproxy_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fenceline/internal/daemon"
	"fenceline/internal/pgserver/pgtest"
	"fenceline/internal/postgres"
	"fenceline/migrations"
	"fenceline/paysvc/payapi"
	"fenceline/paysvc/paydb"
	"fenceline/paysvc/railproxy/railapi"
	"fenceline/paysvc/railproxy/submission"
	"fenceline/paysvc/railstub"
)

func TestAcknowledgedSubmissionIsAnsweredAndRecorded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "", railstub.Plan{})
	id := w.claimedPayout(7)
	got := w.submit(id, 7)
	require.Equal(t, 200, got.status, string(got.body))
	var s payapi.Submission
	require.NoError(t, json.Unmarshal(got.body, &s))
	require.Len(t, w.transfers(), 1)
	transfer := w.transfers()[0]
	require.Equal(t, payapi.Submission{SubmissionID: s.SubmissionID, PayoutID: id.String(), Outcome: "ACKED", RailReference: transfer.RailReference}, s)
	require.Equal(t, id.String(), transfer.ClientReference)
	require.EqualValues(t, 2500, transfer.AmountMinor)
	require.Equal(t, []row{{7, new("ACKED"), new(transfer.RailReference), true}}, w.rows(id))
	require.Equal(t, "RAIL_ACKED", w.state(id))
	require.Len(t, w.events("rail_submitted"), 1)
	require.Equal(t, 1, w.counts.outcomes[submission.Acked])

	listed := w.call("GET", payapi.PathSubmissions+"?payoutId="+id.String(), "", nil)
	require.Equal(t, 200, listed.status)
	var list railapi.List
	require.NoError(t, json.Unmarshal(listed.body, &list))
	require.Len(t, list.Submissions, 1)
	require.Equal(t, s, list.Submissions[0].Submission)
	require.EqualValues(t, 7, list.Submissions[0].PresentedToken)
	require.NotNil(t, list.Submissions[0].ResolvedAt)
}

func TestEveryFaultOfTheRailHasItsOwnAnswer(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fault     railstub.Fault
		transfers int
		status    int
		code      string
		outcome   string
		state     string
	}{
		"decline":              {railstub.Fault{Kind: railstub.KindDecline}, 0, 422, railapi.CodeRailRejected, "REJECTED", "FAILED"},
		"drop":                 {railstub.Fault{Kind: railstub.KindDrop}, 0, 409, payapi.CodeRailAmbiguous, "TIMEOUT", "RAIL_AMBIGUOUS"},
		"lost answer":          {railstub.Fault{Kind: railstub.KindLost}, 1, 409, payapi.CodeRailAmbiguous, "TIMEOUT", "RAIL_AMBIGUOUS"},
		"answer after timeout": {railstub.Fault{Kind: railstub.KindNone, Latency: 2 * railTimeout}, 1, 409, payapi.CodeRailAmbiguous, "TIMEOUT", "RAIL_AMBIGUOUS"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			id := uuid.New()
			w := newWorld(t, "", railstub.Plan{ByReference: map[string]railstub.Fault{id.String(): c.fault}})
			w.insertClaimed(id, 7)
			got := w.submit(id, 7)
			require.Equal(t, c.status, got.status, string(got.body))
			e := got.envelope(t)
			require.Equal(t, c.code, e.Code)
			require.False(t, e.RetrySafe)
			require.NotEmpty(t, e.Details[railapi.DetailSubmissionID])
			require.Equal(t, c.outcome, e.Details[railapi.DetailRailOutcome])
			require.Len(t, w.transfers(), c.transfers)
			require.Equal(t, []row{{7, new(c.outcome), nil, true}}, w.rows(id))
			require.Equal(t, c.state, w.state(id))
			require.Equal(t, 1, w.counts.outcomes[submission.Outcome(c.outcome)])
			if c.outcome == "TIMEOUT" {
				events := w.events("rail_ambiguous")
				require.Len(t, events, 1)
				require.Equal(t, "error", events[0]["@level"])
				require.Equal(t, id.String(), events[0]["payoutId"])
				require.EqualValues(t, 7, events[0]["presentedToken"])
				require.Contains(t, events[0], "elapsedMillis")
			}
		})
	}
}

func TestSecondAcknowledgementIsNotTakenForAnotherPayouts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "", railstub.Plan{Chances: map[railstub.Kind]float64{railstub.KindDouble: 1}})
	for token := range int64(5) {
		id := w.claimedPayout(token + 1)
		require.Equal(t, 200, w.submit(id, token+1).status)
		transfers := w.transfers()
		require.Len(t, transfers, int(token)+1)
		require.Equal(t, new(transfers[token].RailReference), w.rows(id)[0].Reference)
	}
}

func TestRailThatIsDownGotNothing(t *testing.T) {
	t.Parallel()
	l, err := daemon.Listen(t.Context(), "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	w := newWorld(t, "http://"+l.Addr().String(), railstub.Plan{})
	id := w.claimedPayout(7)
	got := w.submit(id, 7)
	require.Equal(t, 503, got.status)
	require.Equal(t, payapi.CodeRailUnavailable, got.code(t))
	require.True(t, got.envelope(t).RetrySafe)
	require.Empty(t, w.rows(id))
	require.Equal(t, "CLAIMED", w.state(id))
}

// Plain mode is careless on purpose: this is what the sidecar is for. If it changes, the experiment proves nothing.
func TestPlainModePresentsAgainUnderAnyToken(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "", railstub.Plan{})
	id := w.claimedPayout(7)
	require.Equal(t, 200, w.submit(id, 7).status)
	stale := w.submit(id, 3)
	require.Equal(t, 200, stale.status, string(stale.body))
	transfers := w.transfers()
	require.Len(t, transfers, 2, "paid twice")
	require.Contains(t, string(stale.body), transfers[1].RailReference)
	require.Equal(t, []row{{7, new("ACKED"), new(transfers[0].RailReference), true}}, w.rows(id), "only the first one is on record")
	require.Equal(t, "RAIL_ACKED", w.state(id))
	require.Equal(t, 1, w.counts.duplicates)
	refused := w.events("transition_refused")
	require.Len(t, refused, 1)
	require.Equal(t, "RAIL_ACKED", refused[0]["state"])
	require.Equal(t, "submit", refused[0]["transition"])
}

func TestOutcomeThatCannotBeRecordedIsNeitherSuccessNorFailure(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "", railstub.Plan{})
	id := w.claimedPayout(7)
	_, err := w.conn.Exec(t.Context(), `REVOKE INSERT ON rail_submission FROM railapp`)
	require.NoError(t, err)
	got := w.submit(id, 7)
	require.Equal(t, 503, got.status)
	e := got.envelope(t)
	require.Equal(t, payapi.CodeOutcomeUnknown, e.Code)
	require.False(t, e.RetrySafe)
	require.Equal(t, "unknown", e.Details[railapi.DetailOutcome])
	require.Equal(t, "ACKED", e.Details[railapi.DetailRailOutcome])
	require.Equal(t, w.transfers()[0].RailReference, e.Details[railapi.DetailRailReference])
	require.Equal(t, "CLAIMED", w.state(id), "nothing half recorded")
	events := w.events("rail_unrecorded")
	require.Len(t, events, 1)
	require.Equal(t, w.transfers()[0].RailReference, events[0]["railReference"], "an operator finds the transfer")
}

func TestDatabaseThatGoesAwayWhileTheRailAnswers(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, nil)
	id := uuid.New()
	w := newWorldOn(t, pgtest.DatabaseOn(t, server, migrations.PayDB()), "",
		railstub.Plan{ByReference: map[string]railstub.Fault{id.String(): {Kind: railstub.KindNone, Latency: railTimeout * 7 / 10}}})
	w.insertClaimed(id, 7)
	answered := make(chan answer, 1)
	go func() {
		defer close(answered) // also when a requirement inside ends this goroutine
		answered <- w.submit(id, 7)
	}()
	require.Eventually(t, func() bool { return len(w.transfers()) == 1 }, 30*time.Second, time.Millisecond)
	require.NoError(t, server.Crash(t.Context()))
	got := <-answered
	require.Equal(t, 503, got.status, string(got.body))
	require.Equal(t, payapi.CodeOutcomeUnknown, got.code(t))

	// The next one presents nothing, and says so.
	got = w.submit(uuid.New(), 8)
	require.Equal(t, 503, got.status, string(got.body))
	require.Equal(t, payapi.CodeStoreUnavailable, got.code(t))
	require.True(t, got.envelope(t).RetrySafe)
	require.Len(t, w.transfers(), 1)
	require.NoError(t, server.Restart(t.Context()))
	w.unharmed("a database that went away while the rail answered")
}

func TestWhatIsNotThePayoutsIsNotPresented(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "", railstub.Plan{})
	id := w.claimedPayout(7)
	headers := map[string]string{payapi.HeaderToken: "7", payapi.HeaderOwner: "worker", payapi.HeaderIdempotencyKey: "key"}
	for member, change := range map[string]func(*payapi.SubmissionRequest){
		"accountId":   func(r *payapi.SubmissionRequest) { r.AccountID = uuid.NewString() },
		"amountMinor": func(r *payapi.SubmissionRequest) { r.AmountMinor++ },
		"currency":    func(r *payapi.SubmissionRequest) { r.Currency = "USD" },
	} {
		request := w.request(id)
		change(&request)
		body, err := json.Marshal(request)
		require.NoError(t, err)
		got := w.post(string(body), headers)
		require.Equal(t, 400, got.status)
		require.Equal(t, payapi.CodeValidationFailed, got.code(t))
		require.Contains(t, got.envelope(t).Message, member)
	}
	got := w.submit(uuid.New(), 7)
	require.Equal(t, 404, got.status)
	require.Equal(t, payapi.CodePayoutNotFound, got.code(t))
	require.Empty(t, w.transfers())
}

func TestMalformedRequestIsRefusedBeforeAnythingHappens(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "", railstub.Plan{})
	id := w.claimedPayout(7)
	valid, err := json.Marshal(w.request(id))
	require.NoError(t, err)
	headers := func(change ...string) map[string]string {
		h := map[string]string{payapi.HeaderToken: "7", payapi.HeaderOwner: "worker", payapi.HeaderIdempotencyKey: "key"}
		for i := 0; i < len(change); i += 2 {
			if h[change[i]] = change[i+1]; change[i+1] == "(none)" {
				delete(h, change[i])
			}
		}
		return h
	}
	for _, token := range []string{"(none)", "", "0", "-1", "+7", "07", "7 7", "x", "9223372036854775808", "7|7", "7, 7"} {
		got := w.post(string(valid), headers(payapi.HeaderToken, token))
		require.Equal(t, 400, got.status, token)
		require.Equal(t, payapi.CodeInvalidToken, got.code(t), token)
	}
	for _, h := range []map[string]string{
		headers(payapi.HeaderOwner, "(none)"), headers(payapi.HeaderOwner, strings.Repeat("w", 65)), headers(payapi.HeaderOwner, "a|b"),
		headers(payapi.HeaderIdempotencyKey, "(none)"), headers(payapi.HeaderIdempotencyKey, strings.Repeat("k", 129)),
	} {
		got := w.post(string(valid), h)
		require.Equal(t, 400, got.status)
		require.Equal(t, payapi.CodeValidationFailed, got.code(t))
	}
	for _, body := range []string{
		``, `null`, `[]`, string(valid[:len(valid)-1]), string(valid) + "{}",
		strings.Replace(string(valid), `"payoutId"`, `"payoutID"`, 1),
		strings.Replace(string(valid), `{`, `{"payoutId":"`+id.String()+`",`, 1),
		strings.Replace(string(valid), `2500`, `0`, 1), strings.Replace(string(valid), `2500`, `-2500`, 1),
		strings.Replace(string(valid), `2500`, `25.5`, 1), strings.Replace(string(valid), `2500`, `"2500"`, 1),
		strings.Replace(string(valid), `2500`, `9223372036854775808`, 1),
		strings.Replace(string(valid), `EUR`, `eur`, 1), strings.Replace(string(valid), id.String(), `{`+id.String()+`}`, 1),
		strings.Replace(string(valid), `ben-1`, ``, 1), strings.Replace(string(valid), `ben-1`, strings.Repeat("b", 65), 1),
		strings.Replace(string(valid), w.account.String(), `9`, 1),
	} {
		got := w.post(body, headers())
		require.Equal(t, 400, got.status, body)
		require.Equal(t, payapi.CodeValidationFailed, got.code(t), body)
	}
	got := w.post(strings.Repeat(" ", 64<<10+1), headers())
	require.Equal(t, 413, got.status)
	require.Equal(t, 404, w.call("POST", payapi.PathSubmissions+"/", string(valid), headers()).status)
	require.Equal(t, 404, w.call("POST", "/v1//rail/submissions", string(valid), headers()).status)
	require.Equal(t, 405, w.call("PUT", payapi.PathSubmissions, string(valid), headers()).status)
	require.Equal(t, 400, w.call("GET", payapi.PathSubmissions, "", nil).status)
	require.Equal(t, 400, w.call("GET", payapi.PathSubmissions+"?payoutId=7", "", nil).status)
	require.Empty(t, w.transfers())
	require.Empty(t, w.rows(id))
	require.Equal(t, "CLAIMED", w.state(id))
}

func TestListShowsTheAttemptBeforeAnyNumberOfFencedOnes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "", railstub.Plan{})
	id := w.claimedPayout(7)
	list := func() (l railapi.List) {
		got := w.call("GET", payapi.PathSubmissions+"?payoutId="+id.String(), "", nil)
		require.Equal(t, 200, got.status)
		require.NoError(t, json.Unmarshal(got.body, &l))
		return l
	}
	require.NotNil(t, list().Submissions)
	require.Empty(t, list().Submissions)
	require.Equal(t, 200, w.submit(id, 7).status)
	_, err := w.conn.Exec(t.Context(), `INSERT INTO rail_submission (submission_id, payout_id, idempotency_key, presented_token, outcome, resolved_at)
		SELECT gen_random_uuid(), $1, 'key', 3, 'FENCED', now() FROM generate_series(1, 120)`, id)
	require.NoError(t, err)
	require.Len(t, list().Submissions, 100)
	require.Equal(t, "ACKED", list().Submissions[0].Outcome)
	require.Equal(t, "FENCED", list().Submissions[1].Outcome)
}

func TestReadinessWantsTheRailProxysOwnRole(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t, migrations.PayDB())
	check := func(url string) error {
		pool, err := postgres.Open(t.Context(), postgres.Config{URL: url})
		require.NoError(t, err)
		defer pool.Close()
		return paydb.NewRail(pool, time.Second).Check(t.Context())
	}
	require.NoError(t, check(pgtest.Login(t, database, "railapp")))
	require.ErrorContains(t, check(pgtest.Login(t, database, "payapp")), "railapp")
	require.ErrorIs(t, check(pgtest.Login(t, pgtest.Database(t, migrations.LockDB()), "railapp")), postgres.ErrPermission)
	require.ErrorIs(t, check(pgtest.Database(t)), postgres.ErrSchema)
}

func TestRailProxysRoleCannotTouchMoneyOrClaims(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t, migrations.PayDB())
	conn := pgtest.Connect(t, pgtest.Login(t, database, "railapp"))
	for _, sql := range []string{
		`UPDATE account SET balance_minor = 0`, `UPDATE account SET fence = 1`, `SELECT balance_minor FROM account`,
		`INSERT INTO ledger_entry (entry_id) VALUES (gen_random_uuid())`, `SELECT 1 FROM ledger_entry`,
		`UPDATE payout SET claim_token = 1`, `DELETE FROM payout`, `UPDATE rail_submission SET presented_token = 1`, `DELETE FROM rail_submission`,
	} {
		_, err := conn.Exec(t.Context(), sql)
		require.ErrorIs(t, postgres.Classify(t.Context(), err), postgres.ErrPermission, sql)
	}
}
