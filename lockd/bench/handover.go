package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"fenceline/internal/measure"
	"fenceline/lockd/robustness/lockdb"
)

// handover is a key that goes from hand to hand.
type handover struct {
	count        int
	p50, p99     time.Duration
	calls        float64 // lockd's acquires and releases at its store for each hand-over
	looks        float64 // lockd's looks at the key, mostly for those who come to wait
	sql          float64 // SQL statements of all kinds for each hand-over
	perSecond    float64
	waitersInAll int
}

// hand is the one holder's end of a hand-over.
type hand struct {
	mu       sync.Mutex
	released time.Time // when the last release was sent
	took     []time.Duration
}

// waitMillis is the longest wait; a waiter that isn't served in it fails the run.
const waitMillis = 30_000

// handOver lets everybody wait for one key. Whoever gets it gives it back at once and waits again. It measures from the sending of a
// release to the arrival of the next grant at its client, while all others wait. The counters are read when all wait and again when the time is up.
func handOver(ctx context.Context, l *lockd, waiters int, length time.Duration, stats *pgx.Conn) (handover, error) {
	h := &hand{}
	var group sync.WaitGroup
	errs := make(chan error, waiters)
	workCtx, end := context.WithCancel(ctx)
	defer end()
	for i := range waiters {
		group.Go(func() { errs <- h.takeTurns(workCtx, l, i) })
	}
	pause(ctx, length/5) // until all wait
	before, err := readCalls(ctx, stats)
	if err != nil {
		return handover{}, err
	}
	h.reset()
	start := time.Now()
	pause(ctx, length)
	for !h.any() && ctx.Err() == nil && time.Since(start) < answerTimeout { // a very busy machine
		pause(ctx, length/10)
	}
	took := h.reset()
	seconds := time.Since(start).Seconds()
	after, err := readCalls(ctx, stats)
	end()
	group.Wait()
	close(errs)
	for e := range errs {
		err = errors.Join(err, e)
	}
	if err != nil {
		return handover{}, err
	}
	if len(took) == 0 {
		return handover{}, errors.New("the hot key never changed hands")
	}
	n := float64(len(took))
	if after.calls-before.calls < n { // a hand-over takes an acquire at least
		return handover{}, errors.New("lockd's acquires and releases aren't among the statements that were counted: the patterns in readCalls are out of date")
	}
	return handover{
		count: len(took), p50: measure.Quantile(took, 0.5), p99: measure.Quantile(took, 0.99), perSecond: n / seconds, waitersInAll: waiters,
		calls: (after.calls - before.calls) / n, looks: (after.looks - before.looks) / n, sql: (after.sql - before.sql) / n,
	}, nil
}

// takeTurns waits for the key, gives it back, and waits again, until ctx ends.
func (h *hand) takeTurns(ctx context.Context, l *lockd, i int) error {
	for ctx.Err() == nil {
		token, err := l.acquire(i, "hot", waitMillis)
		arrived := time.Now()
		if err != nil {
			return err
		}
		h.mu.Lock()
		if !h.released.IsZero() {
			h.took = append(h.took, arrived.Sub(h.released))
		}
		h.released = time.Now()
		h.mu.Unlock()
		if err := l.release("hot", token); err != nil {
			return err
		}
	}
	return nil
}

// any says whether there was a hand-over since reset.
func (h *hand) any() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.took) > 0
}

// reset returns what was measured so far and begins anew.
func (h *hand) reset() []time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	took := h.took
	h.took = nil
	return took
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// counted is what pg_stat_statements has counted.
type counted struct{ calls, looks, sql float64 }

// readCalls counts C1's two statements wherever they run, by themselves or in a function: each acquire that lockd tries, granted or not, inserts into
// lock_entry once (C1 §1.3), and each release deletes a key with a token once (C1 §1.4). A look reads a key: one for each client that comes to wait. In sql is
// everything that lockd sends, the reaper's statements included.
func readCalls(ctx context.Context, stats *pgx.Conn) (counted, error) {
	var c counted
	err := stats.QueryRow(ctx, `
SELECT coalesce(sum(calls) FILTER (WHERE query ~* '^\s*INSERT INTO lock_entry' OR query ~* '^\s*DELETE FROM lock_entry\s+WHERE lock_key\s+='), 0)::float8,
       coalesce(sum(calls) FILTER (WHERE query ~* '^\s*SELECT e\.owner_id, e\.session_id'), 0)::float8,
       coalesce(sum(calls) FILTER (WHERE toplevel), 0)::float8
  FROM pg_stat_statements s
  JOIN pg_roles r ON r.oid = s.userid
 WHERE r.rolname = $1`, lockdb.Login).Scan(&c.calls, &c.looks, &c.sql)
	if err != nil {
		return counted{}, fmt.Errorf("read pg_stat_statements: %w", err)
	}
	return c, nil
}

func printHandover(out io.Writer, h handover) {
	fmt.Fprintf(out, "\nHot key, %d clients wait (%d hand-overs, %.0f a second):\n", h.waitersInAll, h.count, h.perSecond)
	fmt.Fprintf(out, "  from the sending of a release to the arrival of the next grant: p50 %.2f ms, p99 %.2f ms\n", inMillis(h.p50), inMillis(h.p99))
	fmt.Fprintf(out, "  C1's acquires and releases that ran in the database for a hand-over: %.2f (the ratio)\n", h.calls)
	fmt.Fprintf(out, "  looks at the key a hand-over: %.2f; one belongs to the client that comes to wait again\n", h.looks)
	fmt.Fprintf(out, "  SQL statements that lockd sent a hand-over, BEGIN, COMMIT and the reaper's included: %.1f\n", h.sql)
}

func inMillis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
