// Package tracing gives spans to a collector, by OTLP over HTTP. It never holds anybody up: spans that the collector doesn't take in time are dropped.
package tracing

import (
	"context"
	"encoding/hex"
	"fmt"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

const (
	exportEvery   = time.Second
	exportTimeout = 5 * time.Second // for one batch
	stopTimeout   = 3 * time.Second // for the last one
	complainEvery = int64(time.Minute)
	tracesPath    = "/v1/traces" // OTLP/HTTP, where the endpoint names no path
)

// Config says where spans go and from whom they come.
type Config struct {
	Endpoint *url.URL // http or https
	Service  string   // service.name
	Instance string   // service.instance.id
	Registry prometheus.Registerer
	Logger   hclog.Logger
}

// Tracer makes spans. A nil one makes spans that nobody records, at the cost of a comparison.
type Tracer struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
}

// Open starts exporting. It doesn't wait for the collector, which may be down at any time.
func Open(ctx context.Context, c Config) (*Tracer, error) {
	endpoint := *c.Endpoint
	if endpoint.Path == "" || endpoint.Path == "/" {
		endpoint.Path = tracesPath
	}
	exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(endpoint.String()), otlptracehttp.WithTimeout(exportTimeout),
		otlptracehttp.WithRetry(otlptracehttp.RetryConfig{Enabled: false}))
	if err != nil {
		return nil, fmt.Errorf("export spans to %s: %w", endpoint.Redacted(), err)
	}
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.AlwaysSample())), // a client that says "not sampled" is obeyed
		sdktrace.WithIDGenerator(ids{}),
		sdktrace.WithBatcher(watch(exporter, c), sdktrace.WithBatchTimeout(exportEvery), sdktrace.WithExportTimeout(exportTimeout)),
		sdktrace.WithResource(resource.NewSchemaless(attribute.String("service.name", c.Service), attribute.String("service.instance.id", c.Instance))),
	)
	return &Tracer{provider: provider, tracer: provider.Tracer("fenceline")}, nil
}

// Stop exports what is left, for at most three seconds.
func (t *Tracer) Stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("the last spans weren't exported: %w", err)
	}
	return nil
}

// Start begins a span below what the context came from (see Below).
func (t *Tracer) Start(ctx context.Context, name string, attributes ...attribute.KeyValue) trace.Span {
	if t == nil {
		return noop.Span{}
	}
	_, span := t.tracer.Start(ctx, name, trace.WithAttributes(attributes...))
	return span
}

// Below places spans below the caller's own, which its traceparent names (W3C Trace Context). Without a valid one they are the first of a trace
// that has the given id, 32 hexadecimal digits.
func Below(ctx context.Context, traceparent, traceID string) context.Context {
	below := propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": traceparent})
	if trace.SpanContextFromContext(below).IsValid() {
		return below
	}
	return context.WithValue(ctx, traceIDKey{}, traceID)
}

type traceIDKey struct{}

// ids lets a trace that begins here have the id that answers and log lines carry.
type ids struct{}

// NewIDs implements sdktrace.IDGenerator.
func (ids) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	var id trace.TraceID
	text, _ := ctx.Value(traceIDKey{}).(string)
	if n, err := hex.Decode(id[:], []byte(text)); err != nil || n != len(id) {
		random(id[:])
	}
	return id, newSpanID()
}

// NewSpanID implements sdktrace.IDGenerator.
func (ids) NewSpanID(context.Context, trace.TraceID) trace.SpanID { return newSpanID() }

// watched counts what becomes of spans. Failures are said in the log, once a minute.
type watched struct {
	sdktrace.SpanExporter
	spans      *prometheus.CounterVec
	logger     hclog.Logger
	complained atomic.Int64 // Unix nanoseconds
}

func watch(exporter sdktrace.SpanExporter, c Config) *watched {
	w := &watched{
		SpanExporter: exporter, logger: c.Logger,
		spans: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "trace_spans_total", Help: "Spans handed to the collector, or lost because it didn't take them."}, []string{"outcome"}),
	}
	c.Registry.MustRegister(w.spans)
	w.spans.WithLabelValues("exported")
	w.spans.WithLabelValues("failed")
	return w
}

// ExportSpans implements sdktrace.SpanExporter. It returns nil: whatever went wrong has been said here, and nobody else needs to.
func (w *watched) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := w.SpanExporter.ExportSpans(ctx, spans)
	if err == nil {
		w.spans.WithLabelValues("exported").Add(float64(len(spans)))
		return nil
	}
	w.spans.WithLabelValues("failed").Add(float64(len(spans)))
	now, last := time.Now().UnixNano(), w.complained.Load()
	if now-last > complainEvery && w.complained.CompareAndSwap(last, now) {
		w.logger.Warn("the collector doesn't take spans; they are dropped", "event", "trace_export_failed", "spans", len(spans), "error", err)
	}
	return nil
}
