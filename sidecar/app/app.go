// Package app wires the sidecar: configuration, store, policy, proxy, admin. It is the only one that knows concrete stores.
package app

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"

	"fenceline/internal/credential"
	"fenceline/internal/daemon"
	"fenceline/internal/httpserver"
	"fenceline/internal/postgres"
	"fenceline/internal/tracing"
	"fenceline/sidecar/admin"
	"fenceline/sidecar/config"
	"fenceline/sidecar/gate"
	"fenceline/sidecar/mark"
	"fenceline/sidecar/policy"
	"fenceline/sidecar/proxy"
)

// startupTimeout bounds the first look at the store; it is also there when the store is down.
const startupTimeout = 5 * time.Second

// App is a running sidecar.
type App struct {
	path     string
	logger   hclog.Logger
	cleanups daemon.Cleanups
	failed   chan error
	metrics  *reloadMetrics
	admin    *daemon.Admin
	server   *fasthttp.Server
	data     *proxy.Switch
	recorder *mark.Recorder // nil with a file
	gate     *gate.Gate     // nil where no guard orders effects
	serving  bool
	seen     [sha256.Size]byte // the fingerprint of the files when they were last read

	retiring sync.WaitGroup // former configurations whose last requests are under way
	mu       sync.Mutex
	current  *generation
}

// generation is everything that one configuration brings.
type generation struct {
	cfg     *config.Config
	hash    string
	rules   *policy.Policy
	backing *backing
	store   checkedStore
	tls     *tlsConfigs
	// adminTokens are asked for on the admin listener; nil: nobody is asked.
	adminTokens *credential.Tokens
}

func (g *generation) parts() proxy.Parts {
	return proxy.Parts{Config: g.cfg, Rules: g.rules, Store: g.store, UpstreamTLS: g.tls.upstream}
}

// New reads the configuration file; the error lists everything that is wrong with it.
func New(path string, logger hclog.Logger) (*App, error) {
	a := &App{path: path, logger: logger, failed: make(chan error, 1)}
	// Read twice: the fingerprint is taken in between, so that a change from then on is noticed.
	for range 2 {
		cfg, hash, err := load(path)
		if err != nil {
			return nil, err
		}
		if a.current == nil {
			a.current = &generation{cfg: cfg}
			a.seen = a.fingerprint()
		}
		a.current = &generation{cfg: cfg, hash: hash}
	}
	return a, nil
}

// load reads a file, and the hash by which admin pages and metrics name it.
func load(path string) (*config.Config, string, error) {
	text, err := config.ReadFile(path)
	if err != nil {
		return nil, "", err
	}
	cfg, err := config.Load(text, path, os.LookupEnv)
	if err != nil {
		return nil, "", err
	}
	return cfg, admin.Hash(text), nil
}

// Config is the configuration in use.
func (a *App) Config() *config.Config { return a.generation().cfg }

func (a *App) generation() *generation {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.current
}

// Failed implements daemon.App.
func (a *App) Failed() <-chan error { return a.failed }

// Start implements daemon.App. A store that is down keeps the sidecar from being ready and every guarded request from passing, but not from
// starting. A store that may forget marks, or whose tables don't fit, keeps it from starting; and so does a mark file that isn't there or isn't in order.
func (a *App) Start(ctx context.Context) error {
	hangups := a.catchHangups()
	g := a.generation()
	if err := g.complete(ctx, nil); err != nil {
		return err
	}
	a.cleanups.Push("store", func(context.Context) error { return a.generation().backing.close() })
	a.cleanups.Push("former configurations", a.waitRetired)
	if err := a.firstLook(ctx, g.store); err != nil {
		return err
	}
	a.announce(g.cfg)

	registry := daemon.NewRegistry()
	if g.backing.pool != nil {
		postgres.RegisterPoolMetrics(registry, "marks", currentPool{a})
	}
	a.metrics = newReloadMetrics(registry, g.hash)
	data := proxy.New(g.parts(), registry, a.logger.Named("proxy"))
	if g.backing.pool != nil {
		a.recordRejections(ctx, g.cfg, registry)
		data.RecordTo(a.recorder.Record)
	}
	if err := a.trace(ctx, g.cfg, registry, data); err != nil {
		return err
	}
	a.data = proxy.NewSwitch(data)
	a.startGate(ctx, g)
	a.cleanups.Push("upstream connections", func(context.Context) error { a.data.Current().Close(); return nil })
	a.admin = daemon.NewAdmin(registry, a.logger)
	a.admin.Protect(registry, func() *credential.Tokens { return a.generation().adminTokens })
	a.admin.AddCheck("store", func(ctx context.Context) error { return a.generation().store.Check(ctx) })
	if g.cfg.Upstream.Readiness == config.ReadinessConnect {
		a.admin.AddCheck("upstream", func(ctx context.Context) error { return a.data.Current().Reachable(ctx) })
	}
	if slices.ContainsFunc(g.cfg.Guards, config.Guard.Exclusive) {
		a.admin.AddCheck("ownership", func(context.Context) error { return a.standby() })
	}
	if a.gate != nil {
		a.admin.AddCheck("register", func(context.Context) error { return a.gate.Alive() })
	}
	admin.Register(a.admin, a.logger, func() admin.State {
		g := a.generation()
		return admin.State{Config: g.cfg, Hash: g.hash, Rules: g.rules, Store: g.store}
	})
	a.server = proxy.NewServer(a.data, g.cfg.Limits, a.logger)
	if err := a.listen(ctx, g.cfg); err != nil {
		return err
	}
	a.watch(ctx, hangups)
	return nil
}

