package app

import (
	"context"
	"slices"
	"time"

	"fenceline/sidecar/config"
	"fenceline/sidecar/gate"
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

// observe has the store report to the metrics in use, where it has more to tell than the gate.
func (a *App) observe(store checkedStore) {
	if database, ok := store.(*pgmark.Store); ok {
		database.ObserveGroups(a.data.Current().GroupSize)
	}
}

// startGate gives this sidecar a life in the register. Where that can't be yet, nothing is admitted, readiness says why, and it is tried again: the store
// may be down, or the former life of this id was killed a moment ago and counts as alive for a few seconds.
func (a *App) startGate(ctx context.Context, g *generation) {
	if !ordersEffects(g.cfg) {
		return
	}
	data := a.data.Current()
	a.observe(g.store)
	if database, ok := g.store.(*pgmark.Store); ok {
		database.ObserveClaims(a.claimed)
	}
	a.gate = gate.New(g.store, gateOptions(g.cfg), data.Observer())
	data.UseGate(a.gate)
	_ = a.gate.Start(ctx) // logged; tried again
	a.cleanups.Push("register of requests in flight", a.gate.Stop)
}

// claimed says who owns an exclusive guard from now on.
func (a *App) claimed(c pgmark.ClaimChange) {
	if !c.Ours {
		a.logger.Info("guard "+c.Guard+" is served by sidecar "+c.Owner+" alone (ownership: exclusive); this one stands by", "event", "guard_standby", "guard", c.Guard, "owner", c.Owner)
		return
	}
	a.logger.Info("guard "+c.Guard+" is this sidecar's own now", "event", "guard_claimed", "guard", c.Guard, "epoch", c.Epoch, "waitMillis", c.Wait.Milliseconds())
}

// standby says which guards somebody else owns.
func (a *App) standby() error {
	if database, ok := a.generation().store.(*pgmark.Store); ok {
		return database.Standby()
	}
	return nil
}

// useGate goes on with the gate under a new configuration. The life stays the same.
func (a *App) useGate(old, next *generation) {
	if a.gate == nil {
		return
	}
	if store, ok := next.store.(*pgmark.Store); ok {
		if former, ok := old.store.(*pgmark.Store); ok {
			store.Succeed(former)
		}
	}
	a.observe(next.store)
	a.gate.Use(next.store, gateOptions(next.cfg))
}

// announceEffects says in words what a guard promises.
func (a *App) announceEffects(g config.Guard) {
	unknown := "until a late response or an operator settles it (sidecar settle)"
	if g.Unsettled.Releases() {
		unknown = "until a late response or an operator settles it, or " + g.Unsettled.After.String() + " have passed"
	}
	where := "across all sidecars on the same store and their crashes"
	if g.Exclusive() {
		where = "while this sidecar serves the guard alone. After a crash the next one lets " + g.Unsettled.After.String() + " pass, and the order holds if no request takes longer"
	}
	a.logger.Info("guard "+g.Name+": order of effects. While a request may still take effect, none with a newer token for its key is forwarded; after that nothing older takes effect, "+
		where+". A request whose outcome is unknown blocks newer tokens "+unknown+".",
		"event", "guard_promise", "guard", g.Name, "order", g.Order, "ownership", g.Ownership)
}
