package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/internal/process"
	"fenceline/migrations"
	"fenceline/paysvc/payapi"
)

// runMain makes this test binary behave like the program, so that the tests run real processes without a build.
const runMain = "FENCELINE_TEST_RUN_PAYSVC"

func TestMain(m *testing.M) {
	if os.Getenv(runMain) != "" {
		main()
		return
	}
	pgtest.Main(m)
}

const payer = "00000000-0000-4000-8000-000000000101"

// start starts paysvc with the arguments and environment.
func start(t *testing.T, env []string, args ...string) *process.Process {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	p, err := process.Start(t.Context(), process.Spec{Name: "paysvc", Path: self, Args: args, Env: append(env, runMain+"=1"), LogDir: t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		require.NoError(t, p.Stop(ctx))
	})
	return p
}

// run runs paysvc to its end and returns what it wrote.
func run(t *testing.T, env []string, args ...string) (code int, output string) {
	t.Helper()
	p := start(t, env, args...)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	code, err := p.Wait(ctx)
	require.NoError(t, err)
	data, err := os.ReadFile(p.LogFile())
	require.NoError(t, err)
	return code, string(data)
}

// resource starts the payment-resource on ports of its own and returns the base URLs of API and admin listener.
func resource(t *testing.T, databaseURL string, flags ...string) (p *process.Process, api, admin string) {
	t.Helper()
	p = start(t, []string{"PAYSVC_DATABASE_URL=" + databaseURL}, append([]string{"resource", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--startup-timeout", "200ms"}, flags...)...)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	address, err := p.Address(ctx, "api")
	require.NoError(t, err)
	adminAddress, err := p.Address(ctx, "admin")
	require.NoError(t, err)
	return p, "http://" + address, "http://" + adminAddress
}

func call(t *testing.T, method, target, body string, headers ...string) (status int, answer string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body))
	require.NoError(t, err)
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	read, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(read)
}

func eventually(t *testing.T, target string, want int) (answer string) {
	t.Helper()
	require.Eventually(t, func() bool {
		status, body := call(t, "GET", target, "")
		answer = body
		return status == want
	}, 20*time.Second, 20*time.Millisecond, "%s never answered %d", target, want)
	return answer
}

func TestMissingDatabaseURLIsNamed(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"resource", "seed", "migrate"} {
		code, output := run(t, nil, command)
		require.NotZero(t, code, command)
		require.Contains(t, output, "database", command)
		require.NotContains(t, output, "panic", command)
	}
}

