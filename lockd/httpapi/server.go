// Package httpapi serves the lock service over HTTP (the calls L1 to L8).
package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"

	"fenceline/internal/daemon"
	"fenceline/internal/httperr"
	"fenceline/lockd/lock"
	"fenceline/lockd/lockapi"
)

const (
	maxBody        = 64 << 10
	maxHead        = 16 << 10
	maxConnections = 20_000
	readTimeout    = 10 * time.Second
	idleTimeout    = 60 * time.Second
	callTimeout    = 10 * time.Second // for the whole work behind one call
)

// API answers requests with a lock service.
type API struct {
	service *lock.Service
	logger  hclog.Logger
	routes  []route
	metrics *metrics
}

// NewServer returns the HTTP server, not yet listening. Head, body, time and number of connections are bounded, so that a
// client can't hold more than its share.
func NewServer(service *lock.Service, logger hclog.Logger, registry prometheus.Registerer) *fasthttp.Server {
	a := &API{service: service, logger: logger}
	a.routes = a.table()
	a.metrics = newMetrics(registry, a.routes)
	return &fasthttp.Server{
		Handler:               a.measured(daemon.Recover(logger, a.handle, panicked)),
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

func panicked(ctx *fasthttp.RequestCtx) {
	httperr.New(500, lockapi.CodeInternal, "an internal fault; the log of lockd has the details under this trace id").Write(ctx, httperr.TraceID(ctx))
}

// refuseUnreadable answers what fasthttp couldn't read as a request.
func (a *API) refuseUnreadable(ctx *fasthttp.RequestCtx, err error) {
	answer := httperr.New(400, lockapi.CodeValidationFailed, "the request isn't well-formed HTTP")
	var small *fasthttp.ErrSmallBuffer
	var netErr net.Error
	switch {
	case errors.Is(err, fasthttp.ErrBodyTooLarge):
		answer = httperr.New(413, lockapi.CodeBodyTooLarge, "the body is above %d bytes", maxBody)
	case errors.As(err, &small):
		answer = httperr.New(431, lockapi.CodeHeadTooLarge, "request line and headers are above %d bytes", maxHead)
	case errors.As(err, &netErr) && netErr.Timeout():
		answer = httperr.New(408, lockapi.CodeRequestTimeout, "the request didn't arrive within %s", readTimeout)
	}
	answer.Write(ctx, httperr.NewTraceID())
	ctx.SetConnectionClose()
	a.metrics.answered(noCall, answer.Status, 0)
}

// call is one request on its way.
type call struct {
	*fasthttp.RequestCtx
	ctx     context.Context // lives as long as the call
	traceID string
	owner   string
	id      string // the session id or key in the path
}

// route says which calls a path has.
type route struct {
	prefix, suffix string
	calls          []named
}

// named is one call of the contract, under the name that metrics give it.
type named struct {
	name, method string
	run          func(*call) error
}

// noCall is the name of requests that are no call.
const noCall = "none"

func (a *API) table() []route {
	return []route{
		{"/v1/sessions", "", []named{{"open_session", "POST", a.openSession}}},
		{"/v1/sessions/", "/heartbeat", []named{{"heartbeat", "POST", a.heartbeat}}},
		{"/v1/sessions/", "", []named{{"close_session", "DELETE", a.closeSession}}},
		{"/v1/locks/", "/acquire", []named{{"acquire", "POST", a.acquire}}},
		{"/v1/locks/", "/renew", []named{{"renew", "POST", a.renew}}},
		{"/v1/locks/", "/revoke", []named{{"revoke", "POST", a.revoke}}},
		{"/v1/locks/", "", []named{{"release", "DELETE", a.release}, {"inspect", "GET", a.inspect}}},
	}
}

func (a *API) handle(ctx *fasthttp.RequestCtx) {
	// Not fasthttp's own context: that one ends when a shutdown begins, and would cut off the requests that a shutdown waits for.
	callCtx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	traceID := httperr.TraceID(ctx)
	c := &call{RequestCtx: ctx, ctx: lock.WithTraceID(callCtx, traceID), traceID: traceID}
	if err := a.dispatch(c); err != nil {
		a.refuse(c, err)
	}
}

// dispatch finds the call. Paths are matched as they were sent: an encoded or a doubled slash is another path, hence unknown. Only the id
// or key within it is decoded, since some clients write a colon as %3A; no key holds a slash or a percent sign, so each has one meaning.
func (a *API) dispatch(c *call) error {
	path, _, _ := strings.Cut(string(c.RequestURI()), "?")
	for _, r := range a.routes {
		id, ok := r.match(path)
		if !ok {
			continue
		}
		i := slices.IndexFunc(r.calls, func(n named) bool { return n.method == string(c.Method()) })
		if i < 0 {
			return methodNotAllowed(c, r)
		}
		c.SetUserValue(callName, r.calls[i].name)
		decoded, err := url.PathUnescape(id)
		if err != nil {
			return fmt.Errorf("%w: path: percent-encoding isn't valid", lock.ErrInvalid)
		}
		c.id = decoded
		if r.calls[i].method != fasthttp.MethodGet {
			if err := c.readOwner(); err != nil {
				return err
			}
		}
		return r.calls[i].run(c)
	}
	return httperr.New(404, lockapi.CodeNotFound, "no such call")
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

func (r route) match(path string) (id string, ok bool) {
	if !strings.HasSuffix(r.prefix, "/") {
		return "", path == r.prefix
	}
	rest, ok := strings.CutPrefix(path, r.prefix)
	if !ok {
		return "", false
	}
	id, ok = strings.CutSuffix(rest, r.suffix)
	return id, ok && id != "" && !strings.Contains(id, "/")
}

func methodNotAllowed(c *call, r route) error {
	methods := make([]string, len(r.calls))
	for i, n := range r.calls {
		methods[i] = n.method
	}
	c.Response.Header.Set("Allow", strings.Join(methods, ", "))
	return httperr.New(405, lockapi.CodeMethodNotAllowed, "this path doesn't have the method %.16q", c.Method())
}
