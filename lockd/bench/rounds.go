package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"fenceline/internal/measure"
)

// pair is one acquire and its release.
type pair func(ctx context.Context) error

// contestant gives each client a pair on a key of its own.
type contestant interface {
	name() string
	worker(i int) pair
	processes() processes
}

// turn is what one contestant did in one turn.
type turn struct {
	rate     float64 // pairs a second
	p50, p99 time.Duration
	spent    measure.Spent // processor time of a pair
}

// result is a contestant's turns.
type result struct {
	name    string
	clients int
	turns   []turn
}

func (r result) rate() float64 {
	return measure.Median(r.turns, func(t turn) float64 { return t.rate })
}

func (r result) p50() time.Duration {
	return measure.Median(r.turns, func(t turn) time.Duration { return t.p50 })
}

func (r result) p99() time.Duration {
	return measure.Median(r.turns, func(t turn) time.Duration { return t.p99 })
}

// spent is the processor time of a pair, over all turns: that of single turns is coarse.
func (r result) spent() measure.Spent {
	var sum measure.Spent
	for _, t := range r.turns {
		sum = sum.Plus(t.spent)
	}
	return sum.Over(len(r.turns))
}

// spread is the lowest and the highest rate of a turn.
func (r result) spread() (least, most float64) {
	rates := make([]float64, 0, len(r.turns))
	for _, t := range r.turns {
		rates = append(rates, t.rate)
	}
	return slices.Min(rates), slices.Max(rates)
}

// compete lets the contestants take turns, so that whatever slows the machine for a while slows all of them.
func compete(ctx context.Context, contestants []contestant, clients, rounds int, length time.Duration, progress io.Writer) ([]result, error) {
	results := make([]result, len(contestants))
	for i, c := range contestants {
		results[i] = result{name: c.name(), clients: clients}
		if _, err := play(ctx, c, clients, length/4); err != nil { // connections, caches, prepared statements
			return nil, err
		}
	}
	for round := range rounds {
		for i, c := range contestants {
			t, err := play(ctx, c, clients, length)
			if err != nil {
				return nil, err
			}
			results[i].turns = append(results[i].turns, t)
			fmt.Fprintf(progress, "round %d of %d, %d clients: %-26s %8.0f pairs/s, p50 %s, processor time %s\n",
				round+1, rounds, clients, c.name(), t.rate, t.p50.Round(time.Microsecond), t.spent.Total().Round(time.Microsecond))
		}
	}
	return results, nil
}

// play lets the clients work for one turn.
func play(ctx context.Context, c contestant, clients int, length time.Duration) (turn, error) {
	var (
		group sync.WaitGroup
		mu    sync.Mutex
		all   []time.Duration
		errs  []error
	)
	before := c.processes().spent()
	start := time.Now()
	deadline := start.Add(length)
	for i := range clients {
		work := c.worker(i)
		group.Go(func() {
			var mine []time.Duration
			var err error
			for began := start; err == nil && began.Before(deadline) && ctx.Err() == nil; {
				err = work(ctx)
				now := time.Now()
				mine = append(mine, now.Sub(began))
				began = now
			}
			mu.Lock()
			defer mu.Unlock()
			all, errs = append(all, mine...), append(errs, err)
		})
	}
	group.Wait()
	took := time.Since(start)
	used := c.processes().spent().Minus(before)
	if err := errors.Join(append(errs, ctx.Err())...); err != nil {
		return turn{}, fmt.Errorf("%s: %w", c.name(), err)
	}
	return turn{rate: float64(len(all)) / took.Seconds(), p50: measure.Quantile(all, 0.5), p99: measure.Quantile(all, 0.99), spent: used.Over(len(all))}, nil
}
