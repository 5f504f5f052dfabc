package etcdstore

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	clientv3 "go.etcd.io/etcd/client/v3"

	"fenceline/lockd/lock"
)

const (
	// maxOps is how many operations etcd takes in one transaction.
	maxOps = 128
	// perTxn is how many grants are ended in one transaction, each by a nested one that decides for itself.
	perTxn = 50
	// page is how many keys are looked at in one go.
	page = 1000
)

// Reap implements lock.Store. Etcd has removed the lives; what they belonged to is removed here, each by a transaction that compares that it is still
// the one without a life. So of many reapers one removes it, and reports it.
func (s *Store) Reap(ctx context.Context, batch int) (ended []lock.Ended, more bool, err error) {
	ctx, cancel := s.limit(ctx)
	defer cancel()
	ended, more, err = s.reap(ctx, batch)
	switch {
	case err == nil:
		return ended, more, nil
	case len(ended) > 0:
		return ended, false, nil // nobody else can report them; the next round meets the fault again
	}
	return nil, false, fmt.Errorf("reap: %w", err)
}

func (s *Store) reap(ctx context.Context, batch int) (ended []lock.Ended, more bool, err error) {
	// Every life belongs to something, so equal counts mean that nothing has expired. That is what there is to do most of the time.
	k := s.keys
	counts, err := s.read(ctx, count(k.grants()), count(k.lives()), count(k.sessions()), count(k.sessionLives()))
	if err != nil {
		return nil, false, err
	}
	n := func(i int) int64 { return counts.Responses[i].GetResponseRange().GetCount() }
	if n(0) > n(1) {
		keys, err := s.lifeless(ctx, k.grants(), k.lives(), batch)
		if err != nil {
			return nil, false, err
		}
		more = len(keys) == batch
		if ended, err = s.endGrants(ctx, keys, uuid.Nil); err != nil {
			return ended, false, err
		}
	}
	if n(2) > n(3) {
		ids, err := s.lifeless(ctx, k.sessions(), k.sessionLives(), batch)
		if err != nil {
			return ended, false, err
		}
		more = more || len(ids) == batch
		for _, text := range ids {
			id, err := uuid.Parse(text)
			if err != nil {
				return ended, false, fmt.Errorf("etcd key %s%s isn't lockd's: %w", k.sessions(), text, err)
			}
			found, err := s.endSession(ctx, id)
			ended = append(ended, found...)
			if err != nil {
				return ended, false, err
			}
		}
	}
	return ended, more, nil
}

// lifeless returns at most limit names of things without a life.
func (s *Store) lifeless(ctx context.Context, things, lives string, limit int) ([]string, error) {
	var found []string
	end := clientv3.GetPrefixRangeEnd(things)
	for from := things; ; {
		response, err := s.read(ctx, clientv3.OpGet(from, clientv3.WithRange(end), clientv3.WithLimit(page), clientv3.WithKeysOnly()))
		if err != nil {
			return nil, err
		}
		answer := response.Responses[0].GetResponseRange()
		kvs := answer.GetKvs()
		if len(kvs) == 0 {
			return found, nil
		}
		first, last := tail(kvs[0].Key, things), tail(kvs[len(kvs)-1].Key, things)
		// Read later than the things: one that was made meanwhile isn't asked for, and one that lost its life meanwhile may be taken.
		response, err = s.read(ctx, clientv3.OpGet(lives+first, clientv3.WithRange(lives+last+"\x00"), clientv3.WithKeysOnly()))
		if err != nil {
			return nil, err
		}
		alive := map[string]bool{}
		for _, kv := range response.Responses[0].GetResponseRange().GetKvs() {
			alive[tail(kv.Key, lives)] = true
		}
		for _, kv := range kvs {
			if name := tail(kv.Key, things); !alive[name] {
				if found = append(found, name); len(found) == limit {
					return found, nil
				}
			}
		}
		if !answer.GetMore() {
			return found, nil
		}
		from = things + last + "\x00"
	}
}

// endGrants removes grants that have no life any more, or belong to a session that has ended, and returns those that it removed itself.
func (s *Store) endGrants(ctx context.Context, keys []string, session uuid.UUID) ([]lock.Ended, error) {
	var ended []lock.Ended
	for chunk := range slices.Chunk(keys, perTxn) {
		more, err := s.endChunk(ctx, chunk, session)
		ended = append(ended, more...)
		if err != nil {
			return ended, err
		}
	}
	return ended, nil
}

func (s *Store) endChunk(ctx context.Context, keys []string, session uuid.UUID) ([]lock.Ended, error) {
	doomed, err := s.doomed(ctx, keys, session)
	if err != nil || len(doomed) == 0 {
		return nil, err
	}
	var steps []clientv3.Op
	for _, d := range doomed {
		steps = append(steps, clientv3.OpTxn([]clientv3.Cmp{d.grant.unchanged(), d.life.unchanged()}, s.remove(d.key, d.grant), nil))
	}
	response, err := s.write(ctx, nil, steps)
	if err != nil {
		return nil, err
	}
	var ended []lock.Ended
	for i, d := range doomed {
		if response.Responses[i].GetResponseTxn().GetSucceeded() {
			s.giveBack(d.life.lease, d.life.value.Asked)
			ended = append(ended, d.describe(s.token(d.grant)))
		}
	}
	return ended, nil
}

