//go:build !race

// The model check is one thread without anything to race with, and ten times slower under the detector: make test runs it apart.

package gate

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"fenceline/lockd/lock"
	"fenceline/sidecar/mark"
)

// The model tries every interleaving of a small system: two sidecars, three requests for one key, a store, a resource; one sidecar that is killed and one that is stopped
// for long, at any step. After each step it checks what the gate promises.

const (
	modelWait    = 5 * time.Second
	modelTrust   = 6 * time.Second
	modelSilence = 5 * time.Second
	modelAfter   = 30 * time.Second
)

// planned is a request of the model.
type planned struct {
	sidecar int
	token   lock.Token
	newer   bool
	barrier bool
}

// ask is something at the store: first it happens there, then its answer arrives.
type ask struct {
	done   bool // it happened
	peeked bool // a store that looks too early has looked
	before []mark.Row
	action Action
	answer Event
}

// stage is where the model's world has a request.
type stage struct {
	asks     []ask
	sleeping *Sleep
	cleared  bool // Forward came; the first byte wasn't asked for
	sent     int
	refused  bool
	passed   bool // a barrier
	inside   bool // the resource has it
	effect   bool // and it took effect
	ended    bool // its outcome reached the gate, or nobody is there to learn it
}

type modelRow struct {
	token     lock.Token
	request   int
	life      int
	unsettled bool
}

// world is one state.
type world struct {
	model    *model
	now      Instant
	machines [2]*Machine
	dead     [2]bool // killed
	stopped  [2]bool // doesn't run for now
	declared [2]bool // the store calls its life ended
	mark     lock.Token
	rows     map[mark.Row]modelRow
	next     mark.Row
	requests []stage
	settles  [2][]mark.Row
	effects  []lock.Token
	forward  lock.Token // the highest that was forwarded
	crashes  int
	stops    int
	unclear  int
	began    []bool
	trace    []string
}

type model struct {
	plan     []planned
	releases bool
	broken   broken
	blind    bool // the store looks before it raises
	unlisted bool // nothing is registered
	kills    int  // how many sidecars are killed
	stops    int  // and stopped
	unclear  int  // how many answers come too late
	seen     map[string]bool
	states   int
	ends     int
}

func (m *model) start() *world {
	w := &world{model: m, rows: map[mark.Row]modelRow{}, requests: make([]stage, len(m.plan)), began: make([]bool, len(m.plan))}
	for i := range w.machines {
		w.machines[i] = NewMachine(Rules{Wait: modelWait, Trust: modelTrust, Answer: modelTrust, Silence: modelSilence, Waiting: 10})
		w.machines[i].broken = m.broken
		w.machines[i].Step(LifeBegan{Asked: w.now})
	}
	return w
}

func (w *world) clone() *world {
	c := *w
	c.rows = maps.Clone(w.rows)
	c.requests = slices.Clone(w.requests)
	for i := range c.requests {
		c.requests[i].asks = slices.Clone(w.requests[i].asks)
	}
	for i, m := range w.machines {
		own := *m
		own.requests, own.byRow, own.over, own.unsettled = map[ID]*request{}, maps.Clone(m.byRow), maps.Clone(m.over), maps.Clone(m.unsettled)
		for id, r := range m.requests {
			one := *r
			one.older = slices.Clone(r.older)
			own.requests[id] = &one
		}
		own.waiting = map[place][]ID{}
		for at, ids := range m.waiting {
			own.waiting[at] = slices.Clone(ids)
		}
		c.machines[i] = &own
		c.settles[i] = slices.Clone(w.settles[i])
	}
	c.effects, c.began, c.trace = slices.Clone(w.effects), slices.Clone(w.began), slices.Clone(w.trace)
	return &c
}

