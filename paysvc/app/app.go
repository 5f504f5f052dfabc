// Package app wires the roles of the payment system, one process each: flags, stores, HTTP, health and metrics. It is the only
// one that knows the concrete store.
package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"fenceline/internal/daemon"
	"fenceline/internal/postgres"
)

// Process are the flags of every role that runs as a daemon.
type Process struct {
	Grace    time.Duration `help:"Time for requests under way after SIGTERM." env:"PAYSVC_GRACE" default:"10s"`
	LogLevel string        `help:"One of ${enum}." env:"PAYSVC_LOG_LEVEL" enum:"trace,debug,info,warn,error" default:"info"`
}

// run makes the role's logger and runs the daemon that build returns, until a signal ends it.
func (p Process) run(service string, build func(logger hclog.Logger) (daemon.App, error)) error {
	logger, err := daemon.NewLogger(service, p.LogLevel, os.Stderr)
	if err != nil {
		return err
	}
	app, err := build(logger)
	if err != nil {
		return err
	}
	return daemon.Run(context.Background(), app, p.Grace, logger)
}

// PayDB are the flags of every role that uses paydb.
type PayDB struct {
	DatabaseURL    string        `help:"Connection URL of paydb." env:"PAYSVC_DATABASE_URL,PAYDB_URL" required:"" placeholder:"URL"`
	MaxConns       int32         `help:"Connections to paydb, at most." env:"PAYSVC_MAX_CONNS" default:"8"`
	QueryMode      string        `help:"How statements are sent: ${enum}. cache_statement needs a direct connection; the others work behind a transaction-mode pooler." env:"PAYSVC_QUERY_MODE" enum:"cache_describe,cache_statement,exec,simple_protocol" default:"cache_describe"`
	StoreTimeout   time.Duration `help:"Time limit for one statement." env:"PAYSVC_STORE_TIMEOUT" default:"3s"`
	StartupTimeout time.Duration `help:"How long the start waits for the database before it goes on without." env:"PAYSVC_STARTUP_TIMEOUT" default:"5s"`
}

// open returns the pool; it connects on first use.
func (p PayDB) open(ctx context.Context, applicationName string) (*pgxpool.Pool, error) {
	if p.MaxConns < 1 || p.StoreTimeout <= 0 || p.StartupTimeout <= 0 {
		return nil, errors.New("max-conns, store-timeout and startup-timeout: want more than 0")
	}
	pool, err := postgres.Open(ctx, postgres.Config{
		URL: p.DatabaseURL, MaxConns: p.MaxConns, QueryMode: p.QueryMode, ApplicationName: applicationName,
	})
	if err != nil {
		return nil, fmt.Errorf("paydb: %w", err)
	}
	return pool, nil
}

// Listeners are the addresses of a role that serves.
type Listeners struct {
	Listen       string // host:port or unix:/path
	AdminListen  string // the same; health and metrics
	AllowAnyHost bool   // bind other than loopback, although nobody has to identify themselves
}

// service is what the daemons have in common: it implements daemon.App but for Start, which each role writes for itself.
type service struct {
	logger   hclog.Logger
	cleanups daemon.Cleanups
	failed   chan error
	registry *prometheus.Registry
	admin    *daemon.Admin
}

func newService(logger hclog.Logger) *service {
	return &service{logger: logger, failed: make(chan error, 1), registry: daemon.NewRegistry()}
}

// Failed implements daemon.App.
func (s *service) Failed() <-chan error { return s.failed }

// Stop implements daemon.App: not ready, no new requests, finish those under way, then everything else.
func (s *service) Stop(ctx context.Context) error {
	if s.admin != nil {
		s.admin.Drain()
	}
	return s.cleanups.Run(ctx)
}

// openPayDB opens the pool with its metrics, closes it at the end, and looks at the database once. A database that is down, or isn't
// what it should be, doesn't keep a role from starting; it keeps it from being ready.
func (s *service) openPayDB(ctx context.Context, flags PayDB, applicationName string, check func(*pgxpool.Pool) daemon.Check) (*pgxpool.Pool, error) {
	pool, err := flags.open(ctx, applicationName)
	if err != nil {
		return nil, err
	}
	s.cleanups.Push("pool", func(context.Context) error { pool.Close(); return nil })
	postgres.RegisterPoolMetrics(s.registry, "paydb", pool)

	lookCtx, cancel := context.WithTimeout(ctx, flags.StartupTimeout)
	defer cancel()
	if err := check(pool)(lookCtx); err != nil {
		s.logger.Warn("paydb can't be used yet; the process starts, is not ready, and goes on trying", "event", "database_unavailable", "error", err)
	}
	return pool, nil
}

// serve opens both listeners, then answers on them. The checks are those of readiness.
func (s *service) serve(ctx context.Context, l Listeners, server daemon.HTTPServer, checks map[string]daemon.Check) error {
	for _, address := range []string{l.Listen, l.AdminListen} {
		if err := checkBind(address, l.AllowAnyHost); err != nil {
			return err
		}
	}
	adminListener, err := daemon.Listen(ctx, l.AdminListen)
	if err != nil {
		return fmt.Errorf("admin: %w", err)
	}
	s.cleanups.Push("admin listener", closing(adminListener))
	listener, err := daemon.Listen(ctx, l.Listen)
	if err != nil {
		return err
	}
	s.cleanups.Push("listener", closing(listener))

	s.admin = daemon.NewAdmin(s.registry, s.logger)
	for name, check := range checks {
		s.admin.AddCheck(name, check)
	}
	s.cleanups.Push("admin", s.admin.Stop)
	s.admin.Serve(adminListener, s.failed)

	s.cleanups.Push("api", daemon.StopHTTP(server))
	daemon.ServeHTTP("api", listener, server, s.logger, s.failed)
	return nil
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

// checkBind refuses an address that others can reach, since the payment system asks nobody who they are: whoever reaches it
// writes past the sidecar.
func checkBind(address string, allowAnyHost bool) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil || allowAnyHost || host == "localhost" || strings.HasPrefix(address, "unix:") {
		return nil //nolint:nilerr // a unix socket, or something that Listen refuses with a better text
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsLoopback() {
		return nil
	}
	return fmt.Errorf("listen on %s: anybody who reaches this address could move money past the sidecar; "+
		"bind to loopback or a unix socket, or say --allow-any-host if something else keeps strangers out", address)
}
