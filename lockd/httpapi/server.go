// Package httpapi serves the lock service over HTTP (the calls L1 to L8).
package httpapi

import (
	"context"
	"errors"
	"net"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
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
}

// NewServer returns the HTTP server, not yet listening. Head, body, time and number of connections are bounded, so that a
// client can't hold more than its share.
func NewServer(service *lock.Service, logger hclog.Logger) *fasthttp.Server {
	a := &API{service: service, logger: logger}
	return &fasthttp.Server{
		Handler:               daemon.Recover(logger, a.handle, panicked),
		ErrorHandler:          refuseUnreadable,
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
func refuseUnreadable(ctx *fasthttp.RequestCtx, err error) {
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
	methods        map[string]func(*call) error
}

func (a *API) routes() []route {
	return []route{
		{"/v1/sessions", "", map[string]func(*call) error{"POST": a.openSession}},
		{"/v1/sessions/", "/heartbeat", map[string]func(*call) error{"POST": a.heartbeat}},
		{"/v1/sessions/", "", map[string]func(*call) error{"DELETE": a.closeSession}},
		{"/v1/locks/", "/acquire", map[string]func(*call) error{"POST": a.acquire}},
		{"/v1/locks/", "/renew", map[string]func(*call) error{"POST": a.renew}},
		{"/v1/locks/", "/revoke", map[string]func(*call) error{"POST": a.revoke}},
		{"/v1/locks/", "", map[string]func(*call) error{"GET": a.inspect, "DELETE": a.release}},
	}
}

func (a *API) handle(ctx *fasthttp.RequestCtx) {
	// Not fasthttp's own context: that one ends when a shutdown begins, and would cut off the requests that a shutdown waits for.
	callCtx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	c := &call{RequestCtx: ctx, ctx: callCtx, traceID: httperr.TraceID(ctx)}
	if err := a.dispatch(c); err != nil {
		a.refuse(c, err)
	}
}

// dispatch finds the call. Paths are matched as they were sent: an encoded or a doubled slash is another path, hence unknown.
func (a *API) dispatch(c *call) error {
	path, _, _ := strings.Cut(string(c.RequestURI()), "?")
	method := string(c.Method())
	for _, r := range a.routes() {
		id, ok := r.match(path)
		if !ok {
			continue
		}
		run, ok := r.methods[method]
		if !ok {
			return methodNotAllowed(c, r)
		}
		c.id = id
		if method != fasthttp.MethodGet {
			c.owner = string(c.Request.Header.Peek(lockapi.HeaderOwner))
			if err := lock.ValidOwner(lockapi.HeaderOwner, c.owner); err != nil {
				return err
			}
		}
		return run(c)
	}
	return httperr.New(404, lockapi.CodeNotFound, "no such call")
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
	for method := range r.methods {
		c.Response.Header.Add("Allow", method)
	}
	return httperr.New(405, lockapi.CodeMethodNotAllowed, "this path doesn't have the method %.16q", c.Method())
}
