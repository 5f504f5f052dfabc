package gate

import (
	"context"
	"sync"
	"time"

	"fenceline/sidecar/mark"
)

// Observer is told what happens, for metrics and the log. Its calls must not wait.
type Observer struct {
	Asked     func(guard string, d time.Duration) // the store answered an admission
	Waited    func(guard string, d time.Duration) // a request stopped waiting
	InFlight  func(guard string, change int)      // begun, and not yet settled or unsettled
	Unsettled func(guard string, now int)         // how many are unsettled, of this life
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
