package pgstore

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"fenceline/internal/grouped"
	"fenceline/internal/postgres"
	"fenceline/lockd/lock"
)

// changeAsk is what one call asks for, beside its key: the end of the grant with the token, or, when token is 0, a grant.
type changeAsk struct {
	token   lock.Token
	owner   string
	session uuid.UUID
	ttl     time.Duration
}

// changed is the answer to the one or the other.
type changed struct {
	acquired lock.Acquired
	released lock.Released
}

type changing = grouped.Member[changeAsk, changed]

// changeLocks is C1 §1.3 and C1 §1.4's release for each key, with what must stand before them (lockdb/V8). One row for each member, in their order.
const changeLocks = `
SELECT outcome, token, acquired, expires, holder, ended, overdue, held, swept
  FROM change_locks($1::text[], $2::bigint[], $3::text[], $4::text[]::uuid[], $5::float8[], $6::text, $7::text)`

// limitStatement bounds the statements after it in their transaction, which change_locks can't do for itself. Milliseconds follow. No row.
const limitStatement = `SET LOCAL statement_timeout = `

// Insert implements lock.Store. Calls that arrive together share one transaction. When ctx ends while the transaction is at the
// store, Insert still waits for its outcome and returns it: the caller gives a grant back that nobody wants any more.
func (s *Store) Insert(ctx context.Context, key, ownerID string, session uuid.UUID, ttl time.Duration) (lock.Acquired, error) {
	result, err := do(ctx, s, "acquire", s.changes, key, changeAsk{owner: ownerID, session: session, ttl: ttl})
	return result.acquired, err
}

// Delete implements lock.Store. It shares transactions as Insert does; ctx is treated as there.
func (s *Store) Delete(ctx context.Context, key string, token lock.Token) (lock.Released, error) {
	if token < 1 {
		return lock.Released{Stale: true}, nil // C1 has no such token, and 0 would be an acquire
	}
	result, err := do(ctx, s, "release", s.changes, key, changeAsk{token: token})
	if err == nil && !result.released.Stale {
		s.freed(ctx, key, token)
	}
	return result.released, err
}

// queueChanges puts a group's acquires and releases into the pipeline.
func queueChanges(batch *pgx.Batch, members []*changing, limits postgres.TxOptions) *pgx.QueuedQuery {
	n := len(members)
	keys, tokens, owners, sessions, ttls := make([]string, n), make([]*int64, n), make([]string, n), make([]*string, n), make([]float64, n)
	for i, m := range members {
		keys[i] = m.Key
		if m.Ask.token != 0 {
			tokens[i] = (*int64)(&m.Ask.token)
			continue
		}
		session := m.Ask.session.String()
		owners[i], sessions[i], ttls[i] = m.Ask.owner, &session, m.Ask.ttl.Seconds()
	}
	batch.Queue(limitStatement + strconv.FormatInt(limits.StatementTimeout.Milliseconds(), 10))
	return batch.Queue(changeLocks, keys, tokens, owners, sessions, ttls, postgres.Millis(limits.LockTimeout), postgres.Millis(limits.StatementTimeout))
}

// scanChange reads one member's row.
func scanChange(rows pgx.Rows, m *changing) (o outcome[changed], err error) {
	var verdict string
	var token, ended *lock.Token
	var acquired, expires *time.Time
	var holder *string
	var overdue, held *float64
	if err := rows.Scan(&verdict, &token, &acquired, &expires, &holder, &ended, &overdue, &held, &o.swept); err != nil {
		return o, err
	}
	switch verdict {
	case "granted":
		o.wrote = true
		o.answer.acquired.Granted = true
		o.answer.acquired.Grant = lock.Grant{
			Key: m.Key, OwnerID: m.Ask.owner, SessionID: m.Ask.session, Token: *token, AcquiredAt: *acquired, ExpiresAt: *expires, TTL: m.Ask.ttl,
		}
		if ended != nil {
			o.answer.acquired.Ended = &lock.Ended{Key: m.Key, Token: *ended, OwnerID: *holder, Expired: true, Overdue: seconds(*overdue)}
		}
	case "contended":
		if holder != nil {
			o.answer.acquired.Holder = lock.Holder{OwnerID: *holder, ExpiresAt: *expires}
		}
	case "released":
		o.wrote = true
		if held != nil {
			o.answer.released.Held = max(seconds(*held), 0)
		}
	case "stale":
		o.answer.released.Stale = true
	case "session unknown":
		o.err = lock.ErrSessionUnknown
	case "session expired":
		o.err = lock.ErrSessionExpired
	case "session of another":
		o.err = fmt.Errorf("%w: X-Owner-Id: the session belongs to another owner", lock.ErrInvalid)
	default:
		return o, fmt.Errorf("change_locks: unexpected outcome %q", verdict)
	}
	return o, nil
}
