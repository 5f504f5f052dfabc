package main

import (
	"encoding/json"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/migrations"
)

// rewrite replaces a configuration file in one step, as tools do that care.
func rewrite(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path+".new", []byte(text), 0o600))
	require.NoError(t, os.Rename(path+".new", path))
}

func (f *fileSidecar) metric(t *testing.T, series string) string {
	t.Helper()
	_, page := f.adminPage(t, "/metrics")
	value, _ := sample(page, series)
	return value
}

// Twenty reloads under load: every request gets its own answer, and what was admitted before stays admitted.
func TestReloadsUnderLoadDropNoRequest(t *testing.T) {
	t.Parallel()
	f := newFileSidecar(t, resource(t, nil))
	f.start(t)
	stop := make(chan struct{})
	var clients sync.WaitGroup
	var answered atomic.Int64
	var failures sync.Map
	for k := range 6 {
		clients.Go(func() {
			for token := int64(1); ; token++ {
				select {
				case <-stop:
					return
				default:
				}
				if status, err := putOnce(f.api, strconv.Itoa(k), token); err != nil || status != http.StatusOK {
					failures.Store(strconv.Itoa(k)+" at "+strconv.FormatInt(token, 10), []any{status, err})
					return
				}
				answered.Add(1)
			}
		})
	}
	before := int64(0)
	for i := range 20 {
		// Each text is another: a further route.
		rewrite(t, f.config, strings.Replace(fileConfig, "  - { name: reads,", "  - { name: extra"+strconv.Itoa(i)+", match: { methods: [DELETE], path: /extra }, pass: true }\n  - { name: reads,", 1))
		require.NoError(t, syscall.Kill(f.PID(), syscall.SIGHUP))
		f.eventually(t, "reload", func() bool { return len(f.Events("config_reloaded")) > i })
		f.eventually(t, "requests go on", func() bool { n := answered.Load(); ok := n >= before+6; return ok })
		before = answered.Load()
	}
	close(stop)
	clients.Wait()
	failures.Range(func(client, what any) bool {
		require.Fail(t, "a request was dropped", "%v: %v", client, what)
		return true
	})
	require.Greater(t, answered.Load(), int64(100))
	require.Equal(t, "20", f.metric(t, `fence_config_reloads_total{outcome="reloaded"}`))
	require.Empty(t, f.Events("config_rejected"))
	status, routes := f.adminPage(t, "/routes")
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, routes, `"extra19"`)
	require.NotContains(t, routes, `"extra18"`)
	t.Logf("%d requests over 20 reloads", answered.Load())
}

