package httpapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"github.com/valyala/fasthttp/fasthttputil"
	"go.uber.org/goleak"

	"fenceline/lockd/httpapi"
	"fenceline/lockd/httpapi/apitest"
	"fenceline/lockd/lock"
	"fenceline/lockd/lockapi"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, // fasthttp's own clocks end a while after their servers
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"))
}

// fakeStore answers as it is told; what a real one does is tested with a real one.
type fakeStore struct {
	err    error
	slow   time.Duration
	broken bool
	holder lock.Holder // whoever holds what others want; nobody: every acquire is granted
	keys   []string    // held, in order
	ended  int64       // the ids of revocations go from 1 to this
}

func (f *fakeStore) Grants(ctx context.Context, prefix, after string, limit int) (grants []lock.Grant, more bool, err error) {
	for _, key := range f.keys {
		if strings.HasPrefix(key, prefix) && key > after {
			grants = append(grants, lock.Grant{Key: key, OwnerID: "w", Token: 7})
		}
	}
	more = len(grants) > limit
	return grants[:min(limit, len(grants))], more, f.answer(ctx)
}

func (f *fakeStore) Revocations(ctx context.Context, after int64, limit int) (records []lock.RevocationRecord, more bool, err error) {
	for id := after + 1; id <= f.ended && len(records) < limit; id++ {
		records = append(records, lock.RevocationRecord{ID: id, Key: "k", Operator: "op", Reason: "it is stuck", PreviousToken: 7})
	}
	return records, len(records) == limit && after+int64(limit) < f.ended, f.answer(ctx)
}

func (f *fakeStore) answer(ctx context.Context) error {
	if f.broken {
		panic("a defect") //nolint:forbidigo // what is tested
	}
	if f.slow > 0 {
		timer := time.NewTimer(f.slow)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return f.err
}

func (f *fakeStore) OpenSession(ctx context.Context, owner string, ttl time.Duration) (lock.Session, error) {
	return lock.Session{ID: uuid.New(), OwnerID: owner, TTL: ttl}, f.answer(ctx)
}

func (f *fakeStore) Heartbeat(ctx context.Context, id uuid.UUID) (lock.Session, int, time.Time, error) {
	return lock.Session{ID: id}, 2, time.Now(), f.answer(ctx)
}

func (f *fakeStore) CloseSession(ctx context.Context, _ uuid.UUID) ([]lock.Ended, error) {
	return nil, f.answer(ctx)
}

func (f *fakeStore) Insert(ctx context.Context, key, owner string, session uuid.UUID, ttl time.Duration) (lock.Acquired, error) {
	if f.holder.OwnerID != "" {
		return lock.Acquired{Holder: f.holder}, f.answer(ctx)
	}
	grant := lock.Grant{Key: key, OwnerID: owner, SessionID: session, TTL: ttl, Token: 7}
	return lock.Acquired{Granted: true, Grant: grant}, f.answer(ctx)
}

func (f *fakeStore) Extend(ctx context.Context, key string, token lock.Token, ttl time.Duration) (lock.Grant, error) {
	return lock.Grant{Key: key, Token: token, TTL: ttl}, f.answer(ctx)
}

func (f *fakeStore) Delete(ctx context.Context, _ string, _ lock.Token) (lock.Released, error) {
	return lock.Released{}, f.answer(ctx)
}

func (f *fakeStore) Read(ctx context.Context, key string) (lock.Grant, bool, error) {
	return lock.Grant{Key: key, OwnerID: "w", Token: 7}, slices.Contains(f.keys, key), f.answer(ctx)
}

func (f *fakeStore) Revoke(ctx context.Context, r lock.RevokeRequest) (lock.Revocation, error) {
	return lock.Revocation{ID: 1, RevokedToken: 7, NewTokenFloor: 8, PreviousOwner: r.Key}, f.answer(ctx)
}

func (f *fakeStore) Reap(ctx context.Context, _ int) ([]lock.Ended, bool, error) {
	return nil, false, f.answer(ctx)
}
func (f *fakeStore) CountHeld(ctx context.Context) (int64, error) { return 0, f.answer(ctx) }

type noRecorder struct{}

func (noRecorder) Acquired(string, time.Duration) {}
func (noRecorder) LeasesExpired(int)              {}
func (noRecorder) Held(int64)                     {}
func (noRecorder) Waiting(int)                    {}

// server is the API over a fake store, reachable in memory.
type server struct {
	service  *lock.Service
	api      *httpapi.API
	client   *http.Client
	listener *fasthttputil.InmemoryListener
	registry *prometheus.Registry
	log      *bytes.Buffer     // read it after a call has been answered
	document *apitest.Document // every answer is held against it
}

func serve(t *testing.T, store lock.Store) *server {
	t.Helper()
	return serveTo(t, store, httpapi.Callers{})
}

func serveTo(t *testing.T, store lock.Store, callers httpapi.Callers) *server {
	t.Helper()
	return serveBounded(t, store, callers, lock.Limits{}, 0)
}

// serveBounded bounds the clients that wait, and the connections.
func serveBounded(t *testing.T, store lock.Store, callers httpapi.Callers, limits lock.Limits, connections int) *server {
	t.Helper()
	s := &server{listener: fasthttputil.NewInmemoryListener(), registry: prometheus.NewRegistry(), log: &bytes.Buffer{}}
	file, err := os.ReadFile("openapi.json")
	require.NoError(t, err)
	s.document, err = apitest.Open(file)
	require.NoError(t, err)
	logger := hclog.New(&hclog.LoggerOptions{Output: s.log, JSONFormat: true})
	lister, _ := store.(lock.Lister)
	s.service = lock.NewService(store, "fake", limits, logger, noRecorder{})
	s.api = httpapi.New(httpapi.Config{
		Service: s.service, Lister: lister, Callers: callers, Logger: logger, Registry: s.registry, MaxConnections: connections,
	})
	api := s.api.Server()
	done := make(chan error, 1)
	go func() { done <- api.Serve(s.listener) }()
	transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return s.listener.Dial() }}
	s.client = &http.Client{Transport: transport}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		require.NoError(t, api.Shutdown())
		require.NoError(t, <-done)
	})
	return s
}

