package app

import (
	"context"
	"fmt"
	"slices"
	"time"

	"fenceline/sidecar/config"
	"fenceline/sidecar/gate"
	"fenceline/sidecar/mark"
	"fenceline/sidecar/mark/pgmark"
)

const (
	heartbeat = time.Second
	poll      = 25 * time.Millisecond
)

// ordersEffects says whether some guard needs the register of requests in flight.
func ordersEffects(cfg *config.Config) bool {
	return slices.ContainsFunc(cfg.Guards, config.Guard.OrdersEffects)
}

// gateOptions are a configuration's. One key may take a quarter of limits.in_flight for its waiting requests.
func gateOptions(cfg *config.Config) gate.Options {
	return gate.Options{
		Rules:     gate.Rules{Wait: cfg.Limits.Wait, Trust: cfg.Limits.GracePeriod(), Waiting: max(cfg.Limits.InFlight/4, 1)},
		Ask:       cfg.Store.Timeout(),
		Heartbeat: heartbeat,
		Poll:      poll,
	}
}

// register returns the store as a register, which every store with guards that order effects is.
func (g *generation) register() (mark.Register, error) {
	register, ok := g.store.(mark.Register)
	if !ok {
		return nil, fmt.Errorf("guard %s: this store keeps no register of requests in flight; write order: admissions", g.cfg.Guards[0].Name)
	}
	return register, nil
}

// startGate gives this sidecar a life in the register. Where that can't be yet, nothing is admitted, readiness says why, and it is tried again: the store
// may be down, or the former life of this id was killed a moment ago and counts as alive for a few seconds.
func (a *App) startGate(ctx context.Context, g *generation) error {
	if !ordersEffects(g.cfg) {
		return nil
	}
	register, err := g.register()
	if err != nil {
		return err
	}
	data := a.data.Current()
	if store, ok := register.(*pgmark.Store); ok {
		store.ObserveGroups(data.GroupSize)
	}
	a.gate = gate.New(register, gateOptions(g.cfg), data.Observer())
	data.UseGate(a.gate)
	_ = a.gate.Start(ctx) // logged; tried again
	a.cleanups.Push("register of requests in flight", a.gate.Stop)
	return nil
}

// useGate goes on with the gate under a new configuration. The life stays the same.
func (a *App) useGate(old, next *generation) error {
	if a.gate == nil {
		return nil
	}
	register, err := next.register()
	if err != nil {
		return err
	}
	if store, ok := register.(*pgmark.Store); ok {
		if former, ok := old.store.(*pgmark.Store); ok {
			store.Succeed(former)
		}
		store.ObserveGroups(a.data.Current().GroupSize)
	}
	a.gate.Use(register, gateOptions(next.cfg))
	return nil
}

// announceEffects says in words what a guard promises.
func (a *App) announceEffects(g config.Guard) {
	unknown := "until a late response or an operator settles it (sidecar settle)"
	if g.Unsettled.Releases() {
		unknown = "until a late response or an operator settles it, or " + g.Unsettled.After.String() + " have passed"
	}
	a.logger.Info("guard "+g.Name+": order of effects. While a request may still take effect, none with a newer token for its key is forwarded; after that nothing older takes effect, "+
		"across all sidecars on the same store and their crashes. A request whose outcome is unknown blocks newer tokens "+unknown+".",
		"event", "guard_promise", "guard", g.Name, "order", g.Order)
}
