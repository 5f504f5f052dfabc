package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/valyala/fasthttp"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/internal/postgres"
	"fenceline/lockd/lock"
	"fenceline/migrations"
	"fenceline/sidecar/config"
	"fenceline/sidecar/gate"
	"fenceline/sidecar/mark"
	"fenceline/sidecar/mark/pgmark"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// payConfig guards accounts whose key is looked up from a payout, as before the payment-resource.
const payConfig = `
version: 1
id: test
listen: 127.0.0.1:0
upstream: { url: "http://UPSTREAM", response_timeout: 2s }
store: { postgres: { url: "postgres://unused@127.0.0.1:1/none" } }
guards:
  - name: account
    mark: { table: account, key: account_id, key_type: uuid, token: fence, updated_at: updated_at, missing: reject }
    order: admissions
routes:
  - name: claim
    match: { methods: [POST], path: "/payouts/{payout_id}/claim" }
    guard: account
    admit: newer_or_same
    key: { lookup: { sql: "SELECT account_id FROM payout WHERE payout_id = @payout_id::uuid", cache: immutable } }
  - name: body
    match: { methods: [POST], path: "/accounts" }
    guard: account
    admit: newer
    key: { json: /accountId }
`

// payment is a proxy before a resource that looks at the mark, on a real database.
type payment struct {
	address string
	account string
	payout  string
	admin   func(sql string, args ...any) // as the owner

	mu   sync.Mutex
	seen []int64 // the mark, as the resource found it when each request arrived
}

func (p *payment) requests() []int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]int64(nil), p.seen...)
}

func newPayment(t *testing.T, owner string, change ...func(*Proxy)) *payment {
	t.Helper()
	p := &payment{account: uuid.NewString(), payout: uuid.NewString()}
	conn := pgtest.Connect(t, owner)
	p.admin = func(sql string, args ...any) {
		_, err := conn.Exec(t.Context(), sql, args...)
		require.NoError(t, err)
	}
	p.admin("INSERT INTO account (account_id, currency, balance_minor) VALUES ($1, 'EUR', 100)", p.account)
	p.admin("INSERT INTO payout (payout_id, account_id, amount_minor, currency, idempotency_key) VALUES ($1, $2, 1, 'EUR', $3)", p.payout, p.account, p.payout)

	looker, err := postgres.Open(t.Context(), postgres.Config{URL: owner})
	require.NoError(t, err)
	t.Cleanup(looker.Close)
	resource := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var fence int64
		// Another connection sees only what has been committed.
		if err := looker.QueryRow(r.Context(), "SELECT fence FROM account WHERE account_id = $1", p.account).Scan(&fence); err != nil {
			fence = -1
		}
		p.mu.Lock()
		p.seen = append(p.seen, fence)
		p.mu.Unlock()
		_, _ = io.WriteString(w, "done")
	}))
	t.Cleanup(resource.Close)

	pool, err := postgres.Open(t.Context(), postgres.Config{URL: pgtest.Login(t, owner, "fence_account"), MaxConns: 4, ConnectTimeout: time.Second})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	cfg, err := config.Load([]byte(strings.ReplaceAll(payConfig, "UPSTREAM", "127.0.0.1:1")), "pay.yaml", func(string) (string, bool) { return "", false })
	require.NoError(t, err)
	store := pgmark.New(pool, cfg.Guards, time.Second, 1_000_000)
	p.address = startProxy(t, payConfig, strings.TrimPrefix(resource.URL, "http://"), store, change...)
	return p
}

// answerOf is a response taken apart.
type answerOf struct {
	status   int
	decision string
	Code     string
	Details  map[string]any
	Retry    bool `json:"retrySafe"`
}

func (p *payment) post(t *testing.T, path, token, body string) answerOf {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+p.address+path, strings.NewReader(body))
	require.NoError(t, err)
	request.Header.Set("X-Owner-Id", "worker-a")
	if token != "" {
		request.Header.Set("X-Fencing-Token", token)
	}
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer func() { require.NoError(t, response.Body.Close()) }()
	a := answerOf{status: response.StatusCode, decision: response.Header.Get(headerDecision)}
	data, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	if response.StatusCode != http.StatusOK {
		require.NoError(t, json.Unmarshal(data, &a), "%s", data)
	}
	return a
}

func (p *payment) claim(t *testing.T, token string) answerOf {
	t.Helper()
	return p.post(t, "/payouts/"+p.payout+"/claim", token, "{}")
}

