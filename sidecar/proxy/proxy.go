// Package proxy is the sidecar's data path: it receives a request whole, checks it, has it admitted, and sends it to the resource at most once.
package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"
	"go.opentelemetry.io/otel/trace"

	"fenceline/internal/httperr"
	"fenceline/internal/tracing"
	"fenceline/lockd/lock"
	"fenceline/sidecar/config"
	"fenceline/sidecar/gate"
	"fenceline/sidecar/httpcheck"
	"fenceline/sidecar/mark"
	"fenceline/sidecar/policy"
)

// keyCacheSize bounds the remembered lookups. Each takes a hash, the key (up to 512 bytes, usually 36) and some bookkeeping.
const keyCacheSize = 100_000

// Proxy handles requests.
type Proxy struct {
	cfg      *config.Config
	policy   *policy.Policy
	store    mark.Store
	gate     *gate.Gate // nil where no guard orders effects
	barriers map[string]*barrierGuard
	keys     *mark.KeyCache
	upstream *upstream
	metrics  *metrics
	logger   hclog.Logger
	rules    httpcheck.Rules
	slots    chan struct{} // limits.in_flight
	shadow   *shadow
	tracer   *tracing.Tracer // nil: no spans
	// record keeps a rejection for people. It never waits.
	record func(mark.Rejection)
	// forwardFirst is a broken order, for the test that shows that it would be noticed.
	forwardFirst bool
}

// Parts are what a proxy is made of.
type Parts struct {
	Config      *config.Config
	Rules       *policy.Policy
	Store       mark.Store
	UpstreamTLS *tls.Config // nil: plain
}

// New returns a proxy for a valid configuration.
func New(parts Parts, registry prometheus.Registerer, logger hclog.Logger) *Proxy {
	return build(parts, newMetrics(registry), logger)
}

// Next returns a proxy for another configuration that goes on with the same metrics.
func (p *Proxy) Next(parts Parts) *Proxy {
	next := build(parts, p.metrics, p.logger)
	next.record, next.tracer = p.record, p.tracer
	return next
}

func build(parts Parts, metrics *metrics, logger hclog.Logger) *Proxy {
	cfg := parts.Config
	metrics.seed(cfg, parts.Rules.Routes())
	p := &Proxy{
		cfg: cfg, policy: parts.Rules, store: parts.Store, barriers: barriers(parts.Rules.Routes()), logger: logger,
		keys: mark.NewKeyCache(keyCacheSize),
		upstream: &upstream{
			connectTimeout: cfg.Upstream.ConnectTimeout, answerTimeout: cfg.Upstream.ResponseTimeout, idleTimeout: cfg.Upstream.IdleTimeout,
			headLimit: int(cfg.Limits.Head), bodyLimit: int(cfg.Limits.Response), tls: parts.UpstreamTLS,
		},
		metrics: metrics,
		rules:   httpcheck.Rules{TokenHeader: cfg.Token.Header, OwnerHeader: cfg.Token.OwnerHeader, AllowedNames: cfg.Headers.Allow},
		slots:   make(chan struct{}, cfg.Limits.InFlight),
		shadow:  &shadow{},
		record:  func(mark.Rejection) {},
	}
	p.upstream.network, p.upstream.address = cfg.Upstream.Dial()
	return p
}

// Close closes the connections to the resource as they become idle.
func (p *Proxy) Close() { p.upstream.close() }

// exchange is one request on its way through.
type exchange struct {
	fast    *fasthttp.RequestCtx
	traceID string
	request httpcheck.Request
	body    []byte
	match   policy.Match
	key     string
	token   lock.Token
	pass    *gate.Pass    // of a request that was admitted by a guard that orders effects
	barrier *barrierGuard // of a request to the barrier
	// finish gives the request's place among limits.in_flight back, once. It is called when Handle ends or, where a response body is handed
	// to the server, when that has been written: what a slow reader makes us hold counts until then.
	finish func()
	handed bool
	ended  bool // the gate knows the outcome
	// spans is what the request's spans stand below, and forwarding the one that is under way.
	spans      context.Context //nolint:containedctx // it is the place in a trace, and cancels nothing
	forwarding trace.Span
	// judged is what a shadowed request would have come to; empty for others.
	judged    decision
	bodyLimit int64 // limits.body
}

func (e *exchange) routeName() string {
	if e.match.Route == nil {
		return noRoute
	}
	return e.match.Route.Name
}

func (e *exchange) mode() string {
	if e.match.Route == nil {
		return string(config.ModeEnforce)
	}
	return string(e.match.Route.Mode)
}

// Handle answers one request. Its work runs under a context of its own: a client that goes away doesn't cancel a write that was admitted.
func (p *Proxy) Handle(fast *fasthttp.RequestCtx) {
	e := &exchange{fast: fast, traceID: httperr.TraceID(fast), finish: func() {}, bodyLimit: p.cfg.Limits.Body}
	e.spans = p.below(e)
	defer func() {
		if !e.handed {
			e.finish()
		}
	}()
	if r := p.process(e); r != nil {
		p.answer(e, r)
	}
}

