package pgstore

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"
)

// channel is the name under which replicas tell each other of keys that may be free.
const channel = "lockd_freed"

const (
	// noticeSize keeps a payload under PostgreSQL's limit of 8 000 bytes.
	noticeSize = 7_000
	// maxNotices is how many keys are remembered while a notice is on its way; beyond that it says "any".
	maxNotices    = 10_000
	noticeTimeout = 2 * time.Second
	// noticePause lets a busy store say in one notice what it would say in many. The first one after a quiet time goes out at once.
	noticePause = 5 * time.Millisecond
)

// notices are the keys that waiters are still to hear of. They are sent after the commit that freed them, by a transaction of its own, a
// single one at a time: NOTIFY takes a lock at its commit that the whole server shares, and in the transactions that do the work it
// would let one of them commit at a time, disk and all.
type notices struct {
	mu      sync.Mutex
	keys    map[string]bool
	sending bool
	closed  bool
	idle    chan struct{} // closed when the sender has ended; nil before the first one
}

// freed tells whoever waits for the keys, soon. An empty key stands for any.
func (s *Store) freed(keys ...string) {
	if len(keys) == 0 {
		return
	}
	n := &s.notices
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return
	}
	if n.keys == nil {
		n.keys = map[string]bool{}
	}
	for _, key := range keys {
		n.keys[key] = true
	}
	if len(n.keys) > maxNotices {
		n.keys = map[string]bool{"": true}
	}
	if !n.sending {
		n.sending, n.idle = true, make(chan struct{})
		go s.sendNotices(n.idle)
	}
}

// sendNotices sends what there is until there is nothing. What can't be sent is dropped: it was a hint.
func (s *Store) sendNotices(done chan struct{}) {
	defer close(done)
	for {
		keys := s.notices.take()
		if keys == nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), noticeTimeout)
		err := s.notify(ctx, payloads(keys))
		cancel()
		if err != nil {
			s.logger.Debug("waiters weren't told of freed keys", "event", "notify_failed", "error", err)
		}
		<-time.After(noticePause)
	}
}

// take empties the list; nil ends the sender.
func (n *notices) take() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.keys) == 0 {
		n.sending = false
		return nil
	}
	keys := make([]string, 0, len(n.keys))
	for key := range n.keys {
		keys = append(keys, key)
	}
	n.keys = nil
	return keys
}

// payloads packs keys, which hold no space, into as few notices as fit. "" says that any key may be free.
func payloads(keys []string) []string {
	if slices.Contains(keys, "") {
		return []string{""}
	}
	slices.Sort(keys)
	var all []string
	var one strings.Builder
	for _, key := range keys {
		if one.Len() > 0 && one.Len()+1+len(key) > noticeSize {
			all = append(all, one.String())
			one.Reset()
		}
		if one.Len() > 0 {
			one.WriteByte(' ')
		}
		one.WriteString(key)
	}
	return append(all, one.String())
}

// sendNotice needn't be durable: whoever waits also looks by itself. In a statement of its own, so that it is a transaction of its own. A row each.
const sendNotice = `
SELECT pg_notify($1, payload)
  FROM (SELECT set_config('synchronous_commit', 'off', true)) AS hurried, unnest($2::text[]) AS payload`

func (s *Store) notify(ctx context.Context, payloads []string) error {
	_, err := s.pool.Exec(ctx, sendNotice, channel, payloads)
	return err
}

// Close waits for what is still to be told to others. Use it before the pool is closed.
func (s *Store) Close() {
	s.notices.mu.Lock()
	s.notices.closed = true
	idle := s.notices.idle
	s.notices.mu.Unlock()
	if idle != nil {
		<-idle
	}
}
