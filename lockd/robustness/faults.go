package robustness

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// Fault is one thing that happens to a replica, with its cure.
type Fault struct {
	Name   string
	strike func(ctx context.Context, r *Replica) error
	cure   func(ctx context.Context, r *Replica) error
	lasts  func(rng *rand.Rand) time.Duration
}

// Faults are all there are.
func Faults() []Fault {
	mend := func(ctx context.Context, r *Replica) error { r.link.mend(ctx); return nil }
	return []Fault{
		{
			"kill", func(ctx context.Context, r *Replica) error { return r.process.Kill(ctx) },
			func(ctx context.Context, r *Replica) error { return r.start(ctx) }, between(0, 300),
		},
		{
			"pause", func(ctx context.Context, r *Replica) error { return r.process.Suspend(ctx) },
			func(_ context.Context, r *Replica) error { return r.process.Resume() }, between(50, 800),
		},
		{"cut", func(_ context.Context, r *Replica) error { return r.link.cut() }, mend, between(1, 300)},
		{"silence", func(_ context.Context, r *Replica) error { return r.link.silence() }, mend, between(50, 500)},
		{"delay", func(_ context.Context, r *Replica) error { return r.link.delay(100, 100) }, mend, between(100, 800)},
	}
}

func between(least, most int) func(*rand.Rand) time.Duration {
	return func(rng *rand.Rand) time.Duration {
		return time.Duration(least+rng.IntN(most-least+1)) * time.Millisecond
	}
}

// Trouble makes faults happen to a system, one after the other.
type Trouble struct {
	System *System
	Faults []Fault
	// Pause is the longest time between two faults.
	Pause time.Duration
	Seed  uint64
}

// Run goes on until ctx ends, and cures the last fault before it returns how often each happened. Each is there at least
// once when there is time for it: they are shuffled, not drawn.
func (t Trouble) Run(ctx context.Context) (happened map[string]int, err error) {
	rng := rand.New(rand.NewPCG(t.Seed, 0)) //nolint:gosec // repeatable on purpose
	happened = map[string]int{}
	faults := slices.Clone(t.Faults)
	for {
		rng.Shuffle(len(faults), func(i, j int) { faults[i], faults[j] = faults[j], faults[i] })
		for _, fault := range faults {
			if !rest(ctx, time.Duration(rng.Int64N(int64(t.Pause)))) {
				return happened, nil
			}
			r := t.System.Replicas[rng.IntN(len(t.System.Replicas))]
			if err := t.once(ctx, fault, r, fault.lasts(rng)); err != nil {
				return happened, err
			}
			happened[fault.Name]++
		}
	}
}

func (t Trouble) once(ctx context.Context, fault Fault, r *Replica, d time.Duration) error {
	cureCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
	defer cancel()
	if err := fault.strike(cureCtx, r); err != nil {
		return fmt.Errorf("%s %s: %w", fault.Name, r.name, err)
	}
	rest(ctx, d)
	if err := fault.cure(cureCtx, r); err != nil {
		return fmt.Errorf("end of %s of %s: %w", fault.Name, r.name, err)
	}
	return nil
}

// rest waits; false when ctx ended.
func rest(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
