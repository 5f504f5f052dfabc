package main

import (
	"context"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	spans "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

const (
	clientTrace = "4bf92f3577b34da6a3ce929d0e0e4736"
	clientSpan  = "00f067aa0ba902b7"
	traceparent = "00-" + clientTrace + "-" + clientSpan + "-01"
)

// collected is what came to a collector.
type collected struct {
	mu       sync.Mutex
	spans    []*spans.Span
	services []string
}

func startCollector(t *testing.T) (*collected, string) {
	t.Helper()
	c := &collected{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		batch := &collector.ExportTraceServiceRequest{}
		if err != nil || r.URL.Path != "/v1/traces" || proto.Unmarshal(body, batch) != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, from := range batch.GetResourceSpans() {
			for _, a := range from.GetResource().GetAttributes() {
				c.services = append(c.services, a.GetKey()+"="+a.GetValue().GetStringValue())
			}
			for _, scope := range from.GetScopeSpans() {
				c.spans = append(c.spans, scope.GetSpans()...)
			}
		}
	}))
	t.Cleanup(server.Close)
	return c, server.URL
}

// of returns the spans of a trace, by name.
func (c *collected) of(trace string) map[string]*spans.Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[string]*spans.Span{}
	for _, s := range c.spans {
		if hex.EncodeToString(s.GetTraceId()) == trace {
			out[s.GetName()] = s
		}
	}
	return out
}

func attribute(s *spans.Span, key string) any {
	i := slices.IndexFunc(s.GetAttributes(), func(a *common.KeyValue) bool { return a.GetKey() == key })
	if i < 0 {
		return nil
	}
	value := s.GetAttributes()[i].GetValue()
	if text := value.GetStringValue(); text != "" {
		return text
	}
	return value.GetIntValue()
}

func (f *fileSidecar) traced(t *testing.T, method, path, token, parent string) (status int, header http.Header) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, "http://"+f.api+path, nil)
	require.NoError(t, err)
	request.Header.Set("X-Fencing-Token", token)
	if parent != "" {
		request.Header.Set("Traceparent", parent)
	}
	response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, response.Body)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	return response.StatusCode, response.Header
}

func newTracedSidecar(t *testing.T, endpoint string, came chan<- string) *fileSidecar {
	t.Helper()
	f := newFileSidecar(t, resource(t, func(w http.ResponseWriter, r *http.Request) {
		came <- r.Header.Get("Traceparent")
		_, _ = io.WriteString(w, "done")
	}))
	text := strings.Replace(fileConfig, "order: admissions", "order: effects\n    unsettled: { then: hold }", 1)
	rewrite(t, f.config, text+"tracing: { endpoint: "+endpoint+" }\n")
	f.start(t)
	return f
}

func TestSpansStandBelowTheClientsOwn(t *testing.T) {
	t.Parallel()
	c, endpoint := startCollector(t)
	came := make(chan string, 100)
	f := newTracedSidecar(t, endpoint, came)

	status, _ := f.traced(t, http.MethodPut, "/docs/a", "34", traceparent)
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, traceparent, <-came, "the resource gets what the client sent")
	f.eventually(t, "spans", func() bool { return len(c.of(clientTrace)) == 2 })
	for name, s := range c.of(clientTrace) {
		require.Equal(t, clientSpan, hex.EncodeToString(s.GetParentSpanId()), name)
		require.Equal(t, int64(34), attribute(s, "lock.token"), name)
		require.Equal(t, "doc", attribute(s, "fence.guard"), name)
		require.Equal(t, "write", attribute(s, "fence.route"), name)
		require.Equal(t, "a", attribute(s, "fence.key"), name)
	}
	got := c.of(clientTrace)
	require.Equal(t, "admitted", attribute(got["fence.admit"], "fence.decision"))
	require.Equal(t, int64(200), attribute(got["fence.forward"], "http.response.status_code"))
	require.Equal(t, "settled", attribute(got["fence.forward"], "fence.outcome"))
	require.LessOrEqual(t, got["fence.admit"].GetEndTimeUnixNano(), got["fence.forward"].GetStartTimeUnixNano())
	c.mu.Lock()
	require.Subset(t, c.services, []string{"service.name=sidecar", "service.instance.id=test"})
	c.mu.Unlock()

	// Fenced out: decided, and never forwarded.
	const second = "5bf92f3577b34da6a3ce929d0e0e4736"
	status, _ = f.traced(t, http.MethodPut, "/docs/a", "33", strings.Replace(traceparent, clientTrace, second, 1))
	require.Equal(t, http.StatusConflict, status)
	// Without a traceparent the trace has the id that the event carries.
	status, _ = f.traced(t, http.MethodPut, "/docs/a", "32", "")
	require.Equal(t, http.StatusConflict, status)
	f.eventually(t, "the events", func() bool { return len(f.Events("fenced_out")) == 2 })
	own := f.Events("fenced_out")[1].Text("traceId")
	f.eventually(t, "spans", func() bool { return len(c.of(second)) == 1 && len(c.of(own)) == 1 })
	require.Equal(t, "fenced_out", attribute(c.of(second)["fence.admit"], "fence.decision"))
	require.Empty(t, c.of(own)["fence.admit"].GetParentSpanId())
	require.Empty(t, came)

	// A client that says "not sampled" is obeyed.
	const quiet = "6bf92f3577b34da6a3ce929d0e0e4736"
	status, _ = f.traced(t, http.MethodPut, "/docs/a", "35", "00-"+quiet+"-"+clientSpan+"-00")
	require.Equal(t, http.StatusOK, status)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, f.Stop(ctx))
	require.Empty(t, c.of(quiet), "also after the stop has exported what was left")
}

func TestCollectorThatIsDownHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	came := make(chan string, 100)
	f := newTracedSidecar(t, "http://127.0.0.1:1", came)
	for token := range 20 {
		status, _ := f.traced(t, http.MethodPost, "/docs/a", "7", traceparent)
		require.Equal(t, http.StatusOK, status, token)
	}
	f.eventually(t, "it is said", func() bool { return len(f.Events("trace_export_failed")) == 1 })
	f.eventually(t, "it is counted", func() bool { return f.metric(t, `trace_spans_total{outcome="failed"}`) != "0" })
	require.Equal(t, "0", f.metric(t, `trace_spans_total{outcome="exported"}`))
	start := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, f.Stop(ctx))
	require.Less(t, time.Since(start), patience/2, "the stop doesn't wait for the collector")
}
