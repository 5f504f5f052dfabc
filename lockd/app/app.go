// Package app wires lockd: configuration, store, service, HTTP. It is the only one that knows concrete stores.
package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"fenceline/internal/daemon"
	"fenceline/internal/httpserver"
	"fenceline/lockd/httpapi"
	"fenceline/lockd/lock"
)

// Config is everything that lockd is told.
type Config struct {
	Listen         string        // host:port or unix:/path
	AdminListen    string        // the same
	AllowAnyHost   bool          // bind other than loopback, although nobody has to identify themselves
	DatabaseURL    string        // lockdb
	MaxConns       int32         // connections to lockdb
	QueryMode      string        // see postgres.Config
	StoreTimeout   time.Duration // for one statement
	StartupTimeout time.Duration // for the first look at the store
	Waiters        lock.Limits   // clients that wait for locks here
}

// App is a running lockd.
type App struct {
	config   Config
	logger   hclog.Logger
	cleanups daemon.Cleanups
	failed   chan error
	backend  *backend
	admin    *daemon.Admin
	server   *httpserver.Server
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
	for _, address := range []string{a.config.Listen, a.config.AdminListen} {
		if err := a.checkBind(address); err != nil {
			return err
		}
	}
	b, err := openBackend(ctx, a.config)
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

	adminListener, err := daemon.Listen(ctx, a.config.AdminListen)
	if err != nil {
		return fmt.Errorf("admin: %w", err)
	}
	a.cleanups.Push("admin listener", closing(adminListener))
	listener, err := daemon.Listen(ctx, a.config.Listen)
	if err != nil {
		return err
	}
	a.cleanups.Push("listener", closing(listener))
	a.address, a.adminAt = listener.Addr(), adminListener.Addr()

	a.admin = daemon.NewAdmin(registry, a.logger)
	a.admin.AddCheck(a.backend.place, a.backend.check)
	a.cleanups.Push("admin", a.admin.Stop)
	a.admin.Serve(adminListener, a.failed)

	a.background(ctx, "reaper", service.Reap)
	if a.backend.watcher != nil {
		a.background(ctx, "watcher", func(ctx context.Context) { service.Follow(ctx, a.backend.watcher) })
	}

	a.server = httpapi.NewServer(httpapi.Config{Service: service, Lister: a.backend.lister, Logger: a.logger.Named("api"), Registry: registry})
	a.cleanups.Push("api", daemon.StopHTTP(a.server))
	a.cleanups.Push("waiters", func(context.Context) error { service.Drain(); return nil })
	daemon.ServeHTTP("api", listener, a.server, a.logger, a.failed)
	return nil
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

// checkBind refuses an address that others can reach, since this version asks nobody who they are.
func (a *App) checkBind(address string) error {
	host, _, err := net.SplitHostPort(address)
	switch {
	case a.config.AllowAnyHost, strings.HasPrefix(address, "unix:"), host == "localhost":
		return nil
	case err != nil:
		return nil //nolint:nilerr // Listen refuses it with a better text
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsLoopback() {
		return nil
	}
	return fmt.Errorf("listen on %s: anybody who reaches this address could take and revoke locks, since lockd doesn't ask who calls; "+
		"bind to loopback or a unix socket, or say --allow-any-host if something else keeps strangers out", address)
}
