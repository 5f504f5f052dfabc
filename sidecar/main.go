// Sidecar stands in front of one HTTP service and admits a request only while its fencing token is the newest of its key.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/alecthomas/kong"

	"fenceline/internal/buildinfo"
	"fenceline/internal/daemon"
	"fenceline/internal/migrate"
	"fenceline/migrations"
	"fenceline/sidecar/app"
	"fenceline/sidecar/config"
)

const description = `Stands in front of one unmodified HTTP service and admits a request only while its X-Fencing-Token is
the newest for its key. A stale request gets 409 FENCED_OUT and never reaches the service.

Example:
  export PAYDB_URL=postgres://sidecar:secret@127.0.0.1:5432/paydb
  sidecar check --config configs/sidecar.account.yaml
  sidecar run   --config configs/sidecar.account.yaml

configs/sidecar.reference.yaml explains every key.`

// cli is the command line.
type cli struct {
	Run     runCmd     `cmd:"" help:"Run the sidecar."`
	Check   checkCmd   `cmd:"" help:"Check a configuration file and name everything that is wrong with it."`
	Init    initCmd    `cmd:"" help:"Make the empty mark file of a new sidecar (store.file). It never replaces one."`
	Migrate migrateCmd `cmd:"" help:"Bring the sidecar's own tables (schema fence) up to date."`
	Version versionCmd `cmd:"" help:"Print the version."`
}

type runCmd struct {
	Config   string `short:"c" help:"Configuration file." required:"" placeholder:"FILE"`
	LogLevel string `help:"One of ${enum}." env:"SIDECAR_LOG_LEVEL" enum:"trace,debug,info,warn,error" default:"info"`
}

func (c *runCmd) Run() error {
	logger, err := daemon.NewLogger("sidecar", c.LogLevel, os.Stderr)
	if err != nil {
		return err
	}
	a, err := app.New(c.Config, logger)
	if err != nil {
		return err
	}
	shutdown := a.Config().Shutdown
	return daemon.Run(context.Background(), a, shutdown.Delay+shutdown.Grace, logger)
}

type initCmd struct {
	Config string `short:"c" help:"Configuration file." required:"" placeholder:"FILE"`
}

func (c *initCmd) Run() error {
	path, err := app.Init(c.Config)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(os.Stdout, "%s is made; every key starts without a mark\n", path)
	return err
}

type checkCmd struct {
	Config string `short:"c" help:"Configuration file." required:"" placeholder:"FILE"`
}

func (c *checkCmd) Run() error {
	cfg, err := config.LoadFile(c.Config)
	if err != nil {
		return err
	}
	for _, warning := range cfg.Warnings() {
		if _, err := fmt.Fprintln(os.Stdout, "warning:", warning); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(os.Stdout, "%s is valid: %d guards, %d routes\n", c.Config, len(cfg.Guards), len(cfg.Routes))
	return err
}

type migrateCmd struct {
	DatabaseURL string `help:"Connection URL of the database, as its owner." env:"SIDECAR_DATABASE_URL" placeholder:"URL"`
	Check       bool   `help:"Change nothing; exit with 1 when something is pending."`
	PrintSQL    bool   `help:"Print the statements instead, for somebody else to apply." name:"print-sql"`
}

func (c *migrateCmd) Run() error {
	command := migrate.Command{DatabaseURL: c.DatabaseURL, Check: c.Check, PrintSQL: c.PrintSQL, Sets: []migrations.Set{migrations.Fence()}}
	return command.Run(context.Background(), os.Stdout)
}

type versionCmd struct{}

func (versionCmd) Run() error {
	_, err := fmt.Fprintln(os.Stdout, "sidecar", buildinfo.Version())
	return err
}

func main() {
	var c cli
	parsed := kong.Parse(&c, kong.Name("sidecar"), kong.Description(description), kong.UsageOnError())
	if err := parsed.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "sidecar:", err)
		os.Exit(1)
	}
}