func TestFlagsThatMakeNoSenseEndTheStartWithAReason(t *testing.T) {
	t.Parallel()
	for _, one := range []struct {
		says string
		args []string
	}{
		{"clearing-account", []string{"resource", "--clearing-account", "1"}},
		{"past the sidecar", []string{"resource", "--listen", "0.0.0.0:0"}},
		{"past the sidecar", []string{"resource", "--listen", "127.0.0.1:0", "--admin-listen", ":0"}},
		{"want host:port", []string{"resource", "--listen", "nonsense"}},
		{"max-conns", []string{"resource", "--max-conns", "0"}},
		{"query-mode", []string{"resource", "--query-mode", "magic"}},
		{"store-timeout", []string{"resource", "--store-timeout", "soon"}},
		{"unknown flag", []string{"resource", "--fencing"}},
		{"want 1 to", []string{"seed", "--accounts", "0"}},
		{"want 1 to", []string{"seed", "--payouts=-1"}},
		{"above 0", []string{"seed", "--amount", "0"}},
		{"currency", []string{"seed", "--currency", "euro"}},
		{"out of range", []string{"seed", "--amount", "9223372036854775807", "--payouts", "2"}},
		{"unexpected argument", []string{"explode"}},
	} {
		code, output := run(t, []string{"PAYSVC_DATABASE_URL=postgres://u:sesame@127.0.0.1:1/paydb", "PAYSVC_STARTUP_TIMEOUT=100ms"}, one.args...)
		require.NotZero(t, code, one.args)
		require.Contains(t, output, one.says, one.args)
		require.NotContains(t, output, "sesame", one.args)
		require.NotContains(t, output, "panic", one.args)
	}
	code, output := run(t, []string{"PAYSVC_DATABASE_URL=postgres://u:sesame@127.0.0.1:x/paydb"}, "resource", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0")
	require.Equal(t, 1, code)
	require.Contains(t, output, "database URL")
	require.NotContains(t, output, "sesame")
}

func TestPortInUseIsNamed(t *testing.T) {
	t.Parallel()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	for _, flag := range []string{"--listen", "--admin-listen"} {
		code, output := run(t, []string{"PAYDB_URL=postgres://u:sesame@127.0.0.1:1/paydb", "PAYSVC_LISTEN=127.0.0.1:0", "PAYSVC_ADMIN_LISTEN=127.0.0.1:0"}, "resource", flag, l.Addr().String())
		require.Equal(t, 1, code)
		require.Contains(t, output, "the port is in use")
		require.Contains(t, output, l.Addr().String())
	}
}

// The database is down at the start, comes, goes again and comes back: the process stays, says that it isn't ready and why, answers 503 and
// never "not found", and carries on.
func TestDatabaseThatIsAwayMakesTheResourceUnreadyAndItRecovers(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, nil)
	database := pgtest.Login(t, pgtest.DatabaseOn(t, server, migrations.PayDB(), migrations.SeedPayDB()), "payapp")
	parsed, err := url.Parse(database)
	require.NoError(t, err)
	password, _ := parsed.User.Password()
	require.NoError(t, server.Crash(t.Context()))

	p, api, admin := resource(t, database)
	away := func() {
		t.Helper()
		reason := eventually(t, admin+"/readyz", 503)
		require.Contains(t, reason, "paydb")
		require.NotContains(t, reason, password)
		status, _ := call(t, "GET", admin+"/livez", "")
		require.Equal(t, 200, status)
		for _, one := range []struct{ method, path, body string }{
			{"GET", "/v1/payouts", ""},
			{"GET", "/v1/accounts/" + payer, ""},
			{"POST", "/v1/payouts", `{"accountId":"` + payer + `","amountMinor":1,"currency":"EUR"}`},
			{"POST", "/v1/payouts/" + payer + "/claim", `{"expectedState":"PENDING"}`},
			{"POST", "/v1/payouts/" + payer + "/post", `{"railReference":"r","submissionId":"` + payer + `"}`},
		} {
			status, answer := call(t, one.method, api+one.path, one.body, payapi.HeaderOwner, "a", payapi.HeaderToken, "1", payapi.HeaderIdempotencyKey, "k")
			var e payapi.Error
			require.NoError(t, json.Unmarshal([]byte(answer), &e), answer)
			require.Equal(t, 503, status, one.path)
			require.Equal(t, payapi.CodeStoreUnavailable, e.Code)
			require.True(t, e.RetrySafe)
			require.Positive(t, e.RetryAfterMillis)
			require.NotContains(t, answer, password)
		}
	}
	there := func() {
		t.Helper()
		eventually(t, admin+"/readyz", 200)
		status, answer := call(t, "POST", api+"/v1/payouts", `{"accountId":"`+payer+`","amountMinor":1,"currency":"EUR"}`, payapi.HeaderOwner, "a", payapi.HeaderIdempotencyKey, "k")
		require.Contains(t, []int{200, 201}, status, answer)
	}
	away()
	require.Len(t, p.Events("database_unavailable"), 1)
	require.NoError(t, server.Restart(t.Context()))
	there()
	require.NoError(t, server.Crash(t.Context()))
	away()
	require.NoError(t, server.Restart(t.Context()))
	there()
	_, metrics := call(t, "GET", admin+"/metrics", "")
	for _, name := range []string{"db_pool_max_connections", "http_requests_total", "go_build_info", "payout_transition_refused_total 0"} {
		require.Contains(t, metrics, name)
	}
	log, err := os.ReadFile(p.LogFile())
	require.NoError(t, err)
	require.NotContains(t, string(log), password)
}

