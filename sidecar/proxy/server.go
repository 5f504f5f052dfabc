package proxy

import (
	"errors"
	"net"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/valyala/fasthttp"

	"fenceline/internal/daemon"
	"fenceline/internal/httperr"
	"fenceline/sidecar/config"
)

const (
	readTimeout = 30 * time.Second
	idleTimeout = 60 * time.Second
)

// NewServer returns the HTTP server before the proxy. A request reaches the handler only when its body has arrived whole, so that a slow or frozen client holds
// nothing but its own connection.
func NewServer(p *Proxy, limits config.Limits, logger hclog.Logger) *fasthttp.Server {
	return &fasthttp.Server{
		Handler:                      daemon.Recover(logger, p.Handle, panicked),
		ErrorHandler:                 unreadable,
		MaxRequestBodySize:           int(limits.Body),
		ReadBufferSize:               int(limits.Head),
		ReadTimeout:                  readTimeout,
		IdleTimeout:                  idleTimeout,
		WriteTimeout:                 readTimeout,
		Concurrency:                  limits.Connections,
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

func panicked(ctx *fasthttp.RequestCtx) {
	r := refuse("INTERNAL", "an internal fault; the sidecar's log has the details under this trace id")
	ctx.Response.Header.Set(headerDecision, string(r.decision))
	r.With("outcome", "unknown").Write(ctx, httperr.TraceID(ctx))
}

// unreadable answers bytes that fasthttp couldn't read as a request. Its own error texts quote them, so they aren't used.
func unreadable(ctx *fasthttp.RequestCtx, err error) {
	r := refuse("MALFORMED_REQUEST", "the request isn't well-formed HTTP/1.1")
	var small *fasthttp.ErrSmallBuffer
	var netErr net.Error
	switch {
	case errors.Is(err, fasthttp.ErrBodyTooLarge):
		r = refuse("BODY_TOO_LARGE", "the body is above limits.body")
	case errors.As(err, &small):
		r = refuse("HEAD_TOO_LARGE", "request line and headers are above limits.head")
	case errors.As(err, &netErr) && netErr.Timeout():
		r = refuse("REQUEST_TIMEOUT", "the request didn't arrive within %s", readTimeout)
	case strings.Contains(err.Error(), "unsupported http version"):
		r = refuse("VERSION_NOT_SUPPORTED", "only HTTP/1.1 is supported")
	}
	ctx.Response.Header.Set(headerDecision, string(r.decision))
	r.Write(ctx, httperr.NewTraceID())
	ctx.SetConnectionClose()
}
