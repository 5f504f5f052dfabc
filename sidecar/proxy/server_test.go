package proxy

import (
	"bufio"
	"context"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"github.com/valyala/fasthttp"

	"fenceline/lockd/lock"
	"fenceline/sidecar/config"
	"fenceline/sidecar/httpcheck"
	"fenceline/sidecar/mark"
	"fenceline/sidecar/policy"
)

// startImpatient serves a proxy that waits a quarter of a second for a request, and gives it back for its metrics.
func startImpatient(t *testing.T, upstream string, store mark.Store, log *lockedLog) (address string, p *Proxy) {
	t.Helper()
	cfg, err := config.Load([]byte(strings.ReplaceAll(rawConfig, "UPSTREAM", upstream)), "test.yaml", os.LookupEnv)
	require.NoError(t, err)
	rules, err := policy.New(cfg)
	require.NoError(t, err)
	logger := hclog.New(&hclog.LoggerOptions{Output: log, JSONFormat: true})
	p = New(Parts{Config: cfg, Rules: rules, Store: store}, prometheus.NewRegistry(), logger)
	server := NewServer(p, cfg.Limits, logger)
	server.ReadTimeout = 250 * time.Millisecond
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(l) // it ends with its listener
	}()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = server.ShutdownWithContext(ctx)
		p.Close()
		_ = l.Close() // a shutdown before the server had begun to serve doesn't reach it
		<-served
	})
	return l.Addr().String(), p
}

// lockedLog is a log that a test may read while it is written.
type lockedLog struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lockedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// H59, H60: whoever sends too slowly holds nothing but a connection, and that not for long. Nothing of it is forwarded.
func TestRequestThatDoesNotArriveInTimeIsGivenUp(t *testing.T) {
	t.Parallel()
	upstream := startUpstream(t, "ok")
	var log lockedLog
	store := &fakeStore{marks: map[string]lock.Token{}}
	address, p := startImpatient(t, upstream.addr(), store, &log)
	for name, part := range map[string]string{
		"head":  "POST /things/7 HTTP/1.1\r\nHost: a\r\nX-Fencing-Tok",
		"body":  "POST /things/7 HTTP/1.1\r\nHost: a\r\nX-Fencing-Token: 5\r\nContent-Length: 10\r\n\r\nabc",
		"chunk": "POST /things/7 HTTP/1.1\r\nHost: a\r\nX-Fencing-Token: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc",
	} {
		answer, closed := exchangeRaw(t, address, part)
		require.Contains(t, answer, "408 Request Timeout", name)
		require.Contains(t, answer, `"code":"REQUEST_TIMEOUT"`, name)
		require.True(t, closed, name)
	}
	require.Empty(t, upstream.requests())
	require.Empty(t, store.marks, "it was never admitted")
	require.InDelta(t, 2, testutil.ToFloat64(p.metrics.decisions.WithLabelValues(noRoute, string(invalid), "enforce")), 0, "the head, and a body that the server wanted to have a look at first")
	require.InDelta(t, 1, testutil.ToFloat64(p.metrics.decisions.WithLabelValues("write", string(invalid), "enforce")), 0)
	require.Empty(t, p.slots, "none of them took a place from others")
}

// panicking stands for a fault of ours.
type panicking struct{ fakeStore }

func (*panicking) Admit(_ context.Context, a mark.Admission) (mark.Decision, error) {
	return make([]mark.Decision, 0)[a.Token], nil
}

// H76: one request's fault takes down neither the process nor another request.
func TestPanicAnswersOneRequestAndEndsItsConnection(t *testing.T) {
	t.Parallel()
	upstream := startUpstream(t, "ok")
	var log lockedLog
	address, p := startImpatient(t, upstream.addr(), &panicking{}, &log)
	answer, closed := exchangeRaw(t, address, "POST /things/7 HTTP/1.1\r\nHost: a\r\nX-Fencing-Token: 5\r\nContent-Length: 0\r\n\r\n")
	require.Contains(t, answer, "500 Internal Server Error")
	require.Contains(t, answer, `"code":"INTERNAL"`)
	require.True(t, closed)
	require.Contains(t, log.String(), "handler_panic")
	require.Empty(t, upstream.requests())
	require.InDelta(t, 1, testutil.ToFloat64(p.metrics.decisions.WithLabelValues(noRoute, string(unavailable), "enforce")), 0)
	answer, _ = exchangeRaw(t, address, "GET /open/7 HTTP/1.1\r\nHost: a\r\n\r\n")
	require.Contains(t, answer, "200 OK")
	require.Empty(t, p.slots, "the place of the request that panicked is free again")
}

// An answer's decision is always one that the metric knows, and its status is an error.
func TestTableOfAnswersIsComplete(t *testing.T) {
	t.Parallel()
	for _, code := range []string{
		"INVALID_TOKEN", "TOKEN_IMPLAUSIBLE", "KEY_INVALID", "KEY_NOT_FOUND", "MALFORMED_REQUEST", "ROUTE_NOT_ALLOWED", "METHOD_NOT_ALLOWED",
		"REQUEST_TIMEOUT", "FENCED_OUT", "BODY_TOO_LARGE", "EXPECTATION_FAILED", "HEAD_TOO_LARGE", "UPGRADE_NOT_SUPPORTED", "UPSTREAM_FAILED",
		"FENCE_UNAVAILABLE", "OVERLOADED", "UPSTREAM_TIMEOUT", "VERSION_NOT_SUPPORTED",
	} {
		row, found := answers[code]
		require.True(t, found, code)
		require.GreaterOrEqual(t, row.status, 400, code)
		require.Contains(t, allDecisions, row.decision, code)
	}
	require.False(t, answers["FENCED_OUT"].retrySafe, "never retried under this or a fresh token")
}

// No known input makes fasthttp and httpcheck disagree about a body's length. Should one be found, the request goes nowhere.
func TestBodyOfAnotherLengthThanAnnouncedIsRefused(t *testing.T) {
	t.Parallel()
	var log lockedLog
	_, p := startImpatient(t, "127.0.0.1:1", &fakeStore{}, &log)
	for head, fields := range map[string]string{"length": "Content-Length: 2\r\n", "chunked": "Transfer-Encoding: chunked\r\n", "none": ""} {
		for _, length := range []int{-1, 0, 2, 3} { // as fasthttp counts it
			var fast fasthttp.RequestCtx
			require.NoError(t, fast.Request.Header.Read(bufio.NewReader(strings.NewReader("POST /things/7 HTTP/1.1\r\nHost: a\r\n"+fields+"\r\n"))))
			fast.Request.Header.SetContentLength(length)
			r := p.check(&exchange{fast: &fast})
			agree := map[string]int{"length": 2, "chunked": -1, "none": 0}[head] == length
			require.Equal(t, agree, r == nil, "%s, %d", head, length)
			require.Equal(t, !agree, fast.Response.ConnectionClose(), "%s, %d", head, length)
		}
	}
	for body, wanted := range map[string]bool{"ab": true, "a": false, "": false, "abc": false} {
		var fast fasthttp.RequestCtx
		fast.Request.SetBodyStream(strings.NewReader(body), 2)
		e := &exchange{fast: &fast, request: httpcheck.Request{Framed: true, ContentLength: 2}}
		require.Equal(t, wanted, p.readBody(e) == nil, body)
		require.Equal(t, !wanted, fast.Response.ConnectionClose(), body)
	}
}
