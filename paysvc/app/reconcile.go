package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"fenceline/internal/daemon"
	"fenceline/paysvc/paydb"
	"fenceline/paysvc/reconcile"
)

// Reconcile is the command reconcile.
type Reconcile struct {
	DatabaseURL  string        `help:"Connection URL of paydb, as a login with the role reconcile, direct and not through a pooler." env:"PAYSVC_DATABASE_URL,PAYDB_URL" required:"" placeholder:"URL"`
	Rail         string        `help:"The rail." env:"PAYSVC_RAIL_URL" default:"http://127.0.0.1:8090" placeholder:"URL"`
	RailTimeout  time.Duration `help:"Time limit for one lookup." env:"PAYSVC_RAIL_TIMEOUT" default:"10s"`
	StoreTimeout time.Duration `help:"Time limit for one statement." env:"PAYSVC_STORE_TIMEOUT" default:"1m"`
	Timeout      time.Duration `help:"Time limit for all of it." default:"10m"`
	Settle       time.Duration `help:"Time until what was found is looked for again: what is gone by then was work under way. 0 for a system at rest." default:"5s"`
	Limit        int           `help:"How many discrepancies of a class to list; all are counted." default:"100"`
	Resolve      bool          `help:"Move RAIL_AMBIGUOUS payouts by the rail's own evidence: found once → RAIL_ACKED; not found after the answer window → FAILED. Nothing else is ever changed."`
	RailWindow   time.Duration `help:"The rail's answer window: how long after it was handed a submission it may still carry it out. Before that \"not found\" shows nothing." default:"1m"`
	Output       string        `help:"How to print the report: ${enum}." enum:"text,json" default:"text"`
	LogLevel     string        `help:"One of ${enum}." env:"PAYSVC_LOG_LEVEL" enum:"trace,debug,info,warn,error" default:"info"`
}

// Help is the command's longer help.
func (*Reconcile) Help() string {
	return `Compares payouts, submissions, ledger entries and balances with each other and with the rail's own transfers, and reports every class of
discrepancy, those with none included. The report goes to standard output, the log to standard error.

Example:
  export PAYSVC_DATABASE_URL=postgres://reconciler:secret@127.0.0.1:5432/paydb
  paysvc reconcile --rail http://127.0.0.1:8090
  paysvc reconcile --output json | jq '.discrepancies[] | select(.count > 0)'

Exit codes:
  0  everything agrees
  1  it couldn't be compared
  2  there are discrepancies`
}

// discrepanciesError ends the process with its own exit code.
type discrepanciesError struct{ count int64 }

func (e *discrepanciesError) Error() string {
	return fmt.Sprintf("reconcile: %d discrepancies", e.count)
}

// ExitCode is the exit code of the process.
func (*discrepanciesError) ExitCode() int { return 2 }

// Run compares and prints.
func (c *Reconcile) Run() error {
	ctx, release := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer release()
	return c.run(ctx, os.Stdout)
}

func (c *Reconcile) run(ctx context.Context, out io.Writer) error {
	if c.Settle < 0 || c.RailWindow < 0 || c.Limit < 1 || c.Timeout <= 0 || c.RailTimeout <= 0 {
		return errors.New("settle and rail-window: want 0 or more; limit, timeout and rail-timeout: want more than 0")
	}
	logger, err := daemon.NewLogger("reconcile", c.LogLevel, os.Stderr)
	if err != nil {
		return err
	}
	rail, err := reconcile.NewClient(c.Rail, c.RailTimeout)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	database := PayDB{DatabaseURL: c.DatabaseURL, MaxConns: 2, StoreTimeout: c.StoreTimeout, StartupTimeout: c.Timeout}
	pool, err := database.open(ctx, "reconcile")
	if err != nil {
		return err
	}
	defer pool.Close()
	store := paydb.NewReconciliation(pool, c.StoreTimeout)
	if err := store.Check(ctx); err != nil {
		return fmt.Errorf("paydb: %w", err)
	}
	options := reconcile.Options{Settle: c.Settle, Limit: c.Limit, Resolve: c.Resolve, RailWindow: c.RailWindow}
	report, err := reconcile.New(store, rail, options, logger).Run(ctx)
	if err != nil {
		return err
	}
	write := report.WriteText
	if c.Output == "json" {
		write = report.WriteJSON
	}
	if err := write(out); err != nil {
		return err
	}
	if !report.Clean {
		return &discrepanciesError{count: report.Count()}
	}
	return nil
}
