package etcdstore

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"fenceline/lockd/lock"
)

var errWatchEnded = errors.New("etcd ended the watch")

// Watch implements lock.Watcher. A grant's life goes with every way in which a grant ends, its expiry by etcd's clock included. Only a session's
// expiry leaves the lives of its grants to the reaper.
func (s *Store) Watch(ctx context.Context, ready func(), freed func(key string, token lock.Token)) error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	client, err := s.connect(ctx)
	if err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	prefix := s.keys.lives()
	changes := client.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithFilterPut(), clientv3.WithPrevKV(), clientv3.WithCreatedNotify())
	for response := range changes {
		if err := response.Err(); err != nil {
			return fmt.Errorf("watch: %w", unread(err))
		}
		if response.Created {
			ready()
		}
		for _, event := range response.Events {
			freed(tail(event.Kv.Key, prefix), s.endedToken(event.PrevKv))
		}
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	return fmt.Errorf("watch: %w: %w", lock.ErrUnavailable, errWatchEnded)
}

// endedToken is the token of the grant whose life this was; 0 when it can't be told.
func (s *Store) endedToken(life *mvccpb.KeyValue) lock.Token {
	var v lifeValue
	if life == nil || unmarshal(string(life.Key), life.Value, &v) != nil {
		return 0
	}
	if v.Revision == 0 {
		v.Revision = s.rules.revision(life.CreateRevision, life.ModRevision)
	}
	return lock.Token(v.Base + v.Revision)
}
