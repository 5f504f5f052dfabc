package resource

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"fenceline/internal/daemon"
	"fenceline/paysvc/payout"
)

// noRoute is the label of requests that are no call.
const noRoute = "none"

// metrics are the HTTP server's and the payouts'. Every series exists from the start.
type metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	refused  prometheus.Counter
	fenced   *prometheus.CounterVec
}

func newMetrics(registry prometheus.Registerer, routes []route) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "http_requests_total", Help: "Requests answered, by call and class of status.",
		}, []string{"route", "status"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "http_request_seconds", Help: "Time from the whole request to the answer.", Buckets: daemon.LatencyBuckets(),
		}, []string{"route"}),
		refused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "payout_transition_refused_total", Help: "Transitions that the state machine doesn't have.",
		}),
		fenced: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lock_fenced_out_total", Help: "Writes refused because a newer token had been seen. Healthy at 0.",
		}, []string{"resource"}),
	}
	registry.MustRegister(m.requests, m.seconds, m.refused, m.fenced)
	for _, guard := range []payout.Guard{payout.GuardAccount, payout.GuardLedger} {
		m.fenced.WithLabelValues(string(guard))
	}
	for _, r := range append([]route{{name: noRoute}}, routes...) {
		m.seconds.WithLabelValues(r.name)
		for _, class := range []int{200, 400, 500} {
			m.requests.WithLabelValues(r.name, statusClass(class))
		}
	}
	return m
}

func (m *metrics) answered(route string, status int, took time.Duration) {
	m.requests.WithLabelValues(route, statusClass(status)).Inc()
	m.seconds.WithLabelValues(route).Observe(took.Seconds())
}

func (m *metrics) fencedOut(guard payout.Guard) { m.fenced.WithLabelValues(string(guard)).Inc() }

func statusClass(status int) string {
	switch {
	case status >= 500:
		return "5xx"
	case status >= 400:
		return "4xx"
	}
	return "2xx"
}
