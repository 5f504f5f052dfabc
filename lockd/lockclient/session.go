package lockclient

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"fenceline/lockd/lock"
	"fenceline/lockd/lockapi"
)

// Why something is over.
var (
	// ErrLockLost means that a grant is over: lockd said so, or the time for which it may be relied on has passed. It never means just that
	// lockd couldn't be asked.
	ErrLockLost = lock.ErrLockLost
	// ErrSessionLost means that a session is over, and with it all of its grants: lockd said so, or the time for which it may be relied on has
	// passed. Open another one.
	ErrSessionLost = errors.New("session is lost")
	// ErrSessionClosed means that the program has closed the session.
	ErrSessionClosed = errors.New("session is closed")
	// ErrReleased means that the program has released the grant.
	ErrReleased = errors.New("lock is released")
)

// cleanupTimeout bounds a release or the end of a session, tries together. Both are kindnesses to the next worker: what lockd isn't told
// ends by its time.
const cleanupTimeout = 5 * time.Second

// Session is a program's liveness at lockd, kept up by heartbeats while it is open. Grants hang on it and end with it. It is safe for
// concurrent use; most programs need one.
type Session struct {
	client  *Client
	options Options
	id      string
	ttl     time.Duration
	rules   rules

	ctx    context.Context // ends with the session; its cause says why
	cancel context.CancelCauseFunc
	work   sync.WaitGroup // heartbeats, watching, and what abandoned acquires left to do
	closed atomic.Bool

	mu    sync.Mutex
	lease lease
	keys  map[string]*use // keys that are held, or being acquired, through this session
}

// use is one key's place in a session.
type use struct {
	done chan struct{} // closed when the key is free for another Acquire of this session
	held *Held         // nil while it is being acquired
}

// Open opens a session of the owner, 1 to 64 characters that name this process in lockd's answers and log, and keeps it alive
// until Close. ctx bounds the opening only. A call that fails in passing is repeated, up to five tries.
func Open(ctx context.Context, owner string, o Options) (*Session, error) {
	client, err := Connect(owner, o)
	if err != nil {
		return nil, err
	}
	return open(ctx, client, o, rules{now: systemClock(), trust: trust})
}

// rules are how a session tells the time and what it makes of it.
type rules struct {
	now   func() moment
	trust func(sent, answered moment, waited, ttl time.Duration) lease
}

func open(ctx context.Context, client *Client, o Options, r rules) (*Session, error) {
	if o.SessionTTL != 0 {
		if err := lock.ValidDuration("session time to live in milliseconds", o.SessionTTL, lock.MinSessionTTL, lock.MaxSessionTTL); err != nil {
			return nil, err
		}
	}
	var (
		opened lockapi.Session
		sent   moment
	)
	// A session whose opening was not answered ends by itself.
	err := retry(ctx, func(ctx context.Context) (err error) {
		sent = r.now()
		opened, err = client.OpenSession(ctx, o.SessionTTL)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open session: %w", err)
	}
	s := &Session{
		client: client, options: o, id: opened.SessionID, ttl: time.Duration(opened.TTLMillis) * time.Millisecond, rules: r, keys: map[string]*use{},
	}
	s.lease = r.trust(sent, r.now(), 0, s.ttl)
	s.ctx, s.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	s.work.Go(func() {
		keep(s.ctx, trusted(s.ttl), s.heartbeat, func(err error) { s.observe(Event{Name: EventHeartbeatFailed, Err: err}) })
	})
	s.work.Go(func() { watch(s.ctx, trusted(s.ttl), s.left, func() { _ = s.Err() }) })
	return s, nil
}

// ID is the session's id at lockd.
func (s *Session) ID() string { return s.id }

// Owner is whom the session belongs to.
func (s *Session) Owner() string { return s.client.owner }

// Lost is closed when the session is over, by loss or by Close.
func (s *Session) Lost() <-chan struct{} { return s.ctx.Done() }

// Err is nil while the session may be relied on, and otherwise why not: ErrSessionLost or ErrSessionClosed. It looks at the clocks and asks
// nobody.
func (s *Session) Err() error {
	if s.ctx.Err() == nil && s.left() <= 0 {
		s.end(fmt.Errorf("%w: no heartbeat was answered in time", ErrSessionLost))
	}
	return context.Cause(s.ctx)
}

// left is how long the session may still be relied on.
func (s *Session) left() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lease.left(s.rules.now())
}

// heartbeat sends one heartbeat. Only an answer prolongs trust, and from when its question was sent.
func (s *Session) heartbeat(ctx context.Context) error {
	sent := s.rules.now()
	_, err := s.client.Heartbeat(ctx, s.id)
	switch {
	case err == nil:
		s.mu.Lock()
		s.lease = s.rules.trust(sent, s.rules.now(), 0, s.ttl)
		s.mu.Unlock()
		return nil
	case errors.Is(err, lock.ErrSessionExpired), errors.Is(err, lock.ErrSessionUnknown):
		s.end(fmt.Errorf("%w: %w", ErrSessionLost, err))
	}
	return err
}

// end ends the session, once, and tells its grants.
func (s *Session) end(cause error) {
	s.mu.Lock()
	if s.ctx.Err() != nil {
		s.mu.Unlock()
		return
	}
	s.cancel(cause)
	var held []*Held
	for _, u := range s.keys {
		if u.held != nil {
			held = append(held, u.held)
		}
	}
	s.mu.Unlock()
	for _, h := range held {
		h.lose(fmt.Errorf("%w: %w", ErrLockLost, cause))
	}
}

// Close ends the session: grants that are still held are lost at once (release them before), heartbeats end, and lockd is told. It returns an
// error when lockd couldn't be told; the session ends by its time then. ctx may be over already. A second call does nothing.
func (s *Session) Close(ctx context.Context) error {
	already := s.closed.Swap(true)
	s.end(ErrSessionClosed)
	s.work.Wait()
	defer s.client.CloseIdleConnections()
	if already {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	err := retry(ctx, func(ctx context.Context) error { return s.client.CloseSession(ctx, s.id) })
	if err == nil || errors.Is(err, lock.ErrSessionUnknown) {
		return nil
	}
	err = fmt.Errorf("close session: %w", err)
	s.observe(Event{Name: EventSessionCloseFailed, Err: err})
	return err
}

// Do acquires the key as Options.Lock says, runs fn, and releases after fn has returned, however it returns. fn's context ends when ctx does
// or the lock is lost; fn must stop then. The result is fn's, and ErrLockLost when the lock was lost before fn returned: then
// what fn did last may have been refused by the resource.
func (s *Session) Do(ctx context.Context, key string, fn func(ctx context.Context, held *Held) error) error {
	held, err := s.Acquire(ctx, key, s.options.Lock)
	if err != nil {
		return err
	}
	defer func() { _ = held.Release(ctx) }() // a failure is the observer's: the work itself is done
	work, cancel := within(ctx, held.ctx)
	defer cancel()
	err = fn(work, held)
	if lost := held.Err(); errors.Is(lost, ErrLockLost) && !errors.Is(err, ErrLockLost) {
		return errors.Join(err, lost)
	}
	return err
}

func (s *Session) observe(e Event) {
	if s.options.Observer != nil {
		s.options.Observer.Observe(e)
	}
}