func TestStaleTokenIsRefusedWithEverythingThatItsOwnerMustKnow(t *testing.T) {
	t.Parallel()
	p := newPayment(t, pgtest.Database(t, migrations.PayDB(), migrations.Fence()))
	require.Equal(t, 200, p.claim(t, "34").status)
	require.Equal(t, 200, p.claim(t, "34").status, "claim and post share a token")
	refused := p.claim(t, "33")
	require.Equal(t, 409, refused.status)
	require.Equal(t, "FENCED_OUT", refused.Code)
	require.Equal(t, "fenced_out", refused.decision)
	require.False(t, refused.Retry)
	require.Equal(t, map[string]any{"presentedToken": 33.0, "highestToken": 34.0, "resourceType": "account", "resourceId": p.account, "ownerId": "worker-a"}, refused.Details)
	require.Equal(t, []int64{34, 34}, p.requests(), "the refused one never arrived")
}

func TestKeyComesFromTheDatabaseAndNotFromTheClient(t *testing.T) {
	t.Parallel()
	p := newPayment(t, pgtest.Database(t, migrations.PayDB(), migrations.Fence()))
	require.Equal(t, "KEY_NOT_FOUND", p.post(t, "/payouts/"+uuid.NewString()+"/claim", "5", "{}").Code)
	require.Equal(t, "KEY_NOT_FOUND", p.post(t, "/payouts/not-a-uuid/claim", "5", "{}").Code)
	require.Equal(t, "KEY_NOT_FOUND", p.post(t, "/accounts", "5", fmt.Sprintf(`{"accountId":%q}`, uuid.NewString())).Code)
	require.Equal(t, "KEY_INVALID", p.post(t, "/accounts", "5", `{"accountId":"7"}`).Code)
	require.Equal(t, "KEY_INVALID", p.post(t, "/accounts", "5", `not JSON`).Code)
	require.Equal(t, "TOKEN_IMPLAUSIBLE", p.claim(t, "9223372036854775807").Code)
	require.Empty(t, p.requests())
	require.Equal(t, 200, p.post(t, "/accounts", "5", fmt.Sprintf(`{"accountId":%q}`, strings.ToUpper(p.account))).status, "two spellings of a UUID are one key")
	require.Equal(t, "FENCED_OUT", p.post(t, "/accounts", "5", fmt.Sprintf(`{"accountId":%q}`, p.account)).Code, "each token once, where the route says newer")
}

// Whoever looks from another connection while the resource has the request finds the mark raised and committed.
func TestNothingIsForwardedBeforeItsAdmissionIsCommitted(t *testing.T) {
	t.Parallel()
	p := newPayment(t, pgtest.Database(t, migrations.PayDB(), migrations.Fence()))
	require.NoError(t, admissionComesFirst(t, p))
}

// The test above can fail: a proxy that forwards first is found out.
func TestForwardingBeforeTheAdmissionIsNoticed(t *testing.T) {
	t.Parallel()
	p := newPayment(t, pgtest.Database(t, migrations.PayDB(), migrations.Fence()), func(p *Proxy) { p.forwardFirst = true })
	require.ErrorContains(t, admissionComesFirst(t, p), "found the mark at 0")
}

func admissionComesFirst(t *testing.T, p *payment) error {
	t.Helper()
	for token := int64(1); token <= 20; token++ {
		if a := p.claim(t, fmt.Sprint(token)); a.status != 200 {
			return fmt.Errorf("token %d: %+v", token, a)
		}
		seen := p.requests()
		if mark := seen[len(seen)-1]; mark != token {
			return fmt.Errorf("the resource had the request with token %d and found the mark at %d", token, mark)
		}
	}
	return nil
}

func TestStoreThatIsDownRefusesEverythingAndRecoversByItself(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, nil)
	p := newPayment(t, pgtest.DatabaseOn(t, server, migrations.PayDB(), migrations.Fence()))
	require.Equal(t, 200, p.claim(t, "5").status)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	require.NoError(t, server.Crash(ctx))
	for token := range 5 {
		refused := p.claim(t, fmt.Sprint(100+token))
		require.Equal(t, 503, refused.status)
		require.Equal(t, "FENCE_UNAVAILABLE", refused.Code)
		require.Equal(t, "unavailable", refused.decision)
		require.True(t, refused.Retry)
		require.Equal(t, "not_sent", refused.Details["outcome"])
	}
	require.Len(t, p.requests(), 1, "nothing was forwarded without an admission")

	require.NoError(t, server.Restart(ctx))
	require.Eventually(t, func() bool { return p.claim(t, "200").status == 200 }, 20*time.Second, 20*time.Millisecond)
	require.Equal(t, "FENCED_OUT", p.claim(t, "199").Code)
}

// slowStore blocks until it is released, like a store that is full.
type slowStore struct {
	fakeStore
	entered chan struct{}
	release chan struct{}
}

func (s *slowStore) Admit(ctx context.Context, a mark.Admission) (mark.Decision, error) {
	s.entered <- struct{}{}
	<-s.release
	return s.fakeStore.Admit(ctx, a)
}