// A file that can't be used changes nothing, and everything that is wrong with it is said.
func TestConfigurationThatIsWrongKeepsTheOneBefore(t *testing.T) {
	t.Parallel()
	f := newFileSidecar(t, resource(t, nil))
	f.start(t)
	status, page := f.adminPage(t, "/config")
	require.Equal(t, http.StatusOK, status)
	var shown struct{ Hash string }
	require.NoError(t, json.Unmarshal([]byte(page), &shown))
	require.Equal(t, "1", f.metric(t, "fence_config_reload_success"))

	rejected := 0
	for _, c := range []struct {
		text string
		want []string
	}{
		{strings.Replace(fileConfig, "admit: newer,", "admit: newest,", 1) + "limit: {}\n", []string{"routes[0].admit", "limit"}},
		{"", []string{""}},
		{strings.Replace(fileConfig, "listen: 127.0.0.1:0", "listen: 127.0.0.1:1", 1), []string{"listen: this change needs a restart"}},
		{strings.Replace(fileConfig, "key_type: text", "key_type: uuid", 1), []string{"guard doc: mark and order: this change needs a restart"}},
		{strings.Replace(fileConfig, "${MARKS}", "/elsewhere", 1), []string{"store.file.path: this change needs a restart"}},
	} {
		rewrite(t, f.config, c.text)
		require.NoError(t, syscall.Kill(f.PID(), syscall.SIGHUP))
		rejected++
		f.eventually(t, "rejection", func() bool {
			return f.metric(t, `fence_config_reloads_total{outcome="rejected"}`) == strconv.Itoa(rejected)
		})
		f.eventually(t, "the reasons in the log: "+strings.Join(c.want, ", "), func() bool {
			var said strings.Builder
			for _, e := range f.Events("config_rejected") {
				said.WriteString(e.Text("key") + "\n" + e.Text("error") + "\n")
			}
			return !slices.ContainsFunc(c.want, func(want string) bool { return !strings.Contains(said.String(), want) })
		})
		for _, e := range f.Events("config_rejected") {
			if e.Text("key") != "" {
				require.Positive(t, e.Int("line"))
			}
		}
		require.Equal(t, "0", f.metric(t, "fence_config_reload_success"))
		require.Equal(t, "1", f.metric(t, `fence_config_info{hash="`+shown.Hash+`"}`))
		status, body := f.put(t, "a", int64(rejected))
		require.Equal(t, http.StatusOK, status, body)
	}
	rewrite(t, f.config, fileConfig+"unmatched: pass\n")
	require.NoError(t, syscall.Kill(f.PID(), syscall.SIGHUP))
	f.eventually(t, "a good file", func() bool { return f.metric(t, "fence_config_reload_success") == "1" })
	require.Empty(t, f.metric(t, `fence_config_info{hash="`+shown.Hash+`"}`))
	status, body := f.put(t, "a", 1)
	require.Equal(t, http.StatusConflict, status, "the marks are those of before: %s", body)
}

// The way that docs/adoption.md leads: what shadow raised counts when the route is enforced.
func TestRouteGoesFromShadowToEnforceWithItsMarks(t *testing.T) {
	t.Parallel()
	f := newFileSidecar(t, resource(t, nil))
	rewrite(t, f.config, strings.Replace(fileConfig, "admit: newer,", "admit: newer, mode: shadow,", 1))
	f.start(t)
	for _, token := range []int64{5, 4} {
		status, body := f.put(t, "a", token)
		require.Equal(t, http.StatusOK, status, body)
	}
	rewrite(t, f.config, fileConfig)
	require.NoError(t, syscall.Kill(f.PID(), syscall.SIGHUP))
	f.eventually(t, "reload", func() bool { return len(f.Events("config_reloaded")) == 1 })
	status, body := f.put(t, "a", 4)
	require.Equal(t, http.StatusConflict, status, body)
	require.Contains(t, body, `"highestToken":5`)
}

func TestChangedFileIsTakenUpWithoutASignal(t *testing.T) {
	t.Parallel()
	f := newFileSidecar(t, resource(t, nil))
	f.start(t)
	status, _ := ask(t, http.MethodDelete, "http://"+f.api+"/extra", "")
	require.Equal(t, http.StatusForbidden, status)
	rewrite(t, f.config, strings.Replace(fileConfig, "methods: [GET]", "methods: [GET, DELETE]", 1))
	f.eventually(t, "reload", func() bool {
		status, _ := ask(t, http.MethodDelete, "http://"+f.api+"/extra", "")
		return status == http.StatusOK
	})
	require.Len(t, f.Events("config_reloaded"), 1)
	require.NoError(t, os.WriteFile(f.config, []byte(fileConfig+"limit: 1\n"), 0o600))
	f.eventually(t, "rejection", func() bool { return len(f.Events("config_rejected")) == 1 })
}

