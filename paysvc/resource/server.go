// Package resource is the payment-resource over HTTP (the calls P1 to P6): accounts, payouts and the ledger.
//
// It wants a token on every write to a payout, since the schema wants to know under which grant a payout was claimed. Whether that token is compared
// with anything is the store's business: plain mode's compares nothing, fenced mode's refuses an old one.
package resource

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"

	"fenceline/internal/daemon"
	"fenceline/internal/httperr"
	"fenceline/paysvc/payapi"
	"fenceline/paysvc/payout"
)

const (
	maxBody        = 64 << 10
	maxHead        = 16 << 10
	maxConnections = 4096
	readTimeout    = 10 * time.Second
	idleTimeout    = 60 * time.Second
	callTimeout    = 8 * time.Second // for the whole work behind one call; below a sidecar's response_timeout
)

// Store keeps accounts, payouts and the ledger. What isn't an answer of the domain comes back with an identity of internal/postgres:
// ErrOutcomeUnknown when a commit's answer was lost, any other one when nothing has happened.
type Store interface {
	// Payout returns the payout, or payout.ErrPayoutNotFound.
	Payout(ctx context.Context, id uuid.UUID) (payout.Payout, error)
	// Payouts returns a page in the order (created_at, payout_id), and whether another payout exists after it.
	Payouts(ctx context.Context, q payout.Query) (page []payout.Payout, more bool, err error)
	// Account returns the account with the sum of its entries, or payout.ErrAccountNotFound.
	Account(ctx context.Context, id uuid.UUID) (payout.Account, error)
	// Create makes a PENDING payout or returns the one with the same key and content; created tells which. Errors: payout.ErrInvalid,
	// ErrAccountNotFound, ErrIdempotencyConflict.
	Create(ctx context.Context, d payout.Draft) (p payout.Payout, created bool, err error)
	// Claim moves the payout from the expected state to CLAIMED. Errors: payout.ErrPayoutNotFound, *payout.NotClaimableError,
	// *payout.InsufficientFundsError; in fenced mode also *payout.FencedOutError.
	Claim(ctx context.Context, id uuid.UUID, expected payout.State, holder payout.Holder) (payout.Payout, error)
	// Post writes the payout into the ledger. Errors: payout.ErrPayoutNotFound, ErrInsufficientFunds, ErrOverflow. In plain mode also
	// ErrPostingIncomplete, alone or with postgres.ErrOutcomeUnknown, when the payer has been debited; in fenced mode also *payout.FencedOutError and
	// *payout.WrongStateError.
	Post(ctx context.Context, id uuid.UUID, holder payout.Holder) (payout.Posting, error)
}

// API answers requests with a store.
type API struct {
	store   Store
	logger  hclog.Logger
	metrics *metrics
	routes  []route
}

// NewServer returns the HTTP server, not yet listening, and registers its metrics. Head, body, time and number of connections are
// bounded, so that a client can't hold more than its share.
func NewServer(store Store, logger hclog.Logger, registry prometheus.Registerer) *fasthttp.Server {
	a := &API{store: store, logger: logger}
	a.routes = []route{
		{"list_payouts", fasthttp.MethodGet, payapi.PathPayouts, a.listPayouts},
		{"create_payout", fasthttp.MethodPost, payapi.PathPayouts, a.createPayout},
		{"get_payout", fasthttp.MethodGet, payapi.PathPayout, a.getPayout},
		{"claim", fasthttp.MethodPost, payapi.PathClaim, a.claim},
		{"post", fasthttp.MethodPost, payapi.PathPost, a.post},
		{"get_account", fasthttp.MethodGet, payapi.PathAccount, a.getAccount},
	}
	a.metrics = newMetrics(registry, a.routes)
	return &fasthttp.Server{
		Handler:               a.measure(daemon.Recover(logger, a.handle, panicked)),
		ErrorHandler:          a.refuseUnreadable,
		MaxRequestBodySize:    maxBody,
		ReadBufferSize:        maxHead,
		ReadTimeout:           readTimeout,
		IdleTimeout:           idleTimeout,
		WriteTimeout:          readTimeout,
		Concurrency:           maxConnections,
		CloseOnShutdown:       true,
		NoDefaultServerHeader: true,
		SecureErrorLogMessage: true,
		Logger:                quiet{},
	}
}

