// Soak lets several clients fight for a few keys while lockd's processes are killed and paused and their connections to the store cut,
// silenced and delayed, and checks every answer against a fenced mutex with expiry (package robustness). It ends with 1 at the first
// answer that has no explanation.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
	"go.etcd.io/etcd/api/v3/version"

	"fenceline/lockd/robustness"
	"fenceline/lockd/robustness/etcdmember"
	"fenceline/lockd/robustness/lockdb"
)

type cli struct {
	Soak options            `cmd:"" default:"withargs" help:"Run (the default)."`
	Etcd etcdmember.Command `cmd:"" hidden:"" help:"Be an etcd server."`
}

type options struct {
	For      time.Duration `help:"How long, for each backend." default:"10m"`
	Backend  string        `help:"One of ${enum}." enum:"pg,etcd,both" default:"both"`
	Lockd    string        `help:"The program lockd." default:"bin/lockd" type:"existingfile"`
	Replicas int           `help:"Processes of lockd." default:"2"`
	Clients  int           `help:"Clients at once; the checker's work grows fast with them." default:"6"`
	Keys     int           `help:"Keys that they fight for." default:"3"`
	Window   time.Duration `help:"Time between two stops of all clients, at which a piece of history is checked; on etcd twice as long, since its shortest leases are longer." default:"5s"`
	Pause    time.Duration `help:"The longest time between two faults." default:"800ms"`
	Wait     time.Duration `help:"How long an acquire may wait, in every other window." default:"800ms"`
	Seed     uint64        `help:"Of clients and faults; 0 takes the time. The same seed asks the same, but nothing makes processes run alike."`
}

func main() {
	var c cli
	parsed := kong.Parse(&c, kong.Name("soak"), kong.Description("Shows that lockd is a fenced lock, whatever happens to it."))
	if err := parsed.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
}

// Run soaks each backend, one after the other, and goes on to the next also after a violation.
func (o *options) Run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	opts := *o
	if opts.Seed == 0 {
		opts.Seed = uint64(time.Now().UnixNano())
	}
	dir, err := os.MkdirTemp("", "fenceline-soak-")
	if err != nil {
		return fmt.Errorf("make a folder for logs: %w", err)
	}
	fmt.Fprintf(os.Stdout, "seed %d; logs and findings in %s\n", opts.Seed, dir)
	var errs []error
	if opts.Backend != "etcd" {
		errs = append(errs, onPostgres(ctx, opts, filepath.Join(dir, "pg")))
	}
	if opts.Backend != "pg" {
		errs = append(errs, onEtcd(ctx, opts, filepath.Join(dir, "etcd")))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// stopping is the time for taking everything down.
const stopping = 30 * time.Second

func onPostgres(ctx context.Context, opts options, dir string) (err error) {
	server, err := lockdb.Start(ctx, "soak", nil, os.Stderr)
	if err != nil {
		return err
	}
	defer func() {
		stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopping)
		defer cancel()
		err = errors.Join(err, server.Stop(stopCtx))
	}()
	fmt.Fprintf(os.Stdout, "PostgreSQL %s\n", server.Version())
	backend, err := robustness.Postgres(server.DatabaseURL)
	if err != nil {
		return err
	}
	return soak(ctx, opts, backend, dir)
}

func onEtcd(ctx context.Context, opts options, dir string) (err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make a folder for etcd: %w", err)
	}
	member, address, err := etcdmember.Start(ctx, dir)
	if err != nil {
		return err
	}
	defer func() {
		stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopping)
		defer cancel()
		err = errors.Join(err, member.Stop(stopCtx))
	}()
	fmt.Fprintf(os.Stdout, "etcd %s\n", version.Version)
	opts.Window *= 2
	return soak(ctx, opts, robustness.Etcd(address), dir)
}

func soak(ctx context.Context, opts options, backend robustness.Backend, dir string) (err error) {
	system, err := robustness.NewSystem(ctx, backend, opts.Lockd, dir, opts.Replicas)
	if err != nil {
		return err
	}
	defer func() {
		stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopping)
		defer cancel()
		err = errors.Join(err, system.Stop(stopCtx))
	}()
	total, err := robustness.Soak{
		System: system, Backend: backend, For: opts.For, Window: opts.Window, Clients: opts.Clients, Keys: opts.Keys,
		Pause: opts.Pause, Wait: opts.Wait, Seed: opts.Seed, Limit: time.Minute, Dir: dir, Out: os.Stdout,
	}.Run(ctx)
	verdict := "LINEARIZABLE"
	switch {
	case errors.Is(err, robustness.ErrViolation):
		verdict = "NOT LINEARIZABLE"
	case err != nil:
		verdict = "NO VERDICT"
	case ctx.Err() != nil:
		verdict = "LINEARIZABLE so far; interrupted"
	}
	fmt.Fprintf(os.Stdout, "\n%s: %s\nverdict %s: %s\n", backend.Name, total, backend.Name, verdict)
	return err
}
