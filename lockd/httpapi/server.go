// Package httpapi serves the lock service over HTTP (the calls L1 to L8).
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

// API answers requests with a lock service.
type API struct {
	service *lock.Service
	logger  hclog.Logger
	calls   []endpoint
}

// NewServer returns the HTTP server, not yet listening. Head, body, time and number of connections are bounded, so that a
// client can't hold more than its share.
func NewServer(service *lock.Service, logger hclog.Logger, registry prometheus.Registerer) *httpserver.Server {
	a := &API{service: service, logger: logger}
	a.calls = a.table()
	names := make([]string, len(a.calls))
	for i, e := range a.calls {
		names[i] = e.Name
	}
	return httpserver.New(httpserver.Config{
		Handler:        a.handle,
		Panicked:       httperr.New(500, lockapi.CodeInternal, "an internal fault; the log of lockd has the details under this trace id"),
		Logger:         logger,
		Metrics:        httpserver.NewMetrics(registry, names...),
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
}

// endpoint is one call of the contract.
type endpoint struct {
	httpserver.Route
	run func(*call) error
}

func (a *API) table() []endpoint {
	return []endpoint{
		{httpserver.Route{Name: "open_session", Method: "POST", Path: "/v1/sessions"}, a.openSession},
		{httpserver.Route{Name: "heartbeat", Method: "POST", Path: "/v1/sessions/{sessionId}/heartbeat"}, a.heartbeat},
		{httpserver.Route{Name: "close_session", Method: "DELETE", Path: "/v1/sessions/{sessionId}"}, a.closeSession},
		{httpserver.Route{Name: "acquire", Method: "POST", Path: "/v1/locks/{key}/acquire"}, a.acquire},
		{httpserver.Route{Name: "renew", Method: "POST", Path: "/v1/locks/{key}/renew"}, a.renew},
		{httpserver.Route{Name: "revoke", Method: "POST", Path: "/v1/locks/{key}/revoke"}, a.revoke},
		{httpserver.Route{Name: "release", Method: "DELETE", Path: "/v1/locks/{key}"}, a.release},
		{httpserver.Route{Name: "inspect", Method: "GET", Path: "/v1/locks/{key}"}, a.inspect},
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
