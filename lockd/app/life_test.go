package app_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/lockd/app"
	"fenceline/migrations"
)

// get reads a page of the admin listener.
func get(t *testing.T, url string) (status int, body string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer func() { require.NoError(t, response.Body.Close()) }()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(text)
}

func TestMetricsAreThereFromTheStart(t *testing.T) {
	t.Parallel()
	_, adminBase := onDatabase(t)
	_, text := get(t, adminBase+"/metrics")
	for _, series := range []string{
		`lock_acquire_seconds_count{backend="pg",outcome="granted"} 0`, `lock_acquire_seconds_count{backend="pg",outcome="contended"} 0`,
		`lock_acquire_seconds_count{backend="pg",outcome="error"} 0`, `lock_lease_expired_total{backend="pg"} 0`,
		`lock_held_current{backend="pg"} 0`, `lock_waiters_current{backend="pg"} 0`, `db_pool_max_connections{pool="lockdb"}`,
		`lock_acquire_seconds_bucket{backend="pg",outcome="granted",le="0.05"}`, `lock_acquire_seconds_bucket{backend="pg",outcome="granted",le="2"}`,
		`http_requests_total{route="acquire",status="5xx"} 0`, `go_build_info`,
	} {
		require.Contains(t, text, series)
	}
}

func TestMetricsFollowGrantsAndExpiries(t *testing.T) {
	t.Parallel()
	base, adminBase := onDatabase(t)
	a, b := client(t, base, "a"), client(t, base, "b")
	sa, err := a.OpenSession(t.Context(), 30*time.Second)
	require.NoError(t, err)
	sb, err := b.OpenSession(t.Context(), 30*time.Second)
	require.NoError(t, err)
	_, err = a.Acquire(t.Context(), "long", sa.SessionID, 30*time.Second)
	require.NoError(t, err)
	_, err = a.Acquire(t.Context(), "short", sa.SessionID, 200*time.Millisecond)
	require.NoError(t, err)
	_, err = b.Acquire(t.Context(), "long", sb.SessionID, 30*time.Second)
	require.Error(t, err)
	// The second number is known once the reaper has passed by.
	for _, series := range []string{
		`lock_acquire_seconds_count{backend="pg",outcome="granted"} 2`, `lock_acquire_seconds_count{backend="pg",outcome="contended"} 1`,
		`lock_lease_expired_total{backend="pg"} 1`, `lock_held_current{backend="pg"} 1`,
	} {
		require.Eventually(t, func() bool {
			_, text := get(t, adminBase+"/metrics")
			return strings.Contains(text, series+"\n")
		}, 10*time.Second, 20*time.Millisecond, series)
	}
}

// attempt starts lockd with what should keep it from starting, and returns why it didn't.
func attempt(t *testing.T, config app.Config) error {
	t.Helper()
	if config.Listen == "" {
		config.Listen = "127.0.0.1:0"
	}
	if config.AdminListen == "" {
		config.AdminListen = "127.0.0.1:0"
	}
	config.StartupTimeout = 5 * time.Second
	a := app.New(config, hclog.NewNullLogger())
	err := a.Start(t.Context())
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	require.NoError(t, a.Stop(ctx))
	return err
}

func TestAddressThatOthersReachMustBeAskedForInWords(t *testing.T) {
	t.Parallel()
	const database = "postgres://x@127.0.0.1:1/x"
	for _, address := range []string{"0.0.0.0:0", ":0", "[::]:0", "192.0.2.1:0", "example.test:0"} {
		require.ErrorContains(t, attempt(t, app.Config{Listen: address, DatabaseURL: database}), "--allow-any-host")
		require.ErrorContains(t, attempt(t, app.Config{AdminListen: address, DatabaseURL: database}), "--allow-any-host")
	}
	require.NoError(t, attempt(t, app.Config{Listen: "0.0.0.0:0", AllowAnyHost: true, DatabaseURL: database}))
	require.NoError(t, attempt(t, app.Config{Listen: "localhost:0", AdminListen: "unix:" + t.TempDir() + "/admin", DatabaseURL: database}))
}

func TestWhatKeepsLockdFromStartingIsNamed(t *testing.T) {
	t.Parallel()
	taken, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, taken.Close()) })
	owner := pgtest.Database(t, migrations.LockDB())
	url := pgtest.Login(t, owner, "lockapp")
	require.ErrorContains(t, attempt(t, app.Config{Listen: taken.Addr().String(), DatabaseURL: url}), "the port is in use")
	require.ErrorContains(t, attempt(t, app.Config{AdminListen: taken.Addr().String(), DatabaseURL: url}), "the port is in use")
	require.ErrorContains(t, attempt(t, app.Config{Listen: "nowhere", DatabaseURL: url}), "want host:port")
	require.ErrorContains(t, attempt(t, app.Config{DatabaseURL: ""}), "lockdb: database URL is empty")
	require.ErrorContains(t, attempt(t, app.Config{DatabaseURL: url, QueryMode: "fast"}), "query mode")
	require.ErrorContains(t, attempt(t, app.Config{DatabaseURL: pgtest.Database(t, migrations.PayDB())}), `contract is "paydb", want "lockdb"`)
	require.ErrorContains(t, attempt(t, app.Config{DatabaseURL: pgtest.Database(t)}), "run the migrations")
	require.ErrorContains(t, attempt(t, app.Config{DatabaseURL: owner + "&options=-c%20synchronous_commit%3Doff"}), "synchronous_commit=off")
}

func TestStoppedLockdLeavesNothingBehind(t *testing.T) { //nolint:paralleltest // counts goroutines
	url := pgtest.Login(t, pgtest.Database(t, migrations.LockDB()), "lockapp")
	before := goleak.IgnoreCurrent()
	require.NoError(t, attempt(t, app.Config{DatabaseURL: url}))
	goleak.VerifyNone(t, before,
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"))
}
