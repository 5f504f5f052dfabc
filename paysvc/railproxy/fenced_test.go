package railproxy_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"fenceline/internal/daemon"
	"fenceline/internal/pgserver/pgtest"
	"fenceline/internal/postgres"
	"fenceline/lockd/lock"
	"fenceline/migrations"
	"fenceline/paysvc/payapi"
	"fenceline/paysvc/paydb"
	"fenceline/paysvc/payout"
	"fenceline/paysvc/railproxy"
	"fenceline/paysvc/railproxy/railapi"
	"fenceline/paysvc/railproxy/submission"
	"fenceline/paysvc/railstub"
)

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	_, err := w.conn.Exec(w.t.Context(), sql, args...)
	require.NoError(w.t, err)
}

// mark is the account's, 0 when it has none.
func (w *world) mark() (mark int64) {
	w.t.Helper()
	require.NoError(w.t, w.conn.QueryRow(w.t.Context(), `SELECT coalesce(max(highest_token), 0) FROM rail_high_water WHERE account_id = $1`, w.account).Scan(&mark))
	return mark
}

func TestIntentIsOnRecordBeforeTheRailHearsOfTheTransfer(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t, migrations.PayDB())
	id := uuid.New()
	var outcomeKnown bool
	var state string
	var mark int64
	rail := httptest.NewServer(http.HandlerFunc(func(answer http.ResponseWriter, request *http.Request) {
		conn, err := pgx.Connect(request.Context(), database)
		if err == nil {
			err = conn.QueryRow(request.Context(), `SELECT s.outcome IS NOT NULL, p.state, h.highest_token FROM rail_submission s JOIN payout p USING (payout_id)
				JOIN rail_high_water h USING (account_id)`).Scan(&outcomeKnown, &state, &mark)
			_ = conn.Close(request.Context())
		}
		if err != nil {
			t.Errorf("at the rail: %v", err)
		}
		_, _ = answer.Write([]byte(`{"railReference":"rail-1","clientReference":"` + id.String() + `"}`))
	}))
	t.Cleanup(rail.Close)
	w := newWorldIn(t, true, database, rail.URL, railstub.Plan{})
	w.insertClaimed(id, 7)
	got := w.submit(id, 7)
	require.Equal(t, 200, got.status, string(got.body))
	require.False(t, outcomeKnown)
	require.Equal(t, "RAIL_SUBMITTED", state)
	require.EqualValues(t, 7, mark)
	require.Equal(t, []row{{7, new("ACKED"), new("rail-1"), true}}, w.rows(id))
	require.Equal(t, "RAIL_ACKED", w.state(id))
}

func TestFencedModeAnswersEveryFaultOfTheRailLikePlainMode(t *testing.T) {
	t.Parallel()
	for kind, c := range map[railstub.Kind]struct {
		transfers, status int
		code, outcome     string
		state             string
	}{
		railstub.KindDecline: {0, 422, railapi.CodeRailRejected, "REJECTED", "FAILED"},
		railstub.KindDrop:    {0, 409, payapi.CodeRailAmbiguous, "TIMEOUT", "RAIL_AMBIGUOUS"},
		railstub.KindLost:    {1, 409, payapi.CodeRailAmbiguous, "TIMEOUT", "RAIL_AMBIGUOUS"},
	} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			w := newFencedWorld(t, "", railstub.Plan{Chances: map[railstub.Kind]float64{kind: 1}})
			id := w.claimedPayout(7)
			got := w.submit(id, 7)
			require.Equal(t, c.status, got.status, string(got.body))
			require.Equal(t, c.code, got.code(t))
			require.Equal(t, []row{{7, new(c.outcome), nil, true}}, w.rows(id))
			require.Equal(t, c.state, w.state(id))
			require.Len(t, w.transfers(), c.transfers)
			require.Equal(t, 1, w.counts.outcomes[submission.Outcome(c.outcome)])
		})
	}
}

