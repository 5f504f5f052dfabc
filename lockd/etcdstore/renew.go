package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"fenceline/lockd/lock"
)

// Extend implements lock.Store. The grant's key isn't touched, since its revision is the token. The same time to live keeps its lease alive;
// another one puts its life under a new lease.
func (s *Store) Extend(ctx context.Context, key string, token lock.Token, ttl time.Duration) (lock.Grant, error) {
	ctx, cancel := s.limit(ctx)
	defer cancel()
	for {
		grant, life, err := s.readGrant(ctx, key)
		if err != nil {
			return lock.Grant{}, fmt.Errorf("renew: %w", err)
		}
		if !grant.exists() || !life.exists() || !s.rules.owns(s.token(grant), token) {
			return lock.Grant{}, fmt.Errorf("renew: %w", lock.ErrLockLost)
		}
		l, err := s.prolong(ctx, key, grant, life, wholeSeconds(ttl))
		if err != nil {
			return lock.Grant{}, fmt.Errorf("renew: %w", err)
		}
		if l.id != clientv3.NoLease {
			return lock.Grant{
				Key: key, OwnerID: grant.value.Owner, SessionID: grant.value.Session, Token: token,
				AcquiredAt: grant.value.AcquiredAt, ExpiresAt: l.until, TTL: time.Duration(l.given) * time.Second,
			}, nil
		}
	}
}

// prolong gives a grant more time, and returns no lease when something has changed since it was read, for another look.
func (s *Store) prolong(ctx context.Context, key string, grant entry[grantValue], life entry[lifeValue], seconds int64) (lease, error) {
	if seconds != life.value.Asked && seconds != life.value.Given {
		return s.replaceLease(ctx, key, grant, life, seconds)
	}
	l, err := s.keepAlive(ctx, life.lease, life.value.Asked)
	if errors.Is(err, errLeaseOver) {
		return lease{}, s.confirmOver(ctx, key, life)
	}
	if err != nil {
		return lease{}, err
	}
	return s.confirm(ctx, key, grant, life, l, nil)
}

// replaceLease puts the life of a grant under another lease. The old one can't take it along any more once this is applied; if it was faster, there
// is no life to compare with, and nothing happens.
func (s *Store) replaceLease(ctx context.Context, key string, grant entry[grantValue], life entry[lifeValue], seconds int64) (lease, error) {
	l, err := s.leaseFor(ctx, seconds)
	if err != nil {
		return lease{}, err
	}
	value := lifeValue{Asked: seconds, Given: l.given, Base: grant.value.Base, Revision: s.rules.revision(grant.created, grant.modified)}
	confirmed, err := s.confirm(ctx, key, grant, life, l, []clientv3.Op{put(life.key, value, clientv3.WithLease(l.id))})
	switch {
	case errors.Is(err, rpctypes.ErrLeaseNotFound): // it took too long
		return lease{}, nil
	case err != nil:
		return lease{}, err
	case confirmed.id == clientv3.NoLease:
		s.giveBack(l.id, l.asked)
	default:
		s.giveBack(life.lease, life.value.Asked)
	}
	return confirmed, nil
}

// confirm reads grant, life and session again, as one step with noting the new end. Only now is it certain that the renewal came in time.
func (s *Store) confirm(ctx context.Context, key string, grant entry[grantValue], life entry[lifeValue], l lease, more []clientv3.Op) (lease, error) {
	session := grant.value.Session
	then := append([]clientv3.Op{put(s.keys.held(session, key), heldValue{ExpiresAt: l.until})}, more...)
	response, err := s.write(ctx, s.rules.renew(s.keys, grant, life), then, clientv3.OpGet(s.keys.sessionLife(session)))
	switch {
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		return lease{}, err
	case err != nil:
		return lease{}, unconfirmed(err)
	case response.Succeeded:
		return l, nil
	case len(response.Responses[0].GetResponseRange().GetKvs()) == 0:
		return lease{}, lock.ErrLockLost // the session has ended, so the grant has
	}
	return lease{}, nil // another look tells
}

// unconfirmed is the error of a renewal whose lease lives on, although nobody could say whether that was of any use.
func unconfirmed(err error) error {
	if errors.Is(err, lock.ErrUnavailable) {
		return fmt.Errorf("%w: the lease was prolonged, and then etcd didn't answer: %w", lock.ErrUnknownOutcome, errors.Unwrap(err))
	}
	return err
}

// confirmOver makes sure that a life whose lease is over is gone. It is, since both go in one step; a member that said otherwise
// would be no reason to call a lock lost.
func (s *Store) confirmOver(ctx context.Context, key string, life entry[lifeValue]) error {
	_, current, err := s.readGrant(ctx, key)
	switch {
	case err != nil:
		return err
	case current.exists() && current.modified == life.modified:
		return fmt.Errorf("%w: etcd says that the lease is over, and still has its key", lock.ErrUnavailable)
	}
	return nil // another look tells
}