// key identifies a state: two ways to it are one.
func (w *world) key() string {
	var b strings.Builder
	fmt.Fprint(&b, w.now, w.dead, w.stopped, w.declared, w.mark, w.rows, w.next, w.settles, w.effects, w.forward, w.crashes, w.stops, w.unclear, w.began)
	for _, s := range w.requests {
		fmt.Fprintf(&b, "|%v %v %v %d %v %v %v %v %v", s.asks, s.sleeping != nil, s.cleared, s.sent, s.refused, s.passed, s.inside, s.effect, s.ended)
	}
	for _, m := range w.machines {
		fmt.Fprint(&b, "#", m.byRow, m.over, m.waiting, m.beat, m.live, m.life)
		for _, id := range slices.Sorted(maps.Keys(m.requests)) {
			fmt.Fprintf(&b, "/%d%+v", id, *m.requests[id])
		}
	}
	return b.String()
}

// move is something that can happen next. Late ones happen only when nothing else can.
type move struct {
	name string
	do   func(w *world) error
}

func (w *world) runs(sidecar int) bool { return !w.dead[sidecar] && !w.stopped[sidecar] }

func (w *world) moves() (moves, late []move) {
	add := func(name string, do func(*world) error) { moves = append(moves, move{name, do}) }
	for i, p := range w.model.plan {
		s := w.requests[i]
		if !w.began[i] && w.runs(p.sidecar) {
			add(fmt.Sprintf("request %d arrives", i), func(w *world) error {
				w.began[i] = true
				e := mark.Entry{Admission: mark.Admission{Guard: "g", Key: "k", Token: p.token, Newer: p.newer}, Raise: p.token}
				return w.step(p.sidecar, Arrived{ID: ID(i + 1), Entry: e, At: w.now})
			})
		}
		if len(s.asks) > 0 && !s.asks[0].done { // also of a killed sidecar: what it asked for may still happen
			add(fmt.Sprintf("the store serves request %d", i), func(w *world) error { return w.serve(i) })
		}
		if len(s.asks) > 0 && s.asks[0].done && w.runs(p.sidecar) {
			add(fmt.Sprintf("its answer reaches request %d", i), func(w *world) error {
				answer := w.requests[i].asks[0].answer
				w.requests[i].asks = w.requests[i].asks[1:]
				switch a := answer.(type) {
				case Registered:
					a.At = w.now
					answer = a
				case Looked:
					a.At = w.now
					answer = a
				}
				return w.step(p.sidecar, answer)
			})
		}
		if s.cleared && w.runs(p.sidecar) {
			add(fmt.Sprintf("request %d is about to be sent", i), func(w *world) error {
				w.requests[i].cleared = false
				if p.barrier {
					w.requests[i].passed = true
					return w.step(p.sidecar, Ended{ID: ID(i + 1), Outcome: OutcomeNotSent})
				}
				return w.step(p.sidecar, FirstByte{ID: ID(i + 1), At: w.now})
			})
		}
		if s.inside && !s.effect {
			add(fmt.Sprintf("request %d takes effect", i), func(w *world) error { return w.takeEffect(i) })
		}
		if s.effect && !s.ended && w.runs(p.sidecar) {
			add(fmt.Sprintf("the resource answers request %d", i), func(w *world) error {
				w.requests[i].ended = true
				return w.step(p.sidecar, Ended{ID: ID(i + 1), Outcome: OutcomeSettled})
			})
		}
		if w.unclear < w.model.unclear && s.inside && !s.ended && w.runs(p.sidecar) && w.machines[p.sidecar].requests[ID(i+1)] != nil && w.machines[p.sidecar].requests[ID(i+1)].phase == Begun {
			add(fmt.Sprintf("request %d's answer is too late", i), func(w *world) error {
				w.unclear++
				return w.step(p.sidecar, Ended{ID: ID(i + 1), Outcome: OutcomeUnknown})
			})
		}
		if s.sleeping != nil && len(s.asks) == 0 && w.runs(p.sidecar) {
			late = append(late, move{fmt.Sprintf("request %d looks by itself", i), func(w *world) error {
				if w.requests[i].sleeping.Told && w.free(i) {
					return fmt.Errorf("request %d was to be told, and nobody told it that it can go on", i)
				}
				w.now = later(w.now, modelWait)
				return w.step(p.sidecar, Due{ID: ID(i + 1), At: w.now})
			}})
		}
	}
	for k := range w.machines {
		if len(w.settles[k]) > 0 && w.runs(k) {
			add(fmt.Sprintf("sidecar %d's settlement reaches the store", k), func(w *world) error {
				row := w.settles[k][0]
				w.settles[k] = w.settles[k][1:]
				delete(w.rows, row)
				if err := w.step(k, Removed{Rows: []mark.Row{row}}); err != nil {
					return err
				}
				if w.runs(1 - k) {
					return w.step(1-k, Hinted{"g", "k"})
				}
				return nil
			})
		}
		if w.crashes < w.model.kills && !w.dead[k] {
			add(fmt.Sprintf("sidecar %d is killed", k), func(w *world) error {
				w.dead[k] = true
				w.crashes++
				return nil
			})
		}
		if w.stops < w.model.stops && w.runs(k) {
			add(fmt.Sprintf("sidecar %d is stopped", k), func(w *world) error {
				w.stopped[k] = true
				w.stops++
				return nil
			})
		}
		if w.stopped[k] && !w.dead[k] {
			add(fmt.Sprintf("sidecar %d goes on", k), func(w *world) error {
				w.stopped[k] = false
				return nil
			})
		}
		if !w.runs(k) && !w.declared[k] {
			add(fmt.Sprintf("sidecar %d is declared dead", k), func(w *world) error {
				w.declared[k] = true
				w.advance(modelSilence, k)
				for row, r := range w.rows {
					if r.life == k {
						r.unsettled = true
						w.rows[row] = r
					}
				}
				return nil
			})
		}
	}
	for _, row := range slices.Sorted(maps.Keys(w.rows)) {
		r := w.rows[row]
		s := w.requests[r.request]
		// By time, or by an operator: either knows that the resource is done with it. Time knows after so long; an operator looks at the resource, and finds nothing of a request
		// that wasn't sent.
		if r.unsettled && (!s.inside || s.effect) {
			add(fmt.Sprintf("request %d is settled from outside", r.request), func(w *world) error {
				if w.model.releases {
					w.advance(modelAfter, -1)
				}
				delete(w.rows, row)
				return nil
			})
		}
	}
	return moves, late
}

