package pgmark

import (
	"context"
	"fmt"
	"sync"

	"fenceline/lockd/lock"
	"fenceline/sidecar/mark"
)

const (
	maxGroup   = 128
	maxFlights = 2 // while one group waits for the disk the next one is prepared
)

// groups lets the registrations of one guard that arrive together go to the store as one transaction. Nobody waits for company: while groups are at the store the next
// one forms. A key is in one group at a time, once.
type groups struct {
	send func(ctx context.Context, group []*asked) ([]answered, error)

	mu      sync.Mutex
	pending []*member
	busy    map[string]bool
	flying  int
}

// member is a registration that waits for its group.
type member struct {
	*asked
	ctx    context.Context //nolint:containedctx // the caller's: whoever has gone isn't taken along
	answer answered
	err    error
	ready  chan struct{}
}

// do sends an entry with the next group. Its answer says alone where the group decided nothing for it.
func (q *groups) do(ctx context.Context, a *asked) (answered, error) {
	m := &member{asked: a, ctx: ctx, ready: make(chan struct{})}
	q.mu.Lock()
	q.pending = append(q.pending, m)
	if q.flying < maxFlights {
		if group := q.board(); len(group) > 0 {
			q.flying++
			go q.fly(context.WithoutCancel(ctx), group)
		}
	}
	q.mu.Unlock()
	select {
	case <-m.ready:
		return m.answer, m.err
	case <-ctx.Done(): // it may yet be registered; then the row is found by a heartbeat
		return answered{}, fmt.Errorf("%w: %w", mark.ErrUnavailable, context.Cause(ctx))
	}
}

// board takes the next group: those who came first, each key once, none that is at the store.
func (q *groups) board() []*member {
	var group []*member
	kept := q.pending[:0]
	for _, m := range q.pending {
		switch {
		case m.ctx.Err() != nil: // gone, unregistered
		case len(group) < maxGroup && !q.busy[m.entry.Key]:
			q.busy[m.entry.Key] = true
			group = append(group, m)
		default:
			kept = append(kept, m)
		}
	}
	clear(q.pending[len(kept):])
	q.pending = kept
	return group
}

// fly sends groups until nobody waits. Its context isn't any caller's: one that goes must not end a group for the others. The store's time limits bound it.
func (q *groups) fly(ctx context.Context, group []*member) {
	for len(group) > 0 {
		entries := make([]*asked, 0, len(group))
		for _, m := range group {
			entries = append(entries, m.asked)
		}
		answers, err := q.send(ctx, entries)
		q.mu.Lock()
		for i, m := range group {
			delete(q.busy, m.entry.Key)
			switch {
			case err == nil:
				m.answer = answers[i]
			case aGroupAtFault(err) && len(group) > 1: // perhaps a neighbour's fault: each goes alone
				m.answer.alone = true
			default:
				m.err = err
			}
			close(m.ready)
		}
		if group = q.board(); len(group) == 0 {
			q.flying--
		}
		q.mu.Unlock()
	}
}

// marks remembers marks that were seen committed. It is bounded: what is forgotten is asked for again.
type marks struct {
	mu   sync.Mutex
	seen map[[2]string]lock.Token
}

// maxMarks bounds the memory, at about 200 bytes each.
const maxMarks = 50_000

func (m *marks) get(guard, key string) lock.Token {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.seen[[2]string{guard, key}]
}

func (m *marks) put(guard, key string, token lock.Token) {
	m.mu.Lock()
	defer m.mu.Unlock()
	id := [2]string{guard, key}
	if m.seen == nil {
		m.seen = map[[2]string]lock.Token{}
	}
	if _, known := m.seen[id]; !known && len(m.seen) >= maxMarks {
		for old := range m.seen { // any will do
			delete(m.seen, old)
			break
		}
	}
	m.seen[id] = max(m.seen[id], token)
}

func (m *marks) clear() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.seen = nil
}

// remember keeps what a group learned of its keys' marks, now that it is committed.
func (s *Store) remember(guard string, group []*asked, out []answered) {
	for i, a := range group {
		switch {
		case out[i].Verdict == mark.Admitted && a.entry.Raise == a.entry.Token:
			s.marks.put(guard, a.entry.Key, a.entry.Token)
		case out[i].Verdict == mark.FencedOut:
			s.marks.put(guard, a.entry.Key, out[i].Highest)
		}
	}
	s.groupSize(guard, len(group))
}
