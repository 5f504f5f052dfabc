package daemon

import (
	"context"
	"fmt"
	"net"
	"runtime/debug"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/valyala/fasthttp"
)

// HTTPServer is what ServeHTTP and StopHTTP need of a server on fasthttp.
type HTTPServer interface {
	Serve(l net.Listener) error
	ShutdownWithContext(ctx context.Context) error
}

// ServeHTTP serves the server on the listener and returns at once. It
// logs the address as event "listening", which is how whoever started the process with
// port 0 learns the real port. A failure later is reported to failed.
func ServeHTTP(name string, l net.Listener, server HTTPServer, logger hclog.Logger, failed chan<- error) {
	logger.Info("listening", "event", "listening", "listener", name, "address", l.Addr().String())
	go func() {
		if err := server.Serve(l); err != nil {
			report(failed, fmt.Errorf("%s listener: %w", name, err))
		}
	}()
}

// StopHTTP closes the server's listener, lets requests under way finish and
// closes idle connections, all within ctx.
func StopHTTP(server HTTPServer) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := server.ShutdownWithContext(ctx); err != nil {
			return fmt.Errorf("requests still under way: %w", err)
		}
		return nil
	}
}

// Recover wraps a handler so that a panic answers 500 through onPanic, is logged
// with its stack, and closes that connection: the process goes on, since one
// request's fault must not take down the others (fasthttp itself would exit).
func Recover(logger hclog.Logger, handler, onPanic fasthttp.RequestHandler) fasthttp.RequestHandler {
	return func(ctx *fasthttp.RequestCtx) {
		defer func() {
			if p := recover(); p != nil {
				logger.Error("handler panicked", "event", "handler_panic", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
				ctx.Response.Reset()
				onPanic(ctx)
				ctx.SetConnectionClose()
			}
		}()
		handler(ctx)
	}
}

// NewRegistry returns a registry with the process, Go runtime and build metrics
// that every daemon exports.
func NewRegistry() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		collectors.NewBuildInfoCollector(),
	)
	return registry
}

// LatencyBuckets are the histogram buckets of every latency metric, in seconds.
// 0.05 and 2 stand in them exactly, since the objectives are stated at these values.
func LatencyBuckets() []float64 {
	return []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 5}
}
