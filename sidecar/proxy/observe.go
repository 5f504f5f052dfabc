package proxy

import (
	"time"

	"fenceline/sidecar/gate"
	"fenceline/sidecar/mark"
)

// UseGate lets requests of guards that order effects pass by a gate.
func (p *Proxy) UseGate(g *gate.Gate) { p.gate = g }

// GroupSize counts the registrations that were committed together.
func (p *Proxy) GroupSize(guard string, members int) {
	p.metrics.groups.WithLabelValues(guard).Observe(float64(members))
}

// Observer counts and logs what a gate does.
func (p *Proxy) Observer() gate.Observer {
	return gate.Observer{
		Asked:     func(guard string, d time.Duration) { p.metrics.store.WithLabelValues(guard).Observe(d.Seconds()) },
		Waited:    func(guard string, d time.Duration) { p.metrics.wait.WithLabelValues(guard).Observe(d.Seconds()) },
		InFlight:  func(guard string, change int) { p.metrics.inflight.WithLabelValues(guard).Add(float64(change)) },
		Unsettled: func(guard string, now int) { p.metrics.unsettled.WithLabelValues(guard).Set(float64(now)) },
		Life: func(alive bool, err error) {
			if alive {
				p.logger.Info("this sidecar is registered as alive; requests are admitted", "event", "life_began")
				return
			}
			p.logger.Error("this sidecar isn't registered as alive; guarded requests get 503 until it is", "event", "life_missing", "error", err)
		},
		Fault: func(what string, err error) {
			p.logger.Warn("the register of requests in flight can't be used; it is tried again", "event", "register_unavailable", "doing", what, "error", err)
		},
		Swept: func(row mark.Row) {
			p.logger.Info("a registration whose answer was lost is settled; nothing was sent for it", "event", "request_settled", "by", "sweep", "row", int64(row))
		},
	}
}
