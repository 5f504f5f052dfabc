package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"fenceline/lockd/lock"
)

// Insert implements lock.Store.
func (s *Store) Insert(ctx context.Context, key, ownerID string, session uuid.UUID, ttl time.Duration) (lock.Acquired, error) {
	ctx, cancel := s.limit(ctx)
	defer cancel()
	result, err := s.insert(ctx, key, ownerID, session, wholeSeconds(ttl))
	if err != nil {
		return lock.Acquired{}, fmt.Errorf("acquire: %w", err)
	}
	return result, nil
}

// insert looks and grants until nothing has changed between the two. Whenever it has, somebody else got on.
func (s *Store) insert(ctx context.Context, key, ownerID string, session uuid.UUID, seconds int64) (lock.Acquired, error) {
	var l lease
	for {
		a, err := s.look(ctx, key, session)
		if err != nil {
			return lock.Acquired{}, err
		}
		if err := s.rules.session(a.session, a.sessionLife); err != nil {
			s.giveBack(l.id, l.asked)
			return lock.Acquired{}, err
		}
		if a.session.value.Owner != ownerID {
			return lock.Acquired{}, fmt.Errorf("%w: X-Owner-Id: the session belongs to another owner", lock.ErrInvalid)
		}
		holder, err := s.holder(ctx, a)
		if err != nil {
			return lock.Acquired{}, err
		}
		if holder.alive && holder.session != session {
			s.giveBack(l.id, l.asked)
			return lock.Acquired{Holder: lock.Holder{OwnerID: a.grant.value.Owner, ExpiresAt: holder.expiresAt}}, nil
		}
		if !s.checked.Load() || !a.source.exists() || !a.source.value.ready(a.header, a.asOf) {
			if err := s.settle(ctx, true); err != nil {
				return lock.Acquired{}, err
			}
			continue
		}
		if l.id == clientv3.NoLease {
			if l, err = s.leaseFor(ctx, seconds); err != nil {
				return lock.Acquired{}, err
			}
		}
		grant, err := s.grant(ctx, a, l)
		switch {
		case errors.Is(err, rpctypes.ErrLeaseNotFound):
			l = lease{} // it took too long
		case err != nil:
			return lock.Acquired{}, err
		case grant != nil:
			return lock.Acquired{Granted: true, Grant: *grant, Ended: s.ended(a, holder)}, nil
		}
	}
}

// look reads what an acquire decides by.
func (s *Store) look(ctx context.Context, key string, session uuid.UUID) (*attempt, error) {
	a := &attempt{key: key, id: session, asOf: s.seen.Load()}
	k := s.keys
	response, err := s.read(ctx, clientv3.OpGet(k.source()), clientv3.OpGet(k.session(session)), clientv3.OpGet(k.sessionLife(session)),
		clientv3.OpGet(k.grant(key)), clientv3.OpGet(k.life(key)))
	if err != nil {
		return nil, err
	}
	a.header = response.Header
	var errs [5]error
	a.source, errs[0] = decode[sourceValue](k.source(), response.Responses[0])
	a.session, errs[1] = decode[sessionValue](k.session(session), response.Responses[1])
	a.sessionLife, errs[2] = decode[struct{}](k.sessionLife(session), response.Responses[2])
	a.grant, errs[3] = decode[grantValue](k.grant(key), response.Responses[3])
	a.life, errs[4] = decode[lifeValue](k.life(key), response.Responses[4])
	return a, errors.Join(errs[:]...)
}

// holder is what is known of a grant beside itself.
type holder struct {
	session   uuid.UUID
	alive     bool
	expiresAt time.Time // the grant's
	ended     time.Time // the grant's or the session's, whichever is earlier
	closed    bool      // the session was
}

// holder reads what belongs to the grant that an acquire has found. A session never comes back, so what is read a moment later than the
// grant is good: a session that is alive now was alive then, and one that is gone stays so.
func (s *Store) holder(ctx context.Context, a *attempt) (holder, error) {
	if !a.grant.exists() {
		return holder{}, nil
	}
	return s.holderOf(ctx, a.key, a.grant, a.life.exists())
}

func (s *Store) holderOf(ctx context.Context, key string, grant entry[grantValue], life bool, options ...clientv3.OpOption) (holder, error) {
	id, k := grant.value.Session, s.keys
	response, err := s.read(ctx, clientv3.OpGet(k.held(id, key), options...), clientv3.OpGet(k.session(id), options...),
		clientv3.OpGet(k.sessionLife(id), options...))
	if err != nil {
		return holder{}, err
	}
	held, err := decode[heldValue](k.held(id, key), response.Responses[0])
	if err != nil {
		return holder{}, err
	}
	session, err := decode[sessionValue](k.session(id), response.Responses[1])
	if err != nil {
		return holder{}, err
	}
	sessionLife := len(response.Responses[2].GetResponseRange().GetKvs()) > 0
	h := holder{session: id, alive: s.rules.alive(life, sessionLife), expiresAt: held.value.ExpiresAt, ended: held.value.ExpiresAt, closed: session.value.Closed}
	if session.exists() && session.value.ExpiresAt.Before(h.ended) {
		h.ended = session.value.ExpiresAt
	}
	return h, nil
}

