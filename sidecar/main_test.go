package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver"
	"fenceline/internal/pgserver/pgtest"
	"fenceline/internal/process"
	"fenceline/migrations"
)

// beSidecar makes the test binary the program itself, so that tests run real processes without building anything twice.
const beSidecar = "FENCELINE_TEST_BE_SIDECAR"

func TestMain(m *testing.M) {
	if os.Getenv(beSidecar) != "" {
		main()
		return
	}
	pgtest.Main(m)
}

// patience bounds every wait for a process.
const patience = 30 * time.Second

// configText is a sidecar before a payment-resource, with short times.
const configText = `
version: 1
id: test
listen: 127.0.0.1:0
admin: { listen: "127.0.0.1:0" }
upstream: { url: "${UPSTREAM}", response_timeout: 10s }
store: { postgres: { url: "${PAYDB_URL}", timeout: 1s } }
guards:
  - name: account
    mark: { table: account, key: account_id, key_type: uuid, token: fence, updated_at: updated_at }
    order: admissions
routes:
  - { name: write, match: { methods: [POST], path: "/accounts/{id}" }, guard: account, admit: newer_or_same, key: { path: id } }
  - { name: unwatched, match: { methods: [PUT], path: "/accounts/{id}" }, guard: account, admit: newer_or_same, key: { path: id }, mode: off }
  - { name: reads, match: { methods: [GET] }, pass: true }
shutdown: { delay: 1s, grace: 10s }
`

// spawn starts the program; it is killed when the test ends.
func spawn(t *testing.T, env map[string]string, args ...string) *process.Process {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	spec := process.Spec{Name: "sidecar", Path: self, Args: args, Env: []string{beSidecar + "=1"}, LogDir: t.TempDir()}
	for name, value := range env {
		spec.Env = append(spec.Env, name+"="+value)
	}
	p, err := process.Start(t.Context(), spec)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		require.NoError(t, p.Kill(ctx))
	})
	return p
}

// run runs the program to its end and returns its exit code and everything that it wrote.
func run(t *testing.T, env map[string]string, args ...string) (exitCode int, output string) {
	t.Helper()
	p := spawn(t, env, args...)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	exitCode, err := p.Wait(ctx)
	require.NoError(t, err)
	data, err := os.ReadFile(p.LogFile())
	require.NoError(t, err)
	return exitCode, string(data)
}

// write writes a configuration file.
func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sidecar.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// sidecar is a running one with everything around it.
type sidecar struct {
	*process.Process
	api, admin string
	account    string
	password   string // of its login
	database   string // as the owner
}

// resource answers every request with 200.
func resource(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	if handler == nil {
		handler = func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "done") }
	}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL
}

// prepare makes a database with one account and a login for the sidecar.
func prepare(t *testing.T, database string) (login, account string) {
	t.Helper()
	account = uuid.NewString()
	_, err := pgtest.Connect(t, database).Exec(t.Context(), "INSERT INTO account (account_id, currency, balance_minor) VALUES ($1, 'EUR', 100)", account)
	require.NoError(t, err)
	return pgtest.Login(t, database, "fence_account"), account
}

// startOn starts a sidecar on a prepared database and waits until it listens.
func startOn(t *testing.T, login, upstream string) *sidecar {
	t.Helper()
	parsed, err := url.Parse(login)
	require.NoError(t, err)
	s := &sidecar{Process: spawn(t, map[string]string{"PAYDB_URL": login, "UPSTREAM": upstream}, "run", "-c", write(t, configText))}
	s.password, _ = parsed.User.Password()
	s.listening(t)
	return s
}

// listening waits until both listeners are open.
func (s *sidecar) listening(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var err error
	s.api, err = s.Address(ctx, "api")
	require.NoError(t, err)
	s.admin, err = s.Address(ctx, "admin")
	require.NoError(t, err)
}

func start(t *testing.T, handler http.HandlerFunc) *sidecar {
	t.Helper()
	database := pgtest.Database(t, migrations.PayDB(), migrations.Fence())
	login, account := prepare(t, database)
	s := startOn(t, login, resource(t, handler))
	s.account, s.database = account, database
	return s
}

// ask sends a request and returns status and body; status 0 when there was no answer.
func ask(t *testing.T, method, url, token string) (status int, body string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, url, nil)
	require.NoError(t, err)
	if token != "" {
		request.Header.Set("X-Fencing-Token", token)
		request.Header.Set("X-Owner-Id", "worker-a")
	}
	transport := &http.Transport{DisableKeepAlives: true}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { require.NoError(t, response.Body.Close()) }()
	data, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(data)
}

