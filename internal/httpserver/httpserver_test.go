package httpserver_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"github.com/valyala/fasthttp"
	"go.uber.org/goleak"

	"fenceline/internal/daemon"
	"fenceline/internal/httperr"
	"fenceline/internal/httpserver"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, // fasthttp's own clocks end a while after their servers
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"))
}

// lines is a log that may be read while it is written.
type lines struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}

// serve runs a server on the listener, or on one of its own, and returns its address and log.
func serve(t *testing.T, config httpserver.Config, l net.Listener) (address string, log *lines) {
	t.Helper()
	if l == nil {
		var err error
		l, err = daemon.Listen(t.Context(), "127.0.0.1:0")
		require.NoError(t, err)
	}
	log = &lines{}
	config.Logger = hclog.New(&hclog.LoggerOptions{Output: log, JSONFormat: true})
	config.Panicked = httperr.New(500, "INTERNAL", "a fault")
	if config.Handler == nil {
		config.Handler = func(ctx *fasthttp.RequestCtx) { ctx.SetStatusCode(204) }
	}
	if config.MaxConnections == 0 {
		config.MaxConnections = 100
	}
	server, done := httpserver.New(config), make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		require.NoError(t, server.ShutdownWithContext(ctx))
		require.NoError(t, <-done)
	})
	return l.Addr().String(), log
}

func dial(t *testing.T, address string) net.Conn {
	t.Helper()
	var d net.Dialer
	c, err := d.DialContext(t.Context(), "tcp", address)
	require.NoError(t, err)
	require.NoError(t, c.SetDeadline(time.Now().Add(10*time.Second)))
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// answer is one response.
type answer struct {
	status   int
	header   http.Header
	last     bool // the connection is closed after it
	envelope httperr.Error
}

// ask sends raw bytes and reads one response with its envelope, if it is a refusal.
func ask(t *testing.T, c net.Conn, raw string) answer {
	t.Helper()
	if _, err := io.WriteString(c, raw); err != nil {
		require.ErrorIs(t, err, syscall.EPIPE)
	}
	response, err := http.ReadResponse(bufio.NewReader(c), nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, response.Body.Close()) }()
	got := answer{status: response.StatusCode, header: response.Header, last: response.Close}
	if got.status >= 400 {
		require.Equal(t, httperr.ContentType, got.header.Get("Content-Type"))
		require.NoError(t, json.NewDecoder(response.Body).Decode(&got.envelope))
		require.Len(t, got.envelope.TraceID, 32)
	}
	return got
}

const get = "GET / HTTP/1.1\r\nHost: h\r\n\r\n"

func TestConnectionBeyondTheLimitGetsAnEnvelopeAndThePlaceComesBack(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	address, log := serve(t, httpserver.Config{MaxConnections: 2, Metrics: httpserver.NewMetrics(registry)}, nil)
	first, second := dial(t, address), dial(t, address)
	for _, c := range []net.Conn{first, second} {
		require.Equal(t, 204, ask(t, c, get).status)
	}
	// One that sends at once, and one that only listens: both read the answer whole.
	for _, raw := range []string{"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 60000\r\n\r\n" + strings.Repeat("x", 60000), ""} {
		got := ask(t, dial(t, address), raw)
		require.Equal(t, 503, got.status)
		require.Equal(t, httpserver.CodeOverloaded, got.envelope.Code)
		require.True(t, got.envelope.RetrySafe)
		require.Positive(t, got.envelope.RetryAfterMillis)
		require.Equal(t, "1", got.header.Get("Retry-After"))
		require.True(t, got.last)
	}
	require.Contains(t, log.String(), "connections_turned_away")
	require.Equal(t, 1, strings.Count(log.String(), "connections_turned_away"), "a full server doesn't fill its log")
	require.Equal(t, 204, ask(t, second, get).status, "those within the limit aren't disturbed")
	require.NoError(t, first.Close())
	require.Eventually(t, func() bool {
		return ask(t, dial(t, address), get).status == 204
	}, 10*time.Second, 20*time.Millisecond)
}

// failing fails some accepts before it works.
type failing struct {
	net.Listener
	errs []error
}

func (f *failing) Accept() (net.Conn, error) {
	if len(f.errs) > 0 {
		err := f.errs[0]
		f.errs = f.errs[1:]
		return nil, &net.OpError{Op: "accept", Err: err}
	}
	return f.Listener.Accept()
}

// Without the limit fasthttp's Serve would return at the first of these, and the service be gone.
func TestListenerThatRunsOutOfFilesServesOn(t *testing.T) {
	t.Parallel()
	l, err := daemon.Listen(t.Context(), "127.0.0.1:0")
	require.NoError(t, err)
	address, log := serve(t, httpserver.Config{}, &failing{Listener: l, errs: []error{syscall.EMFILE, syscall.ENFILE, syscall.ECONNABORTED, syscall.EMFILE}})
	require.Equal(t, 204, ask(t, dial(t, address), get).status)
	require.Contains(t, log.String(), "accept_failed")

	broken := errors.New("broken for good")
	server := httpserver.New(httpserver.Config{Logger: hclog.NewNullLogger(), MaxConnections: 1, Handler: func(*fasthttp.RequestCtx) {}})
	require.ErrorIs(t, server.Serve(&failing{Listener: l, errs: []error{broken}}), broken)
}

