package app

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"fenceline/internal/daemon"
)

// metrics implements lock.Recorder.
type metrics struct {
	acquire *prometheus.HistogramVec
	expired prometheus.Counter
	held    prometheus.Gauge
	waiters prometheus.Gauge
}

func newMetrics(registry prometheus.Registerer, backend string) *metrics {
	labels := prometheus.Labels{"backend": backend}
	m := &metrics{
		acquire: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "lock_acquire_seconds", Help: "Time of one acquire, its waiting included.", Buckets: daemon.LatencyBuckets(), ConstLabels: labels,
		}, []string{"outcome"}),
		expired: prometheus.NewCounter(prometheus.CounterOpts{Name: "lock_lease_expired_total", Help: "Grants that ended by their time, found by the reaper or by a takeover.", ConstLabels: labels}),
		held:    prometheus.NewGauge(prometheus.GaugeOpts{Name: "lock_held_current", Help: "Live grants, as the reaper last counted them.", ConstLabels: labels}),
		waiters: prometheus.NewGauge(prometheus.GaugeOpts{Name: "lock_waiters_current", Help: "Clients that wait for a lock at this replica.", ConstLabels: labels}),
	}
	registry.MustRegister(m.acquire, m.expired, m.held, m.waiters)
	for _, outcome := range []string{"granted", "contended", "error"} {
		m.acquire.WithLabelValues(outcome) // every series is there from the start
	}
	return m
}

func (m *metrics) Acquired(outcome string, took time.Duration) {
	m.acquire.WithLabelValues(outcome).Observe(took.Seconds())
}
func (m *metrics) LeasesExpired(n int) { m.expired.Add(float64(n)) }
func (m *metrics) Held(n int64)        { m.held.Set(float64(n)) }
func (m *metrics) Waiting(n int)       { m.waiters.Set(float64(n)) }
