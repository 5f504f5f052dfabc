// Package app wires the sidecar: configuration, store, policy, proxy, admin. It is the only one that knows concrete stores.
package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"

	"fenceline/internal/daemon"
	"fenceline/internal/postgres"
	"fenceline/sidecar/admin"
	"fenceline/sidecar/config"
	"fenceline/sidecar/mark/pgmark"
	"fenceline/sidecar/policy"
	"fenceline/sidecar/proxy"
)

// startupTimeout bounds the first look at the store; it is also there when the store is down.
const startupTimeout = 5 * time.Second

// App is a running sidecar.
type App struct {
	cfg      *config.Config
	hash     string
	logger   hclog.Logger
	cleanups daemon.Cleanups
	failed   chan error
	admin    *daemon.Admin
	server   *fasthttp.Server
	serving  bool
}

// New reads the configuration file; the error lists everything that is wrong with it.
func New(path string, logger hclog.Logger) (*App, error) {
	cfg, err := config.LoadFile(path)
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(path) //nolint:gosec // the operator's own file
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	return &App{cfg: cfg, hash: admin.Hash(text), logger: logger, failed: make(chan error, 1)}, nil
}

// Config is the configuration in use.
func (a *App) Config() *config.Config { return a.cfg }

// Failed implements daemon.App.
func (a *App) Failed() <-chan error { return a.failed }

// Start implements daemon.App. A store that is down keeps the sidecar from being ready and every guarded request from passing, but not from
// starting. A store that may forget marks, or whose tables don't fit, keeps it from starting.
func (a *App) Start(ctx context.Context) error {
	rules, err := policy.New(a.cfg)
	if err != nil {
		return err
	}
	if err := a.checkAdminBind(); err != nil {
		return err
	}
	pool, err := postgres.Open(ctx, postgres.Config{
		URL: a.cfg.Store.Postgres.URL.Reveal(), MaxConns: a.cfg.Store.Postgres.MaxConns, QueryMode: a.cfg.Store.Postgres.QueryMode,
		ApplicationName: "sidecar " + a.cfg.ID,
	})
	if err != nil {
		return fmt.Errorf("store.postgres: %w", err)
	}
	a.cleanups.Push("pool", func(context.Context) error { pool.Close(); return nil })
	store := pgmark.New(pool, a.cfg.Guards, a.cfg.Store.Postgres.Timeout, a.cfg.Token.MaxJump)
	if err := a.firstLook(ctx, store); err != nil {
		return err
	}
	a.announce()

	registry := daemon.NewRegistry()
	postgres.RegisterPoolMetrics(registry, "marks", pool)
	info := prometheus.NewGauge(prometheus.GaugeOpts{Name: "fence_config_info", Help: "The configuration in use.", ConstLabels: prometheus.Labels{"hash": a.hash}})
	info.Set(1)
	registry.MustRegister(info)

	data := proxy.New(a.cfg, rules, store, registry, a.logger.Named("proxy"))
	a.cleanups.Push("upstream connections", func(context.Context) error { data.Close(); return nil })
	a.admin = daemon.NewAdmin(registry, a.logger)
	a.admin.AddCheck("store", store.Check)
	admin.Register(a.admin, a.cfg, a.hash, rules, store)
	a.server = proxy.NewServer(data, a.cfg.Limits, a.logger)
	return a.listen(ctx)
}

// listen opens both listeners before either serves, so that a port in use leaves nothing half started.
func (a *App) listen(ctx context.Context) error {
	adminListener, err := daemon.Listen(ctx, a.cfg.Admin.Listen)
	if err != nil {
		return fmt.Errorf("admin: %w", err)
	}
	listener, err := daemon.Listen(ctx, a.cfg.Listen)
	if err != nil {
		return errors.Join(err, adminListener.Close())
	}
	a.cleanups.Push("admin", a.admin.Stop)
	a.admin.Serve(adminListener, a.failed)
	a.cleanups.Push("proxy", daemon.StopHTTP(a.server))
	daemon.ServeHTTP("api", listener, a.server, a.logger, a.failed)
	a.serving = true
	return nil
}

func (a *App) firstLook(ctx context.Context, store *pgmark.Store) error {
	ctx, cancel := context.WithTimeout(ctx, startupTimeout)
	defer cancel()
	err := store.Check(ctx)
	for _, final := range []error{postgres.ErrNotDurable, postgres.ErrPermission, postgres.ErrSchema, pgmark.ErrContract} {
		if errors.Is(err, final) {
			return fmt.Errorf("store.postgres can't be used: %w", err)
		}
	}
	if err != nil {
		a.logger.Warn("the mark store can't be reached yet; guarded requests get 503 until it can", "event", "store_unavailable", "error", err)
	}
	return nil
}

// announce says at the start what each guard promises, and what doesn't protect anything.
func (a *App) announce() {
	for _, g := range a.cfg.Guards {
		a.logger.Info("guard "+g.Name+": order of admissions. After a token was admitted for a key, no lower one is admitted, also after crashes and by other sidecars on "+
			"the same table. A request that was admitted before may still take effect later.",
			"event", "guard_promise", "guard", g.Name, "order", g.Order)
	}
	for _, warning := range a.cfg.Warnings() {
		a.logger.Warn(warning, "event", "config_warning")
	}
}

// Stop implements daemon.App: not ready, but still serving for shutdown.delay, so that balancers notice; then no new connections, and what is under way
// finishes.
func (a *App) Stop(ctx context.Context) error {
	if a.serving { // else nobody was ever sent here
		a.admin.Drain()
		timer := time.NewTimer(a.cfg.Shutdown.Delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	return a.cleanups.Run(ctx)
}

// checkAdminBind keeps the admin listener to this machine: it asks nobody who they are.
func (a *App) checkAdminBind() error {
	host, _, err := net.SplitHostPort(a.cfg.Admin.Listen)
	if err != nil || host == "localhost" || strings.HasPrefix(a.cfg.Admin.Listen, "unix:") {
		return nil //nolint:nilerr // a unix socket
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return fmt.Errorf("admin.listen %s: anybody who reaches this address could read the configuration and the marks; bind to loopback or a unix socket", a.cfg.Admin.Listen)
	}
	return nil
}
