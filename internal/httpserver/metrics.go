package httpserver

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"

	"fenceline/internal/daemon"
)

// NoRoute is the label of requests that are no call.
const NoRoute = "none"

// Metrics count requests by route. Every series exists from the start. A nil *Metrics counts nothing.
type Metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
}

// NewMetrics registers the metrics of a server with these routes.
func NewMetrics(registry prometheus.Registerer, routes ...string) *Metrics {
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "http_requests_total", Help: "Requests answered, by call and class of status.",
		}, []string{"route", "status"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "http_request_seconds", Help: "Time from the whole request to the answer.", Buckets: daemon.LatencyBuckets(),
		}, []string{"route"}),
	}
	registry.MustRegister(m.requests, m.seconds)
	for _, route := range append([]string{NoRoute}, routes...) {
		m.seconds.WithLabelValues(route)
		for _, status := range []int{200, 400, 500} {
			m.requests.WithLabelValues(route, statusClass(status))
		}
	}
	return m
}

func (m *Metrics) answered(route string, status int, took time.Duration) {
	if m == nil {
		return
	}
	m.requests.WithLabelValues(route, statusClass(status)).Inc()
	m.seconds.WithLabelValues(route).Observe(took.Seconds())
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

// routeName is where a request's route is noted for the metrics.
const routeName = "route"

// SetRoute notes which route a request has taken. One without is counted as NoRoute.
func SetRoute(ctx *fasthttp.RequestCtx, route string) { ctx.SetUserValue(routeName, route) }

// measured counts whatever the handler answers, a panic's answer included.
func (m *Metrics) measured(handler fasthttp.RequestHandler) fasthttp.RequestHandler {
	return func(ctx *fasthttp.RequestCtx) {
		start := time.Now()
		handler(ctx)
		route, ok := ctx.UserValue(routeName).(string)
		if !ok {
			route = NoRoute
		}
		m.answered(route, ctx.Response.StatusCode(), time.Since(start))
	}
}
