package httpapi_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"fenceline/lockd/lock"
	"fenceline/lockd/lockapi"
)

func TestEveryCallAnswersWithItsStatus(t *testing.T) {
	t.Parallel()
	s := serve(t, &fakeStore{})
	for name, r := range contract() {
		got := s.call(t, r)
		require.Equal(t, r.status, got.status, name)
		require.Equal(t, r.status == 204, got.body == "", name)
	}
}

// A store that can't be asked, or whose answer was lost, is never taken for one that has decided. Whether the same request may be
// sent again is another question: a revocation might hit the next holder.
func TestFaultIsNeverADecision(t *testing.T) {
	t.Parallel()
	for name, r := range contract() {
		got := serve(t, &fakeStore{err: fmt.Errorf("x: %w: connection refused to 10.0.0.1", lock.ErrUnavailable)}).call(t, r)
		require.Equal(t, 503, got.status, name)
		require.Equal(t, lockapi.CodeBackendUnavailable, got.envelope.Code)
		require.True(t, got.envelope.RetrySafe)
		require.Positive(t, got.envelope.RetryAfterMillis)
		require.Equal(t, "1", got.header.Get("Retry-After"))
		require.NotContains(t, got.envelope.Details, "outcome")
		require.NotContains(t, got.body, "10.0.0.1", "what the fault was is for the log")

		got = serve(t, &fakeStore{err: fmt.Errorf("x: %w", lock.ErrUnknownOutcome)}).call(t, r)
		require.Equal(t, 503, got.status, name)
		require.Equal(t, lockapi.CodeBackendUnavailable, got.envelope.Code)
		require.Equal(t, lockapi.OutcomeUnknown, got.envelope.Details["outcome"])
		require.Equal(t, name != "revoke", got.envelope.RetrySafe, name)

		s := serve(t, &fakeStore{err: errors.New("permission denied for table lock_entry")})
		got = s.call(t, r)
		require.Equal(t, 500, got.status, name)
		require.Equal(t, lockapi.CodeInternal, got.envelope.Code)
		require.False(t, got.envelope.RetrySafe)
		require.NotContains(t, got.body, "lock_entry")
		require.Contains(t, s.log.String(), "permission denied")
		require.Contains(t, s.log.String(), got.envelope.TraceID)
	}
}

func TestDecisionsOfTheStoreHaveTheirCodes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		call   string
		err    error
		status int
		code   string
	}{
		{"acquire", lock.ErrSessionUnknown, 404, lockapi.CodeSessionUnknown},
		{"acquire", lock.ErrSessionExpired, 410, lockapi.CodeSessionExpired},
		{"renew", lock.ErrLockLost, 409, lockapi.CodeLockLost},
		{"revoke", lock.ErrNotHeld, 404, lockapi.CodeLockNotHeld},
		{"revoke", lock.ErrTokenMismatch, 409, lockapi.CodeTokenMismatch},
		{"acquire", fmt.Errorf("%w: something", lock.ErrInvalid), 400, lockapi.CodeValidationFailed},
	} {
		s := serve(t, &fakeStore{err: fmt.Errorf("doing: %w", c.err)})
		got := s.call(t, contract()[c.call])
		require.Equal(t, c.status, got.status, c.err)
		require.Equal(t, c.code, got.envelope.Code)
		require.False(t, got.envelope.RetrySafe)
		require.NotContains(t, s.log.String(), "request_failed", "a refusal is no fault")
	}
}

// The lease counts from the attempt's beginning by the store's clock. A client adds GrantedAfterMillis to the time at which it began to
// trust the lease, so what the attempt itself took must not be in it.
func TestTimeThatTheAttemptTookIsNotAddedToTheLease(t *testing.T) {
	t.Parallel()
	got := serve(t, &fakeStore{slow: 30 * time.Millisecond}).call(t, contract()["acquire"])
	require.Equal(t, 200, got.status)
	var grant lockapi.LockGrant
	require.NoError(t, json.Unmarshal([]byte(got.body), &grant))
	require.Zero(t, grant.GrantedAfterMillis)
}

func TestGrantCarriesItsTokenInBodyAndHeader(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"acquire", "renew"} {
		got := serve(t, &fakeStore{}).call(t, contract()[name])
		require.Equal(t, "7", got.header.Get(lockapi.HeaderToken))
		require.Contains(t, got.body, `"fencingToken":7`)
	}
}

