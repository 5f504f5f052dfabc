// Package httpserver is what Fenceline's HTTP services on fasthttp have in common: bounds on all that a client can make a
// server hold, answers to what can't be read as a request, panics that stay one request's fault, and request metrics.
package httpserver

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/valyala/fasthttp"

	"fenceline/internal/daemon"
	"fenceline/internal/httperr"
)

// Bounds of one request.
const (
	MaxBody     = 64 << 10 // bytes
	MaxHead     = 16 << 10 // bytes of request line and headers
	ReadTimeout = 10 * time.Second
	idleTimeout = 60 * time.Second
)

// Codes of the refusals that come before any call.
const (
	CodeMalformed        = "VALIDATION_FAILED"
	CodeNotFound         = "NOT_FOUND"
	CodeMethodNotAllowed = "METHOD_NOT_ALLOWED"
	CodeRequestTimeout   = "REQUEST_TIMEOUT"
	CodeBodyTooLarge     = "BODY_TOO_LARGE"
	CodeHeadTooLarge     = "HEAD_TOO_LARGE"
	CodeOverloaded       = "OVERLOADED"
)

// Config says what a server does with requests, and how much it takes.
type Config struct {
	Handler fasthttp.RequestHandler
	// Panicked is the answer when the handler panicked. The stack is in the log.
	Panicked *httperr.Error
	Logger   hclog.Logger
	Metrics  *Metrics // nil: requests aren't counted
	// MaxConnections are served at once; more are turned away with 503 OVERLOADED. It is lowered to what the process's file limit
	// allows, since a listener that runs out of files serves nobody.
	MaxConnections int
	// TLS, when set, is what every connection must speak.
	TLS *tls.Config
	// HandshakeFailed is told of each connection that didn't get as far as a request.
	HandshakeFailed func(remote net.Addr, err error)
}

// Server is a fasthttp server with these bounds. Use its own Serve, which limits connections.
type Server struct {
	*fasthttp.Server
	config Config
}

// New returns the server, not yet listening.
func New(config Config) *Server {
	s := &Server{config: config}
	s.Server = &fasthttp.Server{
		Handler:            s.Wrap(config.Handler),
		ErrorHandler:       s.refuseUnreadable,
		MaxRequestBodySize: MaxBody,
		ReadBufferSize:     MaxHead,
		ReadTimeout:        ReadTimeout, // for the whole request, so that sending it byte by byte gains nothing
		IdleTimeout:        idleTimeout,
		WriteTimeout:       ReadTimeout,
		// The listener turns connections away before this limit is reached; fasthttp's own refusal has no envelope.
		Concurrency: config.MaxConnections + 1,
		// A connection that waits for its next request, or for an answer, keeps no buffers.
		ReduceMemoryUsage:     true,
		CloseOnShutdown:       true,
		NoDefaultServerHeader: true,
		SecureErrorLogMessage: true,
		Logger:                quiet{},
	}
	return s
}

// Wrap counts what a handler answers, as the server's own requests are counted, and answers its panics.
func (s *Server) Wrap(handler fasthttp.RequestHandler) fasthttp.RequestHandler {
	return s.config.Metrics.measured(daemon.Recover(s.config.Logger, handler, s.panicked))
}

// Serve answers on the listener until it is closed.
func (s *Server) Serve(l net.Listener) error {
	limited := Limit(l, s.config)
	if s.config.TLS != nil {
		return s.Server.Serve(&tlsListener{Listener: limited, config: s.config})
	}
	return s.Server.Serve(limited)
}

// quiet drops fasthttp's own lines: what matters is answered and logged by the services.
type quiet struct{}

func (quiet) Printf(string, ...any) {}

func (s *Server) panicked(ctx *fasthttp.RequestCtx) {
	s.config.Panicked.Write(ctx, httperr.TraceID(ctx))
}

// refuseUnreadable answers what fasthttp couldn't read as a request.
func (s *Server) refuseUnreadable(ctx *fasthttp.RequestCtx, err error) {
	answer := httperr.New(fasthttp.StatusBadRequest, CodeMalformed, "the request isn't well-formed HTTP")
	var small *fasthttp.ErrSmallBuffer
	var netErr net.Error
	switch {
	case errors.Is(err, fasthttp.ErrBodyTooLarge):
		answer = httperr.New(fasthttp.StatusRequestEntityTooLarge, CodeBodyTooLarge, "the body is above %d bytes", MaxBody)
	case errors.As(err, &small):
		answer = httperr.New(fasthttp.StatusRequestHeaderFieldsTooLarge, CodeHeadTooLarge, "request line and headers are above %d bytes", MaxHead)
	case errors.As(err, &netErr) && netErr.Timeout():
		answer = httperr.New(fasthttp.StatusRequestTimeout, CodeRequestTimeout, "the request didn't arrive within %s", ReadTimeout)
	}
	answer.Write(ctx, httperr.NewTraceID())
	ctx.SetConnectionClose()
	s.config.Metrics.answered(NoRoute, answer.Status, 0)
}

// CallContext returns a context for the work behind one call, which ends after timeout. It isn't the request's own: that one ends when a shutdown
// begins, and would cut off the requests that a shutdown waits for.
func CallContext(timeout time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), timeout)
}
