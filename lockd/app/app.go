// Package app wires lockd: configuration, store, service, HTTP. It is the only one that knows concrete stores.
package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/hashicorp/go-hclog"

	"fenceline/internal/daemon"
	"fenceline/lockd/lock"
)

// Config is everything that lockd is told.
type Config struct {
	Listen         string // host:port or unix:/path
	AdminListen    string // the same
	AllowAnyHost   bool   // bind to what others reach, although nobody has to say who they are there
	Backend        string // where grants are kept: "pg" (also when empty) or "etcd"
	Etcd           EtcdConfig
	DatabaseURL    string        // lockdb
	MaxConns       int32         // connections to lockdb
	QueryMode      string        // see postgres.Config
	ListenURL      string        // to lockdb itself, for notifications, where DatabaseURL leads through a pooler; "": the same
	StoreTimeout   time.Duration // for one statement
	StartupTimeout time.Duration // for the first look at the store
	Waiters        lock.Limits   // clients that wait for locks here
	MaxConnections int           // to the API, at once
	Access         AccessConfig
}

// App is a running lockd.
type App struct {
	config   Config
	logger   hclog.Logger
	cleanups daemon.Cleanups
	failed   chan error
	backend  *backend
	admin    *daemon.Admin
	address  net.Addr
	adminAt  net.Addr
}

// Address is where the API listens, after Start.
func (a *App) Address() net.Addr { return a.address }

// AdminAddress is where health and metrics are, after Start.
func (a *App) AdminAddress() net.Addr { return a.adminAt }

// New prepares lockd; nothing runs before Start.
func New(config Config, logger hclog.Logger) *App {
	return &App{config: config, logger: logger, failed: make(chan error, 1)}
}

// Failed implements daemon.App.
func (a *App) Failed() <-chan error { return a.failed }

// Start implements daemon.App. A store that is down doesn't keep lockd from starting, only from being ready. One that
// may forget commits, or has another schema, does: no operator should find that out from a token handed out twice.
func (a *App) Start(ctx context.Context) error {
	if err := a.config.checkBind(); err != nil {
		return err
	}
	b, err := openBackend(ctx, a.config, a.logger)
	if err != nil {
		return err
	}
	a.cleanups.Push(b.place, b.close)
	a.backend = b
	if err := a.firstLook(ctx); err != nil {
		return err
	}
	return a.serve(ctx)
}

// firstLook checks the store if it is there.
func (a *App) firstLook(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, a.config.StartupTimeout)
	defer cancel()
	err := a.backend.check(ctx)
	switch {
	case err == nil:
		return nil
	case a.backend.hopeless(err):
		return fmt.Errorf("%s can't be used: %w", a.backend.place, err)
	}
	a.logger.Warn(a.backend.place+" can't be reached yet; lockd starts, is not ready, and goes on trying", "event", "database_unavailable", "error", err)
	return nil
}

func (a *App) serve(ctx context.Context) error {
	registry := daemon.NewRegistry()
	a.backend.register(registry)
	service := lock.NewService(a.backend.store, a.backend.name, a.config.Waiters, a.logger.Named("lock"), newMetrics(registry, a.backend.name))

	listener, adminListener, err := a.listen(ctx)
	if err != nil {
		return err
	}
	api, err := a.newAPI(ctx, service, registry)
	if err != nil {
		return err
	}

	a.admin = daemon.NewAdmin(registry, a.logger)
	a.admin.AddCheck(a.backend.place, a.backend.check)
	a.cleanups.Push("admin", a.admin.Stop)
	a.admin.Handle("/v1/", api.Operators())
	a.admin.Serve(adminListener, a.failed)

	a.background(ctx, "reaper", service.Reap)
	if a.backend.failed != nil {
		a.background(ctx, "store", a.reportStore)
	}
	if a.backend.watcher != nil {
		a.background(ctx, "watcher", func(ctx context.Context) { service.Follow(ctx, a.backend.watcher) })
	}

	a.cleanups.Push("api", daemon.StopHTTP(api.Server()))
	a.cleanups.Push("waiters", func(context.Context) error { service.Drain(); return nil })
	daemon.ServeHTTP("api", listener, api.Server(), a.logger, a.failed)
	return nil
}

// reportStore ends the app when the store in this process has ended.
func (a *App) reportStore(ctx context.Context) {
	select {
	case err := <-a.backend.failed:
		select {
		case a.failed <- fmt.Errorf("%s: %w", a.backend.place, err):
		default: // another failure came first
		}
	case <-ctx.Done():
	}
}

// background runs work until the app stops.
func (a *App) background(ctx context.Context, name string, work func(context.Context)) {
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		work(ctx)
	}()
	a.cleanups.Push(name, func(context.Context) error { stop(); <-done; return nil })
}

// Stop implements daemon.App: not ready, no new requests, finish those under way, then everything else.
func (a *App) Stop(ctx context.Context) error {
	if a.admin != nil {
		a.admin.Drain()
	}
	return a.cleanups.Run(ctx)
}

// closing closes a listener that a server may have closed before.
func closing(c io.Closer) func(context.Context) error {
	return func(context.Context) error {
		if err := c.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	}
}
