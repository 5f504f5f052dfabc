package etcdstore

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"fenceline/lockd/lock"
)

// Grants implements lock.Lister.
func (s *Store) Grants(ctx context.Context, prefix, after string, limit int) ([]lock.Grant, bool, error) {
	ctx, cancel := s.limit(ctx)
	defer cancel()
	var found []lock.Grant
	from, end := s.keys.grant(max(prefix, after)), clientv3.GetPrefixRangeEnd(s.keys.grant(prefix))
	if after != "" && after >= prefix {
		from += "\x00"
	}
	for {
		response, err := s.read(ctx, clientv3.OpGet(from, clientv3.WithRange(end), clientv3.WithLimit(int64(min(limit+1, page)))))
		if err != nil {
			return nil, false, fmt.Errorf("list locks: %w", err)
		}
		answer := response.Responses[0].GetResponseRange()
		for chunk := range slices.Chunk(answer.GetKvs(), perTxn) {
			alive, err := s.alive(ctx, chunk)
			if err != nil {
				return nil, false, fmt.Errorf("list locks: %w", err)
			}
			if found = append(found, alive...); len(found) > limit {
				return found[:limit], true, nil
			}
		}
		if !answer.GetMore() {
			return found, false, nil
		}
		from = string(answer.GetKvs()[len(answer.GetKvs())-1].Key) + "\x00"
	}
}

// alive describes those of the grants that are alive.
func (s *Store) alive(ctx context.Context, kvs []*mvccpb.KeyValue) ([]lock.Grant, error) {
	var grants []entry[grantValue]
	var lives, belongings []clientv3.Op
	for _, kv := range kvs {
		key := tail(kv.Key, s.keys.grants())
		grant := entry[grantValue]{key: key, created: kv.CreateRevision, modified: kv.ModRevision}
		if err := unmarshal(string(kv.Key), kv.Value, &grant.value); err != nil {
			return nil, err
		}
		grants = append(grants, grant)
		lives = append(lives, clientv3.OpGet(s.keys.life(key), clientv3.WithCountOnly()), clientv3.OpGet(s.keys.sessionLife(grant.value.Session), clientv3.WithCountOnly()))
		belongings = append(belongings, clientv3.OpGet(s.keys.held(grant.value.Session, key)))
	}
	counts, err := s.read(ctx, lives...)
	if err != nil {
		return nil, err
	}
	held, err := s.read(ctx, belongings...)
	if err != nil {
		return nil, err
	}
	n := func(i int) bool { return counts.Responses[i].GetResponseRange().GetCount() > 0 }
	var found []lock.Grant
	for i, grant := range grants {
		if !s.rules.alive(n(2*i), n(2*i+1)) {
			continue
		}
		end, err := decode[heldValue](grant.key, held.Responses[i])
		if err != nil {
			return nil, err
		}
		if !end.exists() {
			continue // ended since
		}
		found = append(found, s.describe(grant.key, grant, holder{expiresAt: end.value.ExpiresAt}))
	}
	return found, nil
}

// Revocations implements lock.Lister.
func (s *Store) Revocations(ctx context.Context, after int64, limit int) ([]lock.RevocationRecord, bool, error) {
	ctx, cancel := s.limit(ctx)
	defer cancel()
	prefix := s.keys.revocations()
	response, err := s.read(ctx, clientv3.OpGet(s.keys.revocation(max(after, 0)+1), clientv3.WithRange(clientv3.GetPrefixRangeEnd(prefix)), clientv3.WithLimit(int64(limit)+1)))
	if err != nil {
		return nil, false, fmt.Errorf("list revocations: %w", err)
	}
	kvs := response.Responses[0].GetResponseRange().GetKvs()
	more := len(kvs) > limit
	var records []lock.RevocationRecord
	for _, kv := range kvs[:min(len(kvs), limit)] {
		var v revocationValue
		if err := unmarshal(string(kv.Key), kv.Value, &v); err != nil {
			return nil, false, err
		}
		id, err := number([]*mvccpb.KeyValue{kv}, prefix)
		if err != nil {
			return nil, false, err
		}
		records = append(records, lock.RevocationRecord{
			ID: id, Key: v.Key, PreviousOwner: v.PreviousOwner, PreviousToken: v.PreviousToken, Operator: v.Operator, Reason: v.Reason,
			RevokedAt: v.RevokedAt.In(time.UTC),
		})
	}
	return records, more, nil
}