func TestRequestsBeyondTheLimitAreShed(t *testing.T) {
	t.Parallel()
	upstream := startUpstream(t, "ok")
	store := &slowStore{fakeStore: fakeStore{marks: map[string]lock.Token{}}, entered: make(chan struct{}, 2), release: make(chan struct{})}
	address := startProxy(t, strings.Replace(rawConfig, "limits: {", "limits: { in_flight: 2,", 1), upstream.addr(), store)
	const request = "POST /things/7 HTTP/1.1\r\nHost: a\r\nX-Fencing-Token: 5\r\nContent-Length: 0\r\n\r\n"
	var waiting sync.WaitGroup
	for range 2 {
		waiting.Go(func() {
			answer, _ := exchangeRaw(t, address, request)
			require.Contains(t, answer, "200 OK") //nolint:testifylint // fails the test from here too
		})
		<-store.entered
	}
	answer, _ := exchangeRaw(t, address, request)
	require.Contains(t, answer, "503 Service Unavailable")
	require.Contains(t, answer, `"code":"OVERLOADED"`)
	require.Contains(t, answer, `"outcome":"not_sent"`)
	close(store.release)
	waiting.Wait()
	require.Len(t, upstream.requests(), 2)
}

func TestResourceThatCannotBeReachedGotNothing(t *testing.T) {
	t.Parallel()
	gone := startUpstream(t, "ok")
	require.NoError(t, gone.listener.Close())
	address := startProxy(t, rawConfig, gone.addr(), &fakeStore{marks: map[string]lock.Token{}})
	answer, _ := exchangeRaw(t, address, "POST /things/7 HTTP/1.1\r\nHost: a\r\nX-Fencing-Token: 5\r\nContent-Length: 0\r\n\r\n")
	require.Contains(t, answer, "502 Bad Gateway")
	require.Contains(t, answer, `"outcome":"not_sent"`)
	require.Contains(t, answer, `"retrySafe":true`, "the same token is admitted again here")
	answer, _ = exchangeRaw(t, address, "POST /json HTTP/1.1\r\nHost: a\r\nX-Fencing-Token: 5\r\nContent-Length: 10\r\n\r\n{\"id\":\"k\"}")
	require.Contains(t, answer, `"outcome":"not_sent"`)
	require.Contains(t, answer, `"retrySafe":false`, "this token is used up")
}

// Idle connections that died, or that hold bytes nobody asked for, are found before a byte is written to them.
func TestDeadAndPoisonedConnectionsAreNotUsed(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"closed after the answer": "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok!",
		"a response nobody asked for": "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok" +
			"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			resource := startUpstream(t, script)
			u := &upstream{network: "tcp", address: resource.addr(), connectTimeout: time.Second, answerTimeout: 5 * time.Second, headLimit: 4096, bodyLimit: 1024}
			t.Cleanup(u.close)
			for range 20 {
				var response fasthttp.Response
				end, _, err := u.exchange(t.Context(), trip{
					request: []byte("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"), whole: func(*fasthttp.Response) bool { return true },
					begin: func(context.Context) error { return nil }, mayContinue: func() bool { return true },
				}, &response)
				require.NoError(t, err)
				require.Equal(t, gate.OutcomeSettled, gate.Settle(end, gate.UnfinishedStatus()))
				require.Equal(t, "ok", string(response.Body()))
				if conn := u.takeIdle(); conn != nil { // what the resource did is there before the next request looks
					require.Eventually(t, func() bool { return !quiet(conn.Conn) }, 30*time.Second, time.Millisecond)
					u.putIdle(conn)
				}
			}
			require.Len(t, resource.requests(), 20, "each request was sent once")
		})
	}
}

// A client that goes away doesn't take back what was admitted: the exchange goes on to its end.
func TestClientThatLeavesDoesNotCancelAnAdmittedWrite(t *testing.T) {
	t.Parallel()
	finished := make(chan struct{})
	arrived := make(chan struct{})
	goOn := make(chan struct{})
	resource := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-goOn
		if r.Context().Err() == nil {
			close(finished)
		}
		w.WriteHeader(http.StatusOK)
	}))
	t.Cleanup(resource.Close)
	slow := strings.Replace(rawConfig, "response_timeout: 300ms", "response_timeout: 10s", 1)
	address := startProxy(t, slow, strings.TrimPrefix(resource.URL, "http://"), &fakeStore{marks: map[string]lock.Token{}})
	ctx, cancel := context.WithCancel(t.Context())
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+"/things/7", nil)
	require.NoError(t, err)
	request.Header.Set("X-Fencing-Token", "5")
	left := make(chan struct{})
	go func() {
		defer close(left)
		if response, err := http.DefaultClient.Do(request); err == nil {
			_ = response.Body.Close()
		}
	}()
	<-arrived
	cancel()
	<-left
	close(goOn)
	select {
	case <-finished:
	case <-time.After(5 * time.Second):
		require.Fail(t, "the resource's request was cancelled")
	}
}