// advance lets time pass. Sidecars that run have heartbeats meanwhile.
func (w *world) advance(by time.Duration, silent int) {
	w.now = later(w.now, by)
	for k, m := range w.machines {
		if k != silent && w.runs(k) && !w.declared[k] {
			m.Step(Beaten{Asked: w.now})
		}
	}
}

// free says whether nothing older stands in the way of a request.
func (w *world) free(i int) bool {
	for _, r := range w.rows {
		if r.token < w.model.plan[i].token {
			return false
		}
	}
	return true
}

// older lists a key's rows with a lower token.
func (w *world) older(token lock.Token) []mark.Row {
	var out []mark.Row
	for _, row := range slices.Sorted(maps.Keys(w.rows)) {
		if w.rows[row].token < token {
			out = append(out, row)
		}
	}
	return out
}

// serve lets the store do what a request asked for first.
func (w *world) serve(i int) error {
	p := w.model.plan[i]
	a := &w.requests[i].asks[0]
	if _, registers := a.action.(Register); registers && w.model.blind && !a.peeked {
		a.peeked, a.before = true, w.older(p.token)
		return nil
	}
	a.done = true
	id := ID(i + 1)
	switch action := a.action.(type) {
	case Register:
		if w.declared[p.sidecar] {
			a.answer = Registered{ID: id, Err: mark.ErrNoLife}
			return nil
		}
		decision := action.Entry.Judge(w.mark, w.mark > 0, false, 1000)
		result := mark.Registration{Decision: decision}
		if decision.Verdict == mark.Admitted {
			if p.token < w.mark {
				return fmt.Errorf("token %d was admitted after %d", p.token, w.mark)
			}
			w.mark = max(w.mark, p.token)
			w.next++
			result.Row = w.next
			if !w.model.unlisted {
				w.rows[w.next] = modelRow{token: p.token, request: i, life: p.sidecar}
			}
			if result.Older = w.older(p.token); w.model.blind {
				result.Older = a.before
			}
		}
		a.answer = Registered{ID: id, Result: result}
	case Look:
		r, there := w.rows[action.Row]
		a.answer = Looked{ID: id, Asked: w.now, Sight: mark.Sight{Present: there && !r.unsettled && !w.declared[p.sidecar], Mark: w.mark, Older: w.older(p.token)}}
	}
	return nil
}

