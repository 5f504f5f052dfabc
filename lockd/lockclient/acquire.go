package lockclient

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"fenceline/lockd/lock"
	"fenceline/lockd/lockapi"
)

// AcquireOptions say how to acquire.
type AcquireOptions struct {
	// TTL is how long the grant lasts without a renewal, 100 ms to 300 s; 0 means the server's default, 30 s. It is renewed while it is held. What
	// counts is TTL × 0.7 (see Held), and that no pause of the program is longer.
	TTL time.Duration
	// Wait is how long to wait for a key that another session holds; 0 means to try once. More than 30 s are several requests, each of which
	// begins at the end of the queue.
	Wait time.Duration
}

// Acquire gets the key, 1 to 128 of A-Z a-z 0-9 : . _ -, for this session, and keeps the grant renewed until it is released. When another
// session has it, and still has it after o.Wait, that is ErrContended. It waits too while this session itself holds the key or acquires it
// in another goroutine: a session is no way of sharing a lock.
//
// ctx bounds the acquiring only. A call that fails in passing is repeated, up to five tries: if an answer was lost that was
// a grant, the repetition ends with a newer token, and the older one is of no use to anybody.
func (s *Session) Acquire(ctx context.Context, key string, o AcquireOptions) (*Held, error) {
	if err := lock.ValidKey(key); err != nil {
		return nil, err
	}
	if o.TTL != 0 {
		if err := lock.ValidDuration("time to live in milliseconds", o.TTL, lock.MinLockTTL, lock.MaxLockTTL); err != nil {
			return nil, err
		}
	}
	if err := s.Err(); err != nil {
		return nil, fmt.Errorf("acquire %s: %w", key, err)
	}
	ctx, cancel := within(ctx, s.ctx)
	defer cancel()

	a := &acquiring{session: s, key: key, ttl: o.TTL, until: s.rules.now().mono + max(o.Wait, 0)}
	place, err := a.takePlace(ctx)
	if err != nil {
		return nil, fmt.Errorf("acquire %s: %w", key, err)
	}
	held, err := a.run(ctx, place)
	switch {
	case err == nil:
		return held, nil
	case a.unsettled:
		s.abandon(ctx, key, place)
	default:
		s.leave(key, place)
	}
	if over := context.Cause(ctx); over != nil && !errors.Is(err, over) {
		err = fmt.Errorf("%w: %w", over, err)
	}
	return nil, fmt.Errorf("acquire %s: %w", key, err)
}

// acquiring is one Acquire.
type acquiring struct {
	session *Session
	key     string
	ttl     time.Duration
	until   time.Duration // on the monotonic clock
	// unsettled: a try may have been granted without our knowing its token.
	unsettled bool
}

// takePlace makes this Acquire the session's only one for the key.
func (a *acquiring) takePlace(ctx context.Context) (*use, error) {
	s := a.session
	for {
		s.mu.Lock()
		other := s.keys[a.key]
		if other == nil {
			place := &use{done: make(chan struct{})}
			s.keys[a.key] = place
			s.mu.Unlock()
			return place, nil
		}
		s.mu.Unlock()
		timer := time.NewTimer(max(a.until-s.rules.now().mono, 0))
		select {
		case <-other.done:
			timer.Stop()
		case <-ctx.Done():
			timer.Stop()
			return nil, context.Cause(ctx)
		case <-timer.C:
			return nil, fmt.Errorf("%w: this very session holds it, or is acquiring it; it must be released before, also when it is lost", ErrContended)
		}
	}
}

// leave gives the place up.
func (s *Session) leave(key string, place *use) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keys[key] == place {
		delete(s.keys, key)
		close(place.done)
	}
}

