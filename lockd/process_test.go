package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/internal/process"
	"fenceline/lockd/lock"
	"fenceline/lockd/lockapi"
	"fenceline/lockd/lockclient"
	"fenceline/migrations"
)

// runMain makes this test binary behave like the program, so that the tests run real processes without a build.
const runMain = "FENCELINE_TEST_RUN_LOCKD"

func TestMain(m *testing.M) {
	if os.Getenv(runMain) != "" {
		main()
		return
	}
	pgtest.Main(m)
}

// start starts lockd with the arguments and environment.
func start(t *testing.T, env []string, args ...string) *process.Process {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	p, err := process.Start(t.Context(), process.Spec{Name: "lockd", Path: self, Args: args, Env: append(env, runMain+"=1"), LogDir: t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		require.NoError(t, p.Stop(ctx))
	})
	return p
}

// run runs lockd to its end and returns what it wrote.
func run(t *testing.T, env []string, args ...string) (code int, output string) {
	t.Helper()
	p := start(t, env, args...)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	code, err := p.Wait(ctx)
	require.NoError(t, err)
	return code, written(t, p)
}

func written(t *testing.T, p *process.Process) string {
	t.Helper()
	data, err := os.ReadFile(p.LogFile())
	require.NoError(t, err)
	return string(data)
}

// serve starts `lockd serve` on ports of its own and returns the base URLs of API and admin listener.
func serve(t *testing.T, databaseURL string, args ...string) (p *process.Process, api, admin string) {
	t.Helper()
	p = start(t, []string{"LOCKD_DATABASE_URL=" + databaseURL}, append([]string{
		"serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--startup-timeout", "500ms", "--store-timeout", "1s",
	}, args...)...)
	api, admin = urls(t, p)
	return p, api, admin
}

// urls waits for a lockd to listen and returns the base URLs of API and admin listener.
func urls(t *testing.T, p *process.Process) (api, admin string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	address, err := p.Address(ctx, "api")
	require.NoError(t, err)
	adminAddress, err := p.Address(ctx, "admin")
	require.NoError(t, err)
	return "http://" + address, "http://" + adminAddress
}

func client(t *testing.T, base string) *lockclient.Client {
	t.Helper()
	c, err := lockclient.New(base, "worker", nil)
	require.NoError(t, err)
	return c
}

// acquire opens a session of a minute and acquires the key.
func acquire(t *testing.T, c *lockclient.Client, key string, ttl time.Duration) (lockapi.LockGrant, error) {
	t.Helper()
	session, err := c.OpenSession(t.Context(), time.Minute)
	if err != nil {
		return lockapi.LockGrant{}, err
	}
	return c.Acquire(t.Context(), key, session.SessionID, ttl)
}

// ready asks /readyz and returns its status and body.
func ready(t *testing.T, admin string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, admin+"/readyz", nil)
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer func() { require.NoError(t, response.Body.Close()) }()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(body)
}

// password is the password in a database URL.
func password(t *testing.T, databaseURL string) string {
	t.Helper()
	parsed, err := url.Parse(databaseURL)
	require.NoError(t, err)
	p, _ := parsed.User.Password()
	require.NotEmpty(t, p)
	return p
}

// A database that is down at the start, and again later: lockd is there all the time, says 503, never LOCK_LOST, and recovers by itself.
func TestProcessSurvivesADatabaseThatIsDownAtTheStartAndLater(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	server := pgtest.Server(t, nil)
	databaseURL := pgtest.Login(t, pgtest.DatabaseOn(t, server, migrations.LockDB()), "lockapp")
	require.NoError(t, server.Crash(ctx))

	p, base, admin := serve(t, databaseURL)
	c := client(t, base)
	unavailable := func() {
		t.Helper()
		_, err := c.Renew(t.Context(), "k", 5, time.Second)
		require.ErrorIs(t, err, lock.ErrUnavailable)
		require.NotErrorIs(t, err, lock.ErrLockLost, "a store that can't be asked has decided nothing")
		var refusal *lockclient.Refusal
		require.ErrorAs(t, err, &refusal)
		require.Equal(t, 503, refusal.Status)
		require.True(t, refusal.Envelope.RetrySafe)
		require.Positive(t, refusal.Envelope.RetryAfterMillis)
		_, err = c.Inspect(t.Context(), "k")
		require.ErrorIs(t, err, lock.ErrUnavailable, "never an empty result")
		status, reason := ready(t, admin)
		require.Equal(t, 503, status)
		require.Contains(t, reason, "database unavailable")
		require.NotContains(t, reason, password(t, databaseURL))
	}
	unavailable()
	require.Contains(t, written(t, p), server.Addr(), "the log says where it looked")

	require.NoError(t, server.Restart(ctx))
	var grant lockapi.LockGrant
	require.Eventually(t, func() bool {
		var err error
		grant, err = acquire(t, c, "k", 60*time.Second)
		return err == nil
	}, 20*time.Second, 20*time.Millisecond, "it recovers without a restart")
	status, _ := ready(t, admin)
	require.Equal(t, 200, status)

	require.NoError(t, server.Crash(ctx))
	unavailable()
	require.NoError(t, server.Restart(ctx))
	require.Eventually(t, func() bool {
		_, err := c.Renew(ctx, "k", lock.Token(grant.FencingToken), 60*time.Second)
		require.NotErrorIs(t, err, lock.ErrLockLost, "the grant was durable")
		return err == nil
	}, 20*time.Second, 20*time.Millisecond)

	require.NoError(t, p.Stop(ctx))
	require.Zero(t, p.ExitCode())
	require.NotContains(t, written(t, p), password(t, databaseURL))
}

