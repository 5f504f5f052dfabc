package proxy

import (
	"context"
	"strings"
	"sync/atomic"
	"time"

	"fenceline/lockd/lock"
	"fenceline/sidecar/mark"
	"fenceline/sidecar/policy"
)

// shadow remembers when the store failed a shadowed request last, so that a store that hangs costs one request a second its time-out and not all.
type shadow struct{ failedAt atomic.Int64 } // Unix nanoseconds

const shadowPause = time.Second

// judge decides on a shadowed request as if its route were enforced, raises its mark, and records what came of it. The request is forwarded
// whatever that is.
func (p *Proxy) judge(ctx context.Context, e *exchange) {
	code := ""
	switch {
	case time.Since(time.Unix(0, p.shadow.failedAt.Load())) < shadowPause:
		e.judged, code = unavailable, "FENCE_UNAVAILABLE"
	default:
		e.judged = admitted
		if r := p.traced(ctx, e, p.admit); r != nil {
			e.judged, code = r.decision, r.Code
		}
		if e.judged == unavailable {
			p.shadow.failedAt.Store(time.Now().UnixNano())
		}
	}
	e.fast.Response.Header.Set(headerDecision, string(e.judged))
	p.logger.Info("shadow: the request passes whatever was decided", "event", "shadow_decision", "route", e.routeName(), "decision", string(e.judged), "code", code,
		"resource", e.match.Route.Guard.Name, "resourceId", e.key, "presentedToken", int64(e.token), "ownerId", clip(e.request.Owner), "traceId", e.traceID)
}

// counted is the decision that metrics and header show.
func (e *exchange) counted(d decision) decision {
	if e.judged != "" {
		return e.judged
	}
	return d
}

// judgedByBody says whether a shadowed request has to be received whole to be judged. One above limits.body passes unjudged.
func (e *exchange) judgedByBody() bool {
	return e.match.Route != nil && e.match.Route.Shadowed() && e.match.Route.Route.Key.FromBody() && !e.request.Chunked && e.request.ContentLength <= e.bodyLimit
}

// input is what keys and parameters are taken from.
func (e *exchange) input() policy.Input {
	return policy.Input{Params: e.match.Params, Header: e.request.Values, Query: e.request.Query, Body: e.body}
}

// onFenced runs the route's statement. The refusal stands whatever comes of it: a statement that fails is logged and counted.
func (p *Proxy) onFenced(ctx context.Context, e *exchange, highest lock.Token) {
	if e.match.Route == nil {
		return // at the barrier
	}
	statement, args := e.match.Route.FencedStatement(e.input(), policy.Fenced{
		Token: int64(e.token), Highest: int64(highest), Key: e.key, Owner: strings.ToValidUTF8(clip(e.request.Owner), ""),
	})
	store, ok := p.store.(mark.StatementRunner)
	if statement == "" || !ok {
		return
	}
	if err := store.Run(ctx, statement, args); err != nil {
		p.metrics.onFenced.WithLabelValues(e.routeName()).Inc()
		p.logger.Error("the statement on_fenced failed; the request is refused all the same", "event", "on_fenced_failed", "route", e.routeName(), "error", err, "traceId", e.traceID)
	}
}

// RecordTo gives rejections to a recorder, which must not wait.
func (p *Proxy) RecordTo(record func(mark.Rejection)) { p.record = record }
