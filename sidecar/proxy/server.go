package proxy

import (
	"errors"
	"net"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/valyala/fasthttp"

	"fenceline/internal/daemon"
	"fenceline/internal/httperr"
	"fenceline/sidecar/config"
	"fenceline/sidecar/gate"
)

const (
	readTimeout  = 30 * time.Second
	writeTimeout = 30 * time.Second
	idleTimeout  = 60 * time.Second
)

// handler is a Proxy, or a Switch between several.
type handler interface {
	Handle(fast *fasthttp.RequestCtx)
	panicked(fast *fasthttp.RequestCtx)
	unreadable(fast *fasthttp.RequestCtx, err error)
}

// NewServer returns the HTTP server before the proxy. The handler gets a request when its head has arrived and decides for itself how the body is received.
func NewServer(p handler, limits config.Limits, logger hclog.Logger) *fasthttp.Server {
	return &fasthttp.Server{
		Handler:                      daemon.Recover(logger, p.Handle, p.panicked),
		ErrorHandler:                 p.unreadable,
		StreamRequestBody:            true,
		ReadBufferSize:               int(limits.Head),
		ReadTimeout:                  readTimeout,
		IdleTimeout:                  idleTimeout,
		WriteTimeout:                 writeTimeout,
		Concurrency:                  limits.Connections + 1, // the listener turns connections away before; fasthttp's own words have no envelope
		CloseOnShutdown:              true,
		DisablePreParseMultipartForm: true, // else multipart bodies would be encoded anew
		NoDefaultServerHeader:        true,
		NoDefaultContentType:         true,
		SecureErrorLogMessage:        true,
		Logger:                       silent{},
	}
}

// silent drops fasthttp's own lines, which quote what clients sent.
type silent struct{}

func (silent) Printf(string, ...any) {}

// panicked answers a request whose handler panicked. How far it had come is not known.
func (p *Proxy) panicked(fast *fasthttp.RequestCtx) {
	p.answer(&exchange{fast: fast, traceID: httperr.TraceID(fast)},
		refuse("INTERNAL", "an internal fault; the sidecar's log has the details").with("outcome", gate.OutcomeUnknown))
}

// unreadable answers bytes that fasthttp couldn't read as a request. Its own error texts quote them, so they aren't used.
func (p *Proxy) unreadable(fast *fasthttp.RequestCtx, err error) {
	r := refuse("MALFORMED_REQUEST", "the request isn't well-formed HTTP/1.1")
	var small *fasthttp.ErrSmallBuffer
	var netErr net.Error
	switch {
	case errors.As(err, &small):
		r = refuse("HEAD_TOO_LARGE", "request line and headers are above limits.head")
	case errors.As(err, &netErr) && netErr.Timeout():
		r = refuse("REQUEST_TIMEOUT", "the request didn't arrive in time")
	}
	p.answer(&exchange{fast: fast, traceID: httperr.NewTraceID()}, r)
	fast.SetConnectionClose()
}
