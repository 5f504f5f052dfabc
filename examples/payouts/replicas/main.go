// Replicas puts two sidecars before two replicas of the payment system and lets an old request stall inside one of them while a new holder works through the
// other one, on real processes and two real PostgreSQL servers. It ends with one table.
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

const description = `Worker A's request passes sidecar 1 and stalls inside replica 1 (SIGSTOP), before its transaction begins. A loses its lease; worker B takes over and works through sidecar 2
and replica 2. Replica 1 goes on (SIGCONT). With order: admissions A's older write lands last. With order: effects it never does, also when sidecar 1 is killed meanwhile. And a new
holder that reads without the barrier decides before A's write has landed, and pays a second time. Exit code 0 means that every run showed exactly that.`

type options struct {
	Bin    string        `help:"Folder with the built programs lockd, sidecar and paysvc." default:"bin" type:"existingdir"`
	Config string        `help:"Folder with the configuration files." default:"configs" type:"existingdir"`
	Repeat int           `help:"Run every story this many times." default:"1"`
	Only   string        `help:"Run only the story of this name."`
	Limit  time.Duration `help:"Time limit for one run." default:"2m"`
}

func main() {
	var opts options
	kong.Parse(&opts, kong.Name("replicas"), kong.Description(description))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, opts)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "replicas:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, opts options) error {
	if opts.Repeat < 1 {
		return errors.New("--repeat must be at least 1")
	}
	var stories []experiment.ReplicaStory
	for _, story := range experiment.ReplicaStories() {
		if opts.Only == "" || opts.Only == story.Name {
			stories = append(stories, story)
		}
	}
	if len(stories) == 0 {
		return fmt.Errorf("--only %s: no such story", opts.Only)
	}
	return experiment.WithBench(ctx, experiment.BenchOptions{Bin: opts.Bin, Configs: opts.Config, Out: os.Stdout}, func(bench *experiment.Bench) error {
		return repeat(ctx, bench, opts, stories)
	})
}

func repeat(ctx context.Context, bench *experiment.Bench, opts options, stories []experiment.ReplicaStory) error {
	var results []experiment.ReplicaResult
	var wrong error
	err := bench.RunReplicas(ctx, stories, opts.Repeat, opts.Limit, func(r experiment.ReplicaResult) error {
		results = append(results, r)
		wrong = errors.Join(wrong, experiment.JudgeReplicas(r))
		return nil
	})
	err = errors.Join(err, wrong, experiment.PrintReplicas(os.Stdout, results))
	if err == nil {
		fmt.Fprintln(os.Stdout, "\nverdict: order: admissions lets the older write land last, order: effects never; without the barrier a takeover pays twice, with it once")
	}
	return err
}
