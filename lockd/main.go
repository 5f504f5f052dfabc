// Lockd is the lock service: it grants leases, and every grant carries a fencing token that only grows.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/alecthomas/kong"

	"fenceline/internal/daemon"
	"fenceline/internal/migrate"
	"fenceline/lockd/app"
	"fenceline/lockd/lock"
	"fenceline/migrations"
)

const description = `Grants leases on keys. Every grant carries a fencing token that only grows, so that a resource can tell a
stale holder from the current one.

Example:
  export LOCKD_DATABASE_URL=postgres://lockd:secret@127.0.0.1:5432/lockdb
  lockd migrate          # as the database's owner, once
  lockd serve            # as a login with the role lockapp
  lockd serve --etcd-embedded ./lockd-data     # instead of all that, with nothing else installed
  curl -s http://127.0.0.1:7400/v1/locks/payout:42
  lockd exec --key nightly-report --wait 10m -- ./report.sh

Every flag has an environment variable; configs/lockd.env lists them with their defaults.
Exit codes: 0 done, 1 failed (migrate --check: something is pending), 80 wrong usage; exec has more, see lockd exec --help.`

// cli is the command line.
type cli struct {
	Serve       serveCmd       `cmd:"" help:"Run the lock service."`
	Exec        execCmd        `cmd:"" help:"Run a command under a lock."`
	Inspect     inspectCmd     `cmd:"" help:"Show who holds a lock, or every lock."`
	Revoke      revokeCmd      `cmd:"" help:"End a holder's grant, as an operator."`
	FastForward fastForwardCmd `cmd:"" help:"Move the token source above what resources have seen."`
	Migrate     migrateCmd     `cmd:"" help:"Bring lockdb's schema up to date."`
	Version     versionCmd     `cmd:"" help:"Print the version."`
}

type serveCmd struct {
	storeFlags  `embed:""`
	Listen      string `help:"Address of the API: host:port or unix:/path?mode=0660." env:"LOCKD_LISTEN" default:"127.0.0.1:7400"`
	AdminListen string `help:"Address of health and metrics." env:"LOCKD_ADMIN_LISTEN" default:"127.0.0.1:7401"`
	accessFlags `embed:""`
	ListenURL   string        `help:"Connection URL that leads to lockdb itself, for notifications of freed locks, where the database URL leads through a transaction-mode pooler. Default: the database URL." env:"LOCKD_LISTEN_URL" placeholder:"URL"`
	MaxWaiters  int           `help:"Clients that wait for locks here, at most; more are answered 429." env:"LOCKD_MAX_WAITERS" default:"10000"`
	KeyWaiters  int           `help:"Clients that wait for one lock, at most." env:"LOCKD_MAX_WAITERS_PER_KEY" name:"max-waiters-per-key" default:"1000"`
	Grace       time.Duration `help:"Time for requests under way after SIGTERM." env:"LOCKD_GRACE" default:"10s"`
	LogLevel    string        `help:"One of ${enum}." env:"LOCKD_LOG_LEVEL" enum:"trace,debug,info,warn,error" default:"info"`
}

func (c *serveCmd) Run() error {
	logger, err := daemon.NewLogger("lockd", c.LogLevel, os.Stderr)
	if err != nil {
		return err
	}
	return daemon.Run(context.Background(), app.New(app.Config{
		Listen: c.Listen, AdminListen: c.AdminListen, AllowAnyHost: c.AllowAnyHost,
		Backend: c.Backend, DatabaseURL: c.DatabaseURL, MaxConns: c.MaxConns, QueryMode: c.QueryMode, ListenURL: c.ListenURL, Etcd: c.etcd(),
		StoreTimeout: c.StoreTimeout, StartupTimeout: c.StartupTimeout,
		MaxConnections: c.MaxConnections, Access: c.config(),
		Waiters: lock.Limits{Waiters: c.MaxWaiters, WaitersPerKey: c.KeyWaiters},
	}, logger), c.Grace, logger)
}

type migrateCmd struct {
	DatabaseURL   string `help:"Connection URL of lockdb, as its owner." env:"LOCKD_DATABASE_URL,LOCKDB_URL" placeholder:"URL"`
	migrate.Flags `embed:""`
}

func (c *migrateCmd) Run() error {
	command := migrate.Command{Flags: c.Flags, DatabaseURL: c.DatabaseURL, Sets: []migrations.Set{migrations.LockDB()}}
	return command.Run(context.Background(), os.Stdout)
}

type versionCmd struct {
	Output string `help:"${enum}: for people or for programs." enum:"text,json" default:"text" short:"o"`
	JSON   bool   `help:"The same as --output json: version, contract with lockdb, statements, driver." name:"json"`
}

func (c versionCmd) Run() error {
	return app.Manifest().Print(os.Stdout, c.JSON || c.Output == "json")
}

func main() {
	var c cli
	parsed := kong.Parse(&c, kong.Name("lockd"), kong.Description(description), kong.UsageOnError())
	if err := parsed.Run(); err != nil {
		if text := err.Error(); text != "" {
			fmt.Fprintln(os.Stderr, "lockd:", text)
		}
		os.Exit(exitCode(err))
	}
}