// answer is what came back.
type answer struct {
	status   int
	header   http.Header
	body     string
	envelope lockapi.Error
}

// of is the answer with the request that it answers.
func (a answer) of(request *http.Request) apitest.Answer {
	return apitest.Answer{Method: request.Method, Path: request.URL.EscapedPath(), Status: a.status, Header: a.header, Body: []byte(a.body)}
}

func (s *server) send(t *testing.T, method, path, body string, headers ...string) answer {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, "http://lockd"+path, strings.NewReader(body))
	require.NoError(t, err)
	for i := 0; i < len(headers); i += 2 {
		request.Header.Add(headers[i], headers[i+1])
	}
	return s.read(t, request, func() (*http.Response, error) { return s.client.Do(request) })
}

// read reads an answer, and wants it to be as the document says.
func (s *server) read(t *testing.T, request *http.Request, ask func() (*http.Response, error)) answer {
	t.Helper()
	response, err := ask()
	require.NoError(t, err)
	defer func() { require.NoError(t, response.Body.Close()) }()
	data, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	got := answer{status: response.StatusCode, header: response.Header, body: string(data)}
	if request.Method == http.MethodHead {
		return got
	}
	require.NoError(t, s.document.Check(got.of(request)))
	if response.StatusCode >= 400 {
		require.Equal(t, "application/json; charset=utf-8", response.Header.Get("Content-Type"))
		require.NoError(t, json.Unmarshal(data, &got.envelope), "%s", data)
		require.NotEmpty(t, got.envelope.Message)
		require.Len(t, got.envelope.TraceID, 32)
	}
	return got
}

const sessionID = "0b7e9a52-6a0e-4c0c-9a3a-6d8d6a2f0a11"

// request is one well-formed call of the contract.
type request struct {
	method, path, body string
	status             int // when all is well
}

// contract are the calls L1 to L9, each well-formed.
func contract() map[string]request {
	return map[string]request{
		"open_session":  {"POST", "/v1/sessions", `{"ownerId":"w"}`, 201},
		"heartbeat":     {"POST", "/v1/sessions/" + sessionID + "/heartbeat", "", 200},
		"close_session": {"DELETE", "/v1/sessions/" + sessionID, "", 204},
		"acquire":       {"POST", "/v1/locks/k/acquire", `{"sessionId":"` + sessionID + `"}`, 200},
		"renew":         {"POST", "/v1/locks/k/renew", "", 200},
		"release":       {"DELETE", "/v1/locks/k", "", 200},
		"inspect":       {"GET", "/v1/locks/k", "", 200},
		"revoke":        {"POST", "/v1/locks/k/revoke", `{"operator":"op","reason":"it is stuck"}`, 200},

		"list_locks":       {"GET", "/v1/locks?prefix=a&limit=7", "", 200},
		"list_revocations": {"GET", "/v1/revocations?after=3", "", 200},
	}
}

func (s *server) call(t *testing.T, r request) answer {
	t.Helper()
	return s.send(t, r.method, r.path, r.body, "X-Owner-Id", "w", "X-Fencing-Token", "7")
}
