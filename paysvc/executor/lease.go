package executor

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"fenceline/lockd/lock"
	"fenceline/lockd/lockapi"
	"fenceline/lockd/lockclient"
)

// Locks is the lock service (lockclient.Client).
type Locks interface {
	OpenSession(ctx context.Context, ttl time.Duration) (lockapi.Session, error)
	Heartbeat(ctx context.Context, sessionID string) (lockapi.Heartbeat, error)
	CloseSession(ctx context.Context, sessionID string) error
	Acquire(ctx context.Context, key, sessionID string, ttl time.Duration) (lockapi.LockGrant, error)
	Renew(ctx context.Context, key string, token lock.Token, ttl time.Duration) (lockapi.LockGrant, error)
	Release(ctx context.Context, key string, token lock.Token) (lockapi.ReleaseResult, error)
}

// cleanupTimeout bounds a release or the end of a session. Both are kindnesses to the next worker: the lease ends by itself.
const cleanupTimeout = 2 * time.Second

// session keeps a session of the lock service alive while it is open.
type session struct {
	locks  Locks
	id     string
	logger hclog.Logger
	stop   context.CancelFunc
	done   sync.WaitGroup
}

func openSession(ctx context.Context, locks Locks, ttl time.Duration, logger hclog.Logger) (*session, error) {
	opened, err := locks.OpenSession(ctx, ttl)
	if err != nil {
		return nil, fmt.Errorf("open session: %w", err)
	}
	loopCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	s := &session{locks: locks, id: opened.SessionID, logger: logger, stop: stop}
	// Three heartbeats in a time to live: two may fail.
	s.done.Go(func() { s.keepAlive(loopCtx, time.Duration(opened.TTLMillis)*time.Millisecond/3) })
	return s, nil
}

// keepAlive sends heartbeats. A dead session needs no further handling here: the lock service answers the renewal before each step with
// LOCK_LOST then.
func (s *session) keepAlive(ctx context.Context, every time.Duration) {
	tick(ctx, every, func() bool {
		_, err := s.locks.Heartbeat(ctx, s.id)
		if errors.Is(err, lock.ErrSessionExpired) || errors.Is(err, lock.ErrSessionUnknown) {
			s.logger.Warn("the session is over", "event", "session_ended", "cause", err)
			return false
		}
		if err != nil && ctx.Err() == nil {
			s.logger.Warn("heartbeat failed, trying again", "event", "heartbeat_failed", "error", err)
		}
		return true
	})
}

// close ends the session, and with it every grant that it may still have.
func (s *session) close(ctx context.Context) {
	s.stop()
	s.done.Wait()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	if err := s.locks.CloseSession(ctx, s.id); err != nil && !errors.Is(err, lock.ErrSessionUnknown) {
		s.logger.Warn("session not closed; it ends by itself", "event", "session_close_failed", "error", err)
	}
}

// lease is one grant, renewed until it is released.
type lease struct {
	locks  Locks
	key    string
	token  lock.Token
	ttl    time.Duration
	logger hclog.Logger
	stop   context.CancelFunc
	done   sync.WaitGroup

	mu   sync.Mutex
	sent time.Time // when the newest request that was granted had been sent: the lease lasts at least ttl from then on
	lost error     // not nil once the lock service has said so, or the lease has run out
}

// acquire tries to get the key, for at most wait, in jittered steps so that workers don't meet again and again. When another
// session has it, that is lockclient.ErrContended.
func (s *session) acquire(ctx context.Context, key string, ttl, wait time.Duration) (*lease, error) {
	deadline := time.Now().Add(wait)
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, 500*time.Millisecond) {
		sent := time.Now()
		grant, err := s.locks.Acquire(ctx, key, s.id, ttl)
		if err == nil {
			return s.hold(ctx, grant, sent), nil
		}
		next := pause/2 + rand.N(pause) //nolint:gosec // jitter
		if !errors.Is(err, lockclient.ErrContended) || time.Now().Add(next).After(deadline) || !sleep(ctx, next) {
			return nil, fmt.Errorf("acquire %s: %w", key, err)
		}
	}
}

func (s *session) hold(ctx context.Context, grant lockapi.LockGrant, sent time.Time) *lease {
	loopCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	l := &lease{
		locks: s.locks, key: grant.Key, token: lock.Token(grant.FencingToken), ttl: time.Duration(grant.TTLMillis) * time.Millisecond,
		logger: s.logger, stop: stop, sent: sent,
	}
	l.done.Go(func() {
		tick(loopCtx, l.ttl/3, func() bool {
			err := l.check(loopCtx)
			if err != nil && !errors.Is(err, lock.ErrLockLost) && loopCtx.Err() == nil {
				l.logger.Warn("renewal failed, trying again", "event", "renewal_failed", "lockKey", l.key, "error", err)
			}
			return !errors.Is(err, lock.ErrLockLost)
		})
	})
	return l
}

// check asks the lock service, by renewing. nil means that the grant was ours when it answered; lock.ErrLockLost that it is over;
// any other error that nobody can tell, which is no better.
func (l *lease) check(ctx context.Context) error {
	if err := l.over(); err != nil {
		return err
	}
	sent := time.Now()
	_, err := l.locks.Renew(ctx, l.key, l.token, l.ttl)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil:
		if sent.After(l.sent) {
			l.sent = sent
		}
	case errors.Is(err, lock.ErrLockLost):
		l.lose(err)
	}
	return err
}

// lose notes the loss, once. The caller holds mu.
func (l *lease) lose(cause error) {
	if l.lost == nil {
		l.lost = cause
		l.logger.Warn("the lock is lost", "event", "session_lost", "lockKey", l.key, "token", int64(l.token), "cause", cause)
	}
}

func (l *lease) over() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost
}

// expired says, without asking anybody, whether the lease may have run out: its time counts from when the newest granted request was
// sent, on the monotonic and the wall clock, whichever ran further. It costs nothing, so it is looked at last before a request leaves.
func (l *lease) expired() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if age := max(now.Sub(l.sent), now.Round(0).Sub(l.sent.Round(0))); age >= l.ttl {
		l.lose(fmt.Errorf("%w: the lease of %s ran out %s ago", lock.ErrLockLost, l.ttl, age-l.ttl))
	}
	return l.lost
}

// release gives the grant back. That it is no longer ours is fine (C1 §1.4); a fault is, too: the lease ends by itself.
func (l *lease) release(ctx context.Context) {
	l.stop()
	l.done.Wait()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	if _, err := l.locks.Release(ctx, l.key, l.token); err != nil {
		l.logger.Warn("lock not released; it ends by itself", "event", "release_failed", "lockKey", l.key, "token", int64(l.token), "error", err)
	}
}

// tick calls fn every so often until it returns false or ctx ends.
func tick(ctx context.Context, every time.Duration, fn func() bool) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			if !fn() {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// sleep waits; false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
