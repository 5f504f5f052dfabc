package gate

import (
	"context"
	"errors"
	"sync"
	"time"

	"fenceline/lockd/lock"
	"fenceline/sidecar/mark"
)

// Observer is told what happens, for metrics and the log. Its calls must not wait.
type Observer struct {
	Asked     func(guard string, d time.Duration) // the store answered an admission
	Waited    func(guard string, d time.Duration) // a request stopped waiting
	InFlight  func(guard string, change int)      // begun, and not yet settled or unsettled
	Unsettled func(guard string, change int)      // unsettled, of this life
	Life      func(alive bool, err error)         // a life began or was lost
	Fault     func(what string, err error)        // the store failed at something that is tried again
	Swept     func(row mark.Row)                  // an admission whose answer was lost is settled
}

// Options are a gate's rules of time.
type Options struct {
	Rules
	// Ask bounds one admission or look at the store.
	Ask time.Duration
	// Heartbeat is the pause between two heartbeats; well below Rules.Silence.
	Heartbeat time.Duration
	// Poll is the pause between two looks of a request that waits for another sidecar's, behind its hints.
	Poll time.Duration
}

// late is what an answer may take beside its time limit. Stores show rows to heartbeats from a greater age on (mark.Pulse).
const late = 2 * time.Second

func (o *Options) complete(register mark.Register) {
	o.Silence, o.Answer = register.Silence(), o.Ask+late
}

// Gate runs a Machine against a store. It is safe for concurrent use.
type Gate struct {
	options Options
	observe Observer
	born    time.Time

	mu       sync.Mutex
	register mark.Register
	machine  *Machine
	next     ID
	boxes    map[ID]chan Action // of requests whose goroutine is in Admit or Begin
	settle   []mark.Row
	unsettle []mark.Row
	work     chan struct{}
	lifeErr  error // why there is no life

	stop context.CancelFunc
	done sync.WaitGroup
}

// New returns a gate over a store. Start gives it a life.
func New(register mark.Register, options Options, observe Observer) *Gate {
	options.complete(register)
	return &Gate{
		options: options, observe: observe, born: time.Now(), register: register, machine: NewMachine(options.Rules),
		boxes: map[ID]chan Action{}, work: make(chan struct{}, 1),
	}
}

// Use changes the store and the rules for what comes later: after a reload. The life goes on, so it must be the same store in another guise.
func (g *Gate) Use(register mark.Register, options Options) {
	g.mu.Lock()
	defer g.mu.Unlock()
	options.complete(register)
	g.register, g.options, g.machine.rules = register, options, options.Rules
}

func (g *Gate) store() (mark.Register, Options) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.register, g.options
}

// now reads both clocks.
func (g *Gate) now() Instant {
	t := time.Now()
	return Instant{Mono: t.Sub(g.born), Wall: time.Duration(t.UnixNano())}
}

// step runs one event and hands its actions out.
func (g *Gate) step(e Event) {
	g.stepAt(func(Instant) Event { return e })
}

// stepAt is step for an event that happens now. The clock is read under the lock, so that events come in the order of their instants: an answer must not look younger than
// the heartbeat that came before it.
func (g *Gate) stepAt(event func(now Instant) Event) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.dispatch(g.machine.Step(event(g.now())))
}

// dispatch gives each action to whoever does it. The boxes have room: a request has at most one Look and one Sleep open.
func (g *Gate) dispatch(actions []Action) {
	for _, a := range actions {
		switch a := a.(type) {
		case Register:
			g.boxes[a.ID] <- a
		case Look:
			g.boxes[a.ID] <- a
		case Sleep:
			g.boxes[a.ID] <- a
		case Forward:
			g.boxes[a.ID] <- a
		case Send:
			g.boxes[a.ID] <- a
		case Refuse:
			g.boxes[a.ID] <- a
		case SettleRow:
			g.settle = append(g.settle, a.Row)
			g.poke()
		case UnsettleRow:
			g.unsettle = append(g.unsettle, a.Row)
			g.poke()
		case Counted:
			g.observe.Unsettled(a.Guard, a.Unsettled)
		}
	}
}

func (g *Gate) poke() {
	select {
	case g.work <- struct{}{}:
	default:
	}
}

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

// Alive says why this sidecar isn't called alive by the store, so that nothing is admitted; nil when it is.
func (g *Gate) Alive() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case !g.machine.live && g.lifeErr != nil:
		return g.lifeErr
	case !g.machine.live:
		return mark.ErrNoLife
	case g.now().Since(g.machine.beat) >= g.options.Silence:
		return errSilent
	}
	return nil
}

