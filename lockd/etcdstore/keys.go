package etcdstore

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"fenceline/lockd/lock"
)

// layout names the keys. A thing and its life are two keys: the thing stays until somebody removes it, its life hangs on an etcd lease and
// goes by itself, by etcd's clock.
type layout struct{ prefix string }

func (l layout) source() string       { return l.prefix + "source" }
func (l layout) grants() string       { return l.prefix + "grant/" }
func (l layout) lives() string        { return l.prefix + "grant-life/" }
func (l layout) sessions() string     { return l.prefix + "session/" }
func (l layout) sessionLives() string { return l.prefix + "session-life/" }
func (l layout) revocations() string  { return l.prefix + "revocation/" }
func (l layout) advances() string     { return l.prefix + "advance/" }

func (l layout) grant(key string) string              { return l.grants() + key }
func (l layout) life(key string) string               { return l.lives() + key }
func (l layout) session(id uuid.UUID) string          { return l.sessions() + id.String() }
func (l layout) sessionLife(id uuid.UUID) string      { return l.sessionLives() + id.String() }
func (l layout) heldBy(id uuid.UUID) string           { return l.prefix + "held/" + id.String() + "/" }
func (l layout) held(id uuid.UUID, key string) string { return l.heldBy(id) + key }
func (l layout) revocation(id int64) string           { return fmt.Sprintf("%s%019d", l.revocations(), id) }

func (l layout) advance(id int64) string { return fmt.Sprintf("%s%019d", l.advances(), id) }

// grantValue is written once, by the acquire that won; so the key's ModRevision is the revision of that put for as long as the grant is there.
type grantValue struct {
	Owner      string    `json:"owner"`
	Session    uuid.UUID `json:"session"`
	Base       int64     `json:"base"` // of the token source when it was granted: token = base + ModRevision
	AcquiredAt time.Time `json:"acquiredAt"`
}

// lifeValue stands beside a grant, under the lease that it lives by.
type lifeValue struct {
	Asked    int64 `json:"asked"` // seconds
	Given    int64 `json:"given"`
	Base     int64 `json:"base"`
	Revision int64 `json:"revision,omitempty"` // of the grant, when a renewal wrote this; else it is this key's own ModRevision
}

// heldValue lists a grant under its session. A renewal rewrites it, since it must not touch the grant.
type heldValue struct {
	ExpiresAt time.Time `json:"expiresAt"` // an estimate
}

// sessionValue outlives the session's lease until the reaper passes by, so that "expired" can be told from "unknown".
type sessionValue struct {
	Owner     string    `json:"owner"`
	TTL       int64     `json:"ttl"`       // seconds, as etcd gave it
	ExpiresAt time.Time `json:"expiresAt"` // an estimate
	Closed    bool      `json:"closed,omitempty"`
}

// revocationValue is one entry of the append-only record of revocations.
type revocationValue struct {
	Key           string     `json:"key"`
	PreviousOwner string     `json:"previousOwner"`
	PreviousToken lock.Token `json:"previousToken"`
	Operator      string     `json:"operator"`
	Reason        string     `json:"reason"`
	RevokedAt     time.Time  `json:"revokedAt"`
}

// advanceValue is one entry of the append-only record of moves of the token source.
type advanceValue struct {
	From       lock.Token `json:"from"`
	To         lock.Token `json:"to"`
	Operator   string     `json:"operator"`
	Reason     string     `json:"reason"`
	AdvancedAt time.Time  `json:"advancedAt"`
}

// entry is a key as it was read. It is absent when its revisions are 0, which is also what a comparison with an absent key wants.
type entry[T any] struct {
	key               string
	value             T
	created, modified int64
	lease             clientv3.LeaseID
}

func (e entry[T]) exists() bool { return e.modified != 0 }

// unchanged compares the key with what was read: the same put, or still absent.
func (e entry[T]) unchanged() clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(e.key), "=", e.modified)
}

func present(key string) clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(key), ">", 0)
}

func absent(key string) clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(key), "=", 0)
}

// decode reads the answer to a Get of one key.
func decode[T any](key string, response *pb.ResponseOp) (entry[T], error) {
	e := entry[T]{key: key}
	kvs := response.GetResponseRange().GetKvs()
	if len(kvs) == 0 {
		return e, nil
	}
	e.created, e.modified, e.lease = kvs[0].CreateRevision, kvs[0].ModRevision, clientv3.LeaseID(kvs[0].Lease)
	return e, unmarshal(key, kvs[0].Value, &e.value)
}

func unmarshal(key string, data []byte, value any) error {
	if len(data) == 0 {
		return nil
	}
	if err := json.Unmarshal(data, value); err != nil {
		return fmt.Errorf("etcd key %s holds what lockd didn't write; keep other programs out of its prefix: %w", key, err)
	}
	return nil
}

// put writes a value as JSON.
func put(key string, value any, options ...clientv3.OpOption) clientv3.Op {
	data, err := json.Marshal(value)
	if err != nil {
		data = []byte(err.Error()) // can't be: the values above are plain
	}
	return clientv3.OpPut(key, string(data), options...)
}

func count(prefix string) clientv3.Op {
	return clientv3.OpGet(prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
}

// tail is a key without the prefix that it was found under.
func tail(key []byte, prefix string) string { return strings.TrimPrefix(string(key), prefix) }
