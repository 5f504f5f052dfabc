package etcdstore

import (
	"github.com/google/uuid"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"fenceline/lockd/lock"
)

// rules are what the store's safety hangs on, in one place. Negative controls break them one by one.
//
// All writes are transactions that compare what was read before them. So it is enough that a rule holds for what was read: if any of it changed
// meanwhile, nothing is written and the call looks again. No lock is held and nothing is retried that may have happened.
type rules struct {
	// revision is what a grant's token is made of: the revision of the put that won. Revisions are drawn by the cluster in the order in which it
	// applies transactions, so a later grant has a higher one, also on a taken-over key. (A key's CreateRevision would stay.)
	revision func(created, modified int64) int64
	// owns says whether a call that shows a token means the grant that was read. Release compares nothing else (C1 §1.4).
	owns func(grant, shown lock.Token) bool
	// alive says whether a grant stands in the way of others: its own life and its session's are there. (A session that ended frees its keys
	// at once, whether or not somebody has removed its grants yet.)
	alive func(life, session bool) bool
	// session refuses an acquire under a session that isn't live.
	session func(session entry[sessionValue], life entry[struct{}]) error
	// acquire is compared by the transaction that grants. The session's life keeps an expired session from acquiring, even when it expires between
	// the reading and the writing; the source keeps tokens above its base and below its ceiling; the grant and its life keep a second
	// acquire, a renewal or a release from passing unseen.
	acquire func(a *attempt) []clientv3.Cmp
	// renew is compared after the lease was kept alive, since a keep-alive and a takeover aren't one step: only if the grant, its life
	// and its session are still there has the renewal come in time.
	renew func(keys layout, grant entry[grantValue], life entry[lifeValue]) []clientv3.Cmp
	// revoke is compared by the transaction that revokes: it ends the grant that was read and judged, and no other.
	revoke func(keys layout, a *attempt) []clientv3.Cmp
	// floor is the token that a revocation draws: its own transaction's revision, so every later grant is above it.
	floor func(base int64, header *pb.ResponseHeader, revoked lock.Token) lock.Token
}

func normative() rules {
	return rules{
		revision: func(_, modified int64) int64 { return modified },
		owns:     func(grant, shown lock.Token) bool { return grant == shown },
		alive:    func(life, session bool) bool { return life && session },
		session: func(session entry[sessionValue], life entry[struct{}]) error {
			switch {
			case life.exists():
				return nil
			case session.exists() && !session.value.Closed:
				return lock.ErrSessionExpired
			}
			return lock.ErrSessionUnknown
		},
		acquire: func(a *attempt) []clientv3.Cmp {
			return []clientv3.Cmp{a.source.unchanged(), a.sessionLife.unchanged(), a.grant.unchanged(), a.life.unchanged()}
		},
		renew: func(keys layout, grant entry[grantValue], life entry[lifeValue]) []clientv3.Cmp {
			return []clientv3.Cmp{grant.unchanged(), life.unchanged(), present(keys.sessionLife(grant.value.Session))}
		},
		revoke: func(keys layout, a *attempt) []clientv3.Cmp {
			return []clientv3.Cmp{a.source.unchanged(), a.grant.unchanged(), a.life.unchanged(), present(keys.sessionLife(a.grant.value.Session))}
		},
		floor: func(base int64, header *pb.ResponseHeader, _ lock.Token) lock.Token {
			return lock.Token(base + header.Revision)
		},
	}
}

// attempt is what an acquire has read, all as of one instant.
type attempt struct {
	key         string
	id          uuid.UUID // of the session that wants the key
	header      *pb.ResponseHeader
	asOf        int64 // the position of the token source that was reached before
	source      entry[sourceValue]
	session     entry[sessionValue]
	sessionLife entry[struct{}]
	grant       entry[grantValue]
	life        entry[lifeValue]
}