// A password that changes is taken up; another database isn't, since its marks are others.
func TestReloadTakesUpANewPasswordAndNoOtherDatabase(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t, migrations.PayDB(), migrations.Fence())
	login, account := prepare(t, database)
	secret := write(t, login)
	path := write(t, strings.Replace(configText, `url: "${PAYDB_URL}"`, "url_file: "+secret, 1))
	s := &sidecar{Process: spawn(t, map[string]string{"UPSTREAM": resource(t, nil)}, "run", "-c", path), account: account}
	s.listening(t)
	status, body := s.write(t, "5")
	require.Equal(t, http.StatusOK, status, body)

	other, _ := prepare(t, database) // another login
	rewrite(t, secret, other+"\n")
	s.eventually(t, "reload", func() bool { return len(s.Events("config_reloaded")) == 1 })
	status, body = s.write(t, "6")
	require.Equal(t, http.StatusOK, status, body)
	used, err := pgx.ParseConfig(other)
	require.NoError(t, err)
	var connections int
	require.NoError(t, pgtest.Connect(t, database).QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE usename = $1", used.User).Scan(&connections))
	require.Positive(t, connections)

	elsewhere := pgtest.Database(t, migrations.PayDB(), migrations.Fence())
	third, _ := prepare(t, elsewhere)
	rewrite(t, secret, third)
	require.NoError(t, syscall.Kill(s.PID(), syscall.SIGHUP))
	s.eventually(t, "rejection", func() bool { return len(s.Events("config_rejected")) == 1 })
	require.Contains(t, s.Events("config_rejected")[0].Text("error"), "another database")
	log, err := os.ReadFile(s.LogFile())
	require.NoError(t, err)
	require.NotContains(t, string(log), used.Password)
	status, body = s.write(t, "7")
	require.Equal(t, http.StatusOK, status, body)
}

func (f *fileSidecar) raise(t *testing.T, contentType, body string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+f.admin+"/marks/raise", strings.NewReader(body))
	require.NoError(t, err)
	request.Header.Set("Content-Type", contentType)
	client := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	require.NoError(t, err)
	defer func() { require.NoError(t, response.Body.Close()) }()
	var text strings.Builder
	require.NoError(t, response.Write(&text))
	return response.StatusCode, text.String()
}

func TestOperatorRaisesAMarkAndNeverLowersIt(t *testing.T) {
	t.Parallel()
	f := newFileSidecar(t, resource(t, nil))
	f.start(t)
	const json = "application/json"
	for _, c := range []struct {
		kind, body string
		status     int
		want       string
	}{
		{json, `{"guard":"doc","key":"a","token":50,"operator":"ana","reason":"old grants revoked"}`, 200, `"token":50`},
		{json, `{"guard":"doc","key":"a","token":50,"operator":"ana","reason":"again"}`, 409, `"highestToken":50`},
		{json, `{"guard":"doc","key":"a","token":49,"operator":"ana","reason":"lower"}`, 409, `"highestToken":50`},
		{json, `{"guard":"doc","key":"a","token":60,"operator":"ana"}`, 400, "operator and reason"},
		{json, `{"guard":"doc","key":"a","token":0,"operator":"ana","reason":"x"}`, 400, "1 or more"},
		{json, `{"guard":"doc","key":"a","token":60,"operator":"ana","reason":"x","force":true}`, 400, "force"},
		{json, `{"guard":"nope","key":"a","token":60,"operator":"ana","reason":"x"}`, 404, "nope"},
		{"text/plain", `{"guard":"doc","key":"a","token":60,"operator":"ana","reason":"x"}`, 415, "application/json"},
	} {
		status, body := f.raise(t, c.kind, c.body)
		require.Equal(t, c.status, status, "%s: %s", c.body, body)
		require.Contains(t, body, c.want)
	}
	require.Equal(t, int64(50), f.mark(t, "a"))
	status, body := f.put(t, "a", 50)
	require.Equal(t, http.StatusConflict, status, body)
	status, body = f.put(t, "a", 51)
	require.Equal(t, http.StatusOK, status, body)
	f.eventually(t, "the event", func() bool { return len(f.Events("mark_raised")) == 1 })
	e := f.Events("mark_raised")[0]
	require.Equal(t, "warn doc a 50 ana old grants revoked", strings.Join([]string{e.Text("@level"), e.Text("resource"), e.Text("resourceId"), e.Text("token"), e.Text("by"), e.Text("reason")}, " "))
}
