package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"fenceline/internal/measure"
)

// contestant is something that stands before the upstream, under one kind of load.
type contestant struct {
	name      string
	addresses []string // its clients are spread over them
	request   func(worker int) func([]byte) []byte
	want      int // status
	// overtaken is the status of a request whose key got a newer token from another client meanwhile. It is a decision like any other.
	overtaken int
	service   []int
	database  int
}

// turn is what one contestant did in one turn.
type turn struct {
	rate      float64 // requests a second
	p50, p99  time.Duration
	spent     measure.Spent // processor time of a request
	overtaken float64       // the part of the requests that were
}

type result struct {
	name  string
	turns []turn
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

func (r result) spent() measure.Spent {
	var sum measure.Spent
	for _, t := range r.turns {
		sum = sum.Plus(t.spent)
	}
	return sum.Over(len(r.turns))
}

// connect gives each worker a connection of its own, which stays.
func (c *contestant) connect(ctx context.Context, n int) (all []*client, err error) {
	for i := range n {
		one, err := dial(ctx, c.addresses[i%len(c.addresses)])
		if err != nil {
			return all, fmt.Errorf("%s: %w", c.name, err)
		}
		all = append(all, one)
	}
	return all, nil
}

func closeAll(all []*client) {
	for _, one := range all {
		_ = one.conn.Close()
	}
}

// closed has every client send its next request when it has the answer to the one before.
func (c *contestant) closed(ctx context.Context, clients int, length time.Duration) (turn, error) {
	conns, err := c.connect(ctx, clients)
	defer closeAll(conns)
	if err != nil {
		return turn{}, err
	}
	deadline := time.Now().Add(length)
	return c.play(conns, func(i int, send func() error) ([]time.Duration, error) {
		var mine []time.Duration
		for began := time.Now(); began.Before(deadline) && ctx.Err() == nil; {
			if err := send(); err != nil {
				return mine, err
			}
			now := time.Now()
			mine = append(mine, now.Sub(began))
			began = now
		}
		return mine, ctx.Err()
	})
}

// open sends at a fixed rate, whatever the answers do. A request's time runs from the moment at which it was due, so that a stall counts for all that
// it kept waiting.
func (c *contestant) open(ctx context.Context, clients int, rate float64, length time.Duration) (turn, error) {
	conns, err := c.connect(ctx, clients)
	defer closeAll(conns)
	if err != nil {
		return turn{}, err
	}
	var next atomic.Int64
	total := int64(rate * length.Seconds())
	start := time.Now()
	return c.play(conns, func(_ int, send func() error) ([]time.Duration, error) {
		var mine []time.Duration
		for ctx.Err() == nil {
			n := next.Add(1) - 1
			if n >= total {
				return mine, nil
			}
			due := start.Add(time.Duration(float64(n) / rate * float64(time.Second)))
			if wait := time.Until(due); wait > 0 {
				timer := time.NewTimer(wait)
				select {
				case <-timer.C:
				case <-ctx.Done():
					timer.Stop()
				}
			}
			if err := send(); err != nil {
				return mine, err
			}
			mine = append(mine, time.Since(due))
		}
		return mine, ctx.Err()
	})
}

func (c *contestant) play(conns []*client, work func(i int, send func() error) ([]time.Duration, error)) (turn, error) {
	var (
		group sync.WaitGroup
		mu    sync.Mutex
		all   []time.Duration
		errs  []error
	)
	var overtaken atomic.Int64
	before := measure.SpentBy(c.service, c.database)
	start := time.Now()
	for i, conn := range conns {
		request := c.request(i)
		send := func() error {
			status, err := conn.do(request)
			switch {
			case err != nil || status == c.want:
			case status == c.overtaken:
				overtaken.Add(1)
			default:
				err = fmt.Errorf("status %d, want %d", status, c.want)
			}
			return err
		}
		group.Go(func() {
			mine, err := work(i, send)
			mu.Lock()
			defer mu.Unlock()
			all, errs = append(all, mine...), append(errs, err)
		})
	}
	group.Wait()
	took := time.Since(start)
	used := measure.SpentBy(c.service, c.database).Minus(before)
	if err := errors.Join(errs...); err != nil {
		return turn{}, fmt.Errorf("%s: %w", c.name, err)
	}
	return turn{
		rate: float64(len(all)) / took.Seconds(), p50: measure.Quantile(all, 0.5), p99: measure.Quantile(all, 0.99), spent: used.Over(len(all)),
		overtaken: float64(overtaken.Load()) / float64(max(len(all), 1)),
	}, nil
}
