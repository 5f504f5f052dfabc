package resource

import (
	"github.com/prometheus/client_golang/prometheus"

	"fenceline/paysvc/payout"
)

// metrics are the payouts'. Every series exists from the start.
type metrics struct {
	refused  prometheus.Counter
	fenced   *prometheus.CounterVec
	replayed prometheus.Counter
}

func newMetrics(registry prometheus.Registerer) *metrics {
	m := &metrics{
		refused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "payout_transition_refused_total", Help: "Transitions that the state machine doesn't have.",
		}),
		fenced: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lock_fenced_out_total", Help: "Writes refused because a newer token had been seen. Healthy at 0.",
		}, []string{"resource"}),
		replayed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "payout_request_replayed_total", Help: "Writes that came again and were given their first answer.",
		}),
	}
	registry.MustRegister(m.refused, m.fenced, m.replayed)
	for _, guard := range []payout.Guard{payout.GuardAccount, payout.GuardLedger} {
		m.fenced.WithLabelValues(string(guard))
	}
	return m
}

func (m *metrics) fencedOut(guard payout.Guard) { m.fenced.WithLabelValues(string(guard)).Inc() }