// grant writes the grant if nothing has changed, and returns nil if something has.
func (s *Store) grant(ctx context.Context, a *attempt, l lease) (*lock.Grant, error) {
	k, base := s.keys, a.source.value.Base
	value := grantValue{Owner: a.session.value.Owner, Session: a.id, Base: base, AcquiredAt: now()}
	then := []clientv3.Op{
		put(k.grant(a.key), value),
		put(k.life(a.key), lifeValue{Asked: l.asked, Given: l.given, Base: base}, clientv3.WithLease(l.id)),
		put(k.held(a.id, a.key), heldValue{ExpiresAt: l.until}),
		clientv3.OpGet(k.grant(a.key)), // as just written
	}
	if a.grant.exists() && a.grant.value.Session != a.id {
		then = append(then, clientv3.OpDelete(k.held(a.grant.value.Session, a.key)))
	}
	response, err := s.write(ctx, s.rules.acquire(a), then)
	if err != nil || !response.Succeeded {
		return nil, err
	}
	// Between the reading and the writing the etcd may have been replaced by a copy of an earlier day, in which all comparisons hold.
	if response.Header.ClusterId != a.header.ClusterId || response.Header.Revision <= a.header.Revision {
		s.checked.Store(false)
		return nil, fmt.Errorf("%w: etcd was replaced under way", lock.ErrUnknownOutcome)
	}
	s.reached(base + response.Header.Revision)
	s.giveBack(a.life.lease, a.life.value.Asked)
	written := response.Responses[3].GetResponseRange().GetKvs()[0]
	return &lock.Grant{
		Key: a.key, OwnerID: value.Owner, SessionID: a.id, Token: lock.Token(base + s.rules.revision(written.CreateRevision, written.ModRevision)),
		AcquiredAt: value.AcquiredAt, ExpiresAt: l.until, TTL: time.Duration(l.given) * time.Second,
	}, nil
}

// ended describes the expired grant whose place an acquire took.
func (s *Store) ended(a *attempt, h holder) *lock.Ended {
	if !a.grant.exists() || h.alive {
		return nil
	}
	ended := describeEnded(a.key, s.token(a.grant), a.grant.value, h.closed && a.life.exists(), h.ended)
	return &ended
}

// token is the one of a grant that was read.
func (s *Store) token(grant entry[grantValue]) lock.Token {
	return lock.Token(grant.value.Base + s.rules.revision(grant.created, grant.modified))
}

// overdue is how long ago something ended. Etcd says that it has, so it is at least a moment, whatever our clock says.
func overdue(ended time.Time) time.Duration { return max(time.Since(ended), time.Millisecond) }

// Delete implements lock.Store. Key and token decide, and nothing else (C1 §1.4).
func (s *Store) Delete(ctx context.Context, key string, token lock.Token) (lock.Released, error) {
	ctx, cancel := s.limit(ctx)
	defer cancel()
	for {
		grant, life, err := s.readGrant(ctx, key)
		if err != nil {
			return lock.Released{}, fmt.Errorf("release: %w", err)
		}
		if !grant.exists() || !s.rules.owns(s.token(grant), token) {
			return lock.Released{Stale: true}, nil
		}
		response, err := s.write(ctx, []clientv3.Cmp{grant.unchanged(), life.unchanged()}, s.remove(key, grant))
		if err != nil {
			return lock.Released{}, fmt.Errorf("release: %w", err)
		}
		if response.Succeeded {
			s.giveBack(life.lease, life.value.Asked)
			return lock.Released{Held: max(time.Since(grant.value.AcquiredAt), 0)}, nil
		}
	}
}

// remove takes away a grant with all that belongs to it.
func (s *Store) remove(key string, grant entry[grantValue]) []clientv3.Op {
	return []clientv3.Op{
		clientv3.OpDelete(s.keys.grant(key)), clientv3.OpDelete(s.keys.life(key)), clientv3.OpDelete(s.keys.held(grant.value.Session, key)),
	}
}

// readGrant reads a grant and its life as of one instant.
func (s *Store) readGrant(ctx context.Context, key string, options ...clientv3.OpOption) (grant entry[grantValue], life entry[lifeValue], err error) {
	response, err := s.read(ctx, clientv3.OpGet(s.keys.grant(key), options...), clientv3.OpGet(s.keys.life(key), options...))
	if err != nil {
		return grant, life, err
	}
	if grant, err = decode[grantValue](s.keys.grant(key), response.Responses[0]); err != nil {
		return grant, life, err
	}
	life, err = decode[lifeValue](s.keys.life(key), response.Responses[1])
	return grant, life, err
}

// Read implements lock.Store. It asks one member for what it knows (a serializable read), which may be out of date; it is advisory anyway.
func (s *Store) Read(ctx context.Context, key string) (lock.Grant, bool, error) {
	ctx, cancel := s.limit(ctx)
	defer cancel()
	grant, life, err := s.readGrant(ctx, key, clientv3.WithSerializable())
	if err != nil {
		return lock.Grant{}, false, fmt.Errorf("inspect: %w", err)
	}
	if !grant.exists() {
		return lock.Grant{}, false, nil
	}
	h, err := s.holderOf(ctx, key, grant, life.exists(), clientv3.WithSerializable())
	switch {
	case err != nil:
		return lock.Grant{}, false, fmt.Errorf("inspect: %w", err)
	case !h.alive:
		return lock.Grant{}, false, nil
	}
	return s.describe(key, grant, h), true, nil
}

// describe is a grant as it is shown.
func (s *Store) describe(key string, grant entry[grantValue], h holder) lock.Grant {
	return lock.Grant{
		Key: key, OwnerID: grant.value.Owner, SessionID: grant.value.Session, Token: s.token(grant),
		AcquiredAt: grant.value.AcquiredAt, ExpiresAt: h.expiresAt, TTL: h.expiresAt.Sub(grant.value.AcquiredAt),
	}
}
