// Fleet lets many workers pay many payouts while they are killed and paused at random, on real processes and two real PostgreSQL servers, and ends with one
// table: whether money was lost or made.
package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"fenceline/examples/payouts/experiment"
)

const description = `Workers are killed (SIGKILL) and paused (SIGSTOP, SIGCONT) at random while they pay, and the rail loses some of its answers. Afterwards every payout must be
POSTED, FAILED or RAIL_AMBIGUOUS, the reconciler must find nothing else, and every invariant must hold; then the reconciler decides about the ambiguous ones by the rail's
evidence, a worker finishes them, and nothing may be left. Exit code 0 means that this was so in every set-up.`

type options struct {
	Bin        string        `help:"Folder with the built programs lockd, sidecar and paysvc." default:"bin" type:"existingdir"`
	Config     string        `help:"Folder with the configuration files." default:"configs" type:"existingdir"`
	Executors  int           `help:"Workers." default:"12"`
	Payouts    int           `help:"Payouts." default:"2000"`
	Accounts   int           `help:"Accounts that the payouts are spread over." default:"40"`
	Seed       uint64        `help:"Decides who is disturbed when; random when left out."`
	LoseAnswer float64       `help:"The rail's chance of losing an answer." default:"0.005"`
	Decline    float64       `help:"The rail's chance of declining." default:"0.01"`
	Calm       time.Duration `help:"The least time between two disturbances; the most is three times that." default:"200ms"`
	Repeat     int           `help:"Run every set-up this many times." default:"1"`
	Limit      time.Duration `help:"Time limit for one run." default:"20m"`
	Only       string        `help:"Run only the set-up of this name (fleet_guarded, fleet_fenced, fleet_checked)."`
}

func main() {
	var opts options
	kong.Parse(&opts, kong.Name("fleet"), kong.Description(description))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, opts)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "fleet:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, opts options) error {
	if opts.Executors < 1 || opts.Payouts < 1 || opts.Accounts < 1 || opts.Repeat < 1 || opts.Calm <= 0 {
		return errors.New("--executors, --payouts, --accounts, --repeat and --calm: want more than 0")
	}
	return experiment.WithBench(ctx, experiment.BenchOptions{Bin: opts.Bin, Configs: opts.Config, Out: os.Stdout}, func(bench *experiment.Bench) error {
		return repeat(ctx, bench, opts)
	})
}

func repeat(ctx context.Context, bench *experiment.Bench, opts options) error {
	var results []experiment.FleetResult
	var harm error
	for i := range opts.Repeat {
		for _, setup := range experiment.FleetSetups() {
			if opts.Only != "" && opts.Only != setup.Name {
				continue
			}
			fleet := experiment.Fleet{
				Executors: opts.Executors, Payouts: opts.Payouts, Accounts: opts.Accounts, Seed: opts.Seed + uint64(i),
				LoseAnswer: opts.LoseAnswer, Decline: opts.Decline, Calm: opts.Calm,
			}
			if opts.Seed == 0 {
				fleet.Seed = rand.Uint64N(1_000_000) //nolint:gosec // chance, nothing secret
			}
			runCtx, cancel := context.WithTimeoutCause(ctx, opts.Limit, fmt.Errorf("no end after %s", opts.Limit))
			result, err := bench.RunFleet(runCtx, setup, fleet)
			cancel()
			if err != nil {
				return fmt.Errorf("%s, seed %d: %w", setup.Title, fleet.Seed, err)
			}
			if err := experiment.JudgeFleet(result); err != nil {
				harm = errors.Join(harm, fmt.Errorf("%s, seed %d: %w", setup.Title, fleet.Seed, err))
			}
			results = append(results, result)
		}
	}
	if len(results) == 0 {
		return fmt.Errorf("--only %s: no such set-up", opts.Only)
	}
	return errors.Join(harm, experiment.PrintFleets(os.Stdout, results))
}
