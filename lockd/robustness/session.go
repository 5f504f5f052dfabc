package robustness

import (
	"fmt"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// sessionState is one session: alive for a while, or closed.
type sessionState struct {
	clock  time.Duration
	life   life
	closed bool
}

// sessionOver says whether op was refused for its session.
func (o *Op) sessionOver() bool { return o.Result == Expired || o.Result == Gone }

// stepSession returns the states that a session may be in after op. Acquires are here as witnesses: one that was granted has seen the session alive, one
// that was refused for it has seen it dead.
//
// Expired isn't the last word while a heartbeat is under way: it may have judged the session by an instant at which it lived. Gone is.
func stepSession(s sessionState, op *Op, late time.Duration) []sessionState {
	happened := s
	happened.clock = max(s.clock, op.Call)
	mayLive := !s.closed && s.life.latest >= op.Call
	switch {
	case op.Kind == Open:
		happened.life = after(op, late)
	case op.sessionOver():
		if !s.closed {
			happened.clock = max(happened.clock, s.life.earliest)
			happened.life = life{ever, min(s.life.latest, op.Return)}
			happened.closed = op.Result == Gone
		}
	case op.Kind == Close: // one that has expired but is still there can be closed
		happened.closed = true
		if op.Result != Unknown && s.closed {
			return nil
		}
	case !mayLive && op.Result == Unknown:
		return []sessionState{s}
	case !mayLive:
		return nil
	case op.Kind == Heartbeat:
		happened.life = after(op, late)
	}
	if op.Result == Unknown {
		return []sessionState{s, happened}
	}
	if happened.clock > op.Return {
		return nil
	}
	return []sessionState{happened}
}

func sessionModel(late time.Duration) porcupine.Model {
	nondeterministic := porcupine.NondeterministicModel{
		Init: func() []any { return []any{sessionState{clock: ever, life: life{ever, ever}}} },
		Step: func(state, input, _ any) []any {
			var states []any
			for _, s := range stepSession(state.(sessionState), input.(*Op), late) {
				states = append(states, s)
			}
			return states
		},
		Hash: func(state any) uint64 {
			s := state.(sessionState)
			return uint64(s.clock)*31 + uint64(s.life.earliest)*17 + uint64(s.life.latest) //nolint:gosec // bits, not a number
		},
		DescribeOperation: func(input, _ any) string { return input.(*Op).String() },
		DescribeState: func(state any) string {
			s := state.(sessionState)
			return fmt.Sprintf("alive %s, closed %t", s.life, s.closed)
		},
	}
	return nondeterministic.ToModel()
}

// sessionLife bounds the end of a session by all that is known of it, later operations included: who has had a heartbeat
// answered at noon was alive in the morning.
func sessionLife(ops []*Op, late time.Duration) life {
	l := life{earliest: ever, latest: ever}
	for _, op := range ops {
		if (op.Kind == Open || op.Kind == Heartbeat) && op.Result == OK {
			l.earliest, l.latest = max(l.earliest, after(op, late).earliest), max(l.latest, after(op, late).latest)
		}
	}
	for _, op := range ops {
		if op.Kind == Heartbeat && op.Result == Unknown { // delayed, it may set back what a later one has set
			l.earliest, l.latest = min(l.earliest, after(op, late).earliest), forever
		}
	}
	for _, op := range ops {
		switch {
		case op.Kind == Close && op.Result == Unknown:
			l.earliest = min(l.earliest, op.Call)
		case op.Kind == Close && op.Result == OK:
			l.earliest, l.latest = min(l.earliest, op.Call), min(l.latest, op.Return)
		case op.Result == Gone, op.Result == Expired && !mayBeRevived(op, ops):
			l.latest = min(l.latest, op.Return)
		}
	}
	return l
}

// mayBeRevived says whether a heartbeat was under way when a session was said to have expired.
func mayBeRevived(expired *Op, ops []*Op) bool {
	return slices.ContainsFunc(ops, func(op *Op) bool {
		return op.Kind == Heartbeat && op.Call <= expired.Return && (op.Result == Unknown || op.Result == OK && op.Return >= expired.Call)
	})
}

// doubts are the spans in which a session may look expired and yet live on: its time was over, and the heartbeat that prolonged it, judged by
// an instant before, hadn't taken effect.
func doubts(ops []*Op, late time.Duration) []life {
	var spans []life
	end := ever // the earliest, by what was answered before
	for _, op := range ops {
		if op.Kind != Open && op.Kind != Heartbeat {
			continue
		}
		until := op.Return
		if op.Result == Unknown {
			until = forever
		}
		if op.Kind == Heartbeat && end < until {
			spans = append(spans, life{end, until})
		}
		if op.Result == OK {
			end = after(op, late).earliest
		}
	}
	return spans
}