// A response that its client doesn't read is held, so its request still counts against limits.in_flight.
func TestUnreadResponseKeepsItsPlaceUntilItIsGone(t *testing.T) {
	t.Parallel()
	const size = 8 << 20 // more than the sockets' buffers
	resource := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/open/large" {
			_, _ = w.Write(make([]byte, size))
		}
	}))
	t.Cleanup(resource.Close)
	text := strings.Replace(rawConfig, "limits: { body: 64B, head: 4KiB, response: 1KiB }", "limits: { in_flight: 1, response: 16MiB }", 1)
	text = strings.Replace(text, "response_timeout: 300ms", "response_timeout: 10s", 1)
	address := startProxy(t, text, strings.TrimPrefix(resource.URL, "http://"), &fakeStore{marks: map[string]lock.Token{}})

	lazy, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
	require.NoError(t, err)
	_, err = io.WriteString(lazy, "GET /open/large HTTP/1.1\r\nHost: a\r\n\r\n")
	require.NoError(t, err)
	_, err = io.ReadFull(lazy, make([]byte, 1000)) // the response has begun
	require.NoError(t, err)

	const small = "GET /open/small HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
	answer, _ := exchangeRaw(t, address, small)
	require.Contains(t, answer, `"code":"OVERLOADED"`)
	require.NoError(t, lazy.Close())
	require.Eventually(t, func() bool {
		answer, _ := exchangeRaw(t, address, small)
		return strings.Contains(answer, "200 OK")
	}, 10*time.Second, 10*time.Millisecond)
}

// Where each token is admitted once, a fault of the admission may have used it up: the client isn't told to repeat.
func TestFaultOfAnAdmissionThatCountsOnceIsNotSafeToRepeat(t *testing.T) {
	t.Parallel()
	upstream := startUpstream(t, "ok")
	address := startProxy(t, rawConfig, upstream.addr(), &fakeStore{fault: mark.ErrUnavailable})
	answer, _ := exchangeRaw(t, address, "POST /json HTTP/1.1\r\nHost: a\r\nX-Fencing-Token: 5\r\nContent-Length: 10\r\n\r\n{\"id\":\"k\"}")
	require.Contains(t, answer, `"code":"FENCE_UNAVAILABLE"`)
	require.Contains(t, answer, `"retrySafe":false`)
	answer, _ = exchangeRaw(t, address, "POST /things/7 HTTP/1.1\r\nHost: a\r\nX-Fencing-Token: 5\r\nContent-Length: 0\r\n\r\n")
	require.Contains(t, answer, `"retrySafe":true`)
	require.Empty(t, upstream.requests())
}

// lookupStore finds one text for every lookup.
type lookupStore struct {
	fakeStore
	finds string
}

func (s *lookupStore) Lookup(context.Context, string, []string) (string, bool, error) {
	return s.finds, true, nil
}

// Two guards that share a lookup and spell keys differently don't hand each other their spelling, whichever asks first.
func TestRememberedLookupKeepsEachGuardsSpelling(t *testing.T) {
	t.Parallel()
	const lookup = "key: { lookup: { sql: \"SELECT id FROM thing WHERE name = @name\", cache: immutable } }"
	text := strings.Replace(rawConfig, "routes:\n", "  - name: uuids\n    mark: { table: thing, key: id, key_type: uuid, token: fence }\n    order: admissions\nroutes:\n"+
		"  - { name: as-uuid, match: { methods: [POST], path: \"/u/{name}\" }, guard: uuids, admit: newer_or_same, "+lookup+" }\n"+
		"  - { name: as-text, match: { methods: [POST], path: \"/t/{name}\" }, guard: thing, admit: newer_or_same, "+lookup+" }\n", 1)
	const found = "AAAAAAAA-0000-4000-8000-000000000001"
	for _, first := range []string{"/u/x", "/t/x"} {
		upstream := startUpstream(t, "ok")
		store := &lookupStore{fakeStore: fakeStore{marks: map[string]lock.Token{}}, finds: found}
		address := startProxy(t, text, upstream.addr(), store)
		for _, path := range []string{first, "/u/x", "/t/x"} {
			answer, _ := exchangeRaw(t, address, "POST "+path+" HTTP/1.1\r\nHost: a\r\nX-Fencing-Token: 5\r\nContent-Length: 0\r\n\r\n")
			require.Contains(t, answer, "200 OK")
		}
		require.Equal(t, map[string]lock.Token{found: 5, strings.ToLower(found): 5}, store.marks)
	}
}
