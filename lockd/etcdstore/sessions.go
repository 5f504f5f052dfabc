package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"fenceline/lockd/lock"
)

// OpenSession implements lock.Store.
func (s *Store) OpenSession(ctx context.Context, ownerID string, ttl time.Duration) (lock.Session, error) {
	ctx, cancel := s.limit(ctx)
	defer cancel()
	session, err := s.openSession(ctx, ownerID, wholeSeconds(ttl))
	if err != nil {
		return lock.Session{}, fmt.Errorf("open session: %w", err)
	}
	return session, nil
}

func (s *Store) openSession(ctx context.Context, ownerID string, seconds int64) (lock.Session, error) {
	l, err := s.newLease(ctx, seconds)
	if err != nil {
		return lock.Session{}, err
	}
	id := uuid.New()
	_, err = s.write(ctx, nil, []clientv3.Op{
		put(s.keys.session(id), sessionValue{Owner: ownerID, TTL: l.given, ExpiresAt: l.until}),
		put(s.keys.sessionLife(id), struct{}{}, clientv3.WithLease(l.id)),
	})
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		err = fmt.Errorf("%w: it took longer than the session's time to live", lock.ErrUnavailable)
	}
	if err != nil {
		return lock.Session{}, err
	}
	return lock.Session{ID: id, OwnerID: ownerID, TTL: time.Duration(l.given) * time.Second, ExpiresAt: l.until}, nil
}

// readSession reads a session and its life as of one instant.
func (s *Store) readSession(ctx context.Context, id uuid.UUID) (session entry[sessionValue], life entry[struct{}], err error) {
	response, err := s.read(ctx, clientv3.OpGet(s.keys.session(id)), clientv3.OpGet(s.keys.sessionLife(id)))
	if err != nil {
		return session, life, err
	}
	if session, err = decode[sessionValue](s.keys.session(id), response.Responses[0]); err != nil {
		return session, life, err
	}
	life, err = decode[struct{}](s.keys.sessionLife(id), response.Responses[1])
	return session, life, err
}

// Heartbeat implements lock.Store. The time that it returns is this process's.
func (s *Store) Heartbeat(ctx context.Context, id uuid.UUID) (session lock.Session, held int, at time.Time, err error) {
	ctx, cancel := s.limit(ctx)
	defer cancel()
	for {
		session, err = s.heartbeat(ctx, id)
		if err == nil {
			break
		}
		if !errors.Is(err, errLeaseOver) {
			return lock.Session{}, 0, time.Time{}, fmt.Errorf("heartbeat: %w", err)
		}
	}
	held, err = s.countHeldBy(ctx, id)
	if err != nil {
		return lock.Session{}, 0, time.Time{}, fmt.Errorf("heartbeat: %w", unconfirmed(err))
	}
	return session, held, now(), nil
}

// heartbeat returns errLeaseOver when the session has changed since it was read: another look tells.
func (s *Store) heartbeat(ctx context.Context, id uuid.UUID) (lock.Session, error) {
	session, life, err := s.readSession(ctx, id)
	if err != nil {
		return lock.Session{}, err
	}
	if err := s.rules.session(session, life); err != nil {
		return lock.Session{}, err
	}
	l, err := s.keepAlive(ctx, life.lease, session.value.TTL)
	if err != nil {
		return lock.Session{}, err
	}
	value := session.value
	value.ExpiresAt = l.until
	response, err := s.write(ctx, []clientv3.Cmp{life.unchanged()}, []clientv3.Op{put(session.key, value)})
	switch {
	case err != nil:
		return lock.Session{}, unconfirmed(err)
	case !response.Succeeded:
		return lock.Session{}, errLeaseOver
	}
	return lock.Session{ID: id, OwnerID: value.Owner, TTL: time.Duration(l.given) * time.Second, ExpiresAt: l.until}, nil
}

// countHeldBy counts a session's grants whose own life is there.
func (s *Store) countHeldBy(ctx context.Context, id uuid.UUID) (int, error) {
	prefix := s.keys.heldBy(id)
	response, err := s.read(ctx, clientv3.OpGet(prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly()))
	if err != nil {
		return 0, err
	}
	var lives []clientv3.Op
	for _, kv := range response.Responses[0].GetResponseRange().GetKvs() {
		lives = append(lives, clientv3.OpGet(s.keys.life(tail(kv.Key, prefix)), clientv3.WithCountOnly()))
	}
	n := 0
	for chunk := range slices.Chunk(lives, maxOps) {
		response, err := s.read(ctx, chunk...)
		if err != nil {
			return 0, err
		}
		for _, r := range response.Responses {
			n += int(r.GetResponseRange().GetCount())
		}
	}
	return n, nil
}

// CloseSession implements lock.Store. One step ends the session, and with it every grant that it has: none is alive without it, and none
// can be added. Removing them afterwards is tidying up, which the reaper does when this process can't.
func (s *Store) CloseSession(ctx context.Context, id uuid.UUID) ([]lock.Ended, error) {
	ctx, cancel := s.limit(ctx)
	defer cancel()
	for {
		session, life, err := s.readSession(ctx, id)
		if err != nil {
			return nil, fmt.Errorf("close session: %w", err)
		}
		if !session.exists() || session.value.Closed {
			return nil, fmt.Errorf("close session: %w", lock.ErrSessionUnknown)
		}
		closed := session.value
		closed.Closed = true
		response, err := s.write(ctx, []clientv3.Cmp{session.unchanged()}, []clientv3.Op{put(session.key, closed), clientv3.OpDelete(life.key)})
		if err != nil {
			return nil, fmt.Errorf("close session: %w", err)
		}
		if !response.Succeeded {
			continue // a heartbeat or a reaper came between
		}
		s.discarded.add(life.lease)
		ended, err := s.endSession(ctx, id)
		if err != nil {
			s.logger.Warn("a closed session's grants are left to the reaper", "event", "session_left_behind", "error", err)
		}
		return ended, nil
	}
}
