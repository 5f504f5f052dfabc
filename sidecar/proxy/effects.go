package proxy

import (
	"context"
	"errors"
	"net/url"
	"time"

	"github.com/valyala/fasthttp"

	"fenceline/lockd/lock"
	"fenceline/sidecar/config"
	"fenceline/sidecar/gate"
	"fenceline/sidecar/mark"
	"fenceline/sidecar/policy"
)

// barrierPath is the sidecar's own: a request there raises a key's mark, waits until nothing older is in flight, and forwards nothing.
const barrierPath = "/.fence/barrier"

// enter has a request of a guard that orders effects registered, and waits for older ones. Nil means that it may be sent.
func (p *Proxy) enter(ctx context.Context, e *exchange) *refusal {
	route := e.match.Route
	entry := mark.Entry{Admission: p.admission(e), Raise: e.token, Route: route.Name, Owner: clip(e.request.Owner)}
	pass, refused := p.gate.Admit(ctx, entry, releasedAfter(*route.Guard))
	if refused != nil {
		return p.notAdmitted(ctx, e, refused)
	}
	e.pass = pass
	return nil
}

// releasedAfter is how long an unsettled request's row stands at least.
func releasedAfter(g config.Guard) time.Duration {
	if g.Unsettled.Releases() {
		return g.Unsettled.After
	}
	return 0 // an operator may settle it at any time
}

// notAdmitted answers a request that the gate refused. Nothing was sent.
func (p *Proxy) notAdmitted(ctx context.Context, e *exchange, why *gate.Refusal) *refusal {
	guard := e.guardName()
	switch why.Reason {
	case gate.FencedOut:
		return p.fencedOut(ctx, e, why.Highest)
	case gate.Implausible:
		return refuse("TOKEN_IMPLAUSIBLE", "the token is more than token.max_jump above the highest one of this key; nothing was changed")
	case gate.KeyNotFound:
		return refuse("KEY_NOT_FOUND", "guard %s has no such key", guard)
	case gate.Busy:
		r := refuse("FENCE_BUSY", "an older request for this key is still in flight, or its outcome is unknown; nothing was forwarded").with("outcome", gate.OutcomeNotSent)
		r.RetrySafe = !why.Admitted || !e.once()
		return r
	case gate.WentBack:
		p.logger.Error("a mark went back: somebody else writes it; nothing was forwarded", "event", "mark_went_back", "resource", guard, "resourceId", e.key,
			"token", int64(e.token), "found", int64(why.Highest), "traceId", e.traceID)
	case gate.Unavailable:
	}
	err := why.Err
	if err == nil {
		err = errors.New("the store gave no decision")
	}
	r := p.storeFault(e, err)
	r.RetrySafe = !e.once() // the mark may have been raised, and only the answer be lost
	return r
}

// once says whether a token may be used for one request only: then one that was admitted is used up, sent or not.
func (e *exchange) once() bool {
	return e.match.Route != nil && e.match.Route.Admit == config.AdmitNewer
}

// guardName is for answers and the log.
func (e *exchange) guardName() string {
	if e.barrier != nil {
		return e.barrier.Name
	}
	return e.match.Route.Guard.Name
}

// barrierGuard is a guard with what its barrier needs.
type barrierGuard struct {
	config.Guard
	route *policy.Route // one that enforces it; it knows how keys are spelt
	// once means that every route admits a token once. A barrier must leave its token to be used, so it raises the mark to one below: that
	// closes the door to all lower tokens just as well, since a token must be above the mark there.
	once bool
}

// barriers collects the guards that order effects.
func barriers(routes []*policy.Route) map[string]*barrierGuard {
	out := map[string]*barrierGuard{}
	for _, r := range routes {
		if !r.Guarded() || !r.Guard.OrdersEffects() {
			continue
		}
		b := out[r.Guard.Name]
		if b == nil {
			b = &barrierGuard{Guard: *r.Guard, route: r, once: true}
			out[r.Guard.Name] = b
		}
		b.once = b.once && r.Admit == config.AdmitNewer
	}
	return out
}

// atBarrier says whether a request is for the sidecar itself.
func (e *exchange) atBarrier() bool { return e.request.Path == barrierPath }

