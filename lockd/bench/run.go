package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"fenceline/internal/measure"
	"fenceline/internal/process"
	"fenceline/lockd/robustness/etcdmember"
	"fenceline/lockd/robustness/lockdb"
)

// bench is what a run has started.
type bench struct {
	opts     *runCmd
	dir      string
	progress io.Writer
	cleanups []func(ctx context.Context) error
}

const stopping = 30 * time.Second

func run(ctx context.Context, opts *runCmd) (err error) {
	cache, err := cacheDir()
	if err != nil {
		return err
	}
	// Beside PostgreSQL's data, on the same disk.
	dir, err := os.MkdirTemp(cache, "bench-")
	if err != nil {
		return fmt.Errorf("make a folder for etcd's data and for logs: %w", err)
	}
	b := &bench{opts: opts, dir: dir, progress: os.Stderr}
	defer func() {
		stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopping)
		defer cancel()
		for _, cleanup := range slices.Backward(b.cleanups) {
			err = errors.Join(err, cleanup(stopCtx))
		}
		if err == nil {
			err = os.RemoveAll(dir)
		}
	}()
	return b.run(ctx)
}

func (b *bench) run(ctx context.Context) error {
	machine, err := measure.Describe(b.dir)
	if err != nil {
		return err
	}
	fmt.Fprintln(b.progress, "starting PostgreSQL, lockd and etcd")
	database, err := b.startPostgres(ctx, "bench", nil)
	if err != nil {
		return err
	}
	contestants, err := b.contestants(ctx, database)
	if err != nil {
		return err
	}
	many, err := compete(ctx, contestants, b.opts.Clients, b.opts.Rounds, b.opts.Round, b.progress)
	if err != nil {
		return err
	}
	single, err := compete(ctx, contestants, 1, b.opts.Rounds, b.opts.Single, b.progress)
	if err != nil {
		return err
	}
	handedOver, err := b.handOver(ctx)
	if err != nil {
		return err
	}
	report{
		machine: machine, postgres: database.Version(), many: many, single: single, handover: handedOver, loadAfter: measure.LoadAverage(),
	}.print(os.Stdout)
	return nil
}

// contestants are lockd, etcd and the bare statements, in this order, and after them whatever else is to be compared.
func (b *bench) contestants(ctx context.Context, database *lockdb.Server) ([]contestant, error) {
	postgres, err := serverProcess(ctx, database.OwnerURL())
	if err != nil {
		return nil, err
	}
	l, err := b.startLockd(ctx, "lockd", b.opts.Lockd, database.DatabaseURL, b.opts.Clients, b.opts.Profile)
	if err != nil {
		return nil, err
	}
	l.uses.database = postgres
	member, address, err := etcdmember.Start(ctx, b.dir)
	if err != nil {
		return nil, err
	}
	b.cleanups = append(b.cleanups, member.Stop)
	e, err := newEtcd(ctx, address, b.opts.Clients)
	if err != nil {
		return nil, err
	}
	e.uses.service = member.PID()
	b.cleanups = append(b.cleanups, func(context.Context) error { _ = e.client.Close(); return nil }) // it says that its context has ended
	s, err := newStatements(ctx, database.DatabaseURL, b.opts.Clients)
	if err != nil {
		return nil, err
	}
	s.uses.database = postgres
	b.cleanups = append(b.cleanups, func(context.Context) error { s.pool.Close(); return nil })
	all := []contestant{l, e, s}
	if b.opts.Before != "" {
		before, err := b.startLockd(ctx, "lockd before", b.opts.Before, database.DatabaseURL, b.opts.Clients, "")
		if err != nil {
			return nil, err
		}
		before.uses.database = postgres
		all = append(all, before)
	}
	return all, nil
}

func (b *bench) startPostgres(ctx context.Context, name string, settings map[string]string) (*lockdb.Server, error) {
	server, err := lockdb.Start(ctx, name, settings, b.progress)
	if err != nil {
		return nil, err
	}
	b.cleanups = append(b.cleanups, server.Stop)
	return server, nil
}

