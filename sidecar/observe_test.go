package main

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"fenceline/internal/process"
)

// sample finds a series of /metrics by its whole name with labels; found is false when there is none.
func sample(page, series string) (value string, found bool) {
	for line := range strings.Lines(page) {
		if rest, ok := strings.CutPrefix(line, series+" "); ok {
			return strings.TrimSpace(rest), true
		}
	}
	return "", false
}

// Names and labels are a contract with whoever builds alerts: all series exist at zero from the start.
func TestEverySeriesExistsAtZeroFromTheStart(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	_, page := s.adminPage(t, "/metrics")
	series := []string{
		`lock_fenced_out_total{resource="account"}`,
		`fence_store_seconds_count{guard="account"}`, `fence_inflight_current{guard="account"}`,
		`fence_upstream_failures_total{outcome="not_sent"}`, `fence_upstream_failures_total{outcome="unknown"}`,
	}
	for _, decision := range []string{"passed", "admitted", "fenced_out", "busy", "invalid", "unmatched", "unavailable"} {
		for route, mode := range map[string]string{"write": "enforce", "unwatched": "off", "reads": "enforce", "none": "enforce"} {
			series = append(series, `fence_decisions_total{decision="`+decision+`",mode="`+mode+`",route="`+route+`"}`)
		}
	}
	for _, route := range []string{"write", "unwatched", "reads", "none"} {
		series = append(series, `fence_upstream_seconds_count{route="`+route+`"}`)
	}
	for _, name := range series {
		value, found := sample(page, name)
		require.True(t, found, "%s is missing in:\n%s", name, page)
		require.Equal(t, "0", value, name)
	}
	for _, bucket := range []string{"0.05", "2"} {
		_, found := sample(page, `fence_store_seconds_bucket{guard="account",le="`+bucket+`"}`)
		require.True(t, found, "objectives are stated at %s", bucket)
	}
	for _, name := range []string{"db_pool_max_connections", "go_build_info", "fence_config_info"} {
		require.Contains(t, page, "\n"+name+"{")
	}
}

func TestRefusalIsCountedAndLoggedWithItsFields(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	for token, want := range map[string]int{"34": 200} {
		status, body := s.write(t, token)
		require.Equal(t, want, status, body)
	}
	status, body := s.write(t, "33")
	require.Equal(t, http.StatusConflict, status, body)
	status, _ = s.write(t, "0")
	require.Equal(t, http.StatusBadRequest, status)
	status, _ = ask(t, http.MethodDelete, "http://"+s.api+"/nowhere", "")
	require.Equal(t, http.StatusForbidden, status)
	status, _ = ask(t, http.MethodGet, "http://"+s.api+"/any", "")
	require.Equal(t, http.StatusOK, status)
	status, _ = ask(t, http.MethodPut, "http://"+s.api+"/accounts/"+s.account, "")
	require.Equal(t, http.StatusOK, status, "mode off looks at nothing")

	_, page := s.adminPage(t, "/metrics")
	for series, want := range map[string]string{
		`fence_decisions_total{decision="admitted",mode="enforce",route="write"}`:   "1",
		`fence_decisions_total{decision="fenced_out",mode="enforce",route="write"}`: "1",
		`fence_decisions_total{decision="invalid",mode="enforce",route="write"}`:    "1",
		`fence_decisions_total{decision="unmatched",mode="enforce",route="none"}`:   "1",
		`fence_decisions_total{decision="passed",mode="enforce",route="reads"}`:     "1",
		`fence_decisions_total{decision="passed",mode="off",route="unwatched"}`:     "1",
		`lock_fenced_out_total{resource="account"}`:                                 "1",
		`fence_store_seconds_count{guard="account"}`:                                "2",
		`fence_upstream_seconds_count{route="write"}`:                               "1",
		`fence_inflight_current{guard="account"}`:                                   "0",
	} {
		value, _ := sample(page, series)
		require.Equal(t, want, value, series)
	}

	events := s.Events("fenced_out")
	require.Len(t, events, 1)
	e := events[0]
	require.Equal(t, "error", e.Text("@level"))
	require.Equal(t, "sidecar", e.Text("service"))
	require.Equal(t, "account", e.Text("resource"))
	require.Equal(t, s.account, e.Text("resourceId"))
	require.Equal(t, int64(33), e.Int("presentedToken"))
	require.Equal(t, int64(34), e.Int("highestToken"))
	require.Equal(t, "worker-a", e.Text("ownerId"))
	require.Equal(t, "write", e.Text("route"))
	var envelope struct{ TraceID string }
	require.NoError(t, json.Unmarshal([]byte(body), &envelope))
	require.Equal(t, envelope.TraceID, e.Text("traceId"), "answer and log line are found from each other")
	require.NotEmpty(t, e.Text("@timestamp"))
}

