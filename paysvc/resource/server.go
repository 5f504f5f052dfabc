// Package resource is the payment-resource over HTTP (the calls P1 to P6): accounts, payouts and the ledger.
//
// It wants a token on every write to a payout, since the schema wants to know under which grant a payout was claimed. Whether that token is compared
// with anything is the store's business: plain mode's compares nothing, fenced mode's refuses an old one.
package resource

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"

	"fenceline/internal/httperr"
	"fenceline/internal/httpserver"
	"fenceline/paysvc/payapi"
	"fenceline/paysvc/payout"
)

const (
	maxConnections = 4096
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
func NewServer(store Store, logger hclog.Logger, registry prometheus.Registerer) *httpserver.Server {
	a := &API{store: store, logger: logger, metrics: newMetrics(registry)}
	at := func(name, method, path string) httpserver.Route {
		return httpserver.Route{Name: name, Method: method, Path: path}
	}
	a.routes = []route{
		{at("list_payouts", fasthttp.MethodGet, payapi.PathPayouts), a.listPayouts},
		{at("create_payout", fasthttp.MethodPost, payapi.PathPayouts), a.createPayout},
		{at("get_payout", fasthttp.MethodGet, payapi.PathPayout), a.getPayout},
		{at("claim", fasthttp.MethodPost, payapi.PathClaim), a.claim},
		{at("post", fasthttp.MethodPost, payapi.PathPost), a.post},
		{at("get_account", fasthttp.MethodGet, payapi.PathAccount), a.getAccount},
	}
	names := make([]string, len(a.routes))
	for i, r := range a.routes {
		names[i] = r.Name
	}
	return httpserver.New(httpserver.Config{
		Handler: a.handle,
		// It can't be known how far the request had come, so this doesn't say that nothing happened.
		Panicked: httperr.New(503, payapi.CodeOutcomeUnknown, "an internal fault; whether anything was changed is unknown").
			With("outcome", "unknown"),
		Logger:         logger,
		Metrics:        httpserver.NewMetrics(registry, names...),
		MaxConnections: maxConnections,
	})
}

// route is one call.
type route struct {
	httpserver.Route
	run func(*call) error
}

func (a *API) handle(ctx *fasthttp.RequestCtx) {
	callCtx, cancel := httpserver.CallContext(callTimeout)
	defer cancel()
	c := &call{RequestCtx: ctx, ctx: callCtx, traceID: httperr.TraceID(ctx)}
	if err := a.dispatch(c); err != nil {
		a.refuse(c, err)
	}
}

// dispatch finds the call; HEAD is answered like GET, without a body.
func (a *API) dispatch(c *call) error {
	method := string(c.Method())
	if method == fasthttp.MethodHead {
		method = fasthttp.MethodGet
	}
	found, id, refusal := httpserver.Find(c.RequestCtx, a.routes, method)
	if refusal != nil {
		return refusal
	}
	httpserver.SetRoute(c.RequestCtx, found.Name)
	c.id, c.route = id, found.Name
	return found.run(c)
}