func TestSignalEndsTheResourceCleanly(t *testing.T) {
	t.Parallel()
	p, _, admin := resource(t, pgtest.Login(t, pgtest.Database(t, migrations.PayDB(), migrations.SeedPayDB()), "payapp"))
	eventually(t, admin+"/readyz", 200)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	require.NoError(t, p.Stop(ctx))
	require.Zero(t, p.ExitCode(), p.Tail())
	require.Len(t, p.Events("stopped"), 1)
}

// What an operator compares before versions of programs and schemas run together.
func TestVersionSaysWhatTheProgramIsTowardsPaydb(t *testing.T) {
	t.Parallel()
	code, output := run(t, nil, "version", "--json")
	require.Zero(t, code)
	require.Regexp(t, `^{"program":"paysvc","version":"[^"]+","database":{"contract":"paydb","contractMin":2,"contractMax":\d+,"statementsSha256":"[0-9a-f]{64}",`+
		`"driver":"github.com/jackc/pgx/v5 [^"]+","queryMode":"cache_describe","pooling":"transaction"}}\n$`, output)
}

func TestWrongDatabaseIsNotReadyAndSaysWhy(t *testing.T) {
	t.Parallel()
	_, _, admin := resource(t, pgtest.Login(t, pgtest.Database(t, migrations.LockDB()), "lockapp"))
	require.Contains(t, eventually(t, admin+"/readyz", 503), "wrong database")
}

func TestMigrateChecksAppliesAndPrints(t *testing.T) {
	t.Parallel()
	env := []string{"PAYSVC_DATABASE_URL=" + pgtest.Database(t)}
	code, output := run(t, env, "migrate", "--check")
	require.Equal(t, 1, code)
	require.Contains(t, output, "pending")
	code, output = run(t, env, "migrate", "--with-seed")
	require.Zero(t, code, output)
	require.Contains(t, output, "V1__create_account_and_payout.sql")
	require.Contains(t, output, "R__seed_synthetic_accounts.sql")
	for range 2 {
		code, output = run(t, env, "migrate", "--with-seed", "--check")
		require.Zero(t, code, output)
	}
	code, output = run(t, nil, "migrate", "--print-sql")
	require.Zero(t, code)
	require.Contains(t, output, "CREATE TABLE account")
	require.NotContains(t, output, "opening-balance")
}

func TestSeedGivesTheSamePayoutsEachTime(t *testing.T) {
	t.Parallel()
	env := []string{"PAYSVC_DATABASE_URL=" + pgtest.Login(t, pgtest.Database(t, migrations.PayDB()), "payapp")}
	code, first := run(t, env, "seed", "--accounts", "2", "--payouts", "3", "--output", "json")
	require.Zero(t, code, first)
	var answer struct {
		Payouts []struct {
			PayoutID, AccountID, Currency, State string
			AmountMinor                          int64
		}
	}
	require.NoError(t, json.Unmarshal([]byte(first), &answer))
	require.Len(t, answer.Payouts, 3)
	require.Equal(t, "PENDING", answer.Payouts[0].State)
	require.EqualValues(t, 2500, answer.Payouts[0].AmountMinor)
	require.Equal(t, answer.Payouts[0].AccountID, answer.Payouts[2].AccountID, "spread over the accounts in turn")
	require.NotEqual(t, answer.Payouts[0].AccountID, answer.Payouts[1].AccountID)
	_, second := run(t, env, "seed", "--accounts", "2", "--payouts", "3", "--output", "json")
	require.Equal(t, first, second)
	_, table := run(t, env, "seed", "--accounts", "2", "--payouts", "3")
	require.Contains(t, table, answer.Payouts[2].PayoutID)
	code, other := run(t, env, "seed", "--payouts", "1", "--seed", "2")
	require.Zero(t, code)
	require.NotContains(t, other, answer.Payouts[0].PayoutID)
}

