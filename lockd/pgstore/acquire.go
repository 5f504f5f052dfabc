package pgstore

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"fenceline/internal/grouped"
	"fenceline/lockd/lock"
)

// acquireAsk is what one acquire asks for, beside its key.
type acquireAsk struct {
	owner   string
	session uuid.UUID
	ttl     time.Duration
}

type acquiring = grouped.Member[acquireAsk, lock.Acquired]

// acquireLocks is C1 §1.3 for each key, with what must stand before it (lockdb/V7). One row for each member, in their order.
const acquireLocks = `SELECT outcome, token, acquired, expires, holder, ended, overdue, swept FROM acquire_locks($1::text[], $2::text[], $3::text[]::uuid[], $4::float8[])`

// Insert implements lock.Store. Acquires that arrive together share one transaction. When ctx ends while the transaction is at the
// store, Insert still waits for its outcome and returns it: the caller gives a grant back that nobody wants any more.
func (s *Store) Insert(ctx context.Context, key, ownerID string, session uuid.UUID, ttl time.Duration) (lock.Acquired, error) {
	return do(ctx, s, "acquire", s.acquires, key, acquireAsk{owner: ownerID, session: session, ttl: ttl})
}

// queueAcquires puts a group's acquires into the pipeline.
func queueAcquires(batch *pgx.Batch, members []*acquiring) *pgx.QueuedQuery {
	n := len(members)
	keys, owners, sessions, ttls := make([]string, n), make([]string, n), make([]string, n), make([]float64, n)
	for i, m := range members {
		keys[i], owners[i], sessions[i], ttls[i] = m.Key, m.Ask.owner, m.Ask.session.String(), m.Ask.ttl.Seconds()
	}
	return batch.Queue(acquireLocks, keys, owners, sessions, ttls)
}

// scanAcquire reads one member's row.
func scanAcquire(rows pgx.Rows, m *acquiring) (o outcome[lock.Acquired], err error) {
	var verdict string
	var token, ended *lock.Token
	var acquired, expires *time.Time
	var holder *string
	var overdue *float64
	if err := rows.Scan(&verdict, &token, &acquired, &expires, &holder, &ended, &overdue, &o.swept); err != nil {
		return o, err
	}
	switch verdict {
	case "granted":
		o.wrote = true
		o.answer.Granted = true
		o.answer.Grant = lock.Grant{
			Key: m.Key, OwnerID: m.Ask.owner, SessionID: m.Ask.session, Token: *token, AcquiredAt: *acquired, ExpiresAt: *expires, TTL: m.Ask.ttl,
		}
		if ended != nil {
			o.answer.Ended = &lock.Ended{Key: m.Key, Token: *ended, Expired: true, Overdue: seconds(*overdue)}
			if holder != nil { // else the database is of before lockdb/V8
				o.answer.Ended.OwnerID = *holder
			}
		}
	case "contended":
		if holder != nil {
			o.answer.Holder = lock.Holder{OwnerID: *holder, ExpiresAt: *expires}
		}
	case "session unknown":
		o.err = lock.ErrSessionUnknown
	case "session expired":
		o.err = lock.ErrSessionExpired
	case "session of another":
		o.err = fmt.Errorf("%w: X-Owner-Id: the session belongs to another owner", lock.ErrInvalid)
	default:
		return o, fmt.Errorf("acquire_locks: unexpected outcome %q", verdict)
	}
	return o, nil
}