// step runs an event and takes the actions into the world.
func (w *world) step(sidecar int, e Event) error {
	for _, a := range w.machines[sidecar].Step(e) {
		switch a := a.(type) {
		case Register:
			w.requests[a.ID-1].asks = append(w.requests[a.ID-1].asks, ask{action: a})
		case Look:
			w.requests[a.ID-1].sleeping = nil
			w.requests[a.ID-1].asks = append(w.requests[a.ID-1].asks, ask{action: a})
		case Sleep:
			w.requests[a.ID-1].sleeping = &a
		case Forward:
			w.requests[a.ID-1].sleeping, w.requests[a.ID-1].cleared = nil, true
		case Send:
			if err := w.send(int(a.ID - 1)); err != nil {
				return err
			}
		case Refuse:
			w.requests[a.ID-1].sleeping, w.requests[a.ID-1].refused = nil, true
		case SettleRow:
			w.settles[sidecar] = append(w.settles[sidecar], a.Row)
		case UnsettleRow:
			if r, ok := w.rows[a.Row]; ok {
				r.unsettled = true
				w.rows[a.Row] = r
			}
		}
	}
	return nil
}

func (w *world) send(i int) error {
	s, token := &w.requests[i], w.model.plan[i].token
	if s.sent++; s.sent > 1 {
		return fmt.Errorf("request %d was sent twice", i)
	}
	if s.refused {
		return fmt.Errorf("request %d was sent after it was refused", i)
	}
	for j, o := range w.requests {
		if o.inside && !o.effect && w.model.plan[j].token < token {
			return fmt.Errorf("token %d was forwarded while %d may still take effect", token, w.model.plan[j].token)
		}
	}
	s.inside = true
	w.forward = max(w.forward, token)
	return nil
}

func (w *world) takeEffect(i int) error {
	token := w.model.plan[i].token
	w.requests[i].effect = true
	w.effects = append(w.effects, token)
	if token < w.forward {
		return fmt.Errorf("token %d took effect after %d was forwarded", token, w.forward)
	}
	for j, o := range w.requests {
		if o.passed && token < w.model.plan[j].token {
			return fmt.Errorf("token %d took effect after the barrier of %d", token, w.model.plan[j].token)
		}
	}
	return nil
}

// explore tries everything from a state on.
func (m *model) explore(w *world) error {
	key := w.key()
	if m.seen[key] {
		return nil
	}
	m.seen[key] = true
	m.states++
	moves, late := w.moves()
	if len(moves) == 0 {
		moves = late
	}
	if len(moves) == 0 {
		m.ends++
		return w.finished()
	}
	for _, one := range moves {
		next := w.clone()
		next.trace = append(next.trace, one.name)
		if err := one.do(next); err != nil {
			return fmt.Errorf("%w, after: %s", err, strings.Join(next.trace, "; "))
		}
		if err := m.explore(next); err != nil {
			return err
		}
	}
	return nil
}

var errStuck = errors.New("a request never came to an end")

// finished: nothing more can happen. Every request of a sidecar that lives has come to an end.
func (w *world) finished() error {
	for i, p := range w.model.plan {
		s := w.requests[i]
		if w.began[i] && w.runs(p.sidecar) && !s.refused && !s.passed && s.sent == 0 {
			return fmt.Errorf("%w: request %d, after: %s", errStuck, i, strings.Join(w.trace, "; "))
		}
	}
	return nil
}
