// Package demo plays two writers of one file, on an HTTP service that knows nothing of locks.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"fenceline/internal/process"
)

// Service is the program that is written to.
type Service struct {
	Address string // host:port
	Folder  string // where its files are
	Stop    func(ctx context.Context) error
}

// Options say what to play with.
type Options struct {
	Lockd, Sidecar string // the built programs
	Config         string // the sidecar's configuration
	Out            io.Writer
	// Service starts the service, with a folder for everything that it writes.
	Service func(ctx context.Context, dir string) (*Service, error)
}

// demo is a run with everything that was started, to be stopped in reverse.
type demo struct {
	Options
	dir   string
	lockd string // URL
	stops []func(ctx context.Context) error
}

// Run plays without the sidecar and with it. The error is any outcome but the promised one.
func Run(ctx context.Context, o Options) (err error) {
	dir, err := os.MkdirTemp("", "fenceline-anyservice-")
	if err != nil {
		return fmt.Errorf("make a folder: %w", err)
	}
	d := &demo{Options: o, dir: dir}
	defer func() {
		stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
		defer cancel()
		err = errors.Join(err, d.close(stopCtx))
	}()
	if err := d.startLockd(ctx); err != nil {
		return err
	}
	for _, fenced := range []bool{false, true} {
		if err := d.round(ctx, fenced); err != nil {
			return err
		}
	}
	d.say("\nverdict: without sidecar CORRUPTED, with sidecar HELD")
	return nil
}

// round plays once on a fresh service and compares what came of it with what was promised.
func (d *demo) round(ctx context.Context, fenced bool) error {
	name, label := "plain", "without sidecar"
	if fenced {
		name, label = "fenced", "with sidecar"
	}
	dir := filepath.Join(d.dir, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make a folder: %w", err)
	}
	service, err := d.Service(ctx, dir)
	if err != nil {
		return err
	}
	d.stops = append(d.stops, service.Stop)
	target := service.Address
	if fenced {
		if target, err = d.startSidecar(ctx, dir, service.Address); err != nil {
			return err
		}
	}
	d.say("\n%s", label)
	got, err := d.play(ctx, dir, target, service.Folder)
	if err != nil {
		return err
	}
	d.say("  A's answer     %s %s", got.status, got.code)
	d.say("  the file says  %q", got.file)
	want := result{status: "204", file: fromA}
	if fenced {
		want = result{status: "409", code: "FENCED_OUT", file: fromB}
	}
	if got != want {
		return fmt.Errorf("%s: got %+v, want %+v", label, got, want)
	}
	return nil
}

func (d *demo) say(format string, args ...any) { fmt.Fprintf(d.Out, format+"\n", args...) }

// startLockd runs lockd with an etcd member inside: no database, nothing else.
func (d *demo) startLockd(ctx context.Context) error {
	p, err := d.start(ctx, process.Spec{
		Name: "lockd", Path: d.Lockd, Args: []string{"serve", "--etcd-embedded", filepath.Join(d.dir, "lockd-data")}, LogDir: d.dir,
		Env: []string{"LOCKD_LISTEN=127.0.0.1:0", "LOCKD_ADMIN_LISTEN=127.0.0.1:0"},
	})
	if err != nil {
		return err
	}
	address, err := p.Address(ctx, "api")
	d.lockd = "http://" + address
	return err
}

// startSidecar makes the sidecar's mark file and runs it before the service.
func (d *demo) startSidecar(ctx context.Context, dir, upstream string) (string, error) {
	env := []string{"SIDECAR_LISTEN=127.0.0.1:0", "SIDECAR_ADMIN=127.0.0.1:0", "SIDECAR_UPSTREAM=http://" + upstream, "SIDECAR_MARKS=" + filepath.Join(dir, "marks.db")}
	spec := process.Spec{Name: "sidecar-init", Path: d.Sidecar, Args: []string{"init", "-c", d.Config}, Env: env, LogDir: dir}
	init, err := process.Start(ctx, spec)
	if err != nil {
		return "", err
	}
	if code, err := init.Wait(ctx); err != nil || code != 0 {
		return "", errors.Join(err, fmt.Errorf("sidecar init: exit code %d:\n%s", code, init.Tail()))
	}
	spec.Name, spec.Args = "sidecar", []string{"run", "-c", d.Config}
	p, err := d.start(ctx, spec)
	if err != nil {
		return "", err
	}
	return p.Address(ctx, "api")
}

func (d *demo) start(ctx context.Context, spec process.Spec) (*process.Process, error) {
	p, err := process.Start(ctx, spec)
	if err == nil {
		d.stops = append(d.stops, p.Stop)
	}
	return p, err
}

func (d *demo) close(ctx context.Context) error {
	var errs []error
	for _, stop := range slices.Backward(d.stops) {
		errs = append(errs, stop(ctx))
	}
	return errors.Join(append(errs, os.RemoveAll(d.dir))...)
}