// passBarrier answers a request to the barrier: 204 when its token is the newest and nothing older may take effect any more.
func (p *Proxy) passBarrier(ctx context.Context, e *exchange) *refusal {
	if r := p.readBarrier(e); r != nil {
		return r
	}
	entry := mark.Entry{
		Admission: mark.Admission{Guard: e.barrier.Name, Key: e.key, Token: e.token}, Raise: e.token,
		Route: "barrier", Owner: clip(e.request.Owner),
	}
	if e.barrier.once {
		entry.Raise--
	}
	pass, refused := p.gate.Admit(ctx, entry, 0)
	if refused != nil {
		return p.notAdmitted(ctx, e, refused)
	}
	pass.End(gate.OutcomeNotSent)
	p.count(e, admitted)
	e.fast.Response.Header.Set(headerDecision, string(admitted))
	e.fast.Response.SetStatusCode(fasthttp.StatusNoContent)
	return nil
}

// readBarrier takes guard, key and token from the request.
func (p *Proxy) readBarrier(e *exchange) *refusal {
	if e.request.Method != fasthttp.MethodPost {
		e.fast.Response.Header.Set("Allow", fasthttp.MethodPost)
		return refuse("METHOD_NOT_ALLOWED", "the barrier takes POST")
	}
	if e.request.ContentLength > 0 || e.request.Chunked {
		e.fast.SetConnectionClose()
		return refuse("MALFORMED_REQUEST", "the barrier takes no body")
	}
	query, err := url.ParseQuery(e.request.Query)
	if err != nil || len(query) != 2 || len(query["guard"]) != 1 || len(query["key"]) != 1 {
		return refuse("KEY_INVALID", "want %s?guard=NAME&key=KEY", barrierPath)
	}
	if e.barrier = p.barriers[query.Get("guard")]; e.barrier == nil {
		return refuse("ROUTE_NOT_ALLOWED", "no guard of this name orders effects here, so it has no barrier")
	}
	if e.key, err = e.barrier.route.Canonical(query.Get("key")); err != nil {
		return refuse("KEY_INVALID", "%s", err)
	}
	return p.readToken(e)
}

// readToken takes the request's token.
func (p *Proxy) readToken(e *exchange) *refusal {
	if len(e.request.Tokens) != 1 {
		return refuse("INVALID_TOKEN", "the header %s stands %d times, want once", p.rules.TokenHeader, len(e.request.Tokens))
	}
	token, err := lock.ParseToken(e.request.Tokens[0])
	if err != nil {
		return refuse("INVALID_TOKEN", "%s: %s", p.rules.TokenHeader, err)
	}
	e.token = token
	return nil
}

// begin asks the gate for the first byte, and mayContinue for each further piece. Requests without a pass were passed or admitted by order of admissions.
func (e *exchange) begin(ctx context.Context) error {
	if e.pass == nil {
		return nil
	}
	return e.pass.Begin(ctx)
}

func (e *exchange) mayContinue() bool { return e.pass == nil || e.pass.MayContinue() }

// end tells the gate what became of the request.
func (e *exchange) end(outcome gate.Outcome) {
	if e.pass != nil {
		e.ended = true
		e.pass.End(outcome)
	}
}

// abandon is for a request that nobody ended: its handling panicked. How far it had come isn't known.
func (e *exchange) abandon() {
	if e.pass != nil && !e.ended && !e.handed {
		e.end(gate.OutcomeUnknown)
	}
}

// unfinished are the statuses after which the resource may still be at work.
func (e *exchange) unfinished() []int {
	if e.pass != nil {
		return e.match.Route.Guard.UnsettledStatus
	}
	return gate.UnfinishedStatus()
}

// lateRequest is what is left of a request whose client has its answer.
type lateRequest struct {
	pass       *gate.Pass
	unfinished []int
	route, key string
	token      lock.Token
	traceID    string
}

// settleLate settles a request whose outcome was unknown when a late response came whole.
func (p *Proxy) settleLate(l *lateRequest, end gate.End) {
	if gate.Settle(end, l.unfinished) != gate.OutcomeSettled {
		return
	}
	p.logger.Info("a late response settled a request", "event", "request_settled", "by", "late response", "route", l.route, "resourceId", l.key,
		"token", int64(l.token), "status", end.Status, "traceId", l.traceID)
	l.pass.End(gate.OutcomeSettled)
}
