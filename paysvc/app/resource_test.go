package app_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"fenceline/internal/daemon"
	"fenceline/paysvc/app"
)

// settings are those of a resource whose database isn't there.
func settings() app.Resource {
	return app.Resource{
		PayDB: app.PayDB{
			DatabaseURL: "postgres://u:sesame@127.0.0.1:1/paydb", MaxConns: 2, StoreTimeout: time.Second, StartupTimeout: 200 * time.Millisecond,
		},
		Listen: "127.0.0.1:0", AdminListen: "127.0.0.1:0", ClearingAccount: "00000000-0000-4000-8000-000000000001",
	}
}

// leavesNothing checks that no goroutine runs that didn't before, except two of fasthttp's own: the clock that all servers of a
// process share, and a server's look-out for idle workers, which sleeps for up to 10 s after the server's end and ends then.
func leavesNothing(t *testing.T, before goleak.Option) {
	t.Helper()
	goleak.VerifyNone(t, before,
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"))
}

// Not parallel, like the next one: goleak looks at all goroutines of the process.
func TestStoppedResourceLeavesNothingRunning(t *testing.T) {
	http.DefaultClient.CloseIdleConnections()
	before := goleak.IgnoreCurrent()
	a, err := app.NewResource(settings(), hclog.NewNullLogger())
	require.NoError(t, err)
	require.NoError(t, a.Start(t.Context()))
	require.NoError(t, a.Stop(t.Context()))
	require.NoError(t, a.Stop(t.Context()), "a second stop finds nothing to do")
	leavesNothing(t, before)
}

func TestFailedStartLeavesNothingRunning(t *testing.T) {
	taken, err := daemon.Listen(t.Context(), "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, taken.Close()) }()
	before := goleak.IgnoreCurrent()
	for name, spoil := range map[string]func(*app.Resource){
		"port in use":       func(c *app.Resource) { c.Listen = taken.Addr().String() },
		"admin port in use": func(c *app.Resource) { c.AdminListen = taken.Addr().String() },
		"any host":          func(c *app.Resource) { c.Listen = "0.0.0.0:0" },
		"any admin host":    func(c *app.Resource) { c.AdminListen = "[::]:0" },
		"database URL":      func(c *app.Resource) { c.DatabaseURL = "postgres://u:sesame@h:x/" },
		"no timeout":        func(c *app.Resource) { c.StoreTimeout = 0 },
	} {
		c := settings()
		spoil(&c)
		a, err := app.NewResource(c, hclog.NewNullLogger())
		require.NoError(t, err)
		err = a.Start(t.Context())
		require.Error(t, err, name)
		require.NotContains(t, err.Error(), "sesame", name)
		require.NoError(t, a.Stop(t.Context()), name)
	}
	c := settings()
	c.ClearingAccount = "1"
	_, err = app.NewResource(c, hclog.NewNullLogger())
	require.ErrorContains(t, err, "clearing-account")
	leavesNothing(t, before)
}

func TestAnyHostIsBoundOnlyWhenToldSo(t *testing.T) {
	c := settings()
	c.Listen, c.AllowAnyHost = "0.0.0.0:0", true
	a, err := app.NewResource(c, hclog.NewNullLogger())
	require.NoError(t, err)
	require.NoError(t, a.Start(t.Context()))
	require.NoError(t, a.Stop(t.Context()))
}