// Each configs/paysvc-<command>.env names every setting of its command that has a default, and gives it, and nothing that isn't a
// setting. A database URL holds a password and isn't in a file.
func TestEnvironmentFilesHoldEverySettingWithItsDefault(t *testing.T) {
	files, err := filepath.Glob("../configs/paysvc-*.env")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		name := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), "paysvc-"), ".env")
		t.Run(name, func(t *testing.T) {
			var c cli
			parser, err := kong.New(&c, kong.Name("paysvc"))
			require.NoError(t, err)
			i := slices.IndexFunc(parser.Model.Children, func(n *kong.Node) bool { return n.Name == name })
			require.GreaterOrEqual(t, i, 0, "there is no command %s", name)
			settings := readEnvironment(t, file)
			var known []string
			for _, flag := range parser.Model.Children[i].Flags {
				if len(flag.Envs) == 0 || flag.Name == "database-url" {
					continue
				}
				known = append(known, flag.Envs[0])
				value, there := settings[flag.Envs[0]]
				switch want := flag.Default; {
				case want == "" && !there:
					continue // what has no default may be left out
				case want != "":
					require.Equal(t, want, value, flag.Envs[0])
				}
				t.Setenv(flag.Envs[0], value)
			}
			for setting := range settings {
				require.Contains(t, known, setting)
			}
			t.Setenv("PAYSVC_DATABASE_URL", "postgres://127.0.0.1/paydb")
			_, err = parser.Parse([]string{name})
			require.NoError(t, err)
		})
	}
}

func readEnvironment(t *testing.T, file string) map[string]string {
	t.Helper()
	f, err := os.Open(file)
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	settings := map[string]string{}
	for scanner := bufio.NewScanner(f); scanner.Scan(); {
		line := scanner.Text()
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, value, found := strings.Cut(line, "=")
		require.True(t, found, line)
		require.NotContains(t, settings, name)
		settings[name] = value
	}
	return settings
}

// The switch and its loud absence, on the real program.
func TestFencingIsSwitchedByOneSettingAndItsAbsenceIsLoud(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t, migrations.PayDB(), migrations.SeedPayDB())
	for name, c := range map[string]struct {
		role, event string
		env         []string
		flags       []string
		ready       int
	}{
		"off by default":               {"payapp", "fencing_disabled", nil, nil, 200},
		"off, with fenced mode's role": {"payapp_fenced", "fencing_disabled", []string{"PAYMENT_FENCING_ENABLED=false"}, nil, 200},
		"on by environment":            {"payapp_fenced", "fencing_enabled", []string{"PAYMENT_FENCING_ENABLED=true"}, nil, 200},
		"on by flag":                   {"payapp_fenced", "fencing_enabled", nil, []string{"--fencing-enabled"}, 200},
		"on, without the right":        {"payapp", "fencing_enabled", nil, []string{"--fencing-enabled"}, 503},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := append([]string{"PAYSVC_DATABASE_URL=" + pgtest.Login(t, database, c.role)}, c.env...)
			p := start(t, env, append([]string{"resource", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"}, c.flags...)...)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			admin, err := p.Address(ctx, "admin")
			require.NoError(t, err)
			answer := eventually(t, "http://"+admin+"/readyz", c.ready)
			events := p.Events(c.event)
			require.Len(t, events, 1)
			require.Equal(t, "payment.fencing.enabled", events[0].Text("setting"))
			if c.event == "fencing_disabled" {
				require.Equal(t, "warn", events[0].Text("@level"))
			}
			if c.ready != 200 {
				require.Contains(t, answer, "payapp_fenced")
			}
		})
	}
}
