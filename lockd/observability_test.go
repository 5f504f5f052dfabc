package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fenceline/internal/credential/credtest"
	"fenceline/internal/pgserver/pgtest"
	"fenceline/internal/process"
	"fenceline/lockd/lock"
	"fenceline/lockd/lockapi"
	"fenceline/migrations"
)

// page reads a URL, with a bearer token if there is one.
func page(t *testing.T, url, token string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer func() { require.NoError(t, response.Body.Close()) }()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(body)
}

// The events of a real process, parsed: each has its own fields, those that all have, and no others.
func TestEventsHaveExactlyTheirFields(t *testing.T) {
	t.Parallel()
	const client, operator = "client-token-0123456789", "operator-token-0123456789"
	dir := t.TempDir()
	credtest.Write(t, dir+"/clients", client)
	credtest.Write(t, dir+"/operators", operator)
	p, base, _ := serve(t, pgtest.Login(t, pgtest.Database(t, migrations.LockDB()), "lockapp"),
		"--client-token-file", dir+"/clients", "--operator-token-file", dir+"/operators")
	ask := func(token, method, path, body string, headers ...string) string {
		request, err := http.NewRequestWithContext(t.Context(), method, base+path, strings.NewReader(body))
		require.NoError(t, err)
		for i := 0; i < len(headers); i += 2 {
			request.Header.Set(headers[i], headers[i+1])
		}
		request.Header.Set("X-Owner-Id", "worker")
		request.Header.Set("Authorization", "Bearer "+token)
		response, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		defer func() { require.NoError(t, response.Body.Close()) }()
		answer, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		return string(answer)
	}
	find := func(pattern, in string) string {
		match := regexp.MustCompile(pattern).FindStringSubmatch(in)
		require.NotNil(t, match, "%s in %s", pattern, in)
		return match[1]
	}
	session := find(`"sessionId":"([^"]+)"`, ask(client, "POST", "/v1/sessions", `{"ownerId":"worker"}`))
	acquired := func(key string, ttl string) string {
		return find(`"fencingToken":(\d+)`, ask(client, "POST", "/v1/locks/"+key+"/acquire", `{"sessionId":"`+session+`","ttlMillis":`+ttl+`}`))
	}
	acquired("expires", "100")
	token := acquired("released", "60000")
	require.Contains(t, ask(client, "POST", "/v1/locks/released/renew", "", "X-Fencing-Token", token), `"fencingToken":`+token)
	require.Contains(t, ask(client, "DELETE", "/v1/locks/released", "", "X-Fencing-Token", token), `"released":true`)
	acquired("revoked", "60000")
	const revoke = `{"operator":"op","reason":"it is stuck"}`
	require.Contains(t, ask(client, "POST", "/v1/locks/revoked/revoke", revoke), lockapi.CodeForbidden)
	require.Contains(t, ask(operator, "POST", "/v1/locks/revoked/revoke", revoke), "newTokenFloor")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := p.WaitEvent(ctx, "the end of the short lease", func(e process.Event) bool { return e.Name() == "lease_expired" })
	require.NoError(t, err)
	closedToken := acquired("closed", "60000")
	require.Empty(t, ask(client, "DELETE", "/v1/sessions/"+session, ""))
	credtest.Write(t, dir+"/clients", client+"\n"+client+"-new")
	require.NoError(t, os.Remove(dir+"/operators"))

	for name, want := range map[string]struct {
		level  string
		fields []string
	}{
		"lock_granted":         {"info", []string{"lockKey", "token", "backend", "leaseMillis", "waitMillis", "ownerId", "traceId"}},
		"lock_released":        {"info", []string{"lockKey", "token", "heldMillis", "stale", "ownerId", "traceId"}},
		"lock_revoked":         {"warn", []string{"lockKey", "token", "revokedBy", "reason", "ownerId", "traceId"}},
		"lease_expired":        {"warn", []string{"lockKey", "token", "overdueMillis", "ownerId", "traceId"}},
		"caller_refused":       {"warn", []string{"reason", "code", "call", "caller", "remote", "ownerId", "traceId"}},
		"operator_called":      {"info", []string{"call", "caller", "remote", "status", "ownerId", "traceId"}},
		"credentials_reloaded": {"info", []string{"source"}},
		"credentials_rejected": {"warn", []string{"source", "error"}},
		"listening":            {"info", []string{"listener", "address"}},
		"started":              {"info", []string{"pid"}},
	} {
		event, err := p.WaitEvent(ctx, name, func(e process.Event) bool { return e.Name() == name })
		require.NoError(t, err)
		fields := slices.Collect(maps.Keys(event))
		common := []string{"@timestamp", "@level", "@message", "service", "event"}
		if _, named := event["@module"]; named { // the part of the program, where there is one
			common = append(common, "@module")
		}
		require.ElementsMatch(t, slices.Concat(common, want.fields), fields, name)
		require.Equal(t, []string{want.level, "lockd"}, []string{event.Text("@level"), event.Text("service")}, name)
		_, err = time.Parse("2006-01-02T15:04:05.000Z", event.Text("@timestamp"))
		require.NoError(t, err)
		if slices.Contains(want.fields, "traceId") {
			require.Len(t, event.Text("traceId"), 32, name)
		}
	}
	closed, err := p.WaitEvent(ctx, "the release of what the session held", func(e process.Event) bool {
		return e.Name() == "lock_released" && e.Text("lockKey") == "closed"
	})
	require.NoError(t, err)
	require.Equal(t, closedToken, fmt.Sprint(closed["token"]))
	for _, e := range append(p.Events("lease_expired"), closed) {
		require.Equal(t, "worker", e.Text("ownerId"), e)
	}
	require.NotContains(t, written(t, p), "token-0123456789", "no secret in any line")
}