func (s *sidecar) write(t *testing.T, token string) (status int, body string) {
	t.Helper()
	return ask(t, http.MethodPost, "http://"+s.api+"/accounts/"+s.account, token)
}

func (s *sidecar) adminPage(t *testing.T, path string) (status int, body string) {
	t.Helper()
	return ask(t, http.MethodGet, "http://"+s.admin+path, "")
}

func (s *sidecar) eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	require.Eventually(t, condition, patience, 20*time.Millisecond, "%s\n%s", what, s.Tail())
}

func (s *sidecar) ready(t *testing.T) bool {
	t.Helper()
	status, _ := s.adminPage(t, "/readyz")
	return status == http.StatusOK
}

func TestConfigurationThatIsWrongStopsTheStartWithEveryFaultAtOnce(t *testing.T) {
	t.Parallel()
	path := write(t, strings.Replace(configText, "shutdown: { delay: 1s,", "limit: {}\nshutdown: { dellay: 1s,", 1)+"unmatched: 7\n")
	code, output := run(t, map[string]string{"UPSTREAM": "http://127.0.0.1:1"}, "run", "-c", path)
	require.Equal(t, 1, code, output)
	for _, want := range []string{path + ":", "limit", "dellay", "unmatched", "PAYDB_URL"} {
		require.Contains(t, output, want)
	}
	require.NotContains(t, output, "listening")
}

func TestConfigurationFileThatIsNotThereIsNamed(t *testing.T) {
	t.Parallel()
	code, output := run(t, nil, "run", "-c", "/nowhere/sidecar.yaml")
	require.Equal(t, 1, code)
	require.Contains(t, output, "/nowhere/sidecar.yaml")
}

func TestPortInUseIsSaidInWordsAndLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	var lc net.ListenConfig
	taken, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, taken.Close()) })
	login, _ := prepare(t, pgtest.Database(t, migrations.PayDB(), migrations.Fence()))
	for _, listener := range []string{"listen: 127.0.0.1:0", `listen: "127.0.0.1:0"`} {
		path := write(t, strings.Replace(configText, listener, "listen: \""+taken.Addr().String()+"\"", 1))
		code, output := run(t, map[string]string{"UPSTREAM": "http://127.0.0.1:1", "PAYDB_URL": login}, "run", "-c", path)
		require.Equal(t, 1, code, output)
		require.Contains(t, output, "the port is in use")
		require.Contains(t, output, taken.Addr().String())
		require.NotContains(t, output, `"event":"listening"`)
	}
}

// A store that may forget marks, or whose tables don't fit, is no passing trouble: waiting for it would hide it.
func TestStoreThatCannotBeTrustedStopsTheStart(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t, migrations.PayDB(), migrations.Fence())
	login, _ := prepare(t, database)
	forgetful, _ := prepare(t, database)
	parsed, err := url.Parse(forgetful)
	require.NoError(t, err)
	_, err = pgtest.Connect(t, database).Exec(t.Context(), "ALTER ROLE "+pgx.Identifier{parsed.User.Username()}.Sanitize()+" SET synchronous_commit = off")
	require.NoError(t, err)
	for _, c := range []struct{ url, from, to, want string }{
		{forgetful, "", "", "synchronous_commit=off"},
		{login, "table: account", "table: acount", "acount"},
		{login, "token: fence", "token: currency", "currency"},
		{login, "token: fence", "token: balance_minor", "may not"},
		{login, "updated_at: updated_at", "updated_at: updated_on", "updated_on"},
	} {
		path := write(t, strings.Replace(configText, c.from, c.to, 1))
		code, output := run(t, map[string]string{"UPSTREAM": "http://127.0.0.1:1", "PAYDB_URL": c.url}, "run", "-c", path)
		require.Equal(t, 1, code, output)
		require.Contains(t, output, c.want)
		require.NotContains(t, output, `"event":"listening"`)
	}
}

func TestDatabaseThatIsDownKeepsTheSidecarUnreadyUntilItIsBack(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, nil)
	database := pgtest.DatabaseOn(t, server, migrations.PayDB(), migrations.Fence())
	login, account := prepare(t, database)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	require.NoError(t, server.Crash(ctx))

	s := startOn(t, login, resource(t, nil))
	s.account = account
	refuses := func() {
		status, body := s.write(t, "5")
		require.Equal(t, http.StatusServiceUnavailable, status)
		require.Contains(t, body, `"code":"FENCE_UNAVAILABLE"`)
		require.False(t, s.ready(t))
		status, _ = s.adminPage(t, "/livez")
		require.Equal(t, http.StatusOK, status, "the process itself is well")
	}
	refuses()
	restart(ctx, t, server)
	s.eventually(t, "ready", func() bool { return s.ready(t) })
	s.eventually(t, "admits", func() bool { status, _ := s.write(t, "5"); return status == http.StatusOK })

	require.NoError(t, server.Crash(ctx))
	refuses()
	restart(ctx, t, server)
	s.eventually(t, "admits again", func() bool { status, _ := s.write(t, "6"); return status == http.StatusOK })
	status, body := s.write(t, "5")
	require.Equal(t, http.StatusConflict, status, body)
}