// Some clients encode the colon of a key. It is the same key; an encoded slash is no other path.
func TestEncodedKeyIsTheSameKey(t *testing.T) {
	t.Parallel()
	s := serve(t, &fakeStore{})
	for path, key := range map[string]string{"/v1/locks/payout:7": "payout:7", "/v1/locks/payout%3A7": "payout:7", "/v1/locks/%70": "p"} {
		got := s.send(t, "GET", path, "")
		require.Equal(t, 200, got.status, path)
		require.Contains(t, got.body, `"key":"`+key+`"`)
	}
	for _, path := range []string{"/v1/locks/a%2Fb", "/v1/locks/a%253Ab", "/v1/locks/a%00", "/v1/locks/%C3%A9"} {
		got := s.send(t, "GET", path, "")
		require.Equal(t, 400, got.status, path)
		require.Contains(t, got.envelope.Message, "key: want 1 to 128")
	}
	for _, path := range []string{"/v1/locks/", "/v1/locks/a/b", "/v1//locks/a", "/V1/locks/a", "/"} {
		require.Equal(t, 404, s.send(t, "GET", path, "").status, path)
	}
}

func TestOwnerMustBeOneAndPrintable(t *testing.T) {
	t.Parallel()
	s := serve(t, &fakeStore{})
	for name, r := range contract() {
		if r.method == "GET" {
			continue // reads only
		}
		for says, headers := range map[string][]string{
			"missing":  {},
			"2 times":  {"X-Owner-Id", "a", "X-Owner-Id", "b"},
			"1 to 64":  {"X-Owner-Id", strings.Repeat("ä", 65)},
			"UTF-8":    {"X-Owner-Id", "\xff"},
			"control ": {"X-Owner-Id", "a\tb"},
		} {
			got := s.send(t, r.method, r.path, r.body, append(headers, "X-Fencing-Token", "7")...)
			require.Equal(t, 400, got.status, name)
			require.Equal(t, lockapi.CodeValidationFailed, got.envelope.Code)
			require.Contains(t, got.envelope.Message, "X-Owner-Id")
			require.Contains(t, got.envelope.Message, says)
		}
	}
	require.Equal(t, 201, s.send(t, "POST", "/v1/sessions", `{"ownerId":"`+strings.Repeat("ä", 64)+`"}`, "X-Owner-Id", strings.Repeat("ä", 64)).status)
}

func TestBoundsAreNamed(t *testing.T) {
	t.Parallel()
	s := serve(t, &fakeStore{})
	for body, says := range map[string]string{
		`{"ownerId":"w","ttlMillis":999}`:                  "ttlMillis: want 1000 to 60000",
		`{"ownerId":"w","ttlMillis":60001}`:                "ttlMillis: want 1000 to 60000",
		`{"ownerId":"w","ttlMillis":-9223372036854775808}`: "ttlMillis: want 1000 to 60000",
		`{"ownerId":"w","ttlMillis":9223372036854775807}`:  "ttlMillis: want 1000 to 60000",
		`{"ownerId":"w","ttlMillis":9223372036854775808}`:  "ttlMillis",
		`{"ownerId":"w","ttlMillis":1.5}`:                  "ttlMillis",
		`{"ownerId":"w"} {}`:                               "one valid JSON object",
		`{"OWNERID":"w"}`:                                  "unknown member",
		`[]`:                                               "JSON object",
	} {
		got := s.send(t, "POST", "/v1/sessions", body, "X-Owner-Id", "w")
		require.Equal(t, 400, got.status, body)
		require.Contains(t, got.envelope.Message, says)
	}
	got := s.send(t, "POST", "/v1/locks/k/revoke", `{"operator":"","reason":"short"}`, "X-Owner-Id", "w")
	require.Equal(t, "operator: missing or empty; want 1 to 64 characters; reason: want 8 to 1024 characters, not 5", got.envelope.Message)
	for millis, status := range map[int]int{99: 400, 100: 200, 300_000: 200, 300_001: 400} {
		got := s.send(t, "POST", "/v1/locks/k/renew", fmt.Sprintf(`{"ttlMillis":%d}`, millis), "X-Owner-Id", "w", "X-Fencing-Token", "7")
		require.Equal(t, status, got.status, millis)
	}
}

func TestWrongMethodNamesTheRightOnes(t *testing.T) {
	t.Parallel()
	s := serve(t, &fakeStore{})
	for path, allow := range map[string]string{
		"/v1/sessions": "POST", "/v1/sessions/x/heartbeat": "POST", "/v1/sessions/x": "DELETE", "/v1/locks/k": "DELETE, GET",
		"/v1/locks/k/acquire": "POST", "/v1/locks/k/renew": "POST", "/v1/locks/k/revoke": "POST",
		"/v1/locks": "GET", "/v1/revocations": "GET",
	} {
		for _, method := range []string{"PUT", "PATCH", "OPTIONS", "HEAD"} {
			got := s.send(t, method, path, "")
			require.Equal(t, 405, got.status, path)
			require.Equal(t, []string{allow}, got.header.Values("Allow"))
		}
	}
}