// A timeout is the absence of information. Nobody submits that payout again: not the same holder, not a later one, not through another replica.
func TestAmbiguousSubmissionIsNeverPresentedAgainByAnybodyUnderAnyToken(t *testing.T) {
	t.Parallel()
	w := newFencedWorld(t, "", railstub.Plan{Chances: map[railstub.Kind]float64{railstub.KindLost: 1}})
	id := w.claimedPayout(7)
	require.Equal(t, payapi.CodeRailAmbiguous, w.submit(id, 7).code(t))
	first := w.proxy
	for i, token := range []int64{8, 900} {
		w.proxy = []string{first, w.replica()}[i]
		got := w.submit(id, token)
		require.Equal(t, 409, got.status, string(got.body))
		e := got.envelope(t)
		require.Equal(t, payapi.CodeRailAmbiguous, e.Code)
		require.False(t, e.RetrySafe)
		require.Equal(t, "unknown", e.Details[railapi.DetailOutcome])
		require.NotEmpty(t, e.Details[railapi.DetailSubmissionID])
		require.Equal(t, token, w.mark(), "the raised mark stays")
	}
	require.Equal(t, payapi.CodeFencedOut, w.submit(id, 7).code(t))
	require.Len(t, w.transfers(), 1)
	require.Equal(t, "RAIL_AMBIGUOUS", w.state(id))
	require.Equal(t, 3, w.counts.duplicates)

	// An intent without an outcome, as a rail-proxy leaves it that died in between, is as unknown.
	dead := w.claimedPayout(901)
	w.exec(`INSERT INTO rail_submission (submission_id, payout_id, idempotency_key, presented_token) VALUES (gen_random_uuid(), $1, 'k', 901)`, dead)
	w.exec(`UPDATE payout SET state = 'RAIL_SUBMITTED' WHERE payout_id = $1`, dead)
	require.Equal(t, payapi.CodeRailAmbiguous, w.submit(dead, 902).code(t))
	require.Len(t, w.transfers(), 1)
}

func TestSubmissionWithAKnownEndIsADuplicate(t *testing.T) {
	t.Parallel()
	w := newFencedWorld(t, "", railstub.Plan{})
	id := w.claimedPayout(7)
	require.Equal(t, 200, w.submit(id, 7).status)
	got := w.submit(id, 8)
	require.Equal(t, 409, got.status, string(got.body))
	e := got.envelope(t)
	require.Equal(t, payapi.CodeDuplicateSubmission, e.Code)
	require.Equal(t, "ACKED", e.Details[railapi.DetailRailOutcome])
	require.Equal(t, w.transfers()[0].RailReference, e.Details[railapi.DetailRailReference])
	require.Len(t, w.transfers(), 1)
	require.EqualValues(t, 8, w.mark(), "the raised mark stays")
	events := w.events("duplicate_rail_submission_attempted")
	require.Len(t, events, 1)
	require.NotEmpty(t, events[0]["firstSubmittedAt"])
	require.Equal(t, payapi.CodeFencedOut, w.submit(w.claimedPayout(7), 7).code(t), "a stale holder finds it")
}

func TestStaleSubmissionIsRefusedRecordedLoggedAndCounted(t *testing.T) {
	t.Parallel()
	w := newFencedWorld(t, "", railstub.Plan{})
	id, other := w.claimedPayout(33), w.claimedPayout(33)
	require.Equal(t, 200, w.submit(id, 34).status)
	for _, stale := range []uuid.UUID{id, other} { // the payout itself, and another one of the account
		got := w.submit(stale, 33)
		require.Equal(t, 409, got.status, string(got.body))
		e := got.envelope(t)
		require.Equal(t, payapi.CodeFencedOut, e.Code)
		require.False(t, e.RetrySafe)
		require.Equal(t, map[string]any{
			"presentedToken": 33.0, "highestToken": 34.0, "resourceType": "rail", "resourceId": w.account.String(), "ownerId": "worker",
		}, e.Details)
	}
	require.Equal(t, []row{{33, new("FENCED"), nil, true}}, w.rows(other))
	require.Len(t, w.rows(id), 2)
	require.Len(t, w.transfers(), 1)
	require.Equal(t, "CLAIMED", w.state(other))
	require.Equal(t, []int{2, 2, 2}, []int{w.counts.fencedOut, w.counts.duplicates, w.counts.outcomes[submission.Fenced]})
	events := w.events("duplicate_rail_submission_attempted")
	require.Len(t, events, 2)
	for i, e := range events {
		require.Equal(t, "error", e["@level"])
		require.Equal(t, []uuid.UUID{id, other}[i].String(), e["payoutId"])
		require.EqualValues(t, 33, e["presentedToken"])
		require.EqualValues(t, 34, e["highestToken"])
		require.Equal(t, i == 1, e["firstSubmittedAt"] == "")
	}
	for _, e := range w.events("fenced_out") {
		for field, want := range map[string]any{
			"@level": "error", "resource": "rail", "resourceId": w.account.String(), "presentedToken": 33.0, "highestToken": 34.0, "ownerId": "worker", "route": "submit",
		} {
			require.Equal(t, want, e[field], field)
		}
	}
	require.Equal(t, payapi.CodeFencedOut, w.submit(w.claimedPayout(34), 34).code(t), "one grant, one submission")
}