var errSilent = errors.New("the store took no heartbeat of this sidecar for too long; nothing is sent")

// Hint says that something of a key was settled by somebody else.
func (g *Gate) Hint(guard, key string) { g.step(Hinted{guard, key}) }

// Start begins a life and keeps it. A store that can't be used yet is tried again; until then nothing is admitted. ErrSameID and ErrOtherDefinition are
// returned, and tried again too: they end when the other sidecar, or its requests, do.
func (g *Gate) Start(ctx context.Context) error {
	err := g.begin(ctx)
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	g.stop = cancel
	g.done.Go(func() { g.keepAlive(running, err == nil) })
	g.done.Go(func() { g.tidy(running) })
	store, _ := g.store()
	g.done.Go(func() { store.Hints(running, g.Hint) })
	return err
}

func (g *Gate) begin(ctx context.Context) error {
	store, options := g.store()
	ctx, cancel := context.WithTimeout(ctx, 4*options.Ask)
	defer cancel()
	asked := g.now()
	err := store.Begin(ctx)
	g.mu.Lock()
	changed := err == nil || g.lifeErr == nil || g.lifeErr.Error() != err.Error()
	g.lifeErr = err
	if err == nil {
		g.dispatch(g.machine.Step(LifeBegan{Asked: asked}))
	}
	g.mu.Unlock()
	if changed {
		g.observe.Life(err == nil, err)
	}
	return err
}

// keepAlive sends heartbeats, and begins another life when one is lost.
func (g *Gate) keepAlive(ctx context.Context, alive bool) {
	_, options := g.store()
	ticker := time.NewTicker(options.Heartbeat)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if !alive {
			alive = g.begin(ctx) == nil
			continue
		}
		alive = g.heartbeat(ctx)
	}
}

// heartbeat says whether the life goes on.
func (g *Gate) heartbeat(ctx context.Context) bool {
	store, options := g.store()
	ctx, cancel := context.WithTimeout(ctx, 2*options.Ask)
	defer cancel()
	asked := g.now()
	pulse, err := store.Beat(ctx)
	switch {
	case errors.Is(err, mark.ErrNoLife):
		pulse.Lost = true
	case err != nil:
		g.observe.Fault("heartbeat", err)
		return true // it may live; the machine sends nothing when the heartbeats stay away
	}
	g.mu.Lock()
	before := len(g.settle)
	g.dispatch(g.machine.Step(Beaten{Pulse: pulse, Asked: asked}))
	swept := append([]mark.Row(nil), g.settle[before:]...)
	g.mu.Unlock()
	for _, row := range swept {
		g.observe.Swept(row)
	}
	if pulse.Lost {
		g.observe.Life(false, mark.ErrNoLife)
	}
	return !pulse.Lost
}

// retry is the pause after the store failed.
const retry = 200 * time.Millisecond

// tidy tells the store what was settled and what is unsettled, together, and again until it has taken it. Nothing depends on its haste but the patience of
// other sidecars' requests: a row that stands too long only lets others wait.
func (g *Gate) tidy(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.work:
		}
		for !g.flush(ctx) {
			timer := time.NewTimer(retry)
			select {
			case <-ctx.Done():
				timer.Stop()
				return
			case <-timer.C:
			}
		}
	}
}

// flush says whether everything was taken.
func (g *Gate) flush(ctx context.Context) bool {
	g.mu.Lock()
	unsettle, settle := g.unsettle, g.settle
	g.unsettle, g.settle = nil, nil
	g.mu.Unlock()
	store, options := g.store()
	ctx, cancel := context.WithTimeout(ctx, 2*options.Ask)
	defer cancel()
	var errUnsettle, errSettle error
	if len(unsettle) > 0 {
		if errUnsettle = store.Unsettle(ctx, unsettle); errUnsettle != nil {
			g.observe.Fault("record that outcomes are unknown", errUnsettle)
		}
	}
	if len(settle) > 0 {
		if errSettle = store.Settle(ctx, settle); errSettle != nil {
			g.observe.Fault("remove settled requests from the register", errSettle)
		} else {
			g.step(Removed{Rows: settle})
		}
	}
	if errUnsettle == nil && errSettle == nil {
		return true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if errUnsettle != nil {
		g.unsettle = append(unsettle, g.unsettle...)
	}
	if errSettle != nil {
		g.settle = append(settle, g.settle...)
	}
	return false
}

// Stop ends the life in order: what is still under way is unsettled from then on.
func (g *Gate) Stop(ctx context.Context) error {
	if g.stop != nil {
		g.stop()
		g.done.Wait()
	}
	g.flush(ctx)
	store, _ := g.store()
	return store.End(ctx)
}
