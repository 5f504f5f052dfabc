package pgstore

import (
	"context"
	"fmt"
	"sync"

	"fenceline/lockd/lock"
)

// grouper lets calls that arrive together go to the store as one transaction. While its groups are at the store the next one forms, so nobody
// waits for company: a call that comes alone leaves at once, and the busier the store is the larger are the groups.
//
// A key is in one group at a time, and in that group once; what else there is for the key waits its turn. So two groups of a
// replica never wait for each other, and a key in trouble keeps nobody but itself waiting.
type grouper[A, R any] struct {
	// send gives each member its verdict, or marks it to be retried: nothing has happened then, and it is to run alone.
	send      func(ctx context.Context, members []*member[A, R])
	sendAlone func(ctx context.Context, m *member[A, R]) // gives the member its verdict
	flights   int                                        // groups at the store at once, at most
	size      int                                        // members of a group, at most
	waiting   int                                        // members that wait, at most
	alone     chan struct{}                              // a place for each member that runs alone

	mu      sync.Mutex
	pending []*member[A, R] // in the order of arrival
	busy    map[string]bool // keys at the store, in a group or alone
	flying  int
}

// member is one call. What it asks for stands still once it has left.
type member[A, R any] struct {
	ctx     context.Context //nolint:containedctx // the caller's, to leave out those who have gone
	key     string
	ask     A
	verdict verdict[R]
	retry   bool
	ready   chan struct{} // closed when verdict or retry is there
}

// verdict is how a call ended.
type verdict[R any] struct {
	answer R
	err    error
}

// errTooMany sheds load before memory is used without bound.
var errTooMany = fmt.Errorf("%w: too many calls are waiting for the database", lock.ErrUnavailable)

// do sends the call with the next group, and alone if the group comes to nothing. When ctx ends before the call has left, nothing happens. After
// that do waits for the outcome, whatever ctx says: a grant must not go unnoticed. The store's own time limits bound that.
func (g *grouper[A, R]) do(ctx context.Context, key string, ask A) (R, error) {
	m := &member[A, R]{ctx: ctx, key: key, ask: ask, ready: make(chan struct{})}
	if err := g.join(m); err != nil {
		return m.verdict.answer, err
	}
	select {
	case <-m.ready:
	case <-ctx.Done():
		if g.withdraw(m) {
			return m.verdict.answer, fmt.Errorf("%w: %w", lock.ErrUnavailable, context.Cause(ctx))
		}
		<-m.ready
	}
	if m.retry {
		g.goAlone(ctx, m)
	}
	return m.verdict.answer, m.verdict.err
}

// goAlone sends a call whose group came to nothing.
func (g *grouper[A, R]) goAlone(ctx context.Context, m *member[A, R]) {
	defer g.free(m.key)
	select {
	case g.alone <- struct{}{}:
		defer func() { <-g.alone }()
		g.sendAlone(ctx, m)
	case <-ctx.Done():
		m.verdict.err = fmt.Errorf("%w: %w", lock.ErrUnavailable, context.Cause(ctx))
	}
}

// join puts the call into the queue and starts another flight if there is room for one.
func (g *grouper[A, R]) join(m *member[A, R]) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.pending) >= g.waiting {
		return errTooMany
	}
	g.pending = append(g.pending, m)
	g.takeOff()
	return nil
}

// takeOff starts a flight if there is room and somebody to take along.
func (g *grouper[A, R]) takeOff() {
	if g.flying >= g.flights {
		return
	}
	if group := g.board(); len(group) > 0 {
		g.flying++
		go g.fly(group)
	}
}

// fly sends groups until nobody waits.
func (g *grouper[A, R]) fly(group []*member[A, R]) {
	for len(group) > 0 {
		g.send(context.WithoutCancel(group[0].ctx), group)
		g.mu.Lock()
		for _, m := range group {
			if !m.retry {
				delete(g.busy, m.key)
			}
			close(m.ready)
		}
		if group = g.board(); len(group) == 0 {
			g.flying--
		}
		g.mu.Unlock()
	}
}

// board takes the next group out of the queue: those who came first, each key once, and none that is busy. Whoever has given up
// stays behind and takes itself out.
func (g *grouper[A, R]) board() []*member[A, R] {
	var group []*member[A, R]
	kept := g.pending[:0]
	for _, m := range g.pending {
		if len(group) < g.size && !g.busy[m.key] && m.ctx.Err() == nil {
			g.busy[m.key] = true
			group = append(group, m)
		} else {
			kept = append(kept, m)
		}
	}
	clear(g.pending[len(kept):])
	g.pending = kept
	return group
}

// withdraw takes a call out of the queue; false when it has left already.
func (g *grouper[A, R]) withdraw(m *member[A, R]) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, other := range g.pending {
		if other == m {
			g.pending = append(g.pending[:i], g.pending[i+1:]...)
			return true
		}
	}
	return false
}

// free lets the next call for the key board, after one that ran alone.
func (g *grouper[A, R]) free(key string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.busy, key)
	g.takeOff()
}