// trace exports spans where the configuration says whereto.
func (a *App) trace(ctx context.Context, cfg *config.Config, registry *prometheus.Registry, data *proxy.Proxy) error {
	if cfg.Tracing.Endpoint == nil {
		return nil
	}
	tracer, err := tracing.Open(ctx, tracing.Config{Endpoint: cfg.Tracing.Endpoint, Service: "sidecar", Instance: cfg.ID, Registry: registry, Logger: a.logger})
	if err != nil {
		return fmt.Errorf("tracing.endpoint: %w", err)
	}
	a.cleanups.Push("spans", tracer.Stop)
	data.TraceTo(tracer)
	return nil
}

// complete builds what a configuration needs, on the given backing or on one of its own.
func (g *generation) complete(ctx context.Context, on *backing) (err error) {
	if g.rules, err = policy.New(g.cfg); err != nil {
		return err
	}
	if g.tls, err = openTLS(g.cfg); err != nil {
		return err
	}
	if g.adminTokens, err = openAdminTokens(g.cfg.Admin); err != nil {
		return err
	}
	g.backing = on
	if on == nil {
		if g.backing, err = openBacking(ctx, g.cfg); err != nil {
			return err
		}
	}
	if g.store, err = g.backing.store(g.cfg); err != nil && on == nil {
		return errors.Join(err, g.backing.close())
	}
	return err
}

// listen opens both listeners before either serves, so that a port in use leaves nothing half started.
func (a *App) listen(ctx context.Context, cfg *config.Config) error {
	adminListener, err := daemon.Listen(ctx, cfg.Admin.Listen)
	if err != nil {
		return fmt.Errorf("admin: %w", err)
	}
	listener, err := daemon.Listen(ctx, cfg.Listen)
	if err != nil {
		return errors.Join(err, adminListener.Close())
	}
	listener = httpserver.Limit(listener, httpserver.Config{MaxConnections: cfg.Limits.Connections, Logger: a.logger, TLS: a.generation().tls.listen})
	if cfg.ListenTLS.On() {
		listener = a.withTLS(listener)
	}
	a.cleanups.Push("admin", a.admin.Stop)
	a.admin.Serve(adminListener, a.failed)
	a.cleanups.Push("proxy", daemon.StopHTTP(a.server))
	daemon.ServeHTTP("api", listener, a.server, a.logger, a.failed)
	a.serving = true
	return nil
}

func (a *App) firstLook(ctx context.Context, store checkedStore) error {
	ctx, cancel := context.WithTimeout(ctx, startupTimeout)
	defer cancel()
	err := store.Check(ctx)
	if isFinal(err) {
		return fmt.Errorf("store.postgres can't be used: %w", err)
	}
	if err != nil {
		a.logger.Warn("the mark store can't be reached yet; guarded requests get 503 until it can", "event", "store_unavailable", "error", err)
	}
	return nil
}

// announce says at the start what each guard promises, and what doesn't protect anything.
func (a *App) announce(cfg *config.Config) {
	where := "by other sidecars on the same table"
	if cfg.Store.File.Path != "" {
		where = "after restarts; no other sidecar can use the same file"
	}
	for _, g := range cfg.Guards {
		if g.Advance == config.AdvanceResource {
			a.logger.Info("guard "+g.Name+": no order by the sidecar. It refuses what is stale when it looks; the resource raises the marks and keeps the order.",
				"event", "guard_promise", "guard", g.Name, "order", "resource")
			continue
		}
		if g.OrdersEffects() {
			a.announceEffects(g)
			continue
		}
		a.logger.Info("guard "+g.Name+": order of admissions. After a token was admitted for a key, no lower one is admitted, also after crashes and "+where+
			". A request that was admitted before may still take effect later.",
			"event", "guard_promise", "guard", g.Name, "order", g.Order)
	}
	for _, warning := range cfg.Warnings() {
		a.logger.Warn(warning, "event", "config_warning")
	}
}

// Stop implements daemon.App: not ready, but still serving for shutdown.delay, so that balancers notice; then no new connections, and what is under way
// finishes.
func (a *App) Stop(ctx context.Context) error {
	if a.serving { // else nobody was ever sent here
		a.admin.Drain()
		timer := time.NewTimer(a.Config().Shutdown.Delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	return a.cleanups.Run(ctx)
}