// The mark knows only who has submitted. A newer holder that has claimed and not submitted yet is known to the payout.
func TestSubmissionUnderAnOlderTokenThanTheClaimIsFencedOut(t *testing.T) {
	t.Parallel()
	w := newFencedWorld(t, "", railstub.Plan{})
	id := w.claimedPayout(34)
	got := w.submit(id, 33)
	require.Equal(t, payapi.CodeFencedOut, got.code(t))
	require.EqualValues(t, 34, got.envelope(t).Details["highestToken"])
	require.Empty(t, w.transfers())
	require.Equal(t, 200, w.submit(id, 34).status)
	require.Len(t, w.transfers(), 1)
}

// Every state against the rail-proxy's events: what the machine doesn't have is refused, logged and counted, and presents nothing.
func TestRailProxyTakesExactlyTheMachinesArrows(t *testing.T) {
	t.Parallel()
	w := newFencedWorld(t, "", railstub.Plan{})
	token, refused, presented := int64(100), 0, 0
	for _, state := range payout.States() {
		token++
		id := w.claimedPayout(5)
		w.put(id, state)
		got := w.submit(id, token)
		if _, err := payout.Next(state, payout.Submit); err == nil {
			presented++
			require.Equal(t, 200, got.status, string(got.body))
			continue
		}
		refused++
		require.Equal(t, payapi.CodePayoutNotSubmittable, got.code(t), state)
		require.Equal(t, string(state), got.envelope(t).Details["state"])
		require.Equal(t, string(state), w.state(id))
		require.Empty(t, w.rows(id))
		events := w.events("transition_refused")
		require.Len(t, events, refused)
		require.Equal(t, []any{string(state), "submit"}, []any{events[refused-1]["state"], events[refused-1]["transition"]})
		require.Equal(t, refused, w.counts.refused)
	}
	require.Equal(t, 1, presented)
	require.Len(t, w.transfers(), presented)
	w.outcomesTakeTheMachinesArrows()
}

func (w *world) put(id uuid.UUID, state payout.State) {
	w.t.Helper()
	w.exec(`UPDATE payout SET state = $2, claimed_by = CASE $2 WHEN 'PENDING' THEN NULL ELSE 'x' END, claim_token = CASE $2 WHEN 'PENDING' THEN NULL ELSE 5 END WHERE payout_id = $1`, id, state)
}

func (w *world) outcomesTakeTheMachinesArrows() {
	t := w.t
	pool, err := postgres.Open(t.Context(), postgres.Config{URL: w.login})
	require.NoError(t, err)
	defer pool.Close()
	store := paydb.NewFencedRail(pool, 3*time.Second)
	for _, state := range payout.States() {
		for _, outcome := range []submission.Outcome{submission.Acked, submission.Rejected, submission.Timeout} {
			id := w.claimedPayout(5)
			w.put(id, state)
			s := submission.Submission{ID: uuid.New(), PayoutID: id, Outcome: outcome, ResolvedAt: time.Now()}
			w.exec(`INSERT INTO rail_submission (submission_id, payout_id, idempotency_key, presented_token) VALUES ($1, $2, 'k', 5)`, s.ID, id)
			recorded, err := store.Resolve(t.Context(), s)
			require.NoError(t, err)
			require.True(t, recorded.Inserted, "what the rail said is recorded in any state")
			event, _ := outcome.Event()
			next, err := payout.Next(state, event)
			if err != nil {
				require.Equal(t, &submission.RefusedTransition{From: state, Event: event}, recorded.Refused)
				next = state
			}
			require.Equal(t, string(next), w.state(id), "%s in %s", event, state)
			recorded, err = store.Resolve(t.Context(), s)
			require.NoError(t, err)
			require.False(t, recorded.Inserted, "an outcome that is known stays")
		}
	}
}

