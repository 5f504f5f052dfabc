package experiment

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"fenceline/internal/process"
)

// Fleet says how many workers work on how much, while they are killed and paused.
type Fleet struct {
	Executors, Payouts, Accounts int
	// Seed decides who is killed or paused when, and which answers the rail loses. When each worker does what, it doesn't decide.
	Seed uint64
	// LoseAnswer and Decline are the rail's chances of carrying a submission out without an answer, and of refusing it.
	LoseAnswer, Decline float64
	// Calm is the least time between two disturbances; the most is three times that.
	Calm time.Duration
}

// FleetSetups are the set-ups in which a fleet must do no harm, whatever happens to it.
func FleetSetups() []Setup {
	return []Setup{
		{Name: "fleet_guarded", Title: "fleet, plain with sidecars", Sidecars: Both()},
		{Name: "fleet_fenced", Title: "fleet, fenced without sidecar", Fenced: Both()},
		{Name: "fleet_checked", Title: "fleet, fenced with sidecars that check only", Fenced: Both(), Sidecars: Both(), CheckOnly: true},
	}
}

const (
	// fleetTTL is the lease of a fleet's workers. Half of the pauses are longer.
	fleetTTL = 3 * time.Second
	// fleetSessionTTL is above it, so that it is leases that end: lockd's log names the end of a lease, and not which grants a session took with it.
	fleetSessionTTL = 20 * time.Second
	minPause        = 500 * time.Millisecond
	maxPause        = 6 * time.Second
	// stalled is how long nothing may have happened before everybody is replaced and left in peace: a process doesn't take up again what it was fenced
	// out of, so in the end a payout can need one that is new.
	stalled = 15 * time.Second

	fleetTick     = 50 * time.Millisecond
	fleetProgress = 5 * time.Second
)

// RunFleet lets the fleet work in the set-up until nothing is left to do, and looks at what it did.
func (b *Bench) RunFleet(ctx context.Context, setup Setup, f Fleet) (FleetResult, error) {
	setup.RailFlags = []string{
		"--lose-answer", strconv.FormatFloat(f.LoseAnswer, 'f', -1, 64), "--decline", strconv.FormatFloat(f.Decline, 'f', -1, 64),
		"--seed", strconv.FormatUint(f.Seed, 10),
	}
	result := FleetResult{Setup: setup, Fleet: f}
	b.Progress("%s: %d executors, %d payouts, seed %d", setup.Title, f.Executors, f.Payouts, f.Seed)
	err := b.withSystem(ctx, setup, func(s *System) error {
		if err := s.seedFleet(ctx, f); err != nil {
			return err
		}
		run := &fleetRun{System: s, fleet: f, result: &result, dice: rand.New(rand.NewPCG(f.Seed, 1))} //nolint:gosec // repeatable chance is the point
		if err := run.work(ctx); err != nil {
			return err
		}
		return s.lookAtFleet(ctx, &result)
	})
	return result, err
}

