// Anyservice shows the sidecar before a program that nobody here wrote: nginx, with WebDAV. A writer that sleeps too long overwrites its
// successor's file; with the sidecar in between it is refused.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"fenceline/examples/anyservice/demo"
)

const description = `Two writers keep one file on nginx, each with lockd exec and curl.

Writer A takes the lock and is frozen (SIGSTOP) right before it writes. Its lease ends, B takes over and writes the file. A wakes and
writes. Straight to nginx, A's old text ends up in the file; through the sidecar A gets 409 FENCED_OUT and the file stays B's.
lockd runs with an etcd member inside, the sidecar keeps its marks in a file: no database. Everything runs on 127.0.0.1, in a folder that is removed at the end.
Exit code 0 means that both runs showed exactly that.`

type options struct {
	Bin    string        `help:"Folder with the built programs lockd and sidecar." default:"bin" type:"existingdir"`
	Config string        `help:"The sidecar's configuration." default:"examples/anyservice/sidecar.yaml" type:"existingfile"`
	Limit  time.Duration `help:"Time limit for everything." default:"2m"`
}

func main() {
	var opts options
	kong.Parse(&opts, kong.Name("anyservice"), kong.Description(description))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, opts)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "anyservice: not as promised:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, opts options) error {
	nginx, err := exec.LookPath("nginx")
	if err != nil {
		nginx = "/usr/sbin/nginx" // not in everybody's PATH
	}
	for _, program := range []string{nginx, "curl"} {
		if _, err := exec.LookPath(program); err != nil {
			return errors.Join(err, errors.New("make demo-anyservice installs what is missing, or prints the command"))
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, opts.Limit, fmt.Errorf("no end after %s", opts.Limit))
	defer cancel()
	return demo.Run(ctx, demo.Options{
		Lockd: opts.Bin + "/lockd", Sidecar: opts.Bin + "/sidecar", Config: opts.Config, Out: os.Stdout,
		Service: func(ctx context.Context, dir string) (*demo.Service, error) { return demo.Nginx(ctx, nginx, dir) },
	})
}