// doomedGrant is one that is about to be removed.
type doomedGrant struct {
	key   string
	grant entry[grantValue]
	life  entry[lifeValue]
	ended time.Time
	// closed says that its session was closed, which releases a grant whose own time isn't over.
	closed bool
}

func (d doomedGrant) describe(token lock.Token) lock.Ended {
	return describeEnded(d.key, token, d.grant.value, d.closed && d.life.exists(), d.ended)
}

// describeEnded is a grant that was released with its session, or expired at about the time ended.
func describeEnded(key string, token lock.Token, grant grantValue, released bool, ended time.Time) lock.Ended {
	e := lock.Ended{Key: key, Token: token, OwnerID: grant.Owner, Expired: !released}
	if released {
		e.Held = max(time.Since(grant.AcquiredAt), 0)
	} else {
		e.Overdue = overdue(ended)
	}
	return e
}

// doomed reads the grants of these keys: those without a life, or with a session those that are its own.
func (s *Store) doomed(ctx context.Context, keys []string, session uuid.UUID) ([]doomedGrant, error) {
	var grants []clientv3.Op
	for _, key := range keys {
		grants = append(grants, clientv3.OpGet(s.keys.grant(key)), clientv3.OpGet(s.keys.life(key)))
	}
	response, err := s.read(ctx, grants...)
	if err != nil {
		return nil, err
	}
	var found []doomedGrant
	var belongings []clientv3.Op
	for i, key := range keys {
		grant, err := decode[grantValue](s.keys.grant(key), response.Responses[2*i])
		if err != nil {
			return nil, err
		}
		if !grant.exists() || session != uuid.Nil && grant.value.Session != session {
			continue
		}
		life, err := decode[lifeValue](s.keys.life(key), response.Responses[2*i+1])
		if err != nil {
			return nil, err
		}
		if session == uuid.Nil && life.exists() {
			continue // renewed or taken over since
		}
		found = append(found, doomedGrant{key: key, grant: grant, life: life})
		belongings = append(belongings, clientv3.OpGet(s.keys.held(grant.value.Session, key)), clientv3.OpGet(s.keys.session(grant.value.Session)))
	}
	if len(found) == 0 {
		return nil, nil
	}
	if response, err = s.read(ctx, belongings...); err != nil {
		return nil, err
	}
	for i := range found {
		held, err := decode[heldValue]("", response.Responses[2*i])
		if err != nil {
			return nil, err
		}
		owner, err := decode[sessionValue]("", response.Responses[2*i+1])
		if err != nil {
			return nil, err
		}
		found[i].ended, found[i].closed = held.value.ExpiresAt, owner.value.Closed
		if session != uuid.Nil && owner.value.ExpiresAt.Before(found[i].ended) {
			found[i].ended = owner.value.ExpiresAt
		}
	}
	return found, nil
}

// endSession removes a session without a life and all that it holds. It returns the grants that it removed.
func (s *Store) endSession(ctx context.Context, id uuid.UUID) ([]lock.Ended, error) {
	var ended []lock.Ended
	prefix := s.keys.heldBy(id)
	for {
		response, err := s.read(ctx, clientv3.OpGet(s.keys.session(id)), clientv3.OpGet(prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithLimit(page)))
		if err != nil {
			return ended, err
		}
		session, err := decode[sessionValue](s.keys.session(id), response.Responses[0])
		if err != nil || !session.exists() {
			return ended, err // another reaper has finished it
		}
		var keys []string
		for _, kv := range response.Responses[1].GetResponseRange().GetKvs() {
			keys = append(keys, tail(kv.Key, prefix))
		}
		if len(keys) == 0 {
			// Nothing can be added any more, since that takes the session's life.
			_, err := s.write(ctx, []clientv3.Cmp{session.unchanged(), absent(s.keys.sessionLife(id))}, []clientv3.Op{clientv3.OpDelete(session.key)})
			return ended, err
		}
		more, err := s.endGrants(ctx, keys, id)
		ended = append(ended, more...)
		if err != nil {
			return ended, err
		}
	}
}

// CountHeld implements lock.Store. Grants of a session that has just ended count until the reaper has passed by.
func (s *Store) CountHeld(ctx context.Context) (int64, error) {
	ctx, cancel := s.limit(ctx)
	defer cancel()
	response, err := s.read(ctx, count(s.keys.lives()))
	if err != nil {
		return 0, fmt.Errorf("count held locks: %w", err)
	}
	return response.Responses[0].GetResponseRange().GetCount(), nil
}
