package pgstore

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"fenceline/lockd/lock"
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

// notices are the grants whose end waiters are still to hear of: of each key the latest. They are sent after the commit that freed them, by a transaction of its own, a
// single one at a time: NOTIFY takes a lock at its commit that the whole server shares, and in the transactions that do the work it
// would let one of them commit at a time, disk and all.
type notices struct {
	mu      sync.Mutex
	grants  map[string]lock.Token
	sending bool
	closed  bool
	idle    chan struct{} // closed when the sender has ended; nil before the first one
	audience
}

// freed tells whoever waits for the key, soon, that the grant with the token has ended. An empty key stands for any. Where no other replica listens
// the database isn't troubled with it.
func (s *Store) freed(ctx context.Context, key string, token lock.Token) {
	if tell := s.notices.add(key, token, func(idle chan struct{}) { go s.sendNotices(context.WithoutCancel(ctx), idle) }); tell != nil {
		tell(key, token)
	}
}

// add notes a grant for the next notice, and starts the sender if there is none. Where nobody else listens it returns the one to tell instead.
func (n *notices) add(key string, token lock.Token, start func(idle chan struct{})) (tell func(key string, token lock.Token)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil
	}
	if n.nobodyElse(time.Now()) {
		return n.tell
	}
	if n.grants == nil {
		n.grants = map[string]lock.Token{}
	}
	n.grants[key] = max(n.grants[key], token)
	if len(n.grants) > maxNotices {
		n.grants = map[string]lock.Token{"": 0}
	}
	if !n.sending {
		n.sending, n.idle = true, make(chan struct{})
		start(n.idle)
	}
	return nil
}

// sendNotices sends what there is until there is nothing. What can't be sent is dropped: it was a hint.
func (s *Store) sendNotices(ctx context.Context, done chan struct{}) {
	defer close(done)
	for {
		grants := s.notices.take()
		if grants == nil {
			return
		}
		one, cancel := context.WithTimeout(ctx, noticeTimeout)
		err := s.notify(one, payloads(grants))
		cancel()
		if err != nil {
			s.logger.Debug("waiters weren't told of freed keys", "event", "notify_failed", "error", err)
		}
		<-time.After(noticePause)
	}
}

// take empties the list; nil ends the sender.
func (n *notices) take() map[string]lock.Token {
	n.mu.Lock()
	defer n.mu.Unlock()
	grants := n.grants
	n.grants = nil
	n.sending = grants != nil
	return grants
}

// payloads packs grants as key=token, with a space between two, into as few notices as fit. "" says that any may have ended.
func payloads(grants map[string]lock.Token) []string {
	if _, anyOfThem := grants[""]; anyOfThem {
		return []string{""}
	}
	var all []string
	var one strings.Builder
	for _, key := range slices.Sorted(maps.Keys(grants)) {
		grant := key + "=" + grants[key].String()
		if one.Len() > 0 && one.Len()+1+len(grant) > noticeSize {
			all = append(all, one.String())
			one.Reset()
		}
		if one.Len() > 0 {
			one.WriteByte(' ')
		}
		one.WriteString(grant)
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
