// Payouts runs the experiment that Fenceline is about, on real processes and
// two real PostgreSQL servers, and ends with one line: the verdict.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"fenceline/examples/payouts/experiment"
)

const description = `Pays two payouts twice, and then not.

Worker A takes a lease on a payout, is stopped (SIGSTOP) right before a write, and loses the lease.
Worker B takes over and finishes. A wakes (SIGCONT) and goes on. Without a sidecar the money is wrong
afterwards; with sidecars A's write is refused, because its fencing token is old. Exit code 0 means that
every run showed exactly that.

The databases come from LOCKDB_URL and PAYDB_URL (two servers, as superuser or owner with CREATEDB and CREATEROLE) or,
without these, from two servers that are found or fetched and removed at the end.`

type options struct {
	Bin    string        `help:"Folder with the built programs lockd, sidecar and paysvc." default:"bin" type:"existingdir"`
	Repeat int           `help:"Run everything this many times and require the same verdict each time." default:"1" name:"repeat"`
	All    bool          `help:"Play all four set-ups, and each guard alone, and print the numbers in one table."`
	Keep   bool          `help:"At the end start the guarded system once more, print its addresses, and leave it running until Ctrl-C."`
	Limit  time.Duration `help:"Time limit for one run." default:"2m"`
	Config string        `help:"Folder with the configuration files." default:"configs" type:"existingdir"`
}

func main() {
	var opts options
	kong.Parse(&opts, kong.Name("payouts"), kong.Description(description))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, opts)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "payouts: the experiment failed:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, opts options) error {
	if opts.Repeat < 1 {
		return errors.New("--repeat must be at least 1")
	}
	return experiment.WithBench(ctx, experiment.BenchOptions{Bin: opts.Bin, Configs: opts.Config, Out: os.Stdout}, func(bench *experiment.Bench) error {
		return repeat(ctx, bench, opts)
	})
}

func repeat(ctx context.Context, bench *experiment.Bench, opts options) error {
	for i := range opts.Repeat {
		if opts.Repeat > 1 {
			bench.Progress("run %d of %d", i+1, opts.Repeat)
		}
		if err := runOnce(ctx, bench, opts); err != nil {
			return err
		}
	}
	if opts.Repeat > 1 {
		fmt.Fprintf(os.Stdout, "\n%d of %d runs gave the same verdict.\n", opts.Repeat, opts.Repeat)
	}
	fmt.Fprintln(os.Stdout, "\n"+verdict(opts))
	if opts.Keep {
		return bench.Keep(ctx, guarded())
	}
	return nil
}

// verdict is the last line of a success.
func verdict(opts options) string {
	if opts.All {
		return "verdict: without a guard CORRUPTED; with sidecars HELD; fenced HELD, also with sidecars that check only; each guard alone protects its own place and no other"
	}
	return "verdict: without sidecar CORRUPTED, with sidecar HELD"
}

// guarded is the set-up that --keep leaves running.
func guarded() experiment.Setup {
	setups := experiment.Plain()
	return setups[len(setups)-1]
}

// runOnce plays every set-up once and judges each: an error is any outcome but the expected one.
func runOnce(ctx context.Context, bench *experiment.Bench, opts options) error {
	setups := experiment.Plain()
	if opts.All {
		setups = experiment.All()
	}
	var results []experiment.Result
	for _, setup := range setups {
		runCtx, cancel := context.WithTimeoutCause(ctx, opts.Limit, fmt.Errorf("no end after %s", opts.Limit))
		result, err := bench.Run(runCtx, setup)
		cancel()
		if err != nil {
			return err
		}
		results = append(results, result)
		if !opts.All {
			if err := result.Print(os.Stdout); err != nil {
				return err
			}
		}
		if err := experiment.Judge(result); err != nil {
			return errors.Join(err, result.Print(os.Stdout))
		}
	}
	if opts.All {
		return experiment.PrintAll(os.Stdout, results)
	}
	return nil
}