func TestRailThatIsDownLeavesNothingOnRecordInFencedModeEither(t *testing.T) {
	t.Parallel()
	l, err := daemon.Listen(t.Context(), "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	w := newFencedWorld(t, "http://"+l.Addr().String(), railstub.Plan{})
	id := w.claimedPayout(7)
	got := w.submit(id, 7)
	require.Equal(t, 503, got.status)
	require.Equal(t, payapi.CodeRailUnavailable, got.code(t))
	require.True(t, got.envelope(t).RetrySafe)
	require.Empty(t, w.rows(id))
	require.Zero(t, w.mark())
	require.Equal(t, "CLAIMED", w.state(id))
}

// vanishing is a rail that is there when it is asked and gone when it is to be told.
type vanishing struct{}

func (vanishing) Reachable(context.Context) error { return nil }

func (vanishing) Present(context.Context, railproxy.Instruction) railproxy.Verdict {
	return railproxy.Verdict{Err: railproxy.ErrRailUnavailable}
}

func TestRailThatVanishesAfterTheAdmissionFailsThePayout(t *testing.T) {
	t.Parallel()
	w := newFencedWorld(t, "", railstub.Plan{})
	id := w.claimedPayout(7)
	pool, err := postgres.Open(t.Context(), postgres.Config{URL: w.login})
	require.NoError(t, err)
	defer pool.Close()
	service := railproxy.NewFencedService(paydb.NewFencedRail(pool, time.Second), vanishing{}, time.Second, hclog.NewNullLogger(), w.counts)
	_, err = service.Submit(t.Context(), railproxy.Instruction{
		PayoutID: id, AccountID: w.account, Money: payout.Money{Minor: 2500, Currency: "EUR"}, BeneficiaryRef: "b", IdempotencyKey: "k",
		Holder: payout.Holder{Owner: "worker", Token: lock.Token(7)},
	})
	var withdrawn *railproxy.WithdrawnError
	require.ErrorAs(t, err, &withdrawn)
	require.ErrorIs(t, err, railproxy.ErrRailUnavailable)
	require.Equal(t, []row{{7, new("REJECTED"), nil, true}}, w.rows(id))
	require.Equal(t, "FAILED", w.state(id))
}

// paydb fails in each step. Before the presentation nothing is presented; after it the submission stays unknown to everybody, for good.
func TestDatabaseThatFailsInAStepNeverLeadsToASecondTransfer(t *testing.T) {
	t.Parallel()
	w := newFencedWorld(t, "", railstub.Plan{})
	id := w.claimedPayout(7)
	for _, right := range []string{"INSERT ON rail_high_water", "INSERT ON rail_submission", "UPDATE (state) ON payout"} {
		w.exec("REVOKE " + right + " FROM railapp")
		got := w.submit(id, 7)
		require.Equal(t, 500, got.status, string(got.body))
		require.Contains(t, got.envelope(t).Message, "nothing was presented")
		w.exec("GRANT " + right + " TO railapp")
		require.Empty(t, w.transfers(), right)
		require.Empty(t, w.rows(id), right)
		require.Equal(t, "CLAIMED", w.state(id), right)
		w.unharmed(right)
	}
	w.exec("REVOKE UPDATE (outcome) ON rail_submission FROM railapp")
	got := w.submit(id, 7)
	require.Equal(t, 503, got.status, string(got.body))
	require.Equal(t, payapi.CodeOutcomeUnknown, got.code(t))
	require.Equal(t, "ACKED", got.envelope(t).Details[railapi.DetailRailOutcome])
	w.exec("GRANT UPDATE (outcome) ON rail_submission TO railapp")
	require.Equal(t, []row{{7, nil, nil, false}}, w.rows(id))
	require.Equal(t, "RAIL_SUBMITTED", w.state(id))
	require.Equal(t, payapi.CodeRailAmbiguous, w.submit(id, 8).code(t))
	require.Len(t, w.transfers(), 1)
	w.unharmed("an outcome that couldn't be recorded")
}

func TestLostAnswerToTheAdmissionsCommitPresentsNothing(t *testing.T) {
	t.Parallel()
	w := newFencedWorld(t, "", railstub.Plan{})
	id := w.claimedPayout(7)
	w.exec(`CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
	        BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(10); RETURN NULL; END $$`)
	w.exec(`CREATE CONSTRAINT TRIGGER die AFTER INSERT ON rail_submission DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION die()`)
	got := w.submit(id, 7)
	require.Equal(t, 503, got.status, string(got.body))
	require.Equal(t, payapi.CodeOutcomeUnknown, got.code(t))
	require.Contains(t, got.envelope(t).Message, "nothing was presented")
	require.Empty(t, w.transfers())
}

func TestSubmissionsAtOnceThroughTwoReplicasMakeOneTransfer(t *testing.T) {
	t.Parallel()
	w := newFencedWorld(t, "", railstub.Plan{Latency: 50 * time.Millisecond})
	id := w.claimedPayout(1)
	replicas := []*world{w, {t: t, proxy: w.replica(), account: w.account}}
	var wg sync.WaitGroup
	for i := range int64(12) {
		wg.Go(func() { replicas[i%2].submit(id, 1+i) })
	}
	wg.Wait()
	require.Len(t, w.transfers(), 1)
	require.Equal(t, "RAIL_ACKED", w.state(id))
}