func restart(ctx context.Context, t *testing.T, server *pgserver.Server) {
	t.Helper()
	require.NoError(t, server.Restart(ctx))
}

func TestTerminationFinishesWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	arrived, release := make(chan struct{}), make(chan struct{})
	s := start(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			close(arrived)
			<-release
		}
		_, _ = io.WriteString(w, "done")
	})
	finish := sync.OnceFunc(func() { close(release) })
	t.Cleanup(finish) // before the resource is closed, which waits for its handlers
	s.eventually(t, "ready", func() bool { return s.ready(t) })
	type answer struct {
		status int
		body   string
	}
	underWay := make(chan answer, 1)
	go func() {
		status, body := s.write(t, "5")
		underWay <- answer{status, body}
	}()
	<-arrived
	stopped := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		stopped <- s.Stop(ctx)
	}()
	s.eventually(t, "not ready", func() bool { return !s.ready(t) })
	status, _ := ask(t, http.MethodGet, "http://"+s.api+"/any", "")
	require.Equal(t, http.StatusOK, status, "it goes on serving while balancers notice")
	s.eventually(t, "the listener closes", func() bool {
		status, _ := ask(t, http.MethodGet, "http://"+s.api+"/any", "")
		return status == 0
	})
	finish()
	require.Equal(t, answer{http.StatusOK, "done"}, <-underWay)
	require.NoError(t, <-stopped)
	require.Equal(t, 0, s.ExitCode(), s.Tail())
}

func TestMigrateAppliesTheSidecarsOwnTables(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	env := map[string]string{"SIDECAR_DATABASE_URL": database}
	code, output := run(t, env, "migrate", "--check")
	require.Equal(t, 1, code, output)
	require.Contains(t, output, "pending")
	code, output = run(t, env, "migrate")
	require.Equal(t, 0, code, output)
	code, output = run(t, env, "migrate", "--check")
	require.Equal(t, 0, code, output)
	var version int
	require.NoError(t, pgtest.Connect(t, database).QueryRow(t.Context(), "SELECT version FROM fence.schema_contract").Scan(&version))
	require.Equal(t, 3, version)
	code, output = run(t, nil, "migrate", "--print-sql")
	require.Equal(t, 0, code)
	require.Contains(t, output, "CREATE TABLE fence.")
	code, output = run(t, nil, "migrate")
	require.Equal(t, 1, code)
	require.Contains(t, output, "--database-url")
}

func TestCheckSaysWhatIsWrongWithoutAnyNetwork(t *testing.T) {
	t.Parallel()
	env := map[string]string{"PAYDB_URL": "postgres://u:topsecret@127.0.0.1:1/none", "UPSTREAM": "http://127.0.0.1:1"}
	code, output := run(t, env, "check", "-c", write(t, configText))
	require.Equal(t, 0, code, output)
	require.Contains(t, output, "unwatched", "a route that protects nothing is named")
	code, output = run(t, env, "check", "-c", write(t, strings.ReplaceAll(configText, "admit: newer_or_same", "admit: older")))
	require.Equal(t, 1, code)
	require.Equal(t, 2, strings.Count(output, "admit"), "both faults at once:\n%s", output)
	require.NotContains(t, output, "topsecret")
}

func TestHelpTeachesByExample(t *testing.T) {
	t.Parallel()
	code, output := run(t, nil, "--help")
	require.Equal(t, 0, code)
	for _, want := range []string{"run", "check", "migrate", "version", "Example:", "configs/sidecar.reference.yaml"} {
		require.Contains(t, output, want)
	}
	code, output = run(t, nil, "version")
	require.Equal(t, 0, code)
	require.Contains(t, output, "sidecar ")
	code, output = run(t, nil, "version", "--json")
	require.Equal(t, 0, code)
	require.Regexp(t, `^{"program":"sidecar","version":"[^"]+","database":{"contract":"fence","contractMin":\d+,"contractMax":\d+,"statementsSha256":"[0-9a-f]{64}",`+
		`"driver":"github.com/jackc/pgx/v5 [^"]+","queryMode":"cache_describe","pooling":"transaction"}}\n$`, output)
	code, output = run(t, nil, "run")
	require.NotEqual(t, 0, code)
	require.Contains(t, output, "--config")
}
