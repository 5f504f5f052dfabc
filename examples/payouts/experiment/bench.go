package experiment

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"fenceline/internal/pgserver"
)

// BenchOptions say what to run with.
type BenchOptions struct {
	Bin     string    // folder with lockd, sidecar and paysvc
	Configs string    // folder with the sidecars' configuration files
	Out     io.Writer // progress lines
}

// Bench holds what all runs share: two PostgreSQL servers, since the lock
// service and the guarded resource must share no transaction, clock or failure domain, and a
// folder for logs. Each run gets databases and processes of its own.
type Bench struct {
	opts    BenchOptions
	dir     string
	lock    *pgserver.Server
	pay     *pgserver.Server
	started time.Time
	runs    int
	suffix  string // of database names, so that two benches can share external servers

	mu sync.Mutex // serialises progress lines
}

// stopTimeout bounds the end of a bench.
const stopTimeout = 30 * time.Second

// WithBench does something on a bench and closes it. The logs stay when it failed.
func WithBench(ctx context.Context, opts BenchOptions, do func(*Bench) error) (err error) {
	b, err := NewBench(ctx, opts)
	if err != nil {
		return err
	}
	defer func() {
		stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		err = errors.Join(err, b.Close(stopCtx, err == nil))
	}()
	return do(b)
}

// NewBench finds or starts the two servers. LOCKDB_URL and PAYDB_URL name servers of
// the user's; both or none.
func NewBench(ctx context.Context, opts BenchOptions) (*Bench, error) {
	dir, err := os.MkdirTemp("", "fenceline-payouts-")
	if err != nil {
		return nil, fmt.Errorf("make a folder for logs: %w", err)
	}
	b := &Bench{opts: opts, dir: dir, started: time.Now(), suffix: strings.ToLower(rand.Text()[:8])}
	if err := b.startServers(ctx); err != nil {
		stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		return nil, errors.Join(err, b.Close(stopCtx, false))
	}
	return b, nil
}

func (b *Bench) startServers(ctx context.Context) error {
	lockURL, payURL := os.Getenv("LOCKDB_URL"), os.Getenv("PAYDB_URL")
	switch {
	case lockURL != "" && payURL != "":
		b.Progress("using the servers of LOCKDB_URL and PAYDB_URL")
		var err error
		if b.lock, err = pgserver.External(ctx, lockURL); err != nil {
			return fmt.Errorf("LOCKDB_URL: %w", err)
		}
		if b.pay, err = pgserver.External(ctx, payURL); err != nil {
			return fmt.Errorf("PAYDB_URL: %w", err)
		}
		return b.checkApart(ctx)
	case lockURL != "" || payURL != "":
		return errors.New("set both LOCKDB_URL and PAYDB_URL, or neither: the two must be separate servers")
	}
	b.Progress("starting two PostgreSQL servers")
	group, groupCtx := errgroup.WithContext(ctx)
	start := func(name string, into **pgserver.Server) {
		group.Go(func() error {
			server, err := pgserver.Start(groupCtx, pgserver.Options{Name: name, Progress: progressWriter{b}})
			if err != nil {
				return fmt.Errorf("PostgreSQL for %s: %w", name, err)
			}
			*into = server
			b.Progress("  %s: PostgreSQL %s on %s", name, server.Version(), server.Addr())
			return nil
		})
	}
	start("lockdb", &b.lock)
	start("paydb", &b.pay)
	if err := group.Wait(); err != nil {
		return fmt.Errorf("start servers: %w", err)
	}
	return nil
}

// checkApart refuses one server under two names. A lock service and a resource that share a server share a clock, and nothing would be
// proven.
func (b *Bench) checkApart(ctx context.Context) error {
	lock, err := systemIdentifier(ctx, b.lock)
	if err != nil {
		return err
	}
	pay, err := systemIdentifier(ctx, b.pay)
	if err != nil {
		return err
	}
	if lock == pay {
		return errors.New("LOCKDB_URL and PAYDB_URL name the same server; they must be two")
	}
	return nil
}

// Close stops the servers. The logs are removed after a success and kept, with a
// line that says where, after a failure.
func (b *Bench) Close(ctx context.Context, success bool) error {
	var errs []error
	for _, server := range []*pgserver.Server{b.lock, b.pay} {
		if server != nil {
			errs = append(errs, server.Stop(ctx))
		}
	}
	if success {
		errs = append(errs, os.RemoveAll(b.dir))
	} else {
		b.Progress("the logs of every process are in %s", b.dir)
	}
	return errors.Join(errs...)
}

// Progress prints one line with the time since the start.
func (b *Bench) Progress(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	fmt.Fprintf(b.opts.Out, "[%5.1fs] %s\n", time.Since(b.started).Seconds(), fmt.Sprintf(format, args...))
}

// progressWriter turns a server's progress output into progress lines.
type progressWriter struct{ bench *Bench }

func (w progressWriter) Write(p []byte) (int, error) {
	for line := range bytes.Lines(p) {
		w.bench.Progress("  %s", bytes.TrimSpace(line))
	}
	return len(p), nil
}

// Run plays the set-up once: fresh databases, fresh processes, both scenes side by side,
// then the truth.
func (b *Bench) Run(ctx context.Context, setup Setup) (Result, error) {
	var result Result
	err := b.withSystem(ctx, setup, func(s *System) error {
		var err error
		result, err = b.play(ctx, s)
		return err
	})
	return result, err
}

// Keep starts the set-up with nothing in it, prints where everything listens, and waits for the
// end of ctx.
func (b *Bench) Keep(ctx context.Context, setup Setup) error {
	return b.withSystem(ctx, setup, func(s *System) error {
		if err := s.printAddresses(b.opts.Out); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	})
}

// withSystem runs play with a fresh system and takes everything down again, whatever happens.
func (b *Bench) withSystem(ctx context.Context, setup Setup, play func(*System) error) error {
	return b.withDatabases(ctx, setup, func(s *System) error {
		if err := s.Start(ctx); err != nil {
			return err
		}
		return play(s)
	})
}

// withDatabases is withSystem before any process of the system runs.
func (b *Bench) withDatabases(ctx context.Context, setup Setup, play func(*System) error) (err error) {
	b.runs++
	name := fmt.Sprintf("run%d_%s", b.runs, setup.Name)
	b.Progress("%s: making and migrating both databases", setup.Title)
	dir := filepath.Join(b.dir, name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("make a folder for logs: %w", err)
	}
	d, err := b.prepareDatabases(ctx, name, dir)
	if err != nil {
		return fmt.Errorf("prepare databases: %w", err)
	}
	system := &System{Setup: setup, bench: b, databases: d, dir: dir, railLog: filepath.Join(dir, "rail-transfers.jsonl")}
	defer func() {
		stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		err = errors.Join(err, system.Stop(stopCtx), d.drop(stopCtx))
	}()
	return play(system)
}
