package proxy

import (
	"context"
	"net/http"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"fenceline/internal/tracing"
	"fenceline/sidecar/gate"
)

// TraceTo lets the proxy record spans: fence.admit from the token to the decision, and fence.forward from there to the end of the response. They
// stand below the client's own span, beside those of the resource, which gets the client's traceparent unchanged.
func (p *Proxy) TraceTo(tracer *tracing.Tracer) { p.tracer = tracer }

// below is where a request's spans belong; nil where nobody records them.
func (p *Proxy) below(e *exchange) context.Context {
	if p.tracer == nil {
		return nil
	}
	return tracing.Below(context.Background(), string(e.fast.Request.Header.Peek("traceparent")), e.traceID)
}

// span begins one of a request's spans.
func (p *Proxy) span(e *exchange, name string) trace.Span {
	if p.tracer == nil {
		return p.tracer.Start(e.spans, name)
	}
	return p.tracer.Start(e.spans, name, attribute.String("fence.route", e.routeName()), attribute.String("fence.mode", e.mode()))
}

// traced records a decision as fence.admit.
func (p *Proxy) traced(ctx context.Context, e *exchange, decide func(context.Context, *exchange) *refusal) *refusal {
	span := p.span(e, "fence.admit")
	defer span.End()
	r := decide(ctx, e)
	if !span.IsRecording() {
		return r
	}
	e.describe(span)
	is, code := admitted, ""
	if r != nil {
		is, code = r.decision, r.Code
	}
	span.SetAttributes(attribute.String("fence.decision", string(is)))
	if is == unavailable || is == busy {
		span.SetStatus(codes.Error, code)
	}
	return r
}

// describe says which lock a span is about.
func (e *exchange) describe(span trace.Span) {
	switch {
	case e.barrier != nil:
		span.SetAttributes(attribute.String("fence.guard", e.barrier.Name))
	case e.match.Route != nil && e.match.Route.Guard != nil:
		span.SetAttributes(attribute.String("fence.guard", e.match.Route.Guard.Name))
	}
	if e.token > 0 {
		span.SetAttributes(attribute.Int64("lock.token", int64(e.token)), attribute.String("fence.key", e.key))
	}
}

// forwarded ends a request's fence.forward.
func (e *exchange) forwarded(outcome gate.Outcome, status int) {
	if e.forwarding == nil {
		return
	}
	if e.forwarding.IsRecording() {
		e.describe(e.forwarding)
		e.forwarding.SetAttributes(attribute.String("fence.outcome", string(outcome)))
		if status > 0 {
			e.forwarding.SetAttributes(attribute.Int("http.response.status_code", status))
		}
		if outcome != gate.OutcomeSettled || status >= http.StatusInternalServerError {
			e.forwarding.SetStatus(codes.Error, "")
		}
	}
	e.forwarding.End()
}