// family is one metric of a page: its type, its labels and their values, and its buckets.
type family struct {
	kind   string
	labels map[string][]string
	values map[string]string // by series
	bounds []string
}

var (
	typeLine   = regexp.MustCompile(`^# TYPE (\S+) (\S+)$`)
	seriesLine = regexp.MustCompile(`^([a-z_]+)(?:\{(.*)\})? (\S+)$`)
	labelPair  = regexp.MustCompile(`(\w+)="([^"]*)"`)
)

// families parses a page of metrics.
func families(t *testing.T, text string) map[string]*family {
	t.Helper()
	found, name := map[string]*family{}, ""
	for line := range strings.SplitSeq(strings.TrimSpace(text), "\n") {
		if match := typeLine.FindStringSubmatch(line); match != nil {
			name = match[1]
			found[name] = &family{kind: match[2], labels: map[string][]string{}, values: map[string]string{}}
		}
		match := seriesLine.FindStringSubmatch(line)
		if match == nil {
			continue
		}
		f := found[name]
		for _, pair := range labelPair.FindAllStringSubmatch(match[2], -1) {
			switch {
			case pair[1] != "le":
				if !slices.Contains(f.labels[pair[1]], pair[2]) {
					f.labels[pair[1]] = append(f.labels[pair[1]], pair[2])
				}
			case !slices.Contains(f.bounds, pair[2]):
				f.bounds = append(f.bounds, pair[2])
			}
		}
		f.values[strings.TrimPrefix(match[1], name)+"{"+match[2]+"}"] = match[3]
	}
	return found
}

