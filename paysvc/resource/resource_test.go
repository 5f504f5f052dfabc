package resource_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"fenceline/internal/daemon"
	"fenceline/internal/pgserver/pgtest"
	"fenceline/internal/postgres"
	"fenceline/migrations"
	"fenceline/paysvc/payapi"
	"fenceline/paysvc/paydb"
	"fenceline/paysvc/resource"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// Accounts of the synthetic data. The payer opens with 100 000, the poor one with 1 000.
const (
	clearing = "00000000-0000-4000-8000-000000000001"
	payer    = "00000000-0000-4000-8000-000000000101"
	poor     = "00000000-0000-4000-8000-000000000107"
	opening  = 100_000
)

// bench is a payment-resource on a port of its own, over a fresh paydb and under the role payapp.
type bench struct {
	t        *testing.T
	url      string
	owner    *pgx.Conn // the database's owner, to look and to prepare with
	registry *prometheus.Registry
	log      *lines
}

// lines keeps a log.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// events returns the log's events of that name.
func (l *lines) events(t *testing.T, name string) []map[string]any {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	var found []map[string]any
	for line := range strings.Lines(l.text.String()) {
		var event map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &event), line)
		if event["event"] == name {
			found = append(found, event)
		}
	}
	return found
}

func newBench(t *testing.T) *bench {
	t.Helper()
	return newBenchOf(t, "payapp", func(pool *pgxpool.Pool) resource.Store {
		return paydb.NewPlain(pool, uuid.MustParse(clearing), 3*time.Second)
	})
}

// newFencedBench is newBench in fenced mode.
func newFencedBench(t *testing.T) *bench {
	t.Helper()
	return newBenchOf(t, "payapp_fenced", func(pool *pgxpool.Pool) resource.Store {
		return paydb.NewFenced(pool, uuid.MustParse(clearing), 3*time.Second)
	})
}

func newBenchOf(t *testing.T, role string, store func(*pgxpool.Pool) resource.Store) *bench {
	t.Helper()
	t.Parallel()
	database := pgtest.Database(t, migrations.PayDB(), migrations.SeedPayDB())
	pool, err := postgres.Open(t.Context(), postgres.Config{URL: pgtest.Login(t, database, role)})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	b := &bench{t: t, owner: pgtest.Connect(t, database), registry: prometheus.NewRegistry(), log: &lines{}}
	logger, err := daemon.NewLogger("payment-resource", "info", b.log)
	require.NoError(t, err)
	server := resource.NewServer(store(pool), logger, b.registry)
	l, err := daemon.Listen(t.Context(), "127.0.0.1:0")
	require.NoError(t, err)
	daemon.ServeHTTP("api", l, server, hclog.NewNullLogger(), make(chan error, 1))
	t.Cleanup(func() { require.NoError(t, server.ShutdownWithContext(context.Background())) })
	b.url = "http://" + l.Addr().String()
	return b
}

// answer is what came back.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// counter returns a counter without labels by its name.
func (b *bench) counter(name string) prometheus.Collector {
	b.t.Helper()
	families, err := b.registry.Gather()
	require.NoError(b.t, err)
	for _, family := range families {
		if family.GetName() == name {
			return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name}, family.GetMetric()[0].GetCounter().GetValue)
		}
	}
	b.t.Fatalf("no metric %s", name)
	return nil
}

// do sends a request; headers are pairs of name and value.
func (b *bench) do(method, path, body string, headers ...string) answer {
	b.t.Helper()
	request, err := http.NewRequestWithContext(b.t.Context(), method, b.url+path, strings.NewReader(body))
	require.NoError(b.t, err)
	for i := 0; i < len(headers); i += 2 {
		request.Header.Add(headers[i], headers[i+1])
	}
	response, err := http.DefaultClient.Do(request)
	require.NoError(b.t, err)
	defer func() { _ = response.Body.Close() }()
	read, err := io.ReadAll(response.Body)
	require.NoError(b.t, err)
	return answer{response.StatusCode, response.Header, read}
}

