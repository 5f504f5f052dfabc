// Package grouped lets calls that arrive together go to a store as one transaction.
package grouped

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Grouper lets calls that arrive together go to the store as one transaction. While its groups are at the store the next one forms: a call that comes
// alone leaves at once, and the busier the store is the larger are the groups.
//
// A group costs much by itself, its commit above all, and few are cheaper than many. So with Company set a further group leaves beside others only when it is worth its
// while; else its calls wait for one of those to return, but no longer than Patience for one that takes long.
//
// A key is in one group at a time, and in that group once; what else there is for the key waits its turn. So two groups of a
// replica never wait for each other, and a key in trouble keeps nobody but itself waiting.
type Grouper[A, R any] struct {
	// Send gives each member its answer, or marks it to be retried: nothing has happened then, and it is to run alone. Its context is nobody's: one caller that goes must
	// not end a group for the others.
	Send      func(ctx context.Context, members []*Member[A, R])
	SendAlone func(ctx context.Context, m *Member[A, R]) // gives the member its answer; its context is the caller's
	Flights   int                                        // groups at the store at once, at most
	Size      int                                        // members of a group, at most
	Company   int                                        // members that a group wants before it leaves while another one is at the store; 0: one
	Patience  time.Duration                              // after which it leaves with fewer, up to twice as long if groups came and went meanwhile
	Waiting   int                                        // members that wait, at most
	Alone     chan struct{}                              // a place for each member that runs alone

	mu      sync.Mutex
	pending []*Member[A, R] // in the order of arrival
	busy    map[string]bool // keys at the store, in a group or alone
	flying  int
	left    int  // groups so far
	timed   bool // a timer looks after those who wait for company
}

// Member is one call. What it asks for stands still once it has left.
type Member[A, R any] struct {
	Key string
	Ask A
	// Answer and Err are how the call ended.
	Answer R
	Err    error
	Retry  bool

	ctx   context.Context //nolint:containedctx // the caller's, to leave out those who have gone
	ready chan struct{}   // closed when an answer or Retry is there
}

// What a call can fail for that never left: nothing has happened.
var (
	// ErrNotSent means that a call never left, since its caller went, or because of ErrTooMany.
	ErrNotSent = errors.New("the call wasn't sent")
	// ErrTooMany sheds load before memory is used without bound.
	ErrTooMany = errors.New("too many calls are waiting")
	// ErrKeyBusy says of a call that wasn't sent that an earlier one for its key was still at the store.
	ErrKeyBusy = errors.New("an earlier call for this key is at the store")
)

// Do sends the call with the next group, and alone if the group comes to nothing. When ctx ends before the call has left, nothing happens (ErrNotSent). After
// that Do waits for the outcome, whatever ctx says: what happened must not go unnoticed. The store's own time limits bound that.
func (g *Grouper[A, R]) Do(ctx context.Context, key string, ask A) (R, error) {
	m := &Member[A, R]{ctx: ctx, Key: key, Ask: ask, ready: make(chan struct{})}
	if err := g.join(m); err != nil {
		return m.Answer, err
	}
	select {
	case <-m.ready:
	case <-ctx.Done():
		if left, err := g.withdraw(m); !left {
			return m.Answer, err
		}
		<-m.ready
	}
	if m.Retry {
		g.goAlone(ctx, m)
	}
	return m.Answer, m.Err
}

// goAlone sends a call whose group came to nothing.
func (g *Grouper[A, R]) goAlone(ctx context.Context, m *Member[A, R]) {
	defer g.free(m.Key)
	select {
	case g.Alone <- struct{}{}:
		defer func() { <-g.Alone }()
		g.SendAlone(ctx, m)
	case <-ctx.Done():
		m.Err = notSent(ctx)
	}
}

func notSent(ctx context.Context) error { return fmt.Errorf("%w: %w", ErrNotSent, context.Cause(ctx)) }

// join puts the call into the queue and starts another flight if there is room for one.
func (g *Grouper[A, R]) join(m *Member[A, R]) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.pending) >= g.Waiting {
		return fmt.Errorf("%w: %w", ErrNotSent, ErrTooMany)
	}
	if g.busy == nil {
		g.busy = map[string]bool{}
	}
	g.pending = append(g.pending, m)
	g.takeOff(false)
	return nil
}

// takeOff starts a flight if there is room and somebody to take along.
func (g *Grouper[A, R]) takeOff(late bool) {
	if g.flying >= g.Flights || !late && !g.worthwhile(g.flying) {
		return
	}
	if group := g.board(); len(group) > 0 {
		g.flying++
		go g.fly(group)
	}
}

// worthwhile says whether those who wait are to leave now, beside so many other flights. If not, it sees to it that they don't wait for company for long.
func (g *Grouper[A, R]) worthwhile(others int) bool {
	if others == 0 || len(g.pending) >= g.Company {
		return true
	}
	if !g.timed && len(g.pending) > 0 {
		g.timed = true
		left := g.left
		time.AfterFunc(g.Patience, func() { g.beLate(left) })
	}
	return false
}

// beLate lets those leave who have waited since the timer was set, which is when as many groups had left as now. If there were more meanwhile, most of
// those who wait now came later, and they get as much time.
func (g *Grouper[A, R]) beLate(left int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.timed = false
	g.takeOff(g.left == left)
}

// fly sends groups until nobody waits.
func (g *Grouper[A, R]) fly(group []*Member[A, R]) {
	for len(group) > 0 {
		g.Send(context.WithoutCancel(group[0].ctx), group)
		g.mu.Lock()
		for _, m := range group {
			if !m.Retry {
				delete(g.busy, m.Key)
			}
			close(m.ready)
		}
		group = nil
		if g.worthwhile(g.flying - 1) {
			group = g.board()
		}
		if len(group) == 0 {
			g.flying--
		}
		g.mu.Unlock()
	}
}

// board takes the next group out of the queue: those who came first, each key once, and none that is busy. Whoever has given up
// stays behind and takes itself out.
func (g *Grouper[A, R]) board() []*Member[A, R] {
	var group []*Member[A, R]
	kept := g.pending[:0]
	for _, m := range g.pending {
		if len(group) < g.Size && !g.busy[m.Key] && m.ctx.Err() == nil {
			g.busy[m.Key] = true
			group = append(group, m)
		} else {
			kept = append(kept, m)
		}
	}
	clear(g.pending[len(kept):])
	g.pending = kept
	if len(group) > 0 {
		g.left++
	}
	return group
}

// withdraw takes a call out of the queue and says why it comes to nothing; left is true when it is gone already.
func (g *Grouper[A, R]) withdraw(m *Member[A, R]) (left bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, other := range g.pending {
		if other == m {
			g.pending = append(g.pending[:i], g.pending[i+1:]...)
			err = notSent(m.ctx)
			if g.busy[m.Key] {
				err = fmt.Errorf("%w: %w", ErrKeyBusy, err)
			}
			return false, err
		}
	}
	return true, nil
}

// free lets the next call for the key board, after one that ran alone.
func (g *Grouper[A, R]) free(key string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.busy, key)
	g.takeOff(false)
}

// Flying is the number of groups at the store.
func (g *Grouper[A, R]) Flying() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.flying
}

// Pending is the number of calls that wait for the next group.
func (g *Grouper[A, R]) Pending() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.pending)
}
