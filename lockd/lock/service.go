package lock

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"
)

// Recorder counts what the service does; the wiring gives it metrics.
type Recorder interface {
	// Acquired records one acquire with its outcome (granted, contended, error) and duration.
	Acquired(outcome string, took time.Duration)
	// LeasesExpired counts grants that ended by their time, found by the reaper or by a takeover.
	LeasesExpired(n int)
	// Held sets the number of live grants.
	Held(n int64)
	// Waiting sets the number of clients that wait for a lock here. It doesn't block.
	Waiting(n int)
}

// Service is the lock service over a store: it checks arguments, lets clients wait, logs what happened, and reaps.
type Service struct {
	store    Store
	backend  string
	logger   hclog.Logger
	recorder Recorder
	waiting  *waiting
	draining chan struct{}
	drain    sync.Once
}

// NewService returns a service. Backend is the store's name in logs, such as "pg".
func NewService(store Store, backend string, limits Limits, logger hclog.Logger, recorder Recorder) *Service {
	return &Service{
		store: store, backend: backend, logger: logger, recorder: recorder,
		waiting: newWaiting(limits, recorder.Waiting), draining: make(chan struct{}),
	}
}

// OpenSession opens a session for the owner. It returns ErrInvalid for an owner or a time to live out of bounds.
func (s *Service) OpenSession(ctx context.Context, ownerID string, ttl time.Duration) (Session, error) {
	if err := ValidOwner("ownerId", ownerID); err != nil {
		return Session{}, err
	}
	if err := ValidDuration("ttlMillis", ttl, MinSessionTTL, MaxSessionTTL); err != nil {
		return Session{}, err
	}
	return s.store.OpenSession(ctx, ownerID, ttl)
}

// Heartbeat keeps a session alive.
func (s *Service) Heartbeat(ctx context.Context, id uuid.UUID) (Session, int, time.Time, error) {
	return s.store.Heartbeat(ctx, id)
}

// CloseSession ends a session and releases its grants.
func (s *Service) CloseSession(ctx context.Context, id uuid.UUID) error {
	ended, err := s.store.CloseSession(ctx, id)
	for _, e := range ended {
		s.waiting.freed(e.Key, e.Token)
	}
	s.ended(ctx, ended)
	return err
}

// Renew prolongs a grant. ErrLockLost means that it is over and nothing else.
func (s *Service) Renew(ctx context.Context, key string, token Token, ttl time.Duration) (Grant, error) {
	if err := ValidKey(key); err != nil {
		return Grant{}, err
	}
	if err := ValidDuration("ttlMillis", ttl, MinLockTTL, MaxLockTTL); err != nil {
		return Grant{}, err
	}
	return s.store.Extend(ctx, key, token, ttl)
}

// Release gives a grant back. A stale one is success (C1 §1.4).
func (s *Service) Release(ctx context.Context, key, ownerID string, token Token) (Released, error) {
	if err := ValidKey(key); err != nil {
		return Released{}, err
	}
	result, err := s.store.Delete(ctx, key, token)
	if err != nil || !result.Stale {
		s.waiting.freed(key, token) // after an error it may have been released
	}
	if err == nil {
		s.released(ctx, key, ownerID, token, result)
	}
	return result, err
}

// Inspect says who holds the key. It is advisory.
func (s *Service) Inspect(ctx context.Context, key string) (Grant, bool, error) {
	if err := ValidKey(key); err != nil {
		return Grant{}, false, err
	}
	return s.store.Read(ctx, key)
}

// Revoke ends the holder's grant on an operator's word.
func (s *Service) Revoke(ctx context.Context, request RevokeRequest) (Revocation, error) {
	if err := request.Validate(); err != nil {
		return Revocation{}, err
	}
	result, err := s.store.Revoke(ctx, request)
	if err == nil {
		s.waiting.freed(request.Key, result.RevokedToken)
		s.logger.Warn("lock revoked", "event", "lock_revoked", "lockKey", request.Key, "token", int64(result.RevokedToken),
			"revokedBy", request.Operator, "reason", request.Reason, "ownerId", result.PreviousOwner, "traceId", traceID(ctx))
	}
	return result, err
}

const (
	reapInterval = time.Second
	reapBatch    = 500
	reapTimeout  = 5 * time.Second
)

// Reap removes what has expired, once a second, until ctx ends. Takeovers don't wait for it; it
// keeps the tables small and makes expiry visible.
func (s *Service) Reap(ctx context.Context) {
	ticker := time.NewTicker(reapInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if err := s.ReapOnce(ctx); err != nil && ctx.Err() == nil {
				s.logger.Warn("reaping failed; the next round tries again", "event", "reap_failed", "error", err)
			}
		}
	}
}

// ended makes grants visible that ended without a call of their own, whoever found them: by their time, or with their session.
func (s *Service) ended(ctx context.Context, ended []Ended) {
	expired := 0
	for _, e := range ended {
		if e.Expired {
			expired++
			s.logger.Warn("lease expired", "event", "lease_expired", "lockKey", e.Key, "token", int64(e.Token), "overdueMillis", e.Overdue.Milliseconds(),
				"ownerId", e.OwnerID, "traceId", traceID(ctx))
		} else {
			s.released(ctx, e.Key, e.OwnerID, e.Token, Released{Held: e.Held})
		}
	}
	s.recorder.LeasesExpired(expired)
}

func (s *Service) released(ctx context.Context, key, ownerID string, token Token, result Released) {
	s.logger.Info("lock released", "event", "lock_released", "lockKey", key, "token", int64(token), "heldMillis", result.Held.Milliseconds(),
		"stale", result.Stale, "ownerId", ownerID, "traceId", traceID(ctx))
}

// ReapOnce removes what has expired by now, batch by batch.
func (s *Service) ReapOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(WithTraceID(ctx, newTraceID()), reapTimeout)
	defer cancel()
	for {
		ended, more, err := s.store.Reap(ctx, reapBatch)
		if err != nil {
			return err
		}
		s.ended(ctx, ended)
		if !more {
			break
		}
	}
	held, err := s.store.CountHeld(ctx)
	if err == nil {
		s.recorder.Held(held)
	}
	return err
}