// into wants the status and decodes the body.
func (a answer) into(t *testing.T, status int, v any) {
	t.Helper()
	require.Equal(t, status, a.status, string(a.body))
	require.Equal(t, "application/json; charset=utf-8", a.header.Get("Content-Type"))
	require.NoError(t, json.Unmarshal(a.body, v))
}

// refused wants a refusal in the envelope.
func (a answer) refused(t *testing.T, status int, code string) payapi.Error {
	t.Helper()
	var e payapi.Error
	a.into(t, status, &e)
	require.Equal(t, code, e.Code, e.Message)
	require.NotEmpty(t, e.Message)
	require.Len(t, e.TraceID, 32)
	return e
}

// holder are the headers of a write.
func holder(owner string, token int64) []string {
	return []string{payapi.HeaderOwner, owner, payapi.HeaderToken, fmt.Sprint(token)}
}

func (b *bench) createFor(account string, amount int64) payapi.Payout {
	b.t.Helper()
	var p payapi.Payout
	b.do("POST", payapi.PathPayouts, fmt.Sprintf(`{"accountId":%q,"amountMinor":%d,"currency":"EUR"}`, account, amount),
		payapi.HeaderOwner, "clerk", payapi.HeaderIdempotencyKey, "key-"+uuid.NewString()).into(b.t, 201, &p)
	return p
}

func (b *bench) claim(id, expected string, headers ...string) answer {
	b.t.Helper()
	return b.do("POST", "/v1/payouts/"+id+"/claim", fmt.Sprintf(`{"expectedState":%q}`, expected), withKey(id, headers)...)
}

// withKey adds the idempotency key that a worker derives from the payout's id, unless there is one.
func withKey(id string, headers []string) []string {
	if slices.Contains(headers, payapi.HeaderIdempotencyKey) {
		return headers
	}
	return append(slices.Clone(headers), payapi.HeaderIdempotencyKey, "payout-"+id)
}

func (b *bench) post(id string, headers ...string) answer {
	b.t.Helper()
	return b.do("POST", "/v1/payouts/"+id+"/post", `{"railReference":"rail-1","submissionId":"7f3e2d1c-0000-4000-8000-000000000000"}`, withKey(id, headers)...)
}

func (b *bench) account(id string) payapi.Account {
	b.t.Helper()
	var a payapi.Account
	b.do("GET", "/v1/accounts/"+id, "").into(b.t, 200, &a)
	return a
}

func (b *bench) payout(id string) payapi.Payout {
	b.t.Helper()
	var p payapi.Payout
	b.do("GET", "/v1/payouts/"+id, "").into(b.t, 200, &p)
	return p
}

func TestPayoutGoesFromPendingToPosted(t *testing.T) {
	b := newBench(t)
	p := b.createFor(payer, 2500)
	require.Equal(t, "PENDING", p.State)
	require.Empty(t, p.ClaimedBy)
	require.Equal(t, p, b.payout(p.PayoutID))

	var claimed payapi.Payout
	b.claim(p.PayoutID, "PENDING", holder("worker-a", 34)...).into(t, 200, &claimed)
	require.Equal(t, "CLAIMED", claimed.State)
	require.Equal(t, "worker-a", claimed.ClaimedBy)
	require.EqualValues(t, 34, claimed.ClaimToken)
	require.Equal(t, 1, claimed.AttemptCount)
	_, err := b.owner.Exec(t.Context(), "UPDATE payout SET state = 'RAIL_ACKED' WHERE payout_id = $1", p.PayoutID) // the rail-proxy's part
	require.NoError(t, err)

	var posting payapi.Posting
	b.post(p.PayoutID, holder("worker-a", 34)...).into(t, 200, &posting)
	require.Equal(t, "POSTED", posting.State)
	require.EqualValues(t, opening-2500, posting.BalanceMinor)
	require.Len(t, posting.Entries, 2)
	require.Equal(t, "DEBIT", posting.Entries[0].Direction)
	require.Equal(t, payer, posting.Entries[0].AccountID)
	require.Equal(t, "CREDIT", posting.Entries[1].Direction)
	require.Equal(t, clearing, posting.Entries[1].AccountID)
	for _, e := range posting.Entries {
		require.EqualValues(t, 2500, e.AmountMinor)
		require.EqualValues(t, 34, e.FencingToken)
	}
	a := b.account(payer)
	require.Equal(t, "EUR", a.Currency)
	require.EqualValues(t, opening-2500, a.BalanceMinor)
	require.Equal(t, a.BalanceMinor, a.LedgerSumMinor)

	for name, fields := range map[string][]string{
		"payout_claimed": {"payoutId", "accountId", "token", "attemptCount", "ownerId", "traceId", "service"},
		"payout_posted":  {"payoutId", "accountId", "amountMinor", "currency", "submissionId", "railReference", "token", "ownerId", "traceId", "service"},
	} {
		events := b.log.events(t, name)
		require.Len(t, events, 1)
		for _, field := range fields {
			require.NotEmpty(t, events[0][field], "%s.%s", name, field)
		}
	}
}