func TestMetricsHaveExactlyTheirLabelsAndBucketsFromTheStart(t *testing.T) {
	t.Parallel()
	_, base, admin := serve(t, pgtest.Login(t, pgtest.Database(t, migrations.LockDB()), "lockapp"))
	_, text := page(t, admin+"/metrics", "")
	backend := []string{"pg"}
	calls := []string{
		"acquire", "close_session", "heartbeat", "inspect", "list_locks", "list_revocations", "none", "open_session", "openapi", "release", "renew", "revoke",
	}
	latency := []string{"0.001", "0.0025", "0.005", "0.01", "0.025", "0.05", "0.1", "0.25", "0.5", "1", "2", "5", "+Inf"}
	wanted := map[string]family{
		"lock_acquire_seconds":            {kind: "histogram", labels: map[string][]string{"backend": backend, "outcome": {"contended", "error", "granted"}}, bounds: latency},
		"lock_lease_expired_total":        {kind: "counter", labels: map[string][]string{"backend": backend}},
		"lock_held_current":               {kind: "gauge", labels: map[string][]string{"backend": backend}},
		"lock_waiters_current":            {kind: "gauge", labels: map[string][]string{"backend": backend}},
		"lock_callers_refused_total":      {kind: "counter", labels: map[string][]string{"reason": {"certificate_missing", "certificate_refused", "handshake_failed", "operator_needed", "token_malformed", "token_missing", "token_wrong"}}},
		"lock_credentials_rejected_total": {kind: "counter", labels: map[string][]string{"source": {"client_ca", "client_tokens", "operator_tokens", "tls"}}},
		"http_requests_total":             {kind: "counter", labels: map[string][]string{"route": calls, "status": {"2xx", "4xx", "5xx"}}},
		"http_request_seconds":            {kind: "histogram", labels: map[string][]string{"route": calls}, bounds: latency},
	}
	docs, err := os.ReadFile(filepath.Join("..", "docs", "observability.md"))
	require.NoError(t, err)
	there := families(t, text)
	for name, f := range there {
		if strings.HasPrefix(name, "lock_") || strings.HasPrefix(name, "http_") {
			require.Contains(t, wanted, name, "every metric of lockd's is agreed")
			require.Contains(t, string(docs), "`"+name+"`")
		}
		if _, ours := wanted[name]; ours {
			for series, value := range f.values {
				require.Equal(t, "0", value, "%s%s is there at zero", name, series)
			}
		}
	}
	for name, want := range wanted {
		got, ok := there[name]
		require.True(t, ok, name)
		require.Equal(t, want.kind, got.kind, name)
		require.Equal(t, want.labels, got.labels, name)
		require.Equal(t, want.bounds, got.bounds, name)
		series := 1
		for _, values := range want.labels {
			series *= len(values)
		}
		if want.kind == "histogram" {
			series *= len(want.bounds) + 2
		}
		require.Len(t, got.values, series, "every combination of labels is there: %s", name)
	}
	for _, name := range []string{"go_goroutines", "process_resident_memory_bytes", "go_build_info", "db_pool_max_connections"} {
		require.Contains(t, there, name)
	}

	c := client(t, base)
	grant, err := acquire(t, c, "k", time.Minute)
	require.NoError(t, err)
	_, err = acquire(t, c, "k", time.Minute)
	require.Error(t, err)
	_, err = acquire(t, c, "short", 100*time.Millisecond)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, text := page(t, admin+"/metrics", "")
		now := families(t, text)
		return now["lock_acquire_seconds"].values[`_count{backend="pg",outcome="granted"}`] == "2" &&
			now["lock_acquire_seconds"].values[`_count{backend="pg",outcome="contended"}`] == "1" &&
			now["lock_lease_expired_total"].values[`{backend="pg"}`] == "1" && now["lock_held_current"].values[`{backend="pg"}`] == "1"
	}, 20*time.Second, 20*time.Millisecond)
	_, err = c.Release(t.Context(), "k", lock.Token(grant.FencingToken))
	require.NoError(t, err)
}

func TestHealthIsOnTheAdminListenerOnly(t *testing.T) {
	t.Parallel()
	_, base, admin := serve(t, pgtest.Login(t, pgtest.Database(t, migrations.LockDB()), "lockapp"))
	for _, path := range []string{"/livez", "/readyz", "/metrics"} {
		status, _ := page(t, base+path, "")
		require.Equal(t, 404, status, path)
		status, _ = page(t, admin+path, "")
		require.Equal(t, 200, status, path)
	}
	_, body := page(t, admin+"/readyz", "")
	require.JSONEq(t, `{"ok":true,"checks":{"lockdb":{"ok":true},"draining":{"ok":true}}}`, body)
}