// takePlace takes one of the limits.in_flight places.
func (p *Proxy) takePlace(e *exchange) *refusal {
	select {
	case p.slots <- struct{}{}:
		e.finish = sync.OnceFunc(func() { <-p.slots })
		return nil
	default:
		return refuse("OVERLOADED", "as many requests are under way as limits.in_flight allows; nothing was forwarded").with("outcome", gate.OutcomeNotSent)
	}
}

// longest is more than every single step may take together.
func (p *Proxy) longest() time.Duration {
	return 4*p.cfg.Store.Timeout() + p.cfg.Limits.Wait + p.cfg.Upstream.ConnectTimeout + p.cfg.Upstream.ResponseTimeout + 5*time.Second
}

// process runs the steps in the one order that is safe: check, match, receive, key, admit, and only then forward.
func (p *Proxy) process(e *exchange) *refusal {
	if r := p.check(e); r != nil {
		return r
	}
	if e.atBarrier() {
		return p.withPlace(e, func(ctx context.Context, e *exchange) *refusal { return p.traced(ctx, e, p.passBarrier) })
	}
	if r := p.route(e); r != nil {
		return r
	}
	if !e.streamed() {
		if r := p.readBody(e); r != nil {
			return r
		}
	}
	return p.withPlace(e, func(ctx context.Context, e *exchange) *refusal {
		if e.match.Route != nil && e.match.Route.Guarded() {
			return p.guarded(ctx, e)
		}
		if e.match.Route != nil && e.match.Route.Shadowed() {
			p.judge(ctx, e)
		}
		return p.forward(ctx, e, passed)
	})
}

// withPlace does what takes time under one of the limits.in_flight places, and under a context of its own.
func (p *Proxy) withPlace(e *exchange, do func(context.Context, *exchange) *refusal) *refusal {
	if r := p.takePlace(e); r != nil {
		return r
	}
	ctx, cancel := context.WithTimeout(context.Background(), p.longest())
	defer cancel()
	return do(ctx, e)
}

// route finds the rule for the request.
func (p *Proxy) route(e *exchange) *refusal {
	e.match = p.policy.Match(e.request.Method, e.request.Path)
	switch e.match.Outcome {
	case policy.NoRoute:
		return refuse("ROUTE_NOT_ALLOWED", "no route takes this request")
	case policy.WrongMethod:
		e.fast.Response.Header.Set("Allow", strings.Join(e.match.Allowed, ", "))
		return refuse("METHOD_NOT_ALLOWED", "no route takes this method on this path")
	case policy.Matched, policy.PassUnmatched:
	}
	return nil
}

// check judges the head and takes copies of everything: fasthttp uses its memory again.
func (p *Proxy) check(e *exchange) *refusal {
	header := &e.fast.Request.Header
	request, violation := httpcheck.Check(httpcheck.Head{
		Method:   string(header.Method()),
		Target:   string(header.RequestURI()),
		Protocol: string(header.Protocol()),
		Fields:   header.RawHeaders(),
	}, p.rules)
	if violation != nil {
		e.fast.SetConnectionClose() // after a request that can be read in two ways the next one can't be trusted either
		return refuse(violation.Code, "%s", violation.Reason)
	}
	e.request = request
	if !e.sameLength() {
		e.fast.SetConnectionClose()
		return refuse("MALFORMED_REQUEST", "the length of the body isn't clear")
	}
	return nil
}

// guarded admits a request and forwards it.
func (p *Proxy) guarded(ctx context.Context, e *exchange) *refusal {
	if p.forwardFirst {
		defer func() { _ = p.admit(ctx, e) }()
		return p.forward(ctx, e, admitted)
	}
	defer e.abandon()
	if r := p.traced(ctx, e, p.admit); r != nil {
		return r
	}
	return p.forward(ctx, e, admitted)
}

// admit returns nil when the request is admitted.
func (p *Proxy) admit(ctx context.Context, e *exchange) *refusal {
	route := e.match.Route
	if r := p.readToken(e); r != nil {
		return r
	}
	if r := p.findKey(ctx, e); r != nil {
		return r
	}
	if route.Guard.OrdersEffects() && !route.Shadowed() {
		return p.enter(ctx, e)
	}
	start := time.Now()
	verdict, err := p.store.Admit(ctx, p.admission(e))
	p.metrics.store.WithLabelValues(route.Guard.Name).Observe(time.Since(start).Seconds())
	if errors.Is(err, mark.ErrBusy) && !route.Shadowed() {
		return refuse("FENCE_BUSY", "somebody else holds this key's mark; nothing was forwarded").with("outcome", gate.OutcomeNotSent)
	}
	if err != nil {
		r := p.storeFault(e, err)
		// The raise may have happened and only its answer be lost. Where each token is admitted once, a repeat would be fenced out by
		// its own first try.
		r.RetrySafe = route.Admit != config.AdmitNewer
		return r
	}
	switch verdict.Verdict {
	case mark.Admitted:
		return nil
	case mark.FencedOut:
		return p.fencedOut(ctx, e, verdict.Highest)
	case mark.Implausible:
		return refuse("TOKEN_IMPLAUSIBLE", "the token is more than token.max_jump above the highest one of this key; nothing was changed")
	case mark.KeyNotFound:
		return refuse("KEY_NOT_FOUND", "guard %s has no such key", route.Guard.Name)
	}
	return p.storeFault(e, errors.New("the store gave no decision"))
}

