package gate

import (
	"errors"
	"slices"
	"time"

	"fenceline/lockd/lock"
	"fenceline/sidecar/mark"
)

// ID names a request within one sidecar.
type ID int64

// Instant is a moment on both clocks of this machine. The monotonic one can't be set but may stand still while the machine sleeps; the wall clock runs on then but can
// be set.
type Instant struct {
	Mono time.Duration // since some fixed moment of this process
	Wall time.Duration // since 1970
}

// Since is how much time may have passed since o: by the clock that ran further.
func (i Instant) Since(o Instant) time.Duration { return max(i.Mono-o.Mono, i.Wall-o.Wall) }

// Rules bound a machine's waiting.
type Rules struct {
	// Wait is how long a request waits for older ones.
	Wait time.Duration
	// Trust is how long after its admission, or after a later look that found everything in order, a request's first byte may go out unseen. It must be
	// less than the shortest time after which an unsettled request is released by time.
	Trust time.Duration
	// Answer is how long after it was asked for an admission's answer may come. It must be less than the age from which a heartbeat shows rows (Pulse.Own): such a row is
	// settled when nobody here knows it.
	Answer time.Duration
	// Silence is how long a life lives without a heartbeat that the store took.
	Silence time.Duration
	// Waiting is how many requests of one key may wait at once: one key's trouble is its own.
	Waiting int
}

// Phase is where in its life a request stands.
type Phase int

// The phases. A request that was refused or settled isn't known any more.
const (
	Registering Phase = iota + 1 // at the store
	Waiting                      // registered; older requests are in flight
	Looking                      // at the store again, to see whether they still are
	Cleared                      // nothing older is in flight: it may be sent
	Rechecking                   // was cleared too long ago; at the store again, the last time
	Begun                        // its first byte may have gone out
	Unsettled                    // its outcome is unknown
)

// request is what the machine remembers of one.
type request struct {
	entry  mark.Entry
	phase  Phase
	row    mark.Row
	older  []mark.Row // what it waits for
	asked  Instant    // when the admission or look was asked for by which it is in order
	until  Instant    // when it stops waiting
	life   int        // under which it was registered
	hinted bool       // something changed while it was looking: what the look finds may be old
	seen   bool       // the store showed its row to a heartbeat
	gone   bool       // and then didn't any more
}

// place is where requests meet.
type place struct{ guard, key string }

// Machine is the gate's state. Its zero value isn't usable; NewMachine makes one. It isn't safe for concurrent use.
type Machine struct {
	rules    Rules
	requests map[ID]*request
	byRow    map[mark.Row]ID
	waiting  map[place][]ID
	// over are rows that are settled here and may still stand in the store: they block nobody.
	over      map[mark.Row]struct{}
	unsettled map[string]int // requests by guard
	life      int            // counts the lives
	beat      Instant        // when the last heartbeat that the store took was sent
	live      bool

	broken broken
}

// broken breaks a rule on purpose, for the tests that show that it would be noticed.
type broken struct {
	neverWait   bool // forwards whatever is in flight
	noRecheck   bool // forwards after the wait without looking at the mark
	noClock     bool // sends however long ago it was cleared
	settleAll   bool // takes an unknown outcome for a known one
	anyLife     bool // sends under a life that was declared dead
	keepSending bool // goes on with a body whatever happened to its row
}

// NewMachine returns a machine without a life.
func NewMachine(rules Rules) *Machine {
	return &Machine{rules: rules, requests: map[ID]*request{}, byRow: map[mark.Row]ID{}, waiting: map[place][]ID{}, over: map[mark.Row]struct{}{}, unsettled: map[string]int{}}
}

// Step takes an event and returns what is to be done, in order.
func (m *Machine) Step(e Event) []Action {
	switch e := e.(type) {
	case Arrived:
		m.requests[e.ID] = &request{entry: e.Entry, phase: Registering, asked: e.At, until: later(e.At, m.rules.Wait), life: m.life}
		return []Action{Register{e.ID, e.Entry}}
	case Registered:
		return m.registered(e)
	case Hinted:
		return m.wake(place{e.Guard, e.Key})
	case Due:
		return m.due(e)
	case Looked:
		return m.looked(e)
	case FirstByte:
		return m.firstByte(e)
	case Ended:
		return m.ended(e)
	case LifeBegan:
		return m.begin(e.Asked)
	case Beaten:
		return m.beaten(e)
	case Removed:
		for _, row := range e.Rows {
			delete(m.over, row)
		}
	}
	return nil
}

