// Package httpapi serves the lock service over HTTP (the calls L1 to L9).
package httpapi

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net/url"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"

	"fenceline/internal/httperr"
	"fenceline/internal/httpserver"
	"fenceline/lockd/lock"
	"fenceline/lockd/lockapi"
)

const (
	callTimeout        = 10 * time.Second // for the whole work behind one call
	defaultConnections = 20_000
)

// Config is what the API needs.
type Config struct {
	Service  *lock.Service
	Lister   lock.Lister // nil: listing is a defect of the deployment
	Callers  Callers
	TLS      *tls.Config // nil: plain HTTP
	Logger   hclog.Logger
	Registry prometheus.Registerer
	// MaxConnections are served at once, if the process may open as many files; 0: 20 000.
	MaxConnections int
}

// API answers requests with a lock service.
type API struct {
	service *lock.Service
	lister  lock.Lister
	callers Callers
	audit   audit
	logger  hclog.Logger
	calls   []endpoint
	server  *httpserver.Server
}

// New returns the API, not yet listening.
func New(config Config) *API {
	a := &API{
		service: config.Service, lister: config.Lister, callers: config.Callers, audit: newAudit(config.Registry), logger: config.Logger,
	}
	a.calls = a.table()
	names := make([]string, len(a.calls))
	for i, e := range a.calls {
		names[i] = e.Name
	}
	a.server = httpserver.New(httpserver.Config{
		Handler:         a.handle,
		Panicked:        answer(lockapi.CodeInternal, "an internal fault; the log of lockd has the details under this trace id"),
		Logger:          config.Logger,
		Metrics:         httpserver.NewMetrics(config.Registry, names...),
		MaxConnections:  cmp.Or(config.MaxConnections, defaultConnections),
		TLS:             config.TLS,
		HandshakeFailed: a.handshakeFailed,
	})
	return a
}

// NewServer returns the HTTP server of an API that has no admin listener.
func NewServer(config Config) *httpserver.Server { return New(config).Server() }

// Server is the HTTP server for the API's listener. Head, body, time and number of connections are bounded, so that a client can't hold
// more than its share.
func (a *API) Server() *httpserver.Server { return a.server }

// call is one request on its way.
type call struct {
	*fasthttp.RequestCtx
	ctx     context.Context // lives as long as the call
	traceID string
	admin   bool   // it came over the admin listener
	name    string // of the call
	caller  caller
	owner   string
	id      string // the session id or key in the path
	query   url.Values
	// revocation is the one call that must not be sent again when its answer was lost.
	revocation bool
}

// endpoint is one call of the contract.
type endpoint struct {
	httpserver.Route
	run        func(*call) error
	parameters []string // of the query string
	operator   bool     // for operators only
}

func (a *API) table() []endpoint {
	at := func(name, method, path string) httpserver.Route {
		return httpserver.Route{Name: name, Method: method, Path: path}
	}
	return []endpoint{
		{Route: at("open_session", "POST", "/v1/sessions"), run: a.openSession},
		{Route: at("heartbeat", "POST", "/v1/sessions/{sessionId}/heartbeat"), run: a.heartbeat},
		{Route: at("close_session", "DELETE", "/v1/sessions/{sessionId}"), run: a.closeSession},
		{Route: at("acquire", "POST", "/v1/locks/{key}/acquire"), run: a.acquire},
		{Route: at("renew", "POST", "/v1/locks/{key}/renew"), run: a.renew},
		{Route: at("revoke", "POST", "/v1/locks/{key}/revoke"), run: a.revoke, operator: true},
		{Route: at("release", "DELETE", "/v1/locks/{key}"), run: a.release},
		{Route: at("inspect", "GET", "/v1/locks/{key}"), run: a.inspect},
		{Route: at("list_locks", "GET", "/v1/locks"), run: a.listLocks, parameters: []string{"prefix", "cursor", "limit"}, operator: true},
		{Route: at("list_revocations", "GET", "/v1/revocations"), run: a.listRevocations, parameters: []string{"after", "limit"}, operator: true},
		{Route: at("openapi", "GET", "/openapi.json"), run: a.document},
	}
}

func (a *API) handle(ctx *fasthttp.RequestCtx) { a.serve(ctx, false) }

func (a *API) serve(ctx *fasthttp.RequestCtx, admin bool) {
	callCtx, cancel := httpserver.CallContext(callTimeout)
	defer cancel()
	traceID := httperr.TraceID(ctx)
	c := &call{RequestCtx: ctx, ctx: lock.WithTraceID(callCtx, traceID), traceID: traceID, admin: admin, name: httpserver.NoRoute}
	found, err := a.admit(c)
	if found.operator {
		c.SetStatusCode(fasthttp.StatusInternalServerError) // what the audit says when the call panics
		defer a.operatorCalled(c)
	}
	if err == nil {
		err = a.dispatch(c, found)
	}
	if err != nil {
		a.callerRefused(c, err)
		a.refuse(c, err)
	}
}

// admit finds the call, once it is known who calls: strangers aren't told which calls there are.
func (a *API) admit(c *call) (found endpoint, err error) {
	c.caller, err = a.identify(c)
	if err != nil {
		return endpoint{}, err
	}
	found, id, refusal := httpserver.Find(c.RequestCtx, a.calls, string(c.Method()))
	if refusal != nil {
		return endpoint{}, refusal
	}
	httpserver.SetRoute(c.RequestCtx, found.Name)
	c.name, c.id = found.Name, id
	switch {
	case found.operator && !c.caller.operator:
		return endpoint{}, &refusedCaller{answer(lockapi.CodeForbidden, "this call needs an operator's token, or the admin listener"), reasonNoOperator}
	case c.admin && !found.operator:
		return endpoint{}, answer(lockapi.CodeNotFound, "only operators' calls are on the admin listener; this one is on the API's")
	}
	return found, nil
}

// dispatch makes the call. Only the id or key within a path is decoded, since some clients write a colon as %3A; no key holds a slash or a
// percent sign, so each has one meaning.
func (a *API) dispatch(c *call, found endpoint) error {
	decoded, err := url.PathUnescape(c.id)
	if err != nil {
		return fmt.Errorf("%w: path: percent-encoding isn't valid", lock.ErrInvalid)
	}
	c.id = decoded
	if c.query, err = httpserver.Query(c.RequestCtx, found.parameters); err != nil {
		return fmt.Errorf("%w: %w", lock.ErrInvalid, err)
	}
	if found.Method != fasthttp.MethodGet {
		if err := c.readOwner(); err != nil {
			return err
		}
	}
	return found.run(c)
}

// readOwner reads who is writing. Two owners would be nobody.
func (c *call) readOwner() error {
	values := c.Request.Header.PeekAll(lockapi.HeaderOwner)
	if len(values) > 1 {
		return fmt.Errorf("%w: %s: stands %d times, want once", lock.ErrInvalid, lockapi.HeaderOwner, len(values))
	}
	if len(values) == 1 {
		c.owner = string(values[0]) // a copy: fasthttp reuses its buffers
	}
	return lock.ValidOwner(lockapi.HeaderOwner, c.owner)
}
