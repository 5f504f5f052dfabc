package app

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/migrations"
)

// settings reads a file of KEY=VALUE lines; a line that is commented out counts as known, not as set.
func settings(t *testing.T, path string) (set map[string]string, known []string) {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	set = map[string]string{}
	for line := range strings.Lines(string(data)) {
		key, value, found := strings.Cut(strings.TrimSpace(line), "=")
		if !found || strings.Contains(key, " ") {
			require.True(t, line == "\n" || strings.HasPrefix(line, "# "), "%s: %q", path, line)
			continue
		}
		if key, commented := strings.CutPrefix(key, "#"); commented {
			known = append(known, key)
			continue
		}
		known = append(known, key)
		set[key] = value
	}
	return set, known
}

func TestConfigurationFilesListEverySettingWithItsDefault(t *testing.T) { //nolint:paralleltest // it sets environment variables
	for _, role := range []struct {
		file           string
		command, other any
		needed         []string // without a default
		secret         []string
	}{
		{"paysvc-rail-proxy.env", &RailProxy{}, &RailProxy{}, []string{"--database-url=x"}, []string{"PAYSVC_DATABASE_URL"}},
		{"paysvc-rail-stub.env", &RailStub{}, &RailStub{}, []string{"--log=rail-transfers.jsonl"}, nil},
		{"paysvc-executor.env", &Executor{}, &Executor{}, nil, nil},
	} {
		t.Run(role.file, func(t *testing.T) {
			parser, err := kong.New(role.other)
			require.NoError(t, err)
			set, known := settings(t, filepath.Join("..", "..", "configs", role.file))
			var offered []string
			for _, flag := range parser.Model.Flags {
				if len(flag.Envs) > 0 && !slices.Contains(role.secret, flag.Envs[0]) {
					offered = append(offered, flag.Envs[0])
				}
			}
			require.ElementsMatch(t, offered, known, "every setting is in the file, and nothing else")

			_, err = parser.Parse(role.needed)
			require.NoError(t, err)
			for key, value := range set {
				t.Setenv(key, value)
			}
			var args []string
			if len(role.secret) > 0 {
				args = role.needed
			}
			parser, err = kong.New(role.command)
			require.NoError(t, err)
			_, err = parser.Parse(args)
			require.NoError(t, err)
			require.Equal(t, role.other, role.command, "the file's values are the defaults")
		})
	}
}

func TestExecutorsDefaultsAreValid(t *testing.T) {
	t.Parallel()
	var c Executor
	parser, err := kong.New(&c)
	require.NoError(t, err)
	_, err = parser.Parse(nil)
	require.NoError(t, err)
	c.Owner = "worker"
	options, err := c.options()
	require.NoError(t, err)
	_, err = c.build(options, hclog.NewNullLogger(), newExecutorMetrics(newService(hclog.NewNullLogger()).registry, c.LockBackend))
	require.NoError(t, err)
	c.PollInterval, c.Payout, c.SessionTTL, c.PauseBefore = 0, "7", time.Hour, "read=stdin"
	_, err = c.options()
	for _, name := range []string{"poll-interval", "payout", "session-ttl", "pause-before"} {
		require.ErrorContains(t, err, name, "all faults at once")
	}
}

func TestRailStubSaysWhatKeepsItFromStarting(t *testing.T) {
	t.Parallel()
	start := func(flags RailStub) (*railStubApp, error) {
		plan, err := flags.plan()
		if err != nil {
			return nil, err
		}
		a := &railStubApp{service: newService(hclog.NewNullLogger()), flags: &flags, plan: plan}
		t.Cleanup(func() { require.NoError(t, a.Stop(context.Background())) })
		return a, a.Start(t.Context())
	}
	log := filepath.Join(t.TempDir(), "transfers.jsonl")
	_, err := start(RailStub{Listen: "127.0.0.1:0", Log: log})
	require.NoError(t, err)
	_, err = start(RailStub{Listen: "127.0.0.1:0", Log: filepath.Join(log, "x")})
	require.ErrorContains(t, err, "transfer log")
	_, err = start(RailStub{Listen: "0.0.0.0:0", Log: log})
	require.ErrorContains(t, err, "--allow-any-host")
	_, err = start(RailStub{Listen: "127.0.0.1:0", Log: log, Drop: 0.6, Decline: 0.6})
	require.ErrorContains(t, err, "chances")
	_, err = start(RailStub{Listen: "127.0.0.1:0", Log: log, Fault: []string{"x=explode"}})
	require.ErrorContains(t, err, "explode")
}

// startRailProxy runs a rail-proxy in process and returns the base URL of its admin listener.
func startRailProxy(t *testing.T, databaseURL string) string {
	t.Helper()
	var c RailProxy
	parser, err := kong.New(&c)
	require.NoError(t, err)
	_, err = parser.Parse([]string{"--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0", "--startup-timeout=1s", "--database-url=" + databaseURL})
	require.NoError(t, err)
	lines := &lastAddress{}
	a, err := c.app(hclog.New(&hclog.LoggerOptions{Output: lines, JSONFormat: true}))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, a.Stop(context.Background())) })
	require.NoError(t, a.Start(t.Context()))
	return "http://" + lines.admin
}

// lastAddress takes the admin listener's address from the log. It is written before Start returns.
type lastAddress struct{ admin string }

func (l *lastAddress) Write(p []byte) (int, error) {
	_, rest, found := strings.Cut(string(p), `"address":"`)
	if found && strings.Contains(string(p), `"listener":"admin"`) {
		l.admin, _, _ = strings.Cut(rest, `"`)
	}
	return len(p), nil
}

func fetch(t *testing.T, url string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(body)
}

func TestRailProxyIsReadyOnlyOnItsOwnDatabase(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t, migrations.PayDB())
	admin := startRailProxy(t, pgtest.Login(t, database, "railapp"))
	status, body := fetch(t, admin+"/readyz")
	require.Equal(t, 200, status, body)
	_, metrics := fetch(t, admin+"/metrics")
	for _, series := range []string{
		`rail_submission_total{outcome="acked"} 0`, `rail_submission_total{outcome="rejected"} 0`,
		`rail_submission_total{outcome="timeout"} 0`, `rail_submission_total{outcome="fenced"} 0`,
		"rail_duplicate_attempted_total 0", `db_pool_max_connections{pool="paydb"} 8`,
	} {
		require.Contains(t, metrics, series)
	}

	for name, c := range map[string]struct{ url, reason string }{
		"the resource's role": {pgtest.Login(t, database, "payapp"), "railapp"},
		"another database":    {pgtest.Database(t, migrations.LockDB()), "lockdb"},
		"nothing there":       {"postgres://u:geheim@127.0.0.1:1/paydb", "database unavailable"},
	} {
		status, body := fetch(t, startRailProxy(t, c.url)+"/readyz")
		require.Equal(t, 503, status, name)
		require.Contains(t, body, c.reason, name)
		require.NotContains(t, body, "geheim", name)
	}
}
