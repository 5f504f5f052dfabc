// Sidecar stands in front of one HTTP service and admits a request only while its fencing token is the newest of its key.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/alecthomas/kong"

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
	Run      runCmd      `cmd:"" help:"Run the sidecar."`
	Check    checkCmd    `cmd:"" help:"Check a configuration file and name everything that is wrong with it."`
	Init     initCmd     `cmd:"" help:"Make the empty mark file of a new sidecar (store.file). It never replaces one."`
	Explain  explainCmd  `cmd:"" help:"Say which route a request takes, which key comes out, and what would be decided."`
	Marks    marksCmd    `cmd:"" help:"Set a mark as an operator."`
	Inflight inflightCmd `cmd:"" help:"List the requests in flight behind all sidecars on the store."`
	Settle   settleCmd   `cmd:"" help:"Say as an operator that requests whose outcome is unknown can have no further effect, so that newer tokens go on."`
	Migrate  migrateCmd  `cmd:"" help:"Bring the sidecar's own tables (schema fence) up to date."`
	Version  versionCmd  `cmd:"" help:"Print the version."`
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
	Config  string `short:"c" help:"Configuration file." required:"" placeholder:"FILE"`
	Connect bool   `help:"Ask the store too: tables, columns, rights, durability, statements. It changes nothing."`
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
	if err != nil || !c.Connect {
		return err
	}
	return app.CheckConnect(context.Background(), cfg, os.Stdout)
}

type explainCmd struct {
	Config  string   `short:"c" help:"Configuration file." required:"" placeholder:"FILE"`
	Method  string   `arg:"" help:"Such as POST."`
	Target  string   `arg:"" help:"Path, with its query if there is one."`
	Header  []string `short:"H" help:"A header, as 'Name: value'. Repeat it for more." sep:"none" placeholder:"HEADER"`
	Data    string   `help:"The request's body." placeholder:"TEXT"`
	Connect bool     `help:"Ask the store too. A mark file can be asked while no sidecar has it open."`
}

func (c *explainCmd) Run() error {
	return app.Explain(context.Background(), c.Config, app.Question{Method: c.Method, Target: c.Target, Headers: c.Header, Body: c.Data, Connect: c.Connect}, os.Stdout)
}

type marksCmd struct {
	Reset resetCmd `cmd:"" help:"Set a mark, also to a lower token: every token above it is admitted again. Only while no sidecar serves the guard."`
}

type resetCmd struct {
	Config   string `short:"c" help:"Configuration file." required:"" placeholder:"FILE"`
	Guard    string `help:"The guard." required:""`
	Key      string `help:"The key." required:""`
	To       int64  `help:"The mark from now on." required:""`
	Expected int64  `help:"The mark as it is now; with another one nothing is changed." required:""`
	Operator string `help:"Who does this." required:""`
	Reason   string `help:"Why." required:""`
	Confirm  bool   `help:"Without it nothing is changed." required:""`
}

func (c *resetCmd) Run() error {
	return app.ResetMark(context.Background(), c.Config, app.Reset{Guard: c.Guard, Key: c.Key, To: c.To, Expected: c.Expected, Operator: c.Operator, Reason: c.Reason}, os.Stdout)
}

type inflightCmd struct {
	Config string `short:"c" help:"Configuration file." required:"" placeholder:"FILE"`
}

func (c *inflightCmd) Run() error { return app.InFlight(context.Background(), c.Config, os.Stdout) }

type settleCmd struct {
	Config   string `short:"c" help:"Configuration file." required:"" placeholder:"FILE"`
	Row      int64  `help:"One request, by its row." placeholder:"N"`
	Life     string `help:"All unsettled requests of one life of a sidecar." placeholder:"UUID"`
	Operator string `help:"Who does this." required:""`
	Reason   string `help:"Why: how it is known that they can have no further effect." required:""`
}

func (c *settleCmd) Run() error {
	return app.Settle(context.Background(), c.Config, app.Settlement{Row: c.Row, Life: c.Life, Operator: c.Operator, Reason: c.Reason}, os.Stdout)
}

type migrateCmd struct {
	DatabaseURL   string `help:"Connection URL of the database, as its owner." env:"SIDECAR_DATABASE_URL" placeholder:"URL"`
	migrate.Flags `embed:""`
}

func (c *migrateCmd) Run() error {
	command := migrate.Command{Flags: c.Flags, DatabaseURL: c.DatabaseURL, Sets: []migrations.Set{migrations.Fence()}}
	return command.Run(context.Background(), os.Stdout)
}

type versionCmd struct {
	JSON bool `help:"Version, contract with the sidecar's own tables, statements and driver, for programs." name:"json"`
}

func (c versionCmd) Run() error { return app.Manifest().Print(os.Stdout, c.JSON) }

func main() {
	var c cli
	parsed := kong.Parse(&c, kong.Name("sidecar"), kong.Description(description), kong.UsageOnError())
	if err := parsed.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "sidecar:", err)
		os.Exit(1)
	}
}
