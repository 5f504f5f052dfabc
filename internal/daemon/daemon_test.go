package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"github.com/valyala/fasthttp"
	"github.com/valyala/fasthttp/fasthttputil"
	"go.uber.org/goleak"
)

// fasthttp's own tickers sleep on for up to 10 s after a clean stop; they hold nothing.
func TestMain(m *testing.M) {
	if os.Getenv(underSystemd) != "" {
		runUnderSystemd()
		return
	}
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*HostClient).connsCleaner"))
}

func TestCleanupsRunInReverseAndAllOfThem(t *testing.T) {
	t.Parallel()
	var order []string
	var c Cleanups
	c.Push("store", func(context.Context) error { order = append(order, "store"); return nil })
	c.Push("broken", func(context.Context) error { order = append(order, "broken"); return errors.New("boom") })
	c.Push("listener", func(context.Context) error { order = append(order, "listener"); return nil })
	require.ErrorContains(t, c.Run(t.Context()), "stop broken: boom")
	require.Equal(t, []string{"listener", "broken", "store"}, order)
	require.NoError(t, c.Run(t.Context()), "a second run finds nothing left")
}

func TestLoggerWritesTheAgreedFields(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	logger, err := NewLogger("lockd", "info", &out)
	require.NoError(t, err)
	logger.Info("granted", "event", "lock_granted", "token", 7)
	var line map[string]any
	require.NoError(t, json.Unmarshal(out.Bytes(), &line))
	require.Equal(t, "lockd", line["service"])
	require.Equal(t, "lock_granted", line["event"])
	require.Equal(t, "info", line["@level"])
	_, err = time.Parse(time.RFC3339, line["@timestamp"].(string))
	require.NoError(t, err)

	_, err = NewLogger("lockd", "loud", &out)
	require.ErrorContains(t, err, "loud")
}

func TestPortInUseIsSaidInWords(t *testing.T) {
	t.Parallel()
	l, err := Listen(t.Context(), "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	_, err = Listen(t.Context(), l.Addr().String())
	require.ErrorContains(t, err, "the port is in use")
	require.ErrorContains(t, err, l.Addr().String())
}

func TestBadListenAddressesAreRefusedByName(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"", "7400", "unix:", "unix:/tmp/x?mode=rw", "unix:/tmp/x?mode=9999"} {
		_, err := Listen(t.Context(), address)
		require.ErrorContains(t, err, address)
	}
}

func TestUnixSocketTakesOverOnlyADeadSocket(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "sock") // t.TempDir can be too long for a socket's path
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	path := filepath.Join(dir, "s")

	l, err := Listen(t.Context(), "unix:"+path+"?mode=0660")
	require.NoError(t, err)
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o660), info.Mode().Perm())
	_, err = Listen(t.Context(), "unix:"+path)
	require.ErrorContains(t, err, "another process answers")

	l.(*net.UnixListener).SetUnlinkOnClose(false)
	require.NoError(t, l.Close()) // what a crash leaves: a socket that nobody answers on
	l, err = Listen(t.Context(), "unix:"+path)
	require.NoError(t, err)
	require.NoError(t, l.Close())

	require.NoError(t, os.WriteFile(path, []byte("data"), 0o600))
	_, err = Listen(t.Context(), "unix:"+path)
	require.ErrorContains(t, err, "not a socket")
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	require.NoError(t, err)
	defer func() { require.NoError(t, response.Body.Close()) }()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(body)
}

func TestReadinessNamesEveryFailingCheckWhileLivenessAsksNothing(t *testing.T) {
	t.Parallel()
	admin := NewAdmin(NewRegistry(), hclog.NewNullLogger())
	l, err := Listen(t.Context(), "127.0.0.1:0")
	require.NoError(t, err)
	admin.Serve(l, make(chan error, 1))
	defer func() { require.NoError(t, admin.Stop(context.Background())) }()
	base := "http://" + l.Addr().String()

	var fault error
	admin.AddCheck("store", func(context.Context) error { return fault })
	status, body := get(t, base+"/readyz")
	require.Equal(t, 200, status)
	require.JSONEq(t, `{"ok":true,"checks":{"store":{"ok":true},"draining":{"ok":true}}}`, body)

	fault = errors.New("wrong database")
	status, body = get(t, base+"/readyz")
	require.Equal(t, 503, status)
	require.JSONEq(t, `{"ok":false,"checks":{"store":{"ok":false,"reason":"wrong database"},"draining":{"ok":true}}}`, body)
	require.EqualError(t, admin.Ready(t.Context()), "store: wrong database")

	status, _ = get(t, base+"/livez")
	require.Equal(t, 200, status)
	status, body = get(t, base+"/metrics")
	require.Equal(t, 200, status)
	require.Contains(t, body, "go_goroutines")

	fault = nil
	admin.Drain()
	status, _ = get(t, base+"/readyz")
	require.Equal(t, 503, status, "a stopping process takes no new work")
}

func TestPanicIsOneRequestsFault(t *testing.T) {
	t.Parallel()
	handler := Recover(hclog.NewNullLogger(), func(ctx *fasthttp.RequestCtx) {
		if string(ctx.Path()) == "/panic" {
			_ = []int{}[len(ctx.Path())-100:]
		}
	}, func(ctx *fasthttp.RequestCtx) { ctx.SetStatusCode(500) })
	l := fasthttputil.NewInmemoryListener()
	server := &fasthttp.Server{Handler: handler}
	ServeHTTP("api", l, server, hclog.NewNullLogger(), make(chan error, 1))
	defer func() { require.NoError(t, StopHTTP(server)(context.Background())) }()
	client := &fasthttp.HostClient{Addr: "test", Dial: func(string) (net.Conn, error) { return l.Dial() }}
	defer client.CloseIdleConnections()

	status, _, err := client.Get(nil, "http://test/panic")
	require.NoError(t, err)
	require.Equal(t, 500, status)
	status, _, err = client.Get(nil, "http://test/")
	require.NoError(t, err)
	require.Equal(t, 200, status)
}

// fakeApp is an App whose start, stop and failure the test decides.
type fakeApp struct {
	startErr, stopErr error
	failed            chan error
	started, stopped  chan struct{}
}

func newFakeApp() *fakeApp {
	return &fakeApp{failed: make(chan error, 1), started: make(chan struct{}), stopped: make(chan struct{})}
}

func (a *fakeApp) Start(context.Context) error { close(a.started); return a.startErr }
func (a *fakeApp) Stop(context.Context) error  { close(a.stopped); return a.stopErr }
func (a *fakeApp) Failed() <-chan error        { return a.failed }

func TestRunStopsTheAppWhateverEndsIt(t *testing.T) { //nolint:paralleltest // it sends the process a signal
	run := func(app *fakeApp, end func()) error {
		done := make(chan error, 1)
		go func() { done <- Run(context.Background(), app, time.Second, hclog.NewNullLogger()) }()
		<-app.started
		end()
		err := <-done
		<-app.stopped
		return err
	}
	broken := newFakeApp()
	broken.startErr = errors.New("no port")
	require.ErrorContains(t, run(broken, func() {}), "no port", "a failed start is stopped too")

	failing := newFakeApp()
	require.ErrorContains(t, run(failing, func() { failing.failed <- errors.New("listener died") }), "listener died")

	unclean := newFakeApp()
	unclean.stopErr = errors.New("requests still under way")
	require.ErrorContains(t, run(unclean, func() { require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGTERM)) }), "unclean stop")

	clean := newFakeApp()
	require.NoError(t, run(clean, func() { require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGTERM)) }))
}
