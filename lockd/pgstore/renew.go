package pgstore

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"fenceline/internal/grouped"
	"fenceline/internal/postgres"
	"fenceline/lockd/lock"
)

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

func queueRenewals(batch *pgx.Batch, members []*renewing, limits postgres.TxOptions) *pgx.QueuedQuery {
	postgres.QueueSetup(batch, limits)
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