func later(i Instant, by time.Duration) Instant { return Instant{i.Mono + by, i.Wall + by} }

func (m *Machine) registered(e Registered) []Action {
	r := m.requests[e.ID]
	if e.Err == nil {
		r.row = e.Result.Row
	}
	switch {
	case e.At.Since(r.asked) > m.rules.Answer:
		// A heartbeat may have taken its row for one whose answer was lost, and have it settled.
		return m.refuse(e.ID, Unavailable, 0, errLateAnswer)
	case errors.Is(e.Err, mark.ErrBusy):
		return m.refuse(e.ID, Busy, 0, e.Err)
	case e.Err != nil:
		return m.refuse(e.ID, Unavailable, 0, e.Err)
	}
	switch e.Result.Verdict {
	case mark.Admitted:
	case mark.FencedOut:
		return m.refuse(e.ID, FencedOut, e.Result.Highest, nil)
	case mark.Implausible:
		return m.refuse(e.ID, Implausible, e.Result.Highest, nil)
	case mark.KeyNotFound:
		return m.refuse(e.ID, KeyNotFound, 0, nil)
	default:
		return m.refuse(e.ID, Unavailable, 0, errNoDecision)
	}
	m.byRow[r.row] = e.ID
	r.older = m.standing(e.Result.Older)
	if len(r.older) == 0 || m.broken.neverWait {
		r.phase = Cleared
		return []Action{Forward{e.ID}}
	}
	at := r.place()
	if len(m.waiting[at]) >= m.rules.Waiting {
		return m.refuse(e.ID, Busy, 0, errTooManyWait)
	}
	m.waiting[at] = append(m.waiting[at], e.ID)
	return m.sleep(e.ID, r, e.At)
}

var (
	errNoDecision  = errors.New("the store gave no decision")
	errTooManyWait = errors.New("as many requests wait for this key as may")
	errLateAnswer  = errors.New("the store's answer came too late to be trusted")
	errNotThere    = errors.New("the request's row was settled by somebody else")
)

// standing leaves out rows that are settled here: the store just doesn't know it yet.
func (m *Machine) standing(rows []mark.Row) []mark.Row {
	return slices.DeleteFunc(slices.Clone(rows), func(row mark.Row) bool {
		_, over := m.over[row]
		return over
	})
}

func (r *request) place() place { return place{r.entry.Guard, r.entry.Key} }

func (m *Machine) sleep(id ID, r *request, now Instant) []Action {
	if now.Since(r.until) >= 0 {
		return m.refuse(id, Busy, 0, nil)
	}
	r.phase = Waiting
	told := true
	for _, row := range r.older {
		o := m.requests[m.byRow[row]]
		told = told && o != nil && o.phase != Unsettled
	}
	return []Action{Sleep{ID: id, Until: r.until, Told: told}}
}

// wake has everybody look who waits here. What is being looked at already must be looked at once more, since the look may have come before the change.
func (m *Machine) wake(at place) []Action {
	var out []Action
	for _, id := range m.waiting[at] {
		switch r := m.requests[id]; r.phase {
		case Waiting:
			r.phase = Looking
			out = append(out, Look{id, r.entry, r.row})
		case Looking:
			r.hinted = true
		case Registering, Cleared, Rechecking, Begun, Unsettled: // it doesn't wait
		}
	}
	return out
}

func (m *Machine) due(e Due) []Action {
	r := m.requests[e.ID]
	if r == nil || r.phase != Waiting {
		return nil // it was woken meanwhile
	}
	r.phase = Looking
	return []Action{Look{e.ID, r.entry, r.row}}
}