func (p *Proxy) admission(e *exchange) mark.Admission {
	route := e.match.Route
	return mark.Admission{Guard: route.Guard.Name, Key: e.key, Token: e.token, Newer: route.Admit == config.AdmitNewer}
}

// findKey extracts the request's key, by a lookup where the route says so.
func (p *Proxy) findKey(ctx context.Context, e *exchange) *refusal {
	key, err := e.match.Route.Key(e.input())
	if err != nil {
		return refuse("KEY_INVALID", "%s", err)
	}
	if key.Lookup == nil {
		e.key = key.Value
		return nil
	}
	if cached, ok := p.keys.Get(key.Lookup.SQL, key.Lookup.Args); ok && key.Lookup.Immutable {
		return p.takeKey(e, cached)
	}
	found, ok, err := p.store.Lookup(ctx, key.Lookup.SQL, key.Lookup.Args)
	switch {
	case err != nil:
		return p.storeFault(e, err)
	case !ok:
		return refuse("KEY_NOT_FOUND", "the lookup finds no key for this request")
	}
	if key.Lookup.Immutable {
		p.keys.Put(key.Lookup.SQL, key.Lookup.Args, found)
	}
	return p.takeKey(e, found)
}

// takeKey gives what a lookup found its one spelling. Guards may spell keys differently, so this is done for each request, also for a
// remembered one.
func (p *Proxy) takeKey(e *exchange, found string) *refusal {
	key, err := e.match.Route.Canonical(found)
	if err != nil {
		return p.storeFault(e, err)
	}
	e.key = key
	return nil
}

// storeFault fails closed: whatever the reason, nothing is forwarded. No setting opens it.
func (p *Proxy) storeFault(e *exchange, err error) *refusal {
	if e.match.Route != nil && e.match.Route.Shadowed() {
		p.logger.Warn("a shadowed request can't be judged; it passes", "event", "shadow_unavailable", "route", e.routeName(), "error", err, "traceId", e.traceID)
	} else {
		p.logger.Error("admission failed, nothing was forwarded", "event", "fence_unavailable", "route", e.routeName(), "error", err, "traceId", e.traceID)
	}
	return refuse("FENCE_UNAVAILABLE", "the mark store can't decide now; nothing was forwarded").with("outcome", gate.OutcomeNotSent)
}

func (p *Proxy) fencedOut(ctx context.Context, e *exchange, highest lock.Token) *refusal {
	guard := e.guardName()
	p.record(mark.Rejection{
		Guard: guard, Key: e.key, Route: e.routeName(), Mode: e.mode(), Presented: e.token, Highest: highest,
		Owner: clip(e.request.Owner), Trace: e.traceID, At: time.Now(),
	})
	if e.match.Route == nil || !e.match.Route.Shadowed() {
		p.metrics.fenced.WithLabelValues(guard).Inc()
		p.logger.Error("fenced out", "event", "fenced_out", "resource", guard, "resourceId", e.key, "presentedToken", int64(e.token),
			"highestToken", int64(highest), "ownerId", clip(e.request.Owner), "route", e.routeName(), "traceId", e.traceID)
		p.onFenced(ctx, e, highest)
	}
	return refuse("FENCED_OUT", "a newer token has been admitted for this key; stop working under this one").
		with("presentedToken", int64(e.token)).with("highestToken", int64(highest)).
		with("resourceType", guard).with("resourceId", e.key).with("ownerId", clip(e.request.Owner))
}

// clip bounds a text that a client chose before it goes into a log line.
func clip(text string) string {
	const most = 64
	if len(text) > most {
		return strings.ToValidUTF8(text[:most], "")
	}
	return text
}

func (r *refusal) with(name string, value any) *refusal {
	r.With(name, value)
	return r
}

// answer writes a refusal and counts it.
func (p *Proxy) answer(e *exchange, r *refusal) {
	p.count(e, r.decision)
	e.fast.Response.Header.Set(headerDecision, string(e.counted(r.decision)))
	r.Write(e.fast, e.traceID)
}

func (p *Proxy) count(e *exchange, d decision) {
	p.metrics.decisions.WithLabelValues(e.routeName(), string(e.counted(d)), e.mode()).Inc()
}