// quiet drops fasthttp's own lines: what matters is answered and logged here.
type quiet struct{}

func (quiet) Printf(string, ...any) {}

// panicked can't know how far the request had come, so it doesn't say that nothing happened.
func panicked(ctx *fasthttp.RequestCtx) {
	httperr.New(503, payapi.CodeOutcomeUnknown, "an internal fault; whether anything was changed is unknown").
		With("outcome", "unknown").Write(ctx, httperr.TraceID(ctx))
}

// refuseUnreadable answers what fasthttp couldn't read as a request.
func (a *API) refuseUnreadable(ctx *fasthttp.RequestCtx, err error) {
	answer := httperr.New(400, payapi.CodeValidationFailed, "the request isn't well-formed HTTP")
	var small *fasthttp.ErrSmallBuffer
	var netErr net.Error
	switch {
	case errors.Is(err, fasthttp.ErrBodyTooLarge):
		answer = httperr.New(413, payapi.CodeBodyTooLarge, "the body is above %d bytes", maxBody)
	case errors.As(err, &small):
		answer = httperr.New(431, payapi.CodeHeadTooLarge, "request line and headers are above %d bytes", maxHead)
	case errors.As(err, &netErr) && netErr.Timeout():
		answer = httperr.New(408, payapi.CodeRequestTimeout, "the request didn't arrive within %s", readTimeout)
	}
	answer.Write(ctx, httperr.NewTraceID())
	ctx.SetConnectionClose()
	a.metrics.answered(noRoute, answer.Status, 0)
}

// route is one call. Its name is a metric's label; {id} in its path stands for one segment.
type route struct {
	name, method, path string
	run                func(*call) error
}

// match returns what stands in the place of {id}. The path is taken as it was sent: an encoded or a doubled slash makes another path.
func (r route) match(path string) (id string, ok bool) {
	prefix, suffix, has := strings.Cut(r.path, "{id}")
	if !has {
		return "", path == r.path
	}
	rest, ok := strings.CutPrefix(path, prefix)
	if !ok {
		return "", false
	}
	id, ok = strings.CutSuffix(rest, suffix)
	return id, ok && id != "" && !strings.Contains(id, "/")
}

// measure counts every answer of handler, also that of a panic.
func (a *API) measure(handler fasthttp.RequestHandler) fasthttp.RequestHandler {
	return func(ctx *fasthttp.RequestCtx) {
		start := time.Now()
		handler(ctx)
		name, _ := ctx.UserValue(routeName).(string)
		a.metrics.answered(name, ctx.Response.StatusCode(), time.Since(start))
	}
}

// routeName is the user value with the name of the request's route.
const routeName = "route"

func (a *API) handle(ctx *fasthttp.RequestCtx) {
	// Not fasthttp's own context: that one ends when a shutdown begins, and would cut off the requests that a shutdown waits for.
	callCtx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	c := &call{RequestCtx: ctx, ctx: callCtx, traceID: httperr.TraceID(ctx)}
	found, err := a.find(c)
	ctx.SetUserValue(routeName, found.name)
	if err == nil {
		err = found.run(c)
	}
	if err != nil {
		a.refuse(c, err)
	}
}

// find returns the call's route; HEAD is answered like GET, without a body.
func (a *API) find(c *call) (route, error) {
	path, _, _ := strings.Cut(string(c.RequestURI()), "?")
	method := string(c.Method())
	if method == fasthttp.MethodHead {
		method = fasthttp.MethodGet
	}
	var allowed []string
	for _, r := range a.routes {
		id, ok := r.match(path)
		if !ok {
			continue
		}
		if r.method == method {
			c.id = id
			return r, nil
		}
		allowed = append(allowed, r.method)
	}
	if len(allowed) == 0 {
		return route{name: noRoute}, httperr.New(404, payapi.CodeNotFound, "no such call")
	}
	slices.Sort(allowed)
	c.Response.Header.Set("Allow", strings.Join(allowed, ", "))
	return route{name: noRoute}, httperr.New(405, payapi.CodeMethodNotAllowed, "this path doesn't have the method %.16q", c.Method())
}