func TestUnreadableRequestsAreRefusedByNameAndCounted(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	address, _ := serve(t, httpserver.Config{Metrics: httpserver.NewMetrics(registry, "a")}, nil)
	long := strings.Repeat("x", httpserver.MaxBody+1)
	for raw, want := range map[string]struct {
		status int
		code   string
	}{
		"GARBAGE\r\n\r\n": {400, httpserver.CodeMalformed},
		"GET / HTTP/1.1\r\nHost: h\r\nX: " + long[:httpserver.MaxHead] + "\r\n\r\n":                                           {431, httpserver.CodeHeadTooLarge},
		"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 65537\r\n\r\n" + long:                                                  {413, httpserver.CodeBodyTooLarge},
		"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n10001\r\n" + long + "\r\n0\r\n\r\n":                  {413, httpserver.CodeBodyTooLarge},
		"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9223372036854775807\r\n\r\n":                                           {413, httpserver.CodeBodyTooLarge},
		"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0\r\n\r\n": {400, httpserver.CodeMalformed},
	} {
		got := ask(t, dial(t, address), raw)
		require.Equal(t, want.status, got.status, "%.60q", raw)
		require.Equal(t, want.code, got.envelope.Code)
		require.True(t, got.last, "what comes after it is not read as another request")
	}
	require.Equal(t, map[string]float64{"none 4xx": 6}, counted(t, registry))
}

func TestPanicIsCountedAndAnsweredAndTheNextRequestIsServed(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	address, log := serve(t, httpserver.Config{Metrics: httpserver.NewMetrics(registry, "broken"), Handler: func(ctx *fasthttp.RequestCtx) {
		httpserver.SetRoute(ctx, "broken")
		ctx.SetBodyString("half an answer")
		var nobody *fasthttp.Request
		_ = nobody.Header.Peek("X")
	}}, nil)
	for range 2 {
		got := ask(t, dial(t, address), get)
		require.Equal(t, 500, got.status)
		require.Equal(t, "INTERNAL", got.envelope.Code)
	}
	require.Contains(t, log.String(), "handler_panic")
	require.Equal(t, map[string]float64{"broken 5xx": 2}, counted(t, registry))
}

func TestEverySeriesIsThereFromTheStart(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	httpserver.NewMetrics(registry, "a", "b")
	families, err := registry.Gather()
	require.NoError(t, err)
	series := map[string]int{}
	for _, family := range families {
		series[family.GetName()] = len(family.GetMetric())
	}
	require.Equal(t, map[string]int{"http_requests_total": 9, "http_request_seconds": 3}, series)
}

// counted reads http_requests_total by route and status, without zeros.
func counted(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	counts := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			if family.GetName() == "http_requests_total" && metric.GetCounter().GetValue() > 0 {
				counts[metric.GetLabel()[0].GetValue()+" "+metric.GetLabel()[1].GetValue()] = metric.GetCounter().GetValue()
			}
		}
	}
	return counts
}

func TestRouteIsFoundByThePathAsItWasSent(t *testing.T) {
	t.Parallel()
	routes := []httpserver.Route{{"list", "GET", "/v1/a"}, {"get", "GET", "/v1/a/{id}"}, {"put", "PUT", "/v1/a/{id}"}, {"do", "POST", "/v1/a/{id}/do"}}
	for request, want := range map[string]string{
		"GET /v1/a": "list ", "GET /v1/a?x=/y": "list ", "GET /v1/a/7": "get 7", "GET /v1/a/a%2Fb": "get a%2Fb", "POST /v1/a/7/do": "do 7",
		"GET /v1/a/": "404 ", "GET /v1/a/7/": "404 ", "GET /v1/a/7/8": "404 ", "GET /v1//a": "404 ", "POST /v1/a//do": "404 ", "GET /v1/A": "404 ",
		"DELETE /v1/a/7": "405 GET, PUT", "GET /v1/a/7/do": "405 POST", "POST /v1/a": "405 GET",
	} {
		method, uri, _ := strings.Cut(request, " ")
		var ctx fasthttp.RequestCtx
		ctx.Request.Header.SetMethod(method)
		ctx.Request.SetRequestURI(uri)
		found, parameter, refusal := httpserver.Find(&ctx, routes, method)
		got := found.Name + " " + parameter
		if refusal != nil {
			got = http.StatusText(refusal.Status)
			got = map[string]string{"Not Found": "404 ", "Method Not Allowed": "405 "}[got] + string(ctx.Response.Header.Peek("Allow"))
		}
		require.Equal(t, want, got, request)
	}
}
