// Bench measures lockd beside etcd and beside bare SQL, in one run on one machine, everything durable: see docs/benchmarks.md.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"fenceline/lockd/robustness/etcdmember"
)

const description = `Measures lockd beside a single etcd with its Go client's Mutex, and beside the two bare statements of an acquire and
a release, side by side in one run. The contestants take turns; each number is the median of the rounds. All of them wait for the disk.

The table and, last, one line for each ratio go to standard output, progress to standard error. The exit code is 0 also when a target
is missed: the output says so.`

type cli struct {
	Run   runCmd             `cmd:"" default:"withargs" help:"Measure (the default)."`
	Etcd  etcdmember.Command `cmd:"" hidden:"" help:"Be an etcd server."`
	Lockd lockdCmd           `cmd:"" hidden:"" help:"Be lockd, under a profiler."`
}

type runCmd struct {
	Lockd    string        `help:"The program lockd." default:"bin/lockd" type:"existingfile"`
	Before   string        `help:"Another build of lockd, measured beside it on the same database; it must know the schema." type:"existingfile" optional:""`
	Rounds   int           `help:"Turns of each contestant." default:"5"`
	Round    time.Duration `help:"Length of one turn with many clients." default:"3s"`
	Single   time.Duration `help:"Length of one turn with one client." default:"1500ms"`
	Clients  int           `help:"Clients at once, each on keys of its own." default:"64"`
	Waiters  int           `help:"Clients that wait for the hot key." default:"200"`
	HandOver time.Duration `help:"How long the hot key goes from hand to hand, in each of three turns." default:"5s"`
	Profile  string        `help:"Write lockd's CPU profile to this file; lockd then runs inside this program's binary." placeholder:"FILE"`
}

func (c *runCmd) Run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return run(ctx, c)
}

func main() {
	var c cli
	parsed := kong.Parse(&c, kong.Name("bench"), kong.Description(description))
	if err := parsed.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}
