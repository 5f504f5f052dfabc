package robustness

import (
	"fmt"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// life bounds the end of something that lasts for a time: it is over at the earliest at earliest and at the latest at latest. A store
// fixes the end when it answers, somewhere between a call and its return, by a clock that runs as fast as ours.
type life struct{ earliest, latest time.Duration }

const ever = -forever

func (l life) String() string {
	from, to := "at any time", "never"
	if l.earliest != ever && l.earliest != forever {
		from = fmt.Sprintf("at %.3f ms", millis(l.earliest))
	}
	if l.latest != forever {
		to = fmt.Sprintf("at %.3f ms", millis(l.latest))
	}
	return fmt.Sprintf("until an end that comes %s at the earliest and %s at the latest", from, to)
}

// after is the life that begins while op is under way and lasts for its time, for some stores a little longer.
func after(op *Op, late time.Duration) life {
	l := life{earliest: op.Call + op.Waited + op.TTL, latest: forever}
	if op.Result != Unknown {
		l.latest = op.Return + op.TTL + late
	}
	return l
}

// grant is what holds a key. No token: nobody does. An unseen token is that of an acquire whose answer was lost.
type grant struct {
	token   int64
	session int
	life    life
}

const unseen = -1

// keyState is one key of a fenced mutex with expiry.
type keyState struct {
	highest int64         // every later token is above it
	clock   time.Duration // it is at least so late
	holder  grant
}

// keyModel judges the operations on one key. Lives are those of the sessions, judged by all that is known of them (session.go).
type keyModel struct {
	above int64
	late  time.Duration
	lives map[int]life
	// doubts are the spans in which a session may have looked expired, and a reader been told so, before a heartbeat took effect.
	doubts map[int][]life
}

// step returns the states that the key may be in after op, none when op's answer was impossible. An operation takes effect at an
// instant that isn't before its call nor before anything that has happened already (clock), and not after its return. What an
// operation compares with the store's time may be compared with an instant a little before its effect, but not before its call: a
// transaction's now() is its beginning. So whether something may still be alive is judged by the call alone.
func (m *keyModel) step(s keyState, op *Op) []keyState {
	happened := s
	happened.clock = max(s.clock, op.Call)
	if op.Result == Unknown {
		return m.unknown(s, happened, op)
	}
	if happened.clock > op.Return {
		return nil
	}
	var legal bool
	switch op.Kind {
	case Acquire:
		legal = m.acquire(&happened, op)
	case Renew:
		legal = m.renew(&happened, op)
	case Release:
		legal = m.release(&happened, op)
	case Revoke:
		legal = m.revoke(&happened, op)
	default: // a session's operation belongs to no key
	}
	if !legal || happened.clock > op.Return {
		return nil
	}
	return []keyState{happened}
}

// unknown: it never happens, or it does.
func (m *keyModel) unknown(s, happened keyState, op *Op) []keyState {
	states := []keyState{s}
	effect := false
	switch op.Kind {
	case Acquire:
		effect = m.vacate(&happened, op.Session)
		// Nobody knows of this grant, so nobody relies on it: the server may give it up at any time.
		happened.holder = grant{token: unseen, session: op.Session, life: life{ever, forever}}
	case Renew:
		effect = m.holds(&happened, op.Token) && m.mayLive(happened.holder, op)
		happened.holder.life = after(op, m.late)
	case Release:
		effect = m.holds(&happened, op.Token)
		happened.holder = grant{}
	case Revoke:
		effect = happened.holder.token != 0 && (op.Token == 0 || op.Token == happened.holder.token || happened.holder.token == unseen)
		happened.holder = grant{}
	default: // a session's operation belongs to no key
	}
	if effect {
		states = append(states, happened)
	}
	return states
}

func (m *keyModel) acquire(s *keyState, op *Op) bool {
	if op.Result == Contended {
		return s.holder.token != 0 && s.holder.session != op.Session && m.mayLive(s.holder, op)
	}
	if op.Got <= s.highest || m.life(op.Session).latest < op.Call || !m.vacate(s, op.Session) {
		return false
	}
	s.highest = op.Got
	s.holder = grant{token: op.Got, session: op.Session, life: after(op, m.late)}
	return true
}

func (m *keyModel) renew(s *keyState, op *Op) bool {
	if op.Result == Lost {
		if m.holds(s, op.Token) {
			m.over(s, op)
		}
		return true
	}
	if !m.holds(s, op.Token) || !m.mayLive(s.holder, op) {
		return false
	}
	s.holder.life = after(op, m.late)
	return true
}

func (m *keyModel) release(s *keyState, op *Op) bool {
	holds := m.holds(s, op.Token)
	if op.Result == Stale {
		if holds { // it has been reaped
			m.over(s, op)
			s.holder = grant{}
		}
		return true
	}
	s.holder = grant{}
	return holds
}

func (m *keyModel) revoke(s *keyState, op *Op) bool {
	switch op.Result {
	case NotHeld:
		if s.holder.token != 0 && !m.inDoubt(s.holder.session, op) {
			m.over(s, op)
		}
		return true
	case Mismatch:
		return s.holder.token != 0 && s.holder.token != op.Token && m.mayLive(s.holder, op)
	default:
	}
	if s.holder.token != op.Got && (s.holder.token != unseen || op.Got <= s.highest) {
		return false
	}
	if op.Token != 0 && op.Token != op.Got || op.Floor <= max(s.highest, op.Got) || !m.mayLive(s.holder, op) {
		return false
	}
	s.highest, s.holder = op.Floor, grant{}
	return true
}

func (m *keyModel) holds(s *keyState, token int64) bool { return s.holder.token == token }

func (m *keyModel) life(session int) life {
	if l, known := m.lives[session]; known {
		return l
	}
	return life{forever, forever} // a session whose end nothing speaks of
}

// end is the earliest instant at which the grant may be over, by its own time or by its session's.
func (m *keyModel) end(g grant) time.Duration {
	return min(g.life.earliest, m.life(g.session).earliest)
}

// mayLive says whether the grant may be alive at some instant since op's call.
func (m *keyModel) mayLive(g grant, op *Op) bool {
	return g.life.latest >= op.Call && m.life(g.session).latest >= op.Call
}

// inDoubt says whether the session may have looked expired while op was under way.
func (m *keyModel) inDoubt(session int, op *Op) bool {
	return slices.ContainsFunc(m.doubts[session], func(d life) bool { return d.earliest <= op.Return && op.Call <= d.latest })
}

// vacate makes room for the session: the key is free, or its own, or its holder's time is over by now.
func (m *keyModel) vacate(s *keyState, session int) bool {
	if s.holder.token != 0 && s.holder.session != session {
		s.clock = max(s.clock, m.end(s.holder))
	}
	return s.clock < forever
}

// over: op was told that the holder's time is over. It is so from now on, but for an unknown renewal that has judged it before.
func (m *keyModel) over(s *keyState, op *Op) {
	s.clock = max(s.clock, m.end(s.holder))
	s.holder.life = life{earliest: ever, latest: min(s.holder.life.latest, op.Return)}
}

// model is the key as porcupine wants it.
func (m *keyModel) model() porcupine.Model {
	nondeterministic := porcupine.NondeterministicModel{
		Init: func() []any { return []any{keyState{highest: m.above, clock: ever}} },
		Step: func(state, input, _ any) []any {
			var states []any
			for _, s := range m.step(state.(keyState), input.(*Op)) {
				states = append(states, s)
			}
			return states
		},
		Hash:              func(state any) uint64 { return state.(keyState).hash() },
		DescribeOperation: func(input, _ any) string { return input.(*Op).String() },
		DescribeState:     func(state any) string { return state.(keyState).String() },
	}
	return nondeterministic.ToModel()
}

func (s keyState) hash() uint64 {
	h := uint64(14695981039346656037)
	for _, n := range []int64{s.highest, int64(s.clock), s.holder.token, int64(s.holder.session), int64(s.holder.life.earliest), int64(s.holder.life.latest)} {
		h = (h ^ uint64(n)) * 1099511628211 //nolint:gosec // bits, not a number
	}
	return h
}

func (s keyState) String() string {
	switch s.holder.token {
	case 0:
		return fmt.Sprintf("free, highest %d", s.highest)
	case unseen:
		return fmt.Sprintf("a grant whose answer was lost holds it (s%d), highest %d", s.holder.session, s.highest)
	}
	return fmt.Sprintf("%d (s%d) holds it %s, highest %d", s.holder.token, s.holder.session, s.holder.life, s.highest)
}
