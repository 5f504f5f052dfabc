package failuretest

import (
	"context"
	"errors"
	"fmt"
)

// Row is a line of a daemon's table: which fault a call meets, and what is wanted.
type Row struct {
	Fault Fault
	Call  string // of the daemon's calls
	Want  Answer
	// During is what /readyz says while the fault lasts; "" for ready. What is said before a call counts, too, unless the fault needs a call to happen.
	During string
}

// Meet has the daemon meet the row's fault and says what it does wrong.
func (b *Bench) Meet(ctx context.Context, d Daemon, row Row) error {
	if err := b.meet(ctx, d, row); err != nil {
		return fmt.Errorf("%s: %s in %s: %w", d.Name, row.Fault.Name, row.Call, err)
	}
	return nil
}

type sent struct {
	n      int
	answer Answer
	err    error
}

func (b *Bench) meet(ctx context.Context, d Daemon, row Row) error {
	call := d.Calls[row.Call]
	if err := b.awaitReadiness(ctx, d, ""); err != nil {
		return fmt.Errorf("before: %w", err)
	}
	count := 1
	if row.Fault.fills {
		count += 4 * d.MaxConns
	}
	numbers, err := b.prepare(ctx, call, count)
	if err != nil {
		return fmt.Errorf("before: %w", err)
	}
	heal, err := row.Fault.strike(ctx, b, call.Table)
	if err != nil {
		return fmt.Errorf("strike: %w", err)
	}
	answers, err := b.during(ctx, d, call, row, numbers)
	if err := errors.Join(err, heal(ctx), b.quiet(ctx)); err != nil {
		return err
	}
	for _, a := range answers {
		if err := b.judge(ctx, call, a); err != nil {
			return err
		}
	}
	if got := answers[len(answers)-1].answer; got != row.Want {
		return fmt.Errorf("the answer was %s, want %s", got, row.Want)
	}
	return b.recovers(ctx, d, call)
}

// prepare makes what so many changes need, of which there is nothing yet.
func (b *Bench) prepare(ctx context.Context, call Call, count int) ([]int, error) {
	numbers := make([]int, count)
	for i := range numbers {
		numbers[i] = b.Next()
		if call.Prepare != nil {
			if err := call.Prepare(ctx, numbers[i]); err != nil {
				return nil, fmt.Errorf("prepare: %w", err)
			}
		}
		if effect, err := call.Effect(ctx, numbers[i]); err != nil || effect != Nothing {
			return nil, fmt.Errorf("there is %s of a change that nobody asked for: %w", effect, err)
		}
	}
	return numbers, nil
}

// during sends the calls while the fault is there, the one that the row is about last, and looks at readiness.
func (b *Bench) during(ctx context.Context, d Daemon, call Call, row Row, numbers []int) ([]sent, error) {
	if row.Fault.meanwhile == nil && !row.Fault.fills {
		if err := b.awaitReadiness(ctx, d, row.During); err != nil {
			return nil, fmt.Errorf("during, before a call: %w", err)
		}
	}
	results := make([]chan sent, len(numbers))
	for i, n := range numbers {
		if i == len(numbers)-1 && row.Fault.fills {
			if err := b.awaitTrue(ctx, `SELECT count(*) >= $1 FROM pg_locks WHERE locktype = 'advisory' AND classid = 7171 AND objid = 1
 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`, d.MaxConns); err != nil {
				return nil, fmt.Errorf("the pool isn't exhausted: %w", err)
			}
		}
		results[i] = make(chan sent, 1)
		go func() {
			answer, err := call.Send(ctx, n)
			results[i] <- sent{n, answer, err}
		}()
	}
	if row.Fault.meanwhile != nil {
		if err := row.Fault.meanwhile(ctx, b); err != nil {
			return nil, err
		}
	}
	if err := b.awaitReadiness(ctx, d, row.During); err != nil {
		return nil, fmt.Errorf("during: %w", err)
	}
	answers := make([]sent, len(numbers))
	for i := range results {
		answers[i] = <-results[i]
		if answers[i].err != nil {
			return nil, fmt.Errorf("no answer: %w", answers[i].err)
		}
	}
	if row.Fault.fills {
		return answers, nil // they have ended, so the pool is free again
	}
	if err := b.awaitReadiness(ctx, d, row.During); err != nil {
		return nil, fmt.Errorf("during, after the call: %w", err)
	}
	return answers, nil
}

func (b *Bench) judge(ctx context.Context, call Call, a sent) error {
	effect, err := call.Effect(ctx, a.n)
	if err != nil {
		return fmt.Errorf("look at the effect: %w", err)
	}
	return Judge(a.answer, effect)
}

// recovers waits until the daemon is ready and does what it is asked for, by itself. What it answers until then is judged, too.
func (b *Bench) recovers(ctx context.Context, d Daemon, call Call) error {
	if err := b.awaitReadiness(ctx, d, ""); err != nil {
		return fmt.Errorf("afterwards: %w", err)
	}
	var last error
	err := b.await(ctx, func(ctx context.Context) (bool, error) {
		n := b.Next()
		if call.Prepare != nil {
			if err := call.Prepare(ctx, n); err != nil {
				return false, err
			}
		}
		answer, err := call.Send(ctx, n)
		if err != nil {
			return false, err
		}
		last = b.judge(ctx, call, sent{n: n, answer: answer})
		return last != nil || answer.ok(), fmt.Errorf("it answers %s", answer)
	})
	if err := errors.Join(err, last); err != nil {
		return fmt.Errorf("afterwards: %w", err)
	}
	return nil
}
