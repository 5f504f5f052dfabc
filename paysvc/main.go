// Paysvc is a payment system: what the sidecar protects in the demonstration and in tests. Each role is a process of its own.
package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/alecthomas/kong"

	"fenceline/paysvc/app"
)

const description = `A payment system for demonstrations and tests, one role a process. In plain mode, the default, its roles trust the lock
service and compare no fencing token: that is what the sidecar before them is for. With --fencing-enabled they
compare it themselves. All data is synthetic.

Example:
  export PAYSVC_DATABASE_URL=postgres://paysvc:secret@127.0.0.1:5432/paydb
  paysvc migrate --with-seed        # as the database's owner, once
  paysvc resource                   # as a login with the role payapp
  curl -s 'http://127.0.0.1:8080/v1/payouts?state=PENDING&limit=10'

Every flag of a role has an environment variable; configs/paysvc-*.env list them with their defaults.`

// cli is the command line.
type cli struct {
	Resource  app.Resource  `cmd:"" help:"Run the payment-resource: accounts, payouts and the ledger."`
	RailProxy app.RailProxy `cmd:"" help:"Run the rail-proxy, the only one that calls the rail."`
	RailStub  app.RailStub  `cmd:"" help:"Run the rail, a third party that carries out every submission."`
	Executor  app.Executor  `cmd:"" help:"Run the payout-executor, the worker."`
	Reconcile app.Reconcile `cmd:"" help:"Compare payouts, submissions, ledger and balances with the rail."`
	Relay     app.Relay     `cmd:"" help:"Deliver the outbox: tell others what has happened to payouts."`
	Abandon   app.Abandon   `cmd:"" help:"Give a payout up, as an operator."`
	Migrate   app.Migrate   `cmd:"" help:"Bring paydb's schema up to date."`
	Seed      app.Seed      `cmd:"" help:"Create synthetic accounts and pending payouts."`
	Version   versionCmd    `cmd:"" help:"Print the version."`
}

type versionCmd struct {
	JSON bool `help:"Version, contract with paydb, statements and driver, for programs." name:"json"`
}

func (c versionCmd) Run() error { return app.Manifest().Print(os.Stdout, c.JSON) }

func main() {
	var c cli
	parsed := kong.Parse(&c, kong.Name("paysvc"), kong.Description(description), kong.ShortUsageOnError())
	if err := parsed.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "paysvc:", err)
		os.Exit(exitCode(err))
	}
}

// exitCode is 1, unless the error has a code of its own.
func exitCode(err error) int {
	var coded interface{ ExitCode() int }
	if errors.As(err, &coded) {
		return coded.ExitCode()
	}
	return 1
}