// looked judges the re-check. Only a request whose own row stands, and whose token is the mark, may go on: the wait was long enough for anything.
func (m *Machine) looked(e Looked) []Action {
	r := m.requests[e.ID]
	recheck := r.phase == Rechecking
	wanted := r.entry.Raise
	if m.broken.noRecheck {
		e.Sight.Mark, e.Sight.Present = wanted, true
	}
	switch {
	case e.Err != nil:
		return m.refuse(e.ID, Unavailable, 0, e.Err)
	case e.Sight.Mark > r.entry.Token:
		return m.refuse(e.ID, FencedOut, e.Sight.Mark, nil)
	case e.Sight.Mark < wanted:
		return m.refuse(e.ID, WentBack, e.Sight.Mark, mark.ErrWentBack)
	case !e.Sight.Present && (!recheck || !m.broken.anyLife):
		return m.refuse(e.ID, Unavailable, 0, errNotThere)
	}
	r.older = m.standing(e.Sight.Older)
	switch {
	case len(r.older) == 0 && recheck:
		r.asked, r.life = e.Asked, m.life
		return m.firstByte(FirstByte{e.ID, e.At})
	case len(r.older) == 0:
		m.leave(e.ID, r)
		r.phase, r.asked = Cleared, e.Asked
		return []Action{Forward{e.ID}}
	case recheck: // can't be: an older request that came later would have been fenced out. Fail closed.
		return m.refuse(e.ID, Busy, 0, nil)
	case r.hinted:
		r.hinted = false
		return []Action{Look{e.ID, r.entry, r.row}}
	}
	return m.sleep(e.ID, r, e.At)
}

// firstByte is the last check before anything is sent. A process that was stopped in between may wake long after everybody else has called it dead; its
// clocks tell, unless both stood still too.
func (m *Machine) firstByte(e FirstByte) []Action {
	r := m.requests[e.ID]
	fresh := !r.gone && r.life == m.life && m.live && e.At.Since(m.beat) < m.rules.Silence
	if m.broken.noClock || e.At.Since(r.asked) <= m.rules.Trust && (fresh || m.broken.anyLife) {
		r.phase = Begun
		return []Action{Send{e.ID}}
	}
	if r.phase == Rechecking { // the look itself took too long
		return m.refuse(e.ID, Unavailable, 0, errTooLate)
	}
	r.phase = Rechecking
	return []Action{Look{e.ID, r.entry, r.row}}
}

var errTooLate = errors.New("the store is too slow, or this sidecar isn't called alive by it")

// MayContinue says whether another piece of a request that was begun may be sent. released is how long its row stands at least after it was called unsettled.
func (m *Machine) MayContinue(id ID, now Instant, released time.Duration) bool {
	r := m.requests[id]
	if m.broken.keepSending {
		return true
	}
	return r != nil && r.phase == Begun && !r.gone && r.life == m.life && m.live && now.Since(m.beat) < m.rules.Silence+released
}

func (m *Machine) ended(e Ended) []Action {
	r := m.requests[e.ID]
	if r == nil {
		return nil // settled by somebody else
	}
	if e.Outcome == OutcomeUnknown && !m.broken.settleAll {
		if r.phase == Unsettled {
			return nil
		}
		r.phase = Unsettled
		out := append([]Action{UnsettleRow{r.row}}, m.count(r.entry.Guard, 1)...)
		// Those who were certain to be told when it ends must look for themselves from now on: others may settle it.
		return append(out, m.wake(r.place())...)
	}
	return m.settle(e.ID, r)
}

// settle forgets a request that can have no further effect, and lets those go on that waited for it.
func (m *Machine) settle(id ID, r *request) []Action {
	m.leave(id, r)
	out := m.forget(id, r)
	if r.row == 0 {
		return out
	}
	m.over[r.row] = struct{}{}
	return append(append(out, SettleRow{r.row}), m.wake(r.place())...)
}

func (m *Machine) refuse(id ID, reason Reason, highest lock.Token, err error) []Action {
	return append(m.settle(id, m.requests[id]), Refuse{id, reason, highest, err})
}

func (m *Machine) leave(id ID, r *request) {
	at := r.place()
	if i := slices.Index(m.waiting[at], id); i >= 0 {
		m.waiting[at] = slices.Delete(m.waiting[at], i, i+1)
	}
	if len(m.waiting[at]) == 0 {
		delete(m.waiting, at)
	}
}

// forget takes a request out of memory.
func (m *Machine) forget(id ID, r *request) []Action {
	delete(m.requests, id)
	delete(m.byRow, r.row)
	if r.phase == Unsettled {
		return m.count(r.entry.Guard, -1)
	}
	return nil
}

func (m *Machine) count(guard string, change int) []Action {
	m.unsettled[guard] += change
	return []Action{Counted{guard, m.unsettled[guard]}}
}

// Phase is where a request stands; known is false for one that was refused or settled.
func (m *Machine) Phase(id ID) (phase Phase, known bool) {
	if r := m.requests[id]; r != nil {
		return r.phase, true
	}
	return 0, false
}
