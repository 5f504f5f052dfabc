package gate

import (
	"context"
	"time"

	"fenceline/lockd/lock"
	"fenceline/sidecar/mark"
)

// Refusal says why a request was not admitted, or not sent.
type Refusal struct {
	Reason   Reason
	Highest  lock.Token
	Err      error
	Admitted bool // its token was admitted, and is used up where each may be used once
}

// Error makes a Refusal an error, for the connection that asks before its first byte.
func (r *Refusal) Error() string {
	if r.Err != nil {
		return "not sent: " + r.Err.Error()
	}
	return "not sent"
}

// Pass is an admitted request's permission to be sent once.
type Pass struct {
	gate     *Gate
	id       ID
	guard    string
	released time.Duration
	box      chan Action
	begun    bool
}

// Admit admits a request and waits until nothing older is in flight. ReleasedAfter is how long an unsettled request of the guard stands at
// least. The pass must be ended.
func (g *Gate) Admit(ctx context.Context, e mark.Entry, releasedAfter time.Duration) (*Pass, *Refusal) {
	box := make(chan Action, 8)
	g.mu.Lock()
	g.next++
	p := &Pass{gate: g, id: g.next, guard: e.Guard, released: releasedAfter, box: box}
	g.boxes[p.id] = box
	g.dispatch(g.machine.Step(Arrived{ID: p.id, Entry: e, At: g.now()}))
	g.mu.Unlock()
	w := &waiter{pass: p}
	for {
		switch a := (<-box).(type) {
		case Forward:
			w.ended()
			return p, nil
		case Refuse:
			w.ended()
			return nil, g.refused(p, a, w.registered)
		case Register:
			w.registered = g.ask(ctx, a)
		case Look:
			g.look(ctx, a)
		case Sleep:
			if next := w.sleep(ctx, a); next != nil {
				g.look(ctx, *next)
			}
		}
	}
}

// waiter is what a request in Admit knows of its wait.
type waiter struct {
	pass       *Pass
	since      time.Time
	polls      int
	registered bool
}

func (w *waiter) ended() {
	if !w.since.IsZero() {
		w.pass.gate.observe.Waited(w.pass.guard, time.Since(w.since))
	}
}

// slowPoll is for those who are certain to be told.
const slowPoll = time.Second

// sleep waits for a look, or for the time to look by itself, which it asks the machine for.
func (w *waiter) sleep(ctx context.Context, a Sleep) *Look {
	g := w.pass.gate
	if w.since.IsZero() {
		w.since = time.Now()
	}
	_, options := g.store()
	pause := options.Poll << min(w.polls, 3) // the first looks come sooner: most requests are short
	w.polls++
	if a.Told {
		pause = slowPoll
	}
	now := g.now()
	left := min(a.Until.Mono-now.Mono, a.Until.Wall-now.Wall)
	timer := time.NewTimer(max(min(pause, left), 0))
	defer timer.Stop()
	select {
	case next := <-w.pass.box:
		if look, ok := next.(Look); ok {
			return &look
		}
		w.pass.box <- next
	case <-timer.C:
		g.stepAt(func(now Instant) Event { return Due{ID: w.pass.id, At: now} })
	case <-ctx.Done():
		g.stepAt(func(now Instant) Event { return Due{ID: w.pass.id, At: now} }) // the look fails at once, and with it the request
	}
	return nil
}

// ask registers, and says whether the entry was admitted.
func (g *Gate) ask(ctx context.Context, a Register) bool {
	store, options := g.store()
	ctx, cancel := context.WithTimeout(ctx, options.Ask)
	defer cancel()
	start := time.Now()
	result, err := store.Register(ctx, a.Entry)
	g.observe.Asked(a.Entry.Guard, time.Since(start))
	g.stepAt(func(now Instant) Event { return Registered{ID: a.ID, Result: result, Err: err, At: now} })
	return err == nil && result.Verdict == mark.Admitted
}

func (g *Gate) look(ctx context.Context, a Look) {
	store, options := g.store()
	ctx, cancel := context.WithTimeout(ctx, options.Ask)
	defer cancel()
	asked := g.now()
	sight, err := store.Look(ctx, a.Entry, a.Row)
	g.stepAt(func(now Instant) Event { return Looked{ID: a.ID, Sight: sight, Err: err, Asked: asked, At: now} })
}

func (g *Gate) refused(p *Pass, a Refuse, admitted bool) *Refusal {
	g.mu.Lock()
	delete(g.boxes, p.id)
	g.mu.Unlock()
	return &Refusal{Reason: a.Reason, Highest: a.Highest, Err: a.Err, Admitted: admitted}
}

// Begin is asked right before the first byte goes out, after everything that takes time. Nil means: send, now.
func (p *Pass) Begin(ctx context.Context) error {
	g := p.gate
	g.stepAt(func(now Instant) Event { return FirstByte{ID: p.id, At: now} })
	for {
		switch a := (<-p.box).(type) {
		case Look:
			g.look(ctx, a)
		case Send:
			g.mu.Lock()
			delete(g.boxes, p.id)
			g.mu.Unlock()
			p.begun = true
			g.observe.InFlight(p.guard, 1)
			return nil
		case Refuse:
			return g.refused(p, a, true)
		}
	}
}

// MayContinue says whether another piece of the body may be sent.
func (p *Pass) MayContinue() bool {
	p.gate.mu.Lock()
	defer p.gate.mu.Unlock()
	return p.gate.machine.MayContinue(p.id, p.gate.now(), p.released)
}

// End says how the request ended. It may be called again when a late response settles what was unknown.
func (p *Pass) End(outcome Outcome) {
	g := p.gate
	g.mu.Lock()
	before, known := g.machine.Phase(p.id)
	g.dispatch(g.machine.Step(Ended{ID: p.id, Outcome: outcome}))
	delete(g.boxes, p.id)
	g.mu.Unlock()
	if p.begun && known && before != Unsettled {
		g.observe.InFlight(p.guard, -1)
	}
}