func TestStartSaysWhatEachGuardPromisesAndWhatProtectsNothing(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	promises := s.Events("guard_promise")
	require.Len(t, promises, 1)
	require.Equal(t, "account", promises[0].Text("guard"))
	require.Equal(t, "admissions", promises[0].Text("order"))
	require.Contains(t, promises[0].Text("@message"), "may still take effect later", "it doesn't claim more than it gives")
	warned := false
	for _, e := range s.Events("config_warning") {
		warned = warned || e.Text("@level") == "warn" && strings.Contains(e.Text("@message"), "unwatched")
	}
	require.True(t, warned, s.Tail())
}

func TestAdminShowsWhatRunsAndNoSecret(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	status, body := s.write(t, "34")
	require.Equal(t, http.StatusOK, status, body)

	status, config := s.adminPage(t, "/config")
	require.Equal(t, http.StatusOK, status)
	var shown struct {
		Hash   string
		Config map[string]any
	}
	require.NoError(t, json.Unmarshal([]byte(config), &shown))
	require.NotEmpty(t, shown.Hash)
	require.Contains(t, config, "[redacted]")
	require.Contains(t, config, "account")
	_, page := s.adminPage(t, "/metrics")
	value, _ := sample(page, `fence_config_info{hash="`+shown.Hash+`"}`)
	require.Equal(t, "1", value, "the same hash everywhere")

	status, routes := s.adminPage(t, "/routes")
	require.Equal(t, http.StatusOK, status)
	for _, want := range []string{`"write"`, `"unwatched"`, `"reads"`, `"/accounts/{id}"`, `"off"`} {
		require.Contains(t, routes, want)
	}

	for query, want := range map[string]struct {
		status int
		text   string
	}{
		"?guard=account&key=" + s.account:                         {http.StatusOK, `"token":34`},
		"?guard=account&key=" + strings.ToUpper(s.account):        {http.StatusOK, `"token":34`},
		"?guard=account&key=00000000-0000-0000-0000-000000000000": {http.StatusOK, `"found":false`},
		"?guard=account&key=7":                                    {http.StatusBadRequest, "UUID"},
		"?guard=other&key=7":                                      {http.StatusNotFound, "other"},
		"?guard=account":                                          {http.StatusBadRequest, "guard=NAME"},
	} {
		status, marks := s.adminPage(t, "/marks"+query)
		require.Equal(t, want.status, status, "%s: %s", query, marks)
		require.Contains(t, marks, want.text, query)
	}
	status, _ = ask(t, http.MethodPost, "http://"+s.admin+"/marks?guard=account&key="+s.account, "")
	require.Equal(t, http.StatusMethodNotAllowed, status, "marks are read here, never written")

	log, err := os.ReadFile(s.LogFile())
	require.NoError(t, err)
	_, ready := s.adminPage(t, "/readyz")
	for where, text := range map[string]string{"log": string(log), "/config": config, "/routes": routes, "/metrics": page, "/readyz": ready} {
		require.NotContains(t, text, s.password, where)
	}
}

// The data port answers nothing about the sidecar itself, and the reserved paths reach no resource.
func TestAdminPagesAreNotOnTheDataPort(t *testing.T) {
	t.Parallel()
	reached := make(chan string, 10)
	s := start(t, func(w http.ResponseWriter, r *http.Request) { reached <- r.URL.Path; w.WriteHeader(http.StatusTeapot) })
	for _, path := range []string{"/livez", "/readyz", "/metrics", "/config"} {
		status, _ := ask(t, http.MethodGet, "http://"+s.api+path, "")
		require.Equal(t, http.StatusTeapot, status, "%s is the resource's", path)
		require.Equal(t, path, <-reached)
	}
	for _, path := range []string{"/.fence/inflight", "/.fence/barrier/x", "/.FENCE/x", "/.FENCE/barrier", "/.fence"} {
		status, body := ask(t, http.MethodGet, "http://"+s.api+path, "")
		require.Equal(t, http.StatusForbidden, status, body)
	}
	status, body := ask(t, http.MethodPost, "http://"+s.api+"/.fence/barrier?guard=account&key="+s.account, "5")
	require.Equal(t, http.StatusForbidden, status, "a guard that orders admissions only has no barrier: %s", body)
	status, body = ask(t, http.MethodGet, "http://"+s.api+"/.fence/barrier", "")
	require.Equal(t, http.StatusMethodNotAllowed, status, body)
	require.Empty(t, reached)
}

