package proxy

import (
	"github.com/prometheus/client_golang/prometheus"

	"fenceline/internal/daemon"
	"fenceline/sidecar/config"
	"fenceline/sidecar/gate"
	"fenceline/sidecar/policy"
)

// noRoute is the route label of requests that no route took.
const noRoute = "none"

// metrics are the sidecar's; every series is there at zero from the start.
type metrics struct {
	decisions *prometheus.CounterVec
	fenced    *prometheus.CounterVec
	store     *prometheus.HistogramVec
	upstream  *prometheus.HistogramVec
	failures  *prometheus.CounterVec
	inflight  *prometheus.GaugeVec
	unsettled *prometheus.GaugeVec
	wait      *prometheus.HistogramVec
	groups    *prometheus.HistogramVec
	onFenced  *prometheus.CounterVec
}

func newMetrics(registry prometheus.Registerer) *metrics {
	m := &metrics{
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "fence_decisions_total", Help: "What was decided on requests."}, []string{"route", "decision", "mode"}),
		fenced:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lock_fenced_out_total", Help: "Requests refused because their token was stale. Healthy at zero."}, []string{"resource"}),
		store:     prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "fence_store_seconds", Help: "Time of one admission at the mark store.", Buckets: daemon.LatencyBuckets()}, []string{"guard"}),
		upstream:  prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "fence_upstream_seconds", Help: "Time of one exchange with the resource.", Buckets: daemon.LatencyBuckets()}, []string{"route"}),
		failures:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "fence_upstream_failures_total", Help: "Exchanges that failed, by what is known of their effect."}, []string{"outcome"}),
		inflight:  prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "fence_inflight_current", Help: "Admitted requests whose outcome isn't known yet."}, []string{"guard"}),
	}
	m.onFenced = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "fence_on_fenced_failures_total", Help: "Statements on_fenced that failed; their requests were refused all the same."}, []string{"route"})
	m.unsettled = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "fence_unsettled_current", Help: "Requests of this sidecar's life whose outcome is unknown; newer tokens of their keys wait for them."}, []string{"guard"})
	m.wait = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "fence_wait_seconds", Help: "How long requests waited for older ones of their key.", Buckets: daemon.LatencyBuckets()}, []string{"guard"})
	m.groups = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "fence_group_size", Help: "Admissions that were committed together.", Buckets: []float64{1, 2, 4, 8, 16, 32, 64, 128}}, []string{"guard"})
	registry.MustRegister(m.groups, m.unsettled, m.wait, m.onFenced, m.decisions, m.fenced, m.store, m.upstream, m.failures, m.inflight)
	return m
}

// seed makes every series of a configuration at zero.
func (m *metrics) seed(cfg *config.Config, routes []*policy.Route) {
	for _, d := range allDecisions {
		m.decisions.WithLabelValues(noRoute, string(d), string(config.ModeEnforce))
		for _, r := range routes {
			m.decisions.WithLabelValues(r.Name, string(d), string(r.Mode))
		}
	}
	for _, r := range routes {
		m.upstream.WithLabelValues(r.Name)
		if r.OnFenced != nil {
			m.onFenced.WithLabelValues(r.Name)
		}
	}
	m.upstream.WithLabelValues(noRoute)
	for _, g := range cfg.Guards {
		m.fenced.WithLabelValues(g.Name)
		m.store.WithLabelValues(g.Name)
		m.inflight.WithLabelValues(g.Name)
		m.unsettled.WithLabelValues(g.Name)
		m.groups.WithLabelValues(g.Name)
		m.wait.WithLabelValues(g.Name)
	}
	for _, outcome := range []gate.Outcome{gate.OutcomeNotSent, gate.OutcomeUnknown} {
		m.failures.WithLabelValues(string(outcome))
	}
}
