package etcdstore

import (
	"context"
	"fmt"
	"strconv"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"fenceline/lockd/lock"
)

// Revoke implements lock.Store. One transaction ends the grant, appends the record and draws the floor: its own revision.
//
// A renewal or a heartbeat that is under way at the same time comes first and is judged, or finds its grant gone; there is no third way, although neither
// takes a lock. Both say that they came in time only after a transaction of theirs has found the life still there that they prolonged. "Not held" is said only of a
// grant whose own life or whose session's was absent in a linearizable read, and a life that is absent never comes back: it is written under a fresh
// grant or session, or by a renewal that compares it. So a renewal that was confirmed before that read had its life taken by etcd since, when its
// time was over; one that wasn't will find it absent, and say that the lock is lost. Etcd itself lets no lease go on whose end it has begun: a keep-alive that
// meets an expired lease waits for its end and is told that there is none. And a revocation that ends a grant compares the life as it judged it, so that
// it ends no other.
func (s *Store) Revoke(ctx context.Context, request lock.RevokeRequest) (lock.Revocation, error) {
	ctx, cancel := s.limit(ctx)
	defer cancel()
	for {
		revocation, err := s.revoke(ctx, request)
		if err != nil {
			return lock.Revocation{}, fmt.Errorf("revoke: %w", err)
		}
		if revocation != nil {
			return *revocation, nil
		}
	}
}

// revoke returns nil when something has changed since it was read, for another look.
func (s *Store) revoke(ctx context.Context, request lock.RevokeRequest) (*lock.Revocation, error) {
	a := &attempt{key: request.Key, asOf: s.seen.Load()}
	response, err := s.read(ctx, clientv3.OpGet(s.keys.source()), clientv3.OpGet(s.keys.grant(a.key)), clientv3.OpGet(s.keys.life(a.key)),
		clientv3.OpGet(s.keys.revocations(), clientv3.WithLastKey()...))
	if err != nil {
		return nil, err
	}
	if a.source, err = decode[sourceValue](s.keys.source(), response.Responses[0]); err != nil {
		return nil, err
	}
	if a.grant, err = decode[grantValue](s.keys.grant(a.key), response.Responses[1]); err != nil {
		return nil, err
	}
	if a.life, err = decode[lifeValue](s.keys.life(a.key), response.Responses[2]); err != nil {
		return nil, err
	}
	last, err := number(response.Responses[3].GetResponseRange().GetKvs(), s.keys.revocations())
	if err != nil {
		return nil, err
	}
	h, err := s.holder(ctx, a)
	if err != nil {
		return nil, err
	}
	if !h.alive {
		return nil, lock.ErrNotHeld
	}
	if token := s.token(a.grant); request.Expected != 0 && request.Expected != token {
		return nil, fmt.Errorf("%w: %s, not %s", lock.ErrTokenMismatch, token, request.Expected)
	}
	if !s.checked.Load() || !a.source.exists() || !a.source.value.ready(response.Header, a.asOf) {
		return nil, s.settle(ctx, true)
	}
	return s.endAndRecord(ctx, a, request, last+1)
}

func (s *Store) endAndRecord(ctx context.Context, a *attempt, request lock.RevokeRequest, id int64) (*lock.Revocation, error) {
	token, record := s.token(a.grant), s.keys.revocation(id)
	conditions := append(s.rules.revoke(s.keys, a), absent(record))
	value := revocationValue{
		Key: a.key, PreviousOwner: a.grant.value.Owner, PreviousToken: token, Operator: request.Operator, Reason: request.Reason, RevokedAt: now(),
	}
	response, err := s.write(ctx, conditions, append(s.remove(a.key, a.grant), put(record, value)))
	if err != nil || !response.Succeeded {
		return nil, err
	}
	s.giveBack(a.life.lease, a.life.value.Asked)
	s.reached(a.source.value.Base + response.Header.Revision)
	return &lock.Revocation{
		ID: id, RevokedToken: token, NewTokenFloor: s.rules.floor(a.source.value.Base, response.Header, token), PreviousOwner: value.PreviousOwner,
	}, nil
}

// number is what the last key of an append-only record is called; 0 when there is none.
func number(kvs []*mvccpb.KeyValue, prefix string) (int64, error) {
	if len(kvs) == 0 {
		return 0, nil
	}
	n, err := strconv.ParseInt(tail(kvs[len(kvs)-1].Key, prefix), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("etcd key %s isn't lockd's: %w", kvs[len(kvs)-1].Key, err)
	}
	return n, nil
}