// What plain mode is for: nothing in the resource refuses the stale holder. The sidecar does.
func TestStaleHolderPostsASecondTimeAndTheBalanceNoLongerIsTheSumOfTheEntries(t *testing.T) {
	b := newBench(t)
	p := b.createFor(payer, 2500)
	require.Equal(t, 200, b.claim(p.PayoutID, "PENDING", holder("a", 33)...).status)
	require.Equal(t, 200, b.claim(p.PayoutID, "CLAIMED", holder("b", 34)...).status)
	require.Equal(t, 200, b.post(p.PayoutID, holder("b", 34)...).status)
	require.Equal(t, 200, b.post(p.PayoutID, holder("a", 33)...).status)
	a := b.account(payer)
	require.EqualValues(t, opening-2*2500, a.BalanceMinor)
	require.EqualValues(t, opening-2500, a.LedgerSumMinor)
}

func TestClaimThatTheStateForbidsIsRefusedLoggedAndCounted(t *testing.T) {
	b := newBench(t)
	p := b.createFor(payer, 2500)
	require.Equal(t, 200, b.claim(p.PayoutID, "PENDING", holder("a", 33)...).status)
	e := b.claim(p.PayoutID, "PENDING", holder("b", 34)...).refused(t, 409, payapi.CodePayoutNotClaimable)
	require.False(t, e.RetrySafe)
	require.Equal(t, map[string]any{"state": "CLAIMED", "expectedState": "PENDING"}, e.Details)
	events := b.log.events(t, "transition_refused")
	require.Len(t, events, 1)
	require.Equal(t, p.PayoutID, events[0]["payoutId"])
	require.Equal(t, "CLAIMED", events[0]["state"])
	require.Equal(t, "claim", events[0]["transition"])
	require.EqualValues(t, 34, events[0]["token"])
	require.Equal(t, "b", events[0]["ownerId"])
	require.Equal(t, e.TraceID, events[0]["traceId"])
	require.NoError(t, testutil.GatherAndCompare(b.registry, strings.NewReader(`# HELP payout_transition_refused_total Transitions that the state machine doesn't have.
# TYPE payout_transition_refused_total counter
payout_transition_refused_total 1
`), "payout_transition_refused_total"))
}

func TestInsufficientFundsAreUnprocessableAndFailThePayout(t *testing.T) {
	b := newBench(t)
	p := b.createFor(poor, 1001)
	e := b.claim(p.PayoutID, "PENDING", holder("a", 33)...).refused(t, 422, payapi.CodeInsufficientFunds)
	require.Equal(t, map[string]any{"state": "FAILED", "balanceMinor": 1000.0, "amountMinor": 1001.0}, e.Details)
	require.Equal(t, "FAILED", b.payout(p.PayoutID).State)
	b.claim(p.PayoutID, "PENDING", holder("a", 34)...).refused(t, 409, payapi.CodePayoutNotClaimable)

	b.post(p.PayoutID, holder("a", 33)...).refused(t, 422, payapi.CodeInsufficientFunds)
	require.EqualValues(t, 1000, b.account(poor).BalanceMinor)
}

