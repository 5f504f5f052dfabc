package paydb

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"fenceline/internal/postgres"
	"fenceline/paysvc/relay/event"
)

// Outbox is the relay's part of paydb. It runs under the role relayapp. Every call is one statement in a transaction of its own: none is open while an
// event is delivered.
type Outbox struct {
	pool *pgxpool.Pool
	tx   postgres.TxOptions
}

// NewOutbox returns the store. timeout bounds each statement.
func NewOutbox(pool *pgxpool.Pool, timeout time.Duration) *Outbox {
	return &Outbox{pool: pool, tx: postgres.TxOptions{StatementTimeout: timeout, LockTimeout: timeout}}
}

// claimEvents: 0 to $2 rows. It leases events to the claim $1 for $3 seconds. SKIP LOCKED: two relays that claim at once take different events instead of
// waiting for each other; a row that another one has just claimed fails the condition on claimed_until when it is looked at again.
//
// Of a payout's events only the oldest that isn't delivered is ever claimed, so the next one leaves after that one's delivery was marked, and a parked one holds the
// later ones back. An event's delivery is never taken back, so the subquery's older snapshot can only be too careful. It doesn't name the lock: event_id grows in the order of the changes, since they
// are made under the payout's row lock.
const claimEvents = `
UPDATE outbox o
   SET claim_id = $1, claimed_until = now() + make_interval(secs => $3::float8), attempts = o.attempts + 1
  FROM (SELECT c.event_id
          FROM outbox c
         WHERE c.delivered_at IS NULL AND c.parked_at IS NULL
           AND c.next_attempt_at <= now()
           AND (c.claimed_until IS NULL OR c.claimed_until <= now())
           AND NOT EXISTS (SELECT FROM outbox e WHERE e.payout_id = c.payout_id AND e.event_id < c.event_id AND e.delivered_at IS NULL)
         ORDER BY c.next_attempt_at, c.event_id
         LIMIT $2
           FOR UPDATE SKIP LOCKED) due
 WHERE o.event_id = due.event_id
RETURNING o.event_id, o.event_key, o.event_type, o.payload, o.created_at, o.attempts`

// Claim implements relay.Store.
func (o *Outbox) Claim(ctx context.Context, claim uuid.UUID, limit int, lease time.Duration) ([]event.Event, error) {
	var events []event.Event
	err := postgres.InTx(ctx, o.pool, o.tx, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, claimEvents, claim, limit, lease.Seconds())
		if err != nil {
			return err
		}
		events, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (event.Event, error) {
			var e event.Event
			err := row.Scan(&e.ID, &e.Key, &e.Type, (*[]byte)(&e.Payload), &e.CreatedAt, &e.Attempt)
			return e, err
		})
		return err
	})
	return events, wrap("claim events", err)
}

// markDelivered: 0 or 1 row affected. It asks for nobody's claim: a delivery is a delivery, also by a relay whose lease was over when it came to an end.
const markDelivered = `
UPDATE outbox SET delivered_at = now(), parked_at = NULL, claim_id = NULL, claimed_until = NULL, last_error = NULL WHERE event_id = $1 AND delivered_at IS NULL`

// Delivered implements relay.Store.
func (o *Outbox) Delivered(ctx context.Context, id int64) error {
	return wrap("mark event as delivered", o.exec(ctx, markDelivered, id))
}

// markFailed: 0 or 1 row affected. None when another relay has the event by now: its attempt decides.
const markFailed = `
UPDATE outbox
   SET next_attempt_at = now() + make_interval(secs => $3::float8), parked_at = CASE WHEN $4 THEN now() END,
       claim_id = NULL, claimed_until = NULL, last_error = left($5, 500)
 WHERE event_id = $1 AND claim_id = $2 AND delivered_at IS NULL`

// Failed implements relay.Store.
func (o *Outbox) Failed(ctx context.Context, id int64, claim uuid.UUID, retryAfter time.Duration, park bool, why string) error {
	return wrap("mark event as failed", o.exec(ctx, markFailed, id, claim, retryAfter.Seconds(), park, why))
}

// unparkEvents: 0 or more rows affected.
const unparkEvents = `
UPDATE outbox SET parked_at = NULL, attempts = 0, next_attempt_at = now() WHERE parked_at IS NOT NULL AND delivered_at IS NULL`

// Unpark implements relay.Store.
func (o *Outbox) Unpark(ctx context.Context) (n int64, err error) {
	err = postgres.InTx(ctx, o.pool, o.tx, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, unparkEvents)
		n = tag.RowsAffected()
		return err
	})
	return n, wrap("unpark events", err)
}

// selectBacklog: 1 row. What waits behind a parked event is stuck with it.
const selectBacklog = `
SELECT count(*), count(*) FILTER (WHERE parked_at IS NOT NULL),
       count(*) FILTER (WHERE parked_at IS NULL AND EXISTS (SELECT FROM outbox e
            WHERE e.payout_id = o.payout_id AND e.event_id < o.event_id AND e.delivered_at IS NULL AND e.parked_at IS NOT NULL)),
       coalesce(extract(epoch FROM now() - min(created_at)), 0)::float8
  FROM outbox o
 WHERE delivered_at IS NULL`

// Backlog implements relay.Store.
func (o *Outbox) Backlog(ctx context.Context) (event.Backlog, error) {
	var b event.Backlog
	var seconds float64
	err := o.pool.QueryRow(ctx, selectBacklog).Scan(&b.Waiting, &b.Parked, &b.Blocked, &seconds)
	b.Lag = time.Duration(max(seconds, 0) * float64(time.Second))
	return b, wrap("read backlog", postgres.Classify(ctx, err))
}

func (o *Outbox) exec(ctx context.Context, sql string, args ...any) error {
	return postgres.InTx(ctx, o.pool, o.tx, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, sql, args...)
		return err
	})
}

// checkRelayRole: 1 row.
const checkRelayRole = `SELECT has_table_privilege('outbox', 'SELECT') AND has_column_privilege('outbox', 'claim_id', 'UPDATE')`

var errRelayRole = errors.New("the login isn't a member of the role relayapp")

// Check says whether this is the database that the relay can work with.
func (o *Outbox) Check(ctx context.Context) error {
	if err := errors.Join(postgres.CheckContract(ctx, o.pool, Contract()), postgres.CheckWritable(ctx, o.pool)); err != nil {
		return err
	}
	allowed := false
	if err := o.pool.QueryRow(ctx, checkRelayRole).Scan(&allowed); err != nil {
		return fmt.Errorf("read privileges: %w", postgres.Classify(ctx, err))
	}
	if !allowed {
		return errRelayRole
	}
	return nil
}