// startLockd starts lockd with its defaults; its log goes to a file. With a profile it runs in this program's binary, its own code unchanged.
func (b *bench) startLockd(ctx context.Context, name, program, databaseURL string, clients int, profile string) (*lockd, error) {
	address, adminAddress, err := etcdmember.TwoPorts(ctx)
	if err != nil {
		return nil, err
	}
	spec := process.Spec{
		Name: name, Path: program, LogDir: b.dir, FileOnly: true, Env: []string{"LOCKD_DATABASE_URL=" + databaseURL},
		Args: []string{"serve", "--listen", address, "--admin-listen", adminAddress},
	}
	if profile != "" {
		spec.Args = []string{"lockd", "--listen", address, "--admin-listen", adminAddress, "--profile", profile}
		if spec.Path, err = os.Executable(); err != nil {
			return nil, fmt.Errorf("find this program: %w", err)
		}
	}
	p, err := process.Start(ctx, spec)
	if err != nil {
		return nil, err
	}
	b.cleanups = append(b.cleanups, p.Stop)
	if err := awaitReady(ctx, "http://"+adminAddress+"/readyz"); err != nil {
		return nil, fmt.Errorf("%s: %w; its log is in %s", name, err, b.dir)
	}
	l, err := newLockd(name+", HTTP", address, clients)
	if err != nil {
		return nil, err
	}
	l.uses.service = p.PID()
	beatCtx, end := context.WithCancel(ctx)
	go l.beat(beatCtx)
	b.cleanups = append(b.cleanups, func(context.Context) error { end(); return nil })
	return l, nil
}

// turnsOnHotKey is how often the hot key's turn is measured; the median counts.
const turnsOnHotKey = 3

// handOver measures on a server of its own, since counting statements costs time.
func (b *bench) handOver(ctx context.Context) (handover, error) {
	database, err := b.startPostgres(ctx, "hot key", map[string]string{
		"shared_preload_libraries": "pg_stat_statements", "pg_stat_statements.track": "all", // also what functions run
	})
	if err != nil {
		return handover{}, err
	}
	stats, err := pgx.Connect(ctx, database.OwnerURL())
	if err != nil {
		return handover{}, fmt.Errorf("connect: %w", err)
	}
	b.cleanups = append(b.cleanups, stats.Close)
	if _, err := stats.Exec(ctx, "CREATE EXTENSION pg_stat_statements"); err != nil {
		return handover{}, fmt.Errorf("count statements: %w", err)
	}
	l, err := b.startLockd(ctx, "lockd-hot", b.opts.Lockd, database.DatabaseURL, b.opts.Waiters, "")
	if err != nil {
		return handover{}, err
	}
	var turns []handover
	for i := range turnsOnHotKey {
		h, err := handOver(ctx, l, b.opts.Waiters, b.opts.HandOver, stats)
		if err != nil {
			return handover{}, fmt.Errorf("hot key: %w", err)
		}
		fmt.Fprintf(b.progress, "hot key, turn %d of %d: %d hand-overs, p50 %.2f ms, %.2f calls of the store each\n", i+1, turnsOnHotKey, h.count, inMillis(h.p50), h.calls)
		turns = append(turns, h)
	}
	return medianHandover(turns), nil
}

func medianHandover(turns []handover) handover {
	m := turns[0]
	m.p50 = measure.Median(turns, func(h handover) time.Duration { return h.p50 })
	m.p99 = measure.Median(turns, func(h handover) time.Duration { return h.p99 })
	m.calls = measure.Median(turns, func(h handover) float64 { return h.calls })
	m.looks = measure.Median(turns, func(h handover) float64 { return h.looks })
	m.sql = measure.Median(turns, func(h handover) float64 { return h.sql })
	m.perSecond = measure.Median(turns, func(h handover) float64 { return h.perSecond })
	m.count = 0
	for _, h := range turns {
		m.count += h.count
	}
	return m
}

// awaitReady asks until the answer is 200.
func awaitReady(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 20*time.Second, errors.New("it isn't ready after 20 s"))
	defer cancel()
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request)
		if err == nil {
			_ = response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return nil
			}
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		pause(ctx, 20*time.Millisecond)
	}
}
