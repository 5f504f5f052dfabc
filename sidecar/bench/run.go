package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"fenceline/internal/measure"
	"fenceline/internal/pgserver"
)

func run(ctx context.Context, opts *runCmd) (err error) {
	cache, err := pgserver.CacheDir()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(cache, "bench-") // beside PostgreSQL's data, on the same disk
	if err != nil {
		return fmt.Errorf("make a folder for configurations, logs and the mark file: %w", err)
	}
	b := &bench{opts: opts, dir: dir, progress: os.Stderr}
	defer func() {
		if err = errors.Join(err, b.cleanup(ctx)); err == nil {
			err = os.RemoveAll(dir)
		} else {
			err = fmt.Errorf("%w\nthe logs are in %s", err, dir)
		}
	}()
	machine, err := measure.Describe(dir)
	if err != nil {
		return err
	}
	r := report{machine: machine, keys: opts.Keys, many: opts.Many, marks: opts.Marks}
	if err := b.measure(ctx, &r); err != nil {
		return err
	}
	r.loadAfter = measure.LoadAverage()
	r.print(os.Stdout)
	return nil
}

// The contestants' names are where the report finds them.
const (
	direct, bareGet, nginxGet, passed      = "direct", "bare fasthttp proxy", "nginx", "sidecar, passed route"
	barePut                                = "bare fasthttp proxy, writes"
	checked, byAdmissions, byEffects       = "nginx, auth_request", "sidecar, order: admissions", "sidecars (2), order: effects"
	alone, inFile                          = "sidecar, ownership: exclusive", "sidecar, effects in a file"
	sameShared, sameExclusive, staleTokens = "sidecar, same token, shared", "sidecar, same token, exclusive", "sidecar, stale token"
	smallTable, largeTable                 = "sidecar, small table of marks", "sidecar, large table of marks"
)

// measure lets everybody take part.
func (b *bench) measure(ctx context.Context, r *report) error {
	fmt.Fprintln(b.progress, "starting PostgreSQL, nginx, proxies and sidecars")
	if err := b.startServer(ctx); err != nil {
		return err
	}
	r.postgres = b.server.Version()
	field, err := b.field(ctx)
	if err != nil {
		return err
	}
	if r.closed, err = b.compete(ctx, field.all); err != nil {
		return err
	}
	rate := r.of(checked).rate() / 2
	r.openRate = rate
	if r.open, err = b.latencies(ctx, field.writers, rate); err != nil {
		return err
	}
	if err := b.tables(ctx, r); err != nil {
		return err
	}
	return b.memory(ctx, r, field.memory)
}

// compete lets the contestants take turns, so that what slows the machine for a while slows all of them.
func (b *bench) compete(ctx context.Context, all []*contestant) ([]result, error) {
	results := make([]result, len(all))
	for i, c := range all {
		results[i].name = c.name
		if _, err := c.closed(ctx, b.opts.Clients, b.opts.Round/4); err != nil { // caches, prepared statements, first keys
			return nil, err
		}
	}
	for round := range b.opts.Rounds {
		for i, c := range all {
			t, err := c.closed(ctx, b.opts.Clients, b.opts.Round)
			if err != nil {
				return nil, err
			}
			results[i].turns = append(results[i].turns, t)
			fmt.Fprintf(b.progress, "round %d of %d: %-32s %8.0f requests/s, p99 %s\n", round+1, b.opts.Rounds, c.name, t.rate, t.p99.Round(time.Microsecond))
		}
	}
	return results, nil
}

// latencies measures at a fixed rate.
func (b *bench) latencies(ctx context.Context, all []*contestant, rate float64) ([]result, error) {
	results := make([]result, len(all))
	for round := range b.opts.Rounds {
		for i, c := range all {
			t, err := c.open(ctx, b.opts.Clients, rate, b.opts.Round)
			if err != nil {
				return nil, err
			}
			results[i].name = c.name
			results[i].turns = append(results[i].turns, t)
			fmt.Fprintf(b.progress, "round %d of %d at %.0f requests/s: %-32s p50 %s, p99 %s\n", round+1, b.opts.Rounds, rate, c.name,
				t.p50.Round(time.Microsecond), t.p99.Round(time.Microsecond))
		}
	}
	return results, nil
}

// tables compares a large table of marks with a small one, each in a database of its own.
func (b *bench) tables(ctx context.Context, r *report) error {
	var pair []*contestant
	for _, t := range []struct {
		name, database string
		marks          int
	}{{smallTable, "small", max(b.opts.Marks/1000, 100)}, {largeTable, "large", b.opts.Marks}} {
		fmt.Fprintf(b.progress, "filling a table with %d marks\n", t.marks)
		url, err := b.makeDatabase(ctx, t.database)
		if err != nil {
			return err
		}
		if err := execute(ctx, url,
			fmt.Sprintf("INSERT INTO fence.mark (guard, key, token) SELECT 'thing', 'k' || i, 1 FROM generate_series(0, %d) AS i", t.marks-1),
			"VACUUM ANALYZE fence.mark", "CHECKPOINT"); err != nil {
			return fmt.Errorf("fill the marks: %w", err)
		}
		p, address, err := b.sidecar(ctx, t.database, "thing", admissions, url)
		if err != nil {
			return err
		}
		pair = append(pair, &contestant{
			name: t.name, addresses: []string{address}, request: newTokens(t.marks), want: 200, overtaken: 409, service: []int{p.PID()}, database: b.database,
		})
	}
	results, err := b.compete(ctx, pair)
	r.closed = append(r.closed, results...)
	return err
}

// memory reads how much a sidecar takes after many distinct keys, and half-way, which shows whether it goes on growing.
func (b *bench) memory(ctx context.Context, r *report, c *contestant) error {
	var next atomic.Int64
	over := *c
	over.request = eachOnce(&next)
	for next.Load() < int64(b.opts.Many) {
		if _, err := over.closed(ctx, b.opts.Clients, b.opts.Round); err != nil {
			return err
		}
		resident := measure.Resident(c.service[0])
		if r.residentHalf == 0 && next.Load() >= int64(b.opts.Many/2) {
			r.residentHalf = resident
		}
		r.resident = resident
		fmt.Fprintf(b.progress, "%d of %d keys, %d MiB resident\n", next.Load(), b.opts.Many, resident>>20)
	}
	return nil
}
