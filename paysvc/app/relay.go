package app

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"fenceline/internal/daemon"
	"fenceline/paysvc/paydb"
	"fenceline/paysvc/relay"
	"fenceline/paysvc/relay/event"
)

// Relay is the command relay.
type Relay struct {
	Process      `embed:""`
	PayDB        `embed:""`
	AdminListen  string        `help:"Address of health and metrics." env:"PAYSVC_ADMIN_LISTEN" default:"127.0.0.1:9085"`
	Endpoint     string        `help:"Where events are delivered, with POST." env:"PAYSVC_RELAY_ENDPOINT" required:"" placeholder:"URL"`
	Timeout      time.Duration `help:"Time limit for one delivery." env:"PAYSVC_RELAY_TIMEOUT" default:"5s"`
	Lease        time.Duration `help:"How long an event that this relay took is its own; above the time limit." env:"PAYSVC_RELAY_LEASE" default:"15s"`
	Batch        int           `help:"Events delivered at a time." env:"PAYSVC_RELAY_BATCH" default:"20"`
	PollInterval time.Duration `help:"Pause when nothing is due." env:"PAYSVC_POLL_INTERVAL" default:"1s"`
	MaxAttempts  int           `help:"After this many failed deliveries an event is parked." env:"PAYSVC_RELAY_MAX_ATTEMPTS" default:"20"`
	MinBackoff   time.Duration `help:"Pause after the first failed delivery; it doubles each time." env:"PAYSVC_RELAY_MIN_BACKOFF" default:"1s"`
	MaxBackoff   time.Duration `help:"The longest pause between two deliveries of an event." env:"PAYSVC_RELAY_MAX_BACKOFF" default:"5m"`
	Unpark       bool          `help:"Before anything else make every parked event due again."`
}

// Help is the command's longer help.
func (*Relay) Help() string {
	return `Delivers the events payout.posted, payout.failed and payout.ambiguous at least once, those of one payout in their order. Each
delivery carries the header X-Event-Key, the same for every delivery of an event: drop what you have seen. Run it as a login with the role relayapp; several relays share the work.`
}

// Run runs the role until a signal ends it.
func (c *Relay) Run() error {
	return c.run("relay", func(logger hclog.Logger) (daemon.App, error) {
		options := relay.Options{
			Batch: c.Batch, Lease: c.Lease, Poll: c.PollInterval, MaxAttempts: c.MaxAttempts, MinBackoff: c.MinBackoff, MaxBackoff: c.MaxBackoff,
		}
		if err := options.Validate(); err != nil {
			return nil, err
		}
		if c.Timeout <= 0 || c.Lease <= c.Timeout {
			return nil, fmt.Errorf("relay: lease %s: want more than the time limit of a delivery, %s, and that above 0", c.Lease, c.Timeout)
		}
		endpoint, err := relay.NewHTTP(c.Endpoint, c.Timeout)
		if err != nil {
			return nil, err
		}
		return &relayApp{service: newService(logger), flags: c, options: options, endpoint: endpoint}, nil
	})
}

// relayApp implements daemon.App.
type relayApp struct {
	*service
	flags    *Relay
	options  relay.Options
	endpoint *relay.HTTP
}

// Start implements daemon.App.
func (a *relayApp) Start(ctx context.Context) error {
	if err := checkBind(a.flags.AdminListen, false); err != nil {
		return err
	}
	store := func(pool *pgxpool.Pool) *paydb.Outbox { return paydb.NewOutbox(pool, a.flags.StoreTimeout) }
	pool, err := a.openPayDB(ctx, a.flags.PayDB, "relay", func(pool *pgxpool.Pool) daemon.Check { return store(pool).Check })
	if err != nil {
		return err
	}
	if a.flags.Unpark {
		n, err := store(pool).Unpark(ctx)
		if err != nil {
			return err
		}
		a.logger.Info("parked events are due again", "event", "events_unparked", "count", n)
	}
	listener, err := daemon.Listen(ctx, a.flags.AdminListen)
	if err != nil {
		return fmt.Errorf("admin: %w", err)
	}
	a.admin = daemon.NewAdmin(a.registry, a.logger)
	a.admin.AddCheck("paydb", store(pool).Check)
	a.cleanups.Push("admin", a.admin.Stop)
	a.admin.Serve(listener, a.failed)

	worker := relay.New(store(pool), a.endpoint, a.options, a.logger, newRelayMetrics(a.registry))
	workCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	var done sync.WaitGroup
	done.Go(func() { worker.Run(workCtx) })
	a.cleanups.Push("relay", func(ctx context.Context) error {
		stop()
		finished := make(chan struct{})
		go func() { done.Wait(); close(finished) }()
		select {
		case <-finished:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("a delivery is still under way: %w", ctx.Err())
		}
	})
	return nil
}

// relayMetrics implements relay.Recorder.
type relayMetrics struct {
	deliveries *prometheus.CounterVec
	waiting    prometheus.Gauge
	stuck      *prometheus.GaugeVec
	lag        prometheus.Gauge
}

func newRelayMetrics(registry prometheus.Registerer) *relayMetrics {
	m := &relayMetrics{
		deliveries: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "outbox_delivery_total", Help: "Deliveries of events by what came of them."}, []string{"outcome"}),
		waiting:    prometheus.NewGauge(prometheus.GaugeOpts{Name: "outbox_undelivered_current", Help: "Events that aren't delivered."}),
		stuck:      prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "outbox_stuck_current", Help: "Events that are parked, or wait behind a parked one. Healthy at 0."}, []string{"reason"}),
		lag:        prometheus.NewGauge(prometheus.GaugeOpts{Name: "outbox_lag_seconds", Help: "Age of the oldest event that isn't delivered."}),
	}
	registry.MustRegister(m.deliveries, m.waiting, m.stuck, m.lag)
	for _, outcome := range []string{"delivered", "failed"} {
		m.deliveries.WithLabelValues(outcome)
	}
	m.Backlog(event.Backlog{})
	return m
}

func (m *relayMetrics) Delivered() { m.deliveries.WithLabelValues("delivered").Inc() }
func (m *relayMetrics) Failed()    { m.deliveries.WithLabelValues("failed").Inc() }

func (m *relayMetrics) Backlog(b event.Backlog) {
	m.waiting.Set(float64(b.Waiting))
	m.stuck.WithLabelValues("parked").Set(float64(b.Parked))
	m.stuck.WithLabelValues("blocked").Set(float64(b.Blocked))
	m.lag.Set(b.Lag.Seconds())
}