// Every line of the log can be read by a program.
func TestEveryLogLineIsJSONWithTheCommonFields(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	_, _ = s.write(t, "34")
	_, _ = s.write(t, "33")
	log, err := os.ReadFile(s.LogFile())
	require.NoError(t, err)
	for line := range strings.Lines(string(log)) {
		var e process.Event
		require.NoError(t, json.Unmarshal([]byte(line), &e), line)
		for _, field := range []string{"@timestamp", "@level", "@message", "service", "event"} {
			require.NotEmpty(t, e[field], "%s in %s", field, line)
		}
	}
}

func (f *fileSidecar) post(t *testing.T, path, body string) (status int, answer string) {
	t.Helper()
	return post(t, "http://"+f.admin+path, body)
}

// post sends a JSON body.
func post(t *testing.T, url, body string) (status int, answer string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	require.NoError(t, err)
	request.Header.Set("Content-Type", "application/json")
	response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	page, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(page)
}

func TestOperatorSetsTheLogsLevel(t *testing.T) {
	t.Parallel()
	f := newFileSidecar(t, "http://127.0.0.1:1")
	f.start(t)
	for _, bad := range []string{`{"level":"loud","operator":"carol"}`, `{"level":"warn"}`, `{"level":"warn","operator":" "}`, `{"level":"warn","operator":"carol","more":1}`, `{}`, ``} {
		status, page := f.post(t, "/log-level", bad)
		require.Equal(t, http.StatusBadRequest, status, "%s: %s", bad, page)
	}
	_, page := f.adminPage(t, "/log-level")
	require.JSONEq(t, `{"level":"info"}`, page)

	// Behind a resource that isn't there: a warning, and the event of the refusal is an error.
	faults := func() int { _, _ = f.put(t, "a", 7); return len(f.Events("upstream_failed")) }
	f.eventually(t, "a warning", func() bool { return faults() > 0 })
	status, page := f.post(t, "/log-level", `{"level":"error","operator":"carol"}`)
	require.Equal(t, http.StatusOK, status, page)
	before := len(f.Events("upstream_failed"))
	for token := int64(100); token < 120; token++ {
		_, _ = f.put(t, "a", token)
	}
	status, _ = f.put(t, "a", 8)
	require.Equal(t, http.StatusConflict, status)
	f.eventually(t, "an error is said", func() bool { return len(f.Events("fenced_out")) > 0 })
	require.Len(t, f.Events("upstream_failed"), before, "warnings aren't")
	status, page = f.post(t, "/log-level", `{"level":"debug","operator":"carol"}`)
	require.Equal(t, http.StatusOK, status, page)
	f.eventually(t, "both changes are said", func() bool { return len(f.Events("log_level_set")) == 2 })
	change := f.Events("log_level_set")[1]
	require.Equal(t, []string{"debug", "error", "carol"}, []string{change.Text("level"), change.Text("before"), change.Text("by")})
}

func TestReadinessFollowsTheResourceWhereItIsAsked(t *testing.T) {
	t.Parallel()
	gone := newFileSidecar(t, "http://127.0.0.1:1")
	gone.start(t)
	require.True(t, gone.ready(t), "by default the resource isn't asked")

	server := httptest.NewServer(http.NotFoundHandler())
	f := newFileSidecar(t, server.URL)
	rewrite(t, f.config, strings.Replace(fileConfig, "response_timeout: 10s }", "response_timeout: 10s, readiness: connect }", 1))
	f.start(t)
	require.True(t, f.ready(t), f.Tail())
	server.Close()
	status, page := f.adminPage(t, "/readyz")
	require.Equal(t, http.StatusServiceUnavailable, status, page)
	require.Contains(t, page, "the resource can't be reached")
}