func TestPostingThatEndsBetweenItsTransactionsSaysSo(t *testing.T) {
	b := newBench(t)
	p := b.createFor(payer, 2500)
	e := b.post(p.PayoutID, holder("a", 33)...).refused(t, 500, payapi.CodePostingIncomplete)
	require.False(t, e.RetrySafe)
	require.Equal(t, map[string]any{"outcome": "incomplete", "debited": true}, e.Details)
	require.Len(t, b.log.events(t, "request_failed"), 1)
}

func TestCreatingIsIdempotentByItsKey(t *testing.T) {
	b := newBench(t)
	send := func(key, body string) answer {
		return b.do("POST", payapi.PathPayouts, body, payapi.HeaderOwner, "clerk", payapi.HeaderIdempotencyKey, key)
	}
	body := fmt.Sprintf(`{"accountId":%q,"amountMinor":2500,"currency":"EUR"}`, payer)
	var first, second payapi.Payout
	send("k1", body).into(t, 201, &first)
	send("k1", body).into(t, 201, &second)
	require.Equal(t, first, second)
	e := send("k1", strings.Replace(body, "2500", "2501", 1)).refused(t, 409, payapi.CodeIdempotencyConflict)
	require.False(t, e.RetrySafe)
	send("k2", strings.Replace(body, payer, uuid.NewString(), 1)).refused(t, 404, payapi.CodeAccountNotFound)
	send("k3", strings.Replace(body, "EUR", "USD", 1)).refused(t, 400, payapi.CodeValidationFailed)
	send("k4", strings.Replace(body, payer, clearing, 1)).refused(t, 400, payapi.CodeValidationFailed)
	var most payapi.Payout
	send("k5", strings.Replace(body, "2500", "9223372036854775807", 1)).into(t, 201, &most)
	require.EqualValues(t, 1<<63-1, most.AmountMinor)
}

func TestListPagesWithACursorThatComesOnlyWhenAnotherRowExists(t *testing.T) {
	b := newBench(t)
	var want []string
	for range 5 {
		want = append(want, b.createFor(payer, 1).PayoutID)
	}
	for limit := 1; limit <= 6; limit++ {
		var got []string
		for cursor := ""; ; {
			var page payapi.PayoutPage
			b.do("GET", fmt.Sprintf("/v1/payouts?state=PENDING&accountId=%s&limit=%d&cursor=%s", payer, limit, cursor), "").into(t, 200, &page)
			require.NotEmpty(t, page.Payouts)
			for _, p := range page.Payouts {
				got = append(got, p.PayoutID)
			}
			if cursor = page.NextCursor; cursor == "" {
				break
			}
		}
		require.Equal(t, want, got, "limit %d", limit)
	}
	none := b.do("GET", "/v1/payouts?state=ABANDONED", "")
	require.JSONEq(t, `{"payouts":[]}`, string(none.body))
}

func TestEverySeriesExistsFromTheStart(t *testing.T) {
	b := newBench(t)
	count, err := testutil.GatherAndCount(b.registry, "http_requests_total", "http_request_seconds", "payout_transition_refused_total", "payout_request_replayed_total")
	require.NoError(t, err)
	require.Equal(t, 7*3+7+2, count)
	b.payout(b.createFor(payer, 1).PayoutID)
	b.do("GET", "/nowhere", "")
	again, err := testutil.GatherAndCount(b.registry, "http_requests_total", "http_request_seconds", "payout_transition_refused_total", "payout_request_replayed_total")
	require.NoError(t, err)
	require.Equal(t, count, again, "requests add no series")
}
