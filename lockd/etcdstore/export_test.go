package etcdstore

import (
	"context"

	"github.com/google/uuid"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"fenceline/lockd/lock"
)

// ExpireSession ends a session's lease, as its time does.
func (s *Store) ExpireSession(ctx context.Context, id uuid.UUID) error {
	_, life, err := s.readSession(ctx, id)
	if err != nil {
		return err
	}
	_, err = s.client.Revoke(ctx, life.lease)
	return err
}

// ExpireGrant ends the lease that a grant's life hangs on, as its time does.
func (s *Store) ExpireGrant(ctx context.Context, key string) error {
	_, life, err := s.readGrant(ctx, key)
	if err != nil {
		return err
	}
	_, err = s.client.Revoke(ctx, life.lease)
	return err
}

// Client is the store's own connection.
func (s *Store) Client() *clientv3.Client { return s.client }

// The broken stores of the negative controls: each breaks one rule, and the matrix must notice.

// WithoutNewTokenOnTakeover makes the token of what stays when a key is written over.
func WithoutNewTokenOnTakeover(s *Store) {
	s.rules.revision = func(created, _ int64) int64 { return created }
}

// WithReleaseByKeyOnly forgets the token.
func WithReleaseByKeyOnly(s *Store) {
	s.rules.owns = func(_, _ lock.Token) bool { return true }
}

// WithTakeoverOfLiveGrants grants what is held.
func WithTakeoverOfLiveGrants(s *Store) {
	s.rules.alive = func(_, _ bool) bool { return false }
}

// WithoutEndOfDeadHolders leaves dead sessions to the reaper.
func WithoutEndOfDeadHolders(s *Store) {
	s.rules.alive = func(life, _ bool) bool { return life }
}

// WithoutSecondLookOnRenew believes the keep-alive.
func WithoutSecondLookOnRenew(s *Store) {
	s.rules.renew = func(layout, entry[grantValue], entry[lifeValue]) []clientv3.Cmp { return nil }
}

// WithExpiredSessions asks of a session only that somebody knows it, before and in the transaction.
func WithExpiredSessions(s *Store) {
	s.rules.session = func(session entry[sessionValue], _ entry[struct{}]) error {
		if !session.exists() {
			return lock.ErrSessionUnknown
		}
		return nil
	}
	WithoutSessionInAcquire(s)
}

// WithoutSessionInAcquire judges the session by what was read, and not again by the transaction.
func WithoutSessionInAcquire(s *Store) {
	s.rules.acquire = func(a *attempt) []clientv3.Cmp {
		return []clientv3.Cmp{a.source.unchanged(), a.grant.unchanged(), a.life.unchanged()}
	}
}

// WithoutSourceInAcquire draws tokens from a source that may have been moved since it was read.
func WithoutSourceInAcquire(s *Store) {
	s.rules.acquire = func(a *attempt) []clientv3.Cmp {
		return []clientv3.Cmp{a.sessionLife.unchanged(), a.grant.unchanged(), a.life.unchanged()}
	}
}

// WithBlindAcquire reads, decides and writes without comparing.
func WithBlindAcquire(s *Store) {
	s.rules.acquire = func(a *attempt) []clientv3.Cmp { return []clientv3.Cmp{a.sessionLife.unchanged()} }
}

// WithBlindRevocation ends whatever has taken the place of what was judged.
func WithBlindRevocation(s *Store) {
	s.rules.revoke = func(layout, *attempt) []clientv3.Cmp { return nil }
}

// WithoutFloorOnRevoke draws no token for a revocation.
func WithoutFloorOnRevoke(s *Store) {
	s.rules.floor = func(_ int64, _ *pb.ResponseHeader, revoked lock.Token) lock.Token { return revoked }
}
