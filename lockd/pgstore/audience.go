package pgstore

import (
	"context"
	"strings"
	"time"

	"github.com/google/uuid"

	"fenceline/lockd/lock"
)

// Replicas that listen say so now and then, on the channel of the notices. One that hears itself and nobody else has nobody to tell of freed keys, and spares the
// database a transaction for every few releases.
//
// Nothing but promptness hangs on it: a waiter that isn't told looks for itself. A replica that comes says hello before it is ready, so the others
// know of it when its first waiter comes.
const (
	defaultHelloPause = 3 * time.Second
	// missedHellos is after how many that weren't heard a replica counts as gone, and one's own ears as deaf.
	missedHellos = 4
	// helloMark begins a hello; no key does.
	helloMark = "!"
)

// audience is who listens, as far as this replica has heard. Its time is this process's own.
type audience struct {
	tell   func(key string, token lock.Token) // to this replica's own waiters; nil while it doesn't listen
	me     string
	pause  time.Duration // between hellos
	since  time.Time     // listening
	self   time.Time     // last hello of our own that came back
	others time.Time     // last hello of somebody else
}

// nobodyElse says whether it is known that no other replica listens: long enough have we listened, the channel works, and there was nobody.
func (a *audience) nobodyElse(now time.Time) bool {
	patience := missedHellos * a.pause
	return a.tell != nil && now.Sub(a.since) > patience && now.Sub(a.self) < patience && now.Sub(a.others) > patience
}

// listening notes that this replica listens from now on, and returns its hello; nil ends it.
func (s *Store) listening(tell func(key string, token lock.Token)) (hello string) {
	n := &s.notices
	n.mu.Lock()
	defer n.mu.Unlock()
	n.tell, n.since, n.self, n.others = tell, time.Now(), time.Time{}, time.Time{}
	n.me = helloMark + uuid.NewString()
	return n.me
}

// heard takes a hello; false when the notice is none.
func (s *Store) heard(payload string) bool {
	if !strings.HasPrefix(payload, helloMark) {
		return false
	}
	n := &s.notices
	n.mu.Lock()
	defer n.mu.Unlock()
	if payload == n.me {
		n.self = time.Now()
	} else {
		n.others = time.Now()
	}
	return true
}

// sayHello says hello, and again and again until stop is called.
func (s *Store) sayHello(ctx context.Context, hello string) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	say := func() {
		one, cancel := context.WithTimeout(ctx, noticeTimeout)
		defer cancel()
		if err := s.notify(one, []string{hello}); err != nil && ctx.Err() == nil {
			s.logger.Debug("other replicas weren't told that this one listens", "event", "notify_failed", "error", err)
		}
	}
	say()
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(s.notices.pause)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				say()
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}