// seedFleet creates the payouts; one in a hundred is of an account that can't cover it.
func (s *System) seedFleet(ctx context.Context, f Fleet) error {
	poor := f.Payouts / 100
	for _, one := range [][]string{
		{"--seed", "1", "--accounts", strconv.Itoa(f.Accounts), "--payouts", strconv.Itoa(f.Payouts - poor), "--balance", strconv.Itoa(int(payoutAmount) * f.Payouts)},
		{"--seed", "2", "--accounts", "2", "--payouts", strconv.Itoa(poor), "--balance", "1"},
	} {
		err := runToEnd(ctx, process.Spec{
			Name: "seed-" + one[1], Path: s.bench.program("paysvc"), Args: append([]string{"seed", "--amount", strconv.Itoa(int(payoutAmount)), "--output", "json"}, one...),
			Env: []string{"PAYSVC_DATABASE_URL=" + s.databases.pay.URL(s.databases.payName)}, LogDir: s.dir,
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// fleetRun is a fleet at work. One goroutine does everything to it.
type fleetRun struct {
	*System
	fleet   Fleet
	result  *FleetResult
	dice    *rand.Rand
	workers []*fleetWorker

	left     int64     // payouts with something left to do
	moved    time.Time // when that last changed
	peace    bool      // no more disturbances
	disturb  time.Time // when the next one is due
	reported time.Time
}

// fleetWorker is one place in the fleet; its process may be replaced.
type fleetWorker struct {
	number, generation int
	p                  *process.Process
	until              time.Time // when it is woken; zero while it runs
}

// work runs the fleet until nothing is left to do, and stops it.
func (r *fleetRun) work(ctx context.Context) error {
	for i := range r.fleet.Executors {
		w := &fleetWorker{number: i + 1}
		if err := r.launch(ctx, w); err != nil {
			return err
		}
		r.workers = append(r.workers, w)
	}
	r.left, r.moved, r.disturb = -1, time.Now(), time.Now().Add(r.calm())
	for {
		if err := r.look(ctx); err != nil {
			return err
		}
		if r.left == 0 {
			return r.dismiss(ctx)
		}
		if err := r.wake(time.Now()); err != nil {
			return err
		}
		if err := r.upset(ctx, time.Now()); err != nil {
			return err
		}
		if err := pollEvery(ctx, fleetTick); err != nil {
			return fmt.Errorf("%d payouts are left to do: %w", r.left, err)
		}
	}
}

func (r *fleetRun) launch(ctx context.Context, w *fleetWorker) error {
	w.generation++
	w.until = time.Time{}
	name := fmt.Sprintf("executor-%d-%d", w.number, w.generation)
	p, err := process.Start(ctx, process.Spec{Name: name, Path: r.bench.program("paysvc"), LogDir: r.dir, Args: append([]string{
		"executor", "--owner", name, "--lockd", r.lockd, "--resource", r.resource, "--rail-proxy", r.railProxy, "--lock-ttl", fleetTTL.String(),
		"--session-ttl", fleetSessionTTL.String(), "--acquire-wait", "50ms", "--poll-interval", "100ms",
	}, r.barriers()...)})
	if err != nil {
		return err
	}
	r.track(p)
	w.p = p
	return nil
}

// look counts what is left to do.
func (r *fleetRun) look(ctx context.Context) error {
	states, err := r.countStates(ctx)
	if err != nil {
		return err
	}
	left := states["PENDING"] + states["CLAIMED"] + states["RAIL_SUBMITTED"] + states["RAIL_ACKED"]
	if left != r.left {
		r.left, r.moved = left, time.Now()
	}
	if time.Since(r.reported) >= fleetProgress || left == 0 {
		r.reported = time.Now()
		r.bench.Progress("%s: %d left to do, %d posted, %d failed, %d ambiguous; %d kills, %d pauses", r.Setup.Title,
			left, states["POSTED"], states["FAILED"], states["RAIL_AMBIGUOUS"], r.result.Kills, r.result.Pauses)
	}
	if time.Since(r.moved) < stalled {
		return nil
	}
	r.bench.Progress("%s: nothing has moved for %s; all executors are replaced and left in peace", r.Setup.Title, stalled)
	r.moved, r.peace = time.Now(), true
	for _, w := range r.workers {
		if err := w.p.Kill(ctx); err != nil {
			return err
		}
		if err := r.launch(ctx, w); err != nil {
			return err
		}
	}
	return nil
}

// wake lets those go on whose pause is over.
func (r *fleetRun) wake(now time.Time) error {
	for _, w := range r.workers {
		if !w.until.IsZero() && now.After(w.until) {
			w.until = time.Time{}
			if err := w.p.Resume(); err != nil {
				return err
			}
		}
	}
	return nil
}

// upset kills or pauses somebody when it is time to.
func (r *fleetRun) upset(ctx context.Context, now time.Time) error {
	if r.peace || now.Before(r.disturb) {
		return nil
	}
	r.disturb = now.Add(r.calm())
	w := r.workers[r.dice.IntN(len(r.workers))]
	if r.dice.IntN(2) == 0 {
		r.result.Kills++
		if err := w.p.Kill(ctx); err != nil {
			return err
		}
		return r.launch(ctx, w)
	}
	length := minPause + time.Duration(r.dice.Int64N(int64(maxPause-minPause)))
	if !w.until.IsZero() {
		return nil // it sleeps already
	}
	r.result.Pauses++
	w.until = now.Add(length)
	return w.p.Suspend(ctx)
}

// calm draws the time to the next disturbance.
func (r *fleetRun) calm() time.Duration {
	return r.fleet.Calm + time.Duration(r.dice.Int64N(int64(2*r.fleet.Calm)))
}

// dismiss ends every worker; a paused one wakes first, and finds that its lease is over.
func (r *fleetRun) dismiss(ctx context.Context) error {
	for _, w := range r.workers {
		if err := w.p.Stop(ctx); err != nil {
			return err
		}
	}
	return nil
}
