package pgstore

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"fenceline/internal/grouped"
	"fenceline/lockd/lock"
)

// releasing is one release; it asks for the end of the grant with this token.
type releasing = grouped.Member[lock.Token, lock.Released]

// releaseLocks is C1 §1.4's release for each key (lockdb/V7): key and token and nothing else. One row for each member, in their order.
const releaseLocks = `SELECT released, held FROM release_locks($1::text[], $2::bigint[])`

// Delete implements lock.Store. Releases that arrive together share one transaction; ctx is treated as by Insert.
func (s *Store) Delete(ctx context.Context, key string, token lock.Token) (lock.Released, error) {
	result, err := do(ctx, s, "release", s.releases, key, token)
	if err == nil && !result.Stale {
		s.freed(ctx, key, token)
	}
	return result, err
}

func queueReleases(batch *pgx.Batch, members []*releasing) *pgx.QueuedQuery {
	keys, tokens := make([]string, len(members)), make([]int64, len(members))
	for i, m := range members {
		keys[i], tokens[i] = m.Key, int64(m.Ask)
	}
	return batch.Queue(releaseLocks, keys, tokens)
}

func scanRelease(rows pgx.Rows, _ *releasing) (o outcome[lock.Released], err error) {
	var held *float64
	if err := rows.Scan(&o.wrote, &held); err != nil {
		return o, err
	}
	o.answer.Stale = !o.wrote
	if o.wrote && held != nil {
		o.answer.Held = max(seconds(*held), 0)
	}
	return o, nil
}

// renewAsk is what a renewal asks for: that the grant with this token lasts so much longer.
type renewAsk struct {
	token lock.Token
	ttl   time.Duration
}

type renewing = grouped.Member[renewAsk, lock.Grant]

// renewLocks is C1 §1.4's renewal for each key (lockdb/V7). One row for each member, in their order.
const renewLocks = `SELECT renewed, owner, session, acquired, expires, swept FROM renew_locks($1::text[], $2::bigint[], $3::float8[])`

// Extend implements lock.Store. Renewals that arrive together share one transaction; ctx is treated as by Insert.
func (s *Store) Extend(ctx context.Context, key string, token lock.Token, ttl time.Duration) (lock.Grant, error) {
	return do(ctx, s, "renew", s.renewals, key, renewAsk{token: token, ttl: ttl})
}

func queueRenewals(batch *pgx.Batch, members []*renewing) *pgx.QueuedQuery {
	keys, tokens, ttls := make([]string, len(members)), make([]int64, len(members)), make([]float64, len(members))
	for i, m := range members {
		keys[i], tokens[i], ttls[i] = m.Key, int64(m.Ask.token), m.Ask.ttl.Seconds()
	}
	return batch.Queue(renewLocks, keys, tokens, ttls)
}

func scanRenewal(rows pgx.Rows, m *renewing) (o outcome[lock.Grant], err error) {
	var owner *string
	var session *uuid.UUID
	var acquired, expires *time.Time
	if err := rows.Scan(&o.wrote, &owner, &session, &acquired, &expires, &o.swept); err != nil {
		return o, err
	}
	if !o.wrote {
		o.err = lock.ErrLockLost
		return o, nil
	}
	o.answer = lock.Grant{
		Key: m.Key, OwnerID: *owner, SessionID: *session, Token: m.Ask.token, AcquiredAt: *acquired, ExpiresAt: *expires, TTL: m.Ask.ttl,
	}
	return o, nil
}
