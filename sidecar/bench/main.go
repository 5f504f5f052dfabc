// Bench measures the sidecar beside a bare fasthttp proxy, nginx and nginx with auth_request, in one run on one machine: see docs/benchmarks.md.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
)

const description = `Measures the sidecar beside a bare fasthttp proxy, beside nginx as a plain proxy, and beside nginx whose auth_request asks a service
that runs one statement a request. All stand before the same small upstream, and take turns; each number is the median of the turns. PostgreSQL waits for the disk.

The table and, last, one line for each ratio go to standard output, progress to standard error. The exit code is 0 also when a target
is missed: the output says so.`

type cli struct {
	Run      runCmd      `cmd:"" default:"withargs" help:"Measure (the default)."`
	Upstream upstreamCmd `cmd:"" hidden:"" help:"Be the upstream."`
	Proxy    proxyCmd    `cmd:"" hidden:"" help:"Be the bare proxy."`
	Sidecar  sidecarCmd  `cmd:"" hidden:"" help:"Be a sidecar, under a profiler."`
	Checker  checkerCmd  `cmd:"" hidden:"" help:"Be the service that auth_request asks."`
}

type runCmd struct {
	Sidecar string        `help:"The program sidecar." default:"bin/sidecar" type:"existingfile"`
	Rounds  int           `help:"Turns of each contestant." default:"5"`
	Round   time.Duration `help:"Length of one turn." default:"3s"`
	Clients int           `help:"Connections at once." default:"64"`
	Keys    int           `help:"Keys of the requests with new tokens." default:"100000"`
	Many    int           `help:"Distinct keys after which the sidecar's memory is read." default:"1000000"`
	Marks   int           `help:"Marks in the large table; the small one has a thousandth." default:"10000000"`
	Profile string        `help:"Write the CPU profile of each sidecar into this folder; they then run inside this program's binary." placeholder:"FOLDER"`
	Nginx   string        `help:"The program nginx." default:"nginx"`
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