// run sends requests until one is granted, the time is up, or there is no point in another one.
func (a *acquiring) run(ctx context.Context, place *use) (*Held, error) {
	s := a.session
	for contended, faults := 0, 0; ; {
		wait := min(max(a.until-s.rules.now().mono, 0), lock.MaxWait).Truncate(time.Millisecond)
		sent := s.rules.now()
		grant, err := s.client.AcquireWaiting(ctx, a.key, s.id, a.ttl, wait)
		if err == nil {
			a.unsettled = false // this token has taken the place of any before
			l := s.rules.trust(sent, s.rules.now(), time.Duration(grant.GrantedAfterMillis)*time.Millisecond, time.Duration(grant.TTLMillis)*time.Millisecond)
			if l.left(s.rules.now()) > 0 {
				return s.hold(ctx, place, grant, l)
			}
			err = fmt.Errorf("%w: the answer came so late that the grant in it couldn't be relied on any more", ErrNoAnswer)
		}
		if ctx.Err() != nil || errors.Is(err, ErrNoAnswer) || errors.Is(err, lock.ErrUnknownOutcome) {
			a.unsettled = true
		}
		var pause time.Duration
		after, ok := again(err)
		switch left := a.until - s.rules.now().mono; {
		case left > 0 && (errors.Is(err, ErrContended) || queueFull(err)):
			// The server has made us wait, unless it is too old for that, stopping or overloaded: then this keeps us from asking too often.
			contended++
			pause = min(max(after, backoff(contended)), left)
			if s.rules.now().mono-sent.mono >= wait/2 {
				pause, contended = 0, 0
			}
			faults = 0
		case ok && !queueFull(err) && faults < maxTries-1:
			faults++
			pause = max(after, backoff(faults))
		default:
			return nil, err
		}
		if !sleep(ctx, pause) {
			return nil, err
		}
	}
}

// queueFull says whether lockd has refused to let one more wait.
func queueFull(err error) bool {
	var refusal *Refusal
	return errors.As(err, &refusal) && refusal.Status == http.StatusTooManyRequests
}

// abandon clears up after an acquire that may have been granted unknown to us: by acquiring once more, which this session can if the key is its
// own, and releasing that. What this doesn't reach ends by its time.
func (s *Session) abandon(ctx context.Context, key string, place *use) {
	s.mu.Lock()
	if s.ctx.Err() != nil { // its end releases the key
		s.mu.Unlock()
		s.leave(key, place)
		return
	}
	s.work.Add(1) // with mu held: Close waits for it
	s.mu.Unlock()
	go func() {
		defer s.work.Done()
		defer s.leave(key, place)
		ctx, stop := within(context.WithoutCancel(ctx), s.ctx)
		defer stop()
		ctx, cancel := context.WithTimeout(ctx, cleanupTimeout)
		defer cancel()
		grant, err := s.client.Acquire(ctx, key, s.id, lock.MinLockTTL)
		if err == nil {
			_, err = s.client.Release(ctx, key, lock.Token(grant.FencingToken))
		}
		if err != nil && !errors.Is(err, ErrContended) && ctx.Err() == nil {
			s.observe(Event{Name: EventReleaseFailed, Key: key, Err: err})
		}
	}()
}

// hold makes the grant a Held and starts its renewal.
func (s *Session) hold(ctx context.Context, place *use, grant lockapi.LockGrant, l lease) (*Held, error) {
	h := &Held{
		session: s, place: place, key: grant.Key, token: lock.Token(grant.FencingToken), ttl: time.Duration(grant.TTLMillis) * time.Millisecond,
		lease: l, lost: make(chan struct{}), done: make(chan struct{}),
	}
	h.ctx, h.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	s.mu.Lock()
	place.held = h // from here on the session's end is told to it
	s.mu.Unlock()
	h.work.Go(func() {
		keep(h.ctx, trusted(h.ttl), h.renewOnce, func(err error) {
			s.observe(Event{Name: EventRenewalFailed, Key: h.key, Token: h.token, Err: err})
		})
	})
	h.work.Go(func() { watch(h.ctx, trusted(h.ttl), h.Left, func() { _ = h.Err() }) })
	if err := h.Err(); err != nil {
		_ = h.Release(ctx)
		return nil, err
	}
	return h, nil
}
