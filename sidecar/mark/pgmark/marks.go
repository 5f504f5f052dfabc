package pgmark

import (
	"sync"
	"time"

	"fenceline/lockd/lock"
	"fenceline/sidecar/mark"
)

// marks remembers marks that were seen committed. It is bounded: what is forgotten is asked for again.
type marks struct {
	mu   sync.Mutex
	seen map[[2]string]seen
}

// seen is a mark and when it was seen last.
type seen struct {
	token lock.Token
	at    time.Time
}

// maxMarks bounds the memory, at about 200 bytes each.
const maxMarks = 50_000

func (m *marks) get(guard, key string) lock.Token {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.seen[[2]string{guard, key}].token
}

// recent is get for marks that were seen a short while ago; 0 for older ones.
func (m *marks) recent(guard, key string, within time.Duration) lock.Token {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.seen[[2]string{guard, key}]; s.token != 0 && time.Since(s.at) < within {
		return s.token
	}
	return 0
}

func (m *marks) put(guard, key string, token lock.Token) {
	m.mu.Lock()
	defer m.mu.Unlock()
	id := [2]string{guard, key}
	if m.seen == nil {
		m.seen = map[[2]string]seen{}
	}
	if _, known := m.seen[id]; !known && len(m.seen) >= maxMarks {
		for old := range m.seen { // any will do
			delete(m.seen, old)
			break
		}
	}
	if token >= m.seen[id].token {
		m.seen[id] = seen{token, time.Now()}
	}
}

func (m *marks) forget(guard, key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.seen, [2]string{guard, key})
}

func (m *marks) clear() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.seen = nil
}

// remember keeps what a group learned of its keys' marks, now that it is committed. No other group has one of these keys before this one's members have their answers, so what is
// kept isn't older than what is there.
func (s *Store) remember(guard string, group []*registering) {
	for _, m := range group {
		switch e := m.Ask.entry; {
		case m.Answer.Verdict == mark.Admitted && e.Raise == e.Token:
			s.marks.put(guard, e.Key, e.Token)
		case m.Answer.Verdict == mark.Admitted: // a barrier: the mark may be higher than what is remembered, and isn't known
			s.marks.forget(guard, e.Key)
		case m.Answer.Verdict == mark.FencedOut:
			s.marks.put(guard, e.Key, m.Answer.Highest)
		}
	}
}
