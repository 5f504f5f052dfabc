package httpapi

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"

	"fenceline/internal/daemon"
)

// metrics are the HTTP server's. Every series exists from the start.
type metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
}

func newMetrics(registry prometheus.Registerer, routes []route) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "http_requests_total", Help: "Requests answered, by call and class of status.",
		}, []string{"route", "status"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "http_request_seconds", Help: "Time from the whole request to the answer.", Buckets: daemon.LatencyBuckets(),
		}, []string{"route"}),
	}
	registry.MustRegister(m.requests, m.seconds)
	names := []string{noCall}
	for _, r := range routes {
		for _, n := range r.calls {
			names = append(names, n.name)
		}
	}
	for _, name := range names {
		m.seconds.WithLabelValues(name)
		for _, class := range []int{200, 400, 500} {
			m.requests.WithLabelValues(name, statusClass(class))
		}
	}
	return m
}

func (m *metrics) answered(name string, status int, took time.Duration) {
	m.requests.WithLabelValues(name, statusClass(status)).Inc()
	m.seconds.WithLabelValues(name).Observe(took.Seconds())
}

func statusClass(status int) string {
	switch {
	case status >= 500:
		return "5xx"
	case status >= 400:
		return "4xx"
	}
	return "2xx"
}

// callName is where a request's call is noted for measured.
const callName = "call"

// measured counts whatever the handler answers, a panic's answer included.
func (a *API) measured(handler fasthttp.RequestHandler) fasthttp.RequestHandler {
	return func(ctx *fasthttp.RequestCtx) {
		start := time.Now()
		handler(ctx)
		name, ok := ctx.UserValue(callName).(string)
		if !ok {
			name = noCall
		}
		a.metrics.answered(name, ctx.Response.StatusCode(), time.Since(start))
	}
}