// A database that isn't trustworthy is found out whenever it appears: at the start lockd ends, later it grants nothing and says why.
func TestDatabaseThatMayForgetGrantsNothing(t *testing.T) {
	t.Parallel()
	owner := pgtest.Database(t, migrations.LockDB())
	databaseURL := pgtest.Login(t, owner, "lockapp")
	parsed, err := url.Parse(databaseURL)
	require.NoError(t, err)
	connection := pgtest.Connect(t, owner)
	alter := func(what string) {
		_, err := connection.Exec(t.Context(), "ALTER ROLE "+parsed.User.Username()+" "+what)
		require.NoError(t, err)
	}

	alter("SET synchronous_commit = off")
	code, output := run(t, []string{"LOCKD_DATABASE_URL=" + databaseURL}, "serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0")
	require.Equal(t, 1, code)
	require.Contains(t, output, "synchronous_commit=off")
	require.NotContains(t, output, password(t, databaseURL))

	alter("CONNECTION LIMIT 0") // as good as a database that is down
	_, base, admin := serve(t, databaseURL)
	c := client(t, base)
	_, err = c.OpenSession(t.Context(), time.Minute)
	require.ErrorIs(t, err, lock.ErrUnavailable)
	alter("CONNECTION LIMIT -1")
	require.Eventually(t, func() bool {
		status, reason := ready(t, admin)
		return status == 503 && strings.Contains(reason, "synchronous_commit=off")
	}, 10*time.Second, 20*time.Millisecond)
	_, err = acquire(t, c, "k", time.Minute)
	require.ErrorIs(t, err, lock.ErrUnavailable)

	alter("RESET synchronous_commit")
	_, err = connection.Exec(t.Context(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1", parsed.User.Username())
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, err := acquire(t, c, "k", time.Minute)
		return err == nil
	}, 10*time.Second, 20*time.Millisecond, "mended, it grants")
}

// Two lockd on one database are one lock service, also when one of them dies.
func TestTwoReplicasAreOneLockService(t *testing.T) {
	t.Parallel()
	databaseURL := pgtest.Login(t, pgtest.Database(t, migrations.LockDB()), "lockapp")
	first, firstBase, _ := serve(t, databaseURL)
	_, secondBase, _ := serve(t, databaseURL)
	one, two := client(t, firstBase), client(t, secondBase)
	grant, err := acquire(t, one, "k", time.Minute)
	require.NoError(t, err)
	_, err = acquire(t, two, "k", time.Minute)
	require.ErrorIs(t, err, lockclient.ErrContended)

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	require.NoError(t, first.Kill(ctx))
	_, err = one.Renew(t.Context(), "k", lock.Token(grant.FencingToken), time.Minute)
	require.ErrorIs(t, err, lockclient.ErrNoAnswer)
	require.NotErrorIs(t, err, lock.ErrLockLost)
	_, err = two.Renew(t.Context(), "k", lock.Token(grant.FencingToken), time.Minute)
	require.NoError(t, err, "the other replica knows the grant")
	_, err = two.Release(t.Context(), "k", lock.Token(grant.FencingToken))
	require.NoError(t, err)
	next, err := acquire(t, two, "k", time.Minute)
	require.NoError(t, err)
	require.Greater(t, next.FencingToken, grant.FencingToken)
}

// SIGTERM: what is under way is finished, then the process ends with 0.
func TestRequestUnderWayIsFinishedBeforeTheEnd(t *testing.T) {
	t.Parallel()
	owner := pgtest.Database(t, migrations.LockDB())
	p, base, _ := serve(t, pgtest.Login(t, owner, "lockapp"), "--store-timeout", "20s")
	c := client(t, base)
	grant, err := acquire(t, c, "k", time.Minute)
	require.NoError(t, err)
	connection := pgtest.Connect(t, owner)
	tx, err := connection.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "SELECT FROM lock_entry FOR UPDATE")
	require.NoError(t, err)
	renewed := make(chan error, 1)
	go func() {
		_, err := c.Renew(t.Context(), "k", lock.Token(grant.FencingToken), time.Minute)
		renewed <- err
	}()
	watcher := pgtest.Connect(t, owner)
	require.Eventually(t, func() bool {
		var waiting int
		err := watcher.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'").Scan(&waiting)
		return err == nil && waiting == 1
	}, 10*time.Second, 10*time.Millisecond, "the renewal is under way")

	stopped := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	go func() { stopped <- p.Stop(ctx) }()
	_, err = p.WaitEvent(ctx, "stopping", func(e process.Event) bool { return e.Name() == "stopping" })
	require.NoError(t, err)
	require.NoError(t, tx.Rollback(t.Context()))
	require.NoError(t, <-renewed)
	require.NoError(t, <-stopped)
	require.Zero(t, p.ExitCode())
}

func TestLockdAnswersOnAUnixSocket(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "lockd")
	databaseURL := pgtest.Login(t, pgtest.Database(t, migrations.LockDB()), "lockapp")
	p := start(t, []string{"LOCKD_DATABASE_URL=" + databaseURL}, "serve", "--listen", "unix:"+socket, "--admin-listen", "127.0.0.1:0")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err := p.Address(ctx, "api")
	require.NoError(t, err)
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}}
	t.Cleanup(transport.CloseIdleConnections)
	c, err := lockclient.New("http://lockd", "worker", &http.Client{Transport: transport})
	require.NoError(t, err)
	_, err = acquire(t, c, "k", time.Minute)
	require.NoError(t, err)
}
