// Package httpapi serves the lock service over HTTP (the calls L1 to L9).
package httpapi

import (
	"context"
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
	maxConnections = 20_000
	callTimeout    = 10 * time.Second // for the whole work behind one call
)

// Config is what the API needs.
type Config struct {
	Service  *lock.Service
	Lister   lock.Lister // nil: listing is a defect of the deployment
	Logger   hclog.Logger
	Registry prometheus.Registerer
}

// API answers requests with a lock service.
type API struct {
	service *lock.Service
	lister  lock.Lister
	logger  hclog.Logger
	calls   []endpoint
}

// NewServer returns the HTTP server, not yet listening. Head, body, time and number of connections are bounded, so that a
// client can't hold more than its share.
func NewServer(config Config) *httpserver.Server {
	a := &API{service: config.Service, lister: config.Lister, logger: config.Logger}
	a.calls = a.table()
	names := make([]string, len(a.calls))
	for i, e := range a.calls {
		names[i] = e.Name
	}
	return httpserver.New(httpserver.Config{
		Handler:        a.handle,
		Panicked:       answer(lockapi.CodeInternal, "an internal fault; the log of lockd has the details under this trace id"),
		Logger:         config.Logger,
		Metrics:        httpserver.NewMetrics(config.Registry, names...),
		MaxConnections: maxConnections,
	})
}

// call is one request on its way.
type call struct {
	*fasthttp.RequestCtx
	ctx     context.Context // lives as long as the call
	traceID string
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
		{Route: at("revoke", "POST", "/v1/locks/{key}/revoke"), run: a.revoke},
		{Route: at("release", "DELETE", "/v1/locks/{key}"), run: a.release},
		{Route: at("inspect", "GET", "/v1/locks/{key}"), run: a.inspect},
		{Route: at("list_locks", "GET", "/v1/locks"), run: a.listLocks, parameters: []string{"prefix", "cursor", "limit"}},
		{Route: at("list_revocations", "GET", "/v1/revocations"), run: a.listRevocations, parameters: []string{"after", "limit"}},
	}
}

func (a *API) handle(ctx *fasthttp.RequestCtx) {
	callCtx, cancel := httpserver.CallContext(callTimeout)
	defer cancel()
	traceID := httperr.TraceID(ctx)
	c := &call{RequestCtx: ctx, ctx: lock.WithTraceID(callCtx, traceID), traceID: traceID}
	if err := a.dispatch(c); err != nil {
		a.refuse(c, err)
	}
}

// dispatch finds the call. Only the id or key within a path is decoded, since some clients write a colon as %3A; no key holds a slash or a
// percent sign, so each has one meaning.
func (a *API) dispatch(c *call) error {
	found, id, refusal := httpserver.Find(c.RequestCtx, a.calls, string(c.Method()))
	if refusal != nil {
		return refusal
	}
	httpserver.SetRoute(c.RequestCtx, found.Name)
	decoded, err := url.PathUnescape(id)
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