func TestPanicOfOneRequestIsItsOwn(t *testing.T) {
	t.Parallel()
	store := &fakeStore{broken: true}
	s := serve(t, store)
	got := s.call(t, contract()["acquire"])
	require.Equal(t, 500, got.status)
	require.Equal(t, lockapi.CodeInternal, got.envelope.Code)
	require.NotContains(t, got.body, "a defect")
	require.Contains(t, s.log.String(), "handler_panic")
	store.broken = false
	require.Equal(t, 200, s.call(t, contract()["acquire"]).status)
}

func TestBytesThatAreNoRequestGetAnEnvelope(t *testing.T) {
	t.Parallel()
	s := serve(t, &fakeStore{})
	for _, raw := range []string{"GARBAGE\r\n\r\n", "POST /v1/sessions HTTP/1.1\r\nHost: l\r\nContent-Length: x\r\n\r\n"} {
		connection, err := s.listener.Dial()
		require.NoError(t, err)
		_, err = connection.Write([]byte(raw))
		require.NoError(t, err)
		response, err := http.ReadResponse(bufio.NewReader(connection), nil)
		require.NoError(t, err)
		require.Equal(t, 400, response.StatusCode)
		var envelope lockapi.Error
		require.NoError(t, json.NewDecoder(response.Body).Decode(&envelope))
		require.Equal(t, lockapi.CodeValidationFailed, envelope.Code)
		require.True(t, response.Close, "what comes after it is not read as another request")
		require.NoError(t, errors.Join(response.Body.Close(), connection.Close()))
	}
}

func TestRequestsAreCountedByCall(t *testing.T) {
	t.Parallel()
	store := &fakeStore{}
	s := serve(t, store)
	count := func() int {
		n, err := testutil.GatherAndCount(s.registry, "http_requests_total", "http_request_seconds")
		require.NoError(t, err)
		return n
	}
	before := count()
	for _, r := range contract() {
		s.call(t, r)
	}
	store.broken = true
	s.call(t, contract()["acquire"])
	s.send(t, "GET", "/nowhere", "")
	require.Equal(t, before, count(), "every series was there from the start")
	counts := s.requests(t)
	for series, want := range map[string]float64{"acquire 2xx": 1, "acquire 5xx": 1, "inspect 2xx": 1, "none 4xx": 1, "renew 4xx": 0} {
		require.Equal(t, want, counts[series], series)
	}
}

// requests reads http_requests_total by route and status.
func (s *server) requests(t *testing.T) map[string]float64 {
	t.Helper()
	families, err := s.registry.Gather()
	require.NoError(t, err)
	counts := map[string]float64{}
	for _, family := range families {
		if family.GetName() != "http_requests_total" {
			continue
		}
		for _, metric := range family.GetMetric() {
			counts[metric.GetLabel()[0].GetValue()+" "+metric.GetLabel()[1].GetValue()] = metric.GetCounter().GetValue()
		}
	}
	return counts
}

// Log events are a contract: the names of their fields, and the trace id that ties them to a request.
func TestEventsCarryTheirFieldsAndTheTrace(t *testing.T) {
	t.Parallel()
	const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	s := serve(t, &fakeStore{})
	for _, name := range []string{"acquire", "release", "revoke"} {
		r := contract()[name]
		s.send(t, r.method, r.path, r.body, "X-Owner-Id", "w", "X-Fencing-Token", "7", "traceparent", "00-"+trace+"-00f067aa0ba902b7-01")
	}
	events := map[string]map[string]any{}
	for line := range strings.Lines(s.log.String()) {
		var event map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &event))
		name, _ := event["event"].(string)
		events[name] = event
	}
	for name, fields := range map[string][]string{
		"lock_granted":  {"lockKey", "token", "backend", "leaseMillis", "waitMillis", "ownerId"},
		"lock_released": {"lockKey", "token", "heldMillis", "stale", "ownerId"},
		"lock_revoked":  {"lockKey", "token", "revokedBy", "reason"},
	} {
		require.Contains(t, events, name)
		for _, field := range fields {
			require.Contains(t, events[name], field, name)
		}
		require.Equal(t, trace, events[name]["traceId"], name)
	}
}

// A call's work ends in time whatever the store does, and not with the shutdown that waits for it.
func TestCallHasADeadline(t *testing.T) {
	t.Parallel()
	seen := make(chan time.Duration, 1)
	s := serve(t, &deadlineStore{seen: seen})
	require.Equal(t, 200, s.call(t, contract()["release"]).status)
	require.InDelta(t, 10, (<-seen).Seconds(), 2)
}

type deadlineStore struct {
	fakeStore
	seen chan time.Duration
}

func (d *deadlineStore) Delete(ctx context.Context, _ string, _ lock.Token) (lock.Released, error) {
	deadline, _ := ctx.Deadline()
	d.seen <- time.Until(deadline)
	return lock.Released{}, nil
}
