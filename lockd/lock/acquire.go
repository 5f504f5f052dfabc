package lock

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	// attemptTimeout bounds one attempt at the store, which goes on when the client hangs up.
	attemptTimeout = 10 * time.Second
	// giveBackTimeout bounds the release of a grant that nobody wants any more. It ends by itself, too.
	giveBackTimeout = 5 * time.Second
)

// Acquire gets the key for the session, waiting for up to request.Wait while another one has it: first come, first served on this
// replica. It returns ErrInvalid, the session errors, ErrTooManyWaiters, and, when ctx ends (the client has hung up), ctx's cause; a
// grant that was won all the same is then released.
func (s *Service) Acquire(ctx context.Context, request AcquireRequest) (Acquired, error) {
	if err := request.validate(); err != nil {
		return Acquired{}, err
	}
	start := time.Now()
	result, err := s.acquire(ctx, request, start)
	took := time.Since(start)
	switch {
	case err != nil:
		s.recorder.Acquired("error", took)
		return Acquired{}, err
	case !result.Granted:
		s.recorder.Acquired("contended", took)
		return result, nil
	}
	s.recorder.Acquired("granted", took)
	return result, nil
}

func (r AcquireRequest) validate() error {
	return errors.Join(
		ValidKey(r.Key),
		ValidDuration("ttlMillis", r.TTL, MinLockTTL, MaxLockTTL),
		ValidDuration("waitMillis", r.Wait, 0, MaxWait),
	)
}

// acquire asks the store at once or takes a place in the queue. Nobody overtakes those who wait, except a session that has the key already:
// it would wait for itself.
func (s *Service) acquire(ctx context.Context, request AcquireRequest, start time.Time) (Acquired, error) {
	if waiters, holder := s.waiting.waitersOf(request.Key); waiters > 0 {
		holds, err := s.holds(ctx, request)
		switch {
		case err != nil:
			return Acquired{}, err
		case holds:
			return s.attempt(ctx, request, start)
		case request.Wait == 0:
			return Acquired{Holder: holder}, nil
		}
	} else if request.Wait == 0 {
		return s.attempt(ctx, request, start)
	}
	return s.wait(ctx, request, start)
}

// holds says whether this session has the key now.
func (s *Service) holds(ctx context.Context, request AcquireRequest) (bool, error) {
	grant, held, err := s.store.Read(ctx, request.Key)
	return held && grant.SessionID == request.SessionID, err
}

// wait takes a place in the key's queue and keeps it until the key is granted, the time is up, or nobody wants it any more.
func (s *Service) wait(ctx context.Context, request AcquireRequest, start time.Time) (Acquired, error) {
	me, err := s.waiting.join(request.Key)
	if err != nil {
		return Acquired{}, err
	}
	defer s.waiting.leave(me)
	timeUp := time.NewTimer(time.Until(start.Add(request.Wait)))
	defer timeUp.Stop()
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		look, after := s.waiting.turn(me)
		if look {
			result, err := s.attempt(ctx, request, start)
			switch {
			case err != nil:
				s.waiting.failed(me)
				return Acquired{}, err
			case result.Granted:
				s.waiting.wasGranted(me, result.Grant)
				return result, nil
			}
			s.waiting.wasContended(me, result.Holder)
			continue
		}
		var due <-chan time.Time
		if after > 0 {
			next.Reset(after)
			due = next.C
		}
		select {
		case <-me.wake:
		case <-due:
		case <-timeUp.C:
			_, holder := s.waiting.waitersOf(request.Key)
			return Acquired{Holder: holder}, nil
		case <-ctx.Done():
			return Acquired{}, context.Cause(ctx)
		case <-s.draining:
			return Acquired{}, fmt.Errorf("%w: this replica is shutting down", ErrUnavailable)
		}
	}
}

// attempt asks the store once. The store's work isn't cut off when the client hangs up: a cut acquire may or may not have
// happened, while one that ended can be given back.
func (s *Service) attempt(ctx context.Context, request AcquireRequest, start time.Time) (Acquired, error) {
	began := time.Now()
	storeCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), attemptTimeout)
	defer cancel()
	result, err := s.store.Insert(storeCtx, request.Key, request.OwnerID, request.SessionID, request.TTL)
	if err != nil || !result.Granted {
		return result, err
	}
	result.Waited = began.Sub(start)
	if result.Ended != nil {
		s.ended(ctx, []Ended{*result.Ended})
	}
	s.logger.Info("lock granted", "event", "lock_granted", "lockKey", request.Key, "token", int64(result.Grant.Token), "backend", s.backend,
		"leaseMillis", result.Grant.TTL.Milliseconds(), "waitMillis", result.Waited.Milliseconds(), "ownerId", request.OwnerID, "traceId", traceID(ctx))
	if ctx.Err() != nil {
		s.GiveBack(ctx, result.Grant)
		return Acquired{}, context.Cause(ctx)
	}
	return result, nil
}

// GiveBack releases a grant whose client has gone. If that fails the lease ends by itself.
func (s *Service) GiveBack(ctx context.Context, grant Grant) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackTimeout)
	defer cancel()
	if _, err := s.Release(ctx, grant.Key, grant.OwnerID, grant.Token); err != nil {
		s.logger.Warn("a grant that nobody wants isn't released; it ends by itself", "event", "release_failed",
			"lockKey", grant.Key, "token", int64(grant.Token), "error", err, "traceId", traceID(ctx))
	}
}

// Waiters returns how many clients wait for the key on this replica.
func (s *Service) Waiters(key string) int {
	n, _ := s.waiting.waitersOf(key)
	return n
}

// Drain ends all waiting, now and later, with ErrUnavailable, so that a shutdown needn't outlast the longest wait.
func (s *Service) Drain() { s.drain.Do(func() { close(s.draining) }) }

const (
	firstWatchPause = 100 * time.Millisecond
	lastWatchPause  = 5 * time.Second
)

// Follow hands the watcher's hints to those who wait, until ctx ends. While the watcher is away they look more often themselves.
func (s *Service) Follow(ctx context.Context, watcher Watcher) {
	for pause := firstWatchPause; ; pause = min(2*pause, lastWatchPause) {
		err := watcher.Watch(ctx, func() {
			pause = firstWatchPause
			s.waiting.watching(true)
		}, s.waiting.freed)
		s.waiting.watching(false)
		if ctx.Err() != nil {
			return
		}
		s.logger.Warn("can't watch for freed locks; waiters look for themselves every second until it works again",
			"event", "watch_failed", "error", err, "retryMillis", pause.Milliseconds())
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}
