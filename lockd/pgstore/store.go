// Package pgstore keeps sessions and grants in lockdb, a PostgreSQL database, with the statements
// of C1 §1.3 and §1.4. One primary is the serialisation point and its clock the only one.
package pgstore

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"fenceline/internal/grouped"
	"fenceline/internal/postgres"
	"fenceline/lockd/lock"
)

// Contract is the schema that this package's statements are written for, and the one after it: the next version only adds to it, so that a
// schema can be brought up to date while the binaries before it still run. A version that takes something away skips a number.
func Contract() postgres.Contract {
	return postgres.Contract{Table: pgx.Identifier{"public", "schema_contract"}, Name: "lockdb", Min: 3, Max: 4}
}

// Store implements lock.Store, lock.Lister, lock.Watcher and lock.TokenSource.
type Store struct {
	pool    *pgxpool.Pool
	timeout time.Duration
	logger  hclog.Logger
	direct  string
	floor   string // draws the floor of a revocation; a negative control replaces it
	checked atomic.Bool

	changes  *grouped.Grouper[changeAsk, changed]
	renewals *grouped.Grouper[renewAsk, lock.Grant]
	alone    chan struct{}
	notices  notices
}

var (
	_ lock.Store       = (*Store)(nil)
	_ lock.Watcher     = (*Store)(nil)
	_ lock.Lister      = (*Store)(nil)
	_ lock.TokenSource = (*Store)(nil)
)

// Option changes what New does by default.
type Option func(*Store)

// WithLogger lets the store say when the token source was advanced.
func WithLogger(logger hclog.Logger) Option { return func(s *Store) { s.logger = logger } }

// WithDirectURL is where Watch listens. Behind a transaction-mode pooler LISTEN succeeds and never delivers, so it needs a URL that leads to the
// server itself. By default Watch connects as the pool does.
func WithDirectURL(url string) Option { return func(s *Store) { s.direct = url } }

// New returns a store over the pool. Timeout bounds one statement, the wait for a lock included; 0 means 3 s. Close it before the pool.
func New(pool *pgxpool.Pool, timeout time.Duration, options ...Option) *Store {
	if timeout == 0 {
		timeout = 3 * time.Second
	}
	// A third of the connections is for calls that run alone, so that keys in trouble never take all of them.
	s := &Store{pool: pool, timeout: timeout, logger: hclog.NewNullLogger(), floor: drawToken, alone: make(chan struct{}, max(pool.Config().MaxConns/3, 1))}
	s.notices.pause = defaultHelloPause
	for _, option := range options {
		option(s)
	}
	s.changes = newGrouper(s, kind[changeAsk, changed]{queueChanges, scanChange})
	s.renewals = newGrouper(s, kind[renewAsk, lock.Grant]{queueRenewals, scanRenewal})
	return s
}

// Check says whether the database can be trusted with tokens: writable, durable, the expected schema. Until it has
// held once, and again after it has failed, the store does nothing else but check.
func (s *Store) Check(ctx context.Context) error {
	err := errors.Join(
		postgres.CheckWritable(ctx, s.pool),
		postgres.CheckDurability(ctx, s.pool),
		postgres.CheckContract(ctx, s.pool, Contract()),
	)
	if err == nil { // the tables are there, so their rights can be asked for
		err = s.checkRole(ctx)
	}
	s.checked.Store(err == nil)
	return err
}

// checkRole asks for the rights that the statements need, from whichever role they come. One row.
const checkRole = `
SELECT has_table_privilege('lock_session', 'SELECT') AND has_table_privilege('lock_session', 'INSERT') AND has_table_privilege('lock_session', 'DELETE')
   AND has_table_privilege('lock_entry', 'SELECT') AND has_table_privilege('lock_entry', 'INSERT') AND has_table_privilege('lock_entry', 'UPDATE')
   AND has_table_privilege('lock_entry', 'DELETE') AND has_table_privilege('lock_revocation', 'INSERT') AND has_table_privilege('token_source', 'SELECT')
   AND has_sequence_privilege('fencing_token_seq', 'USAGE')`

func (s *Store) checkRole(ctx context.Context) error {
	var allowed bool
	if err := s.pool.QueryRow(ctx, checkRole).Scan(&allowed); err != nil {
		return fmt.Errorf("read privileges: %w", postgres.Classify(ctx, err))
	}
	if !allowed {
		return fmt.Errorf("%w: the login isn't a member of the role lockapp", postgres.ErrPermission)
	}
	return nil
}

// trusted makes sure that Check has held. A token from a database that forgets commits could be handed out twice.
func (s *Store) trusted(ctx context.Context) error {
	if s.checked.Load() {
		return nil
	}
	if err := s.Check(ctx); err != nil {
		return fmt.Errorf("%w: %w", lock.ErrUnavailable, err)
	}
	return nil
}

// inTx runs fn in a transaction of its own and gives its errors the domain's identities.
func (s *Store) inTx(ctx context.Context, doing string, fn func(ctx context.Context, tx pgx.Tx) error) error {
	if err := s.trusted(ctx); err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	err := postgres.InTx(ctx, s.pool, postgres.TxOptions{StatementTimeout: s.timeout, LockTimeout: s.timeout}, fn)
	if err != nil {
		return fmt.Errorf("%s: %w", doing, identify(ctx, err))
	}
	return nil
}

// identify tells the store's answers from its silence. An error that is no answer of the domain's is
// ErrUnknownOutcome when the commit's answer was lost, and ErrUnavailable when nothing happened and the same may succeed later. What is
// left is a defect of the deployment or of ours; it keeps no identity, and the API says so.
func identify(ctx context.Context, err error) error {
	for _, answer := range []error{
		lock.ErrSessionUnknown, lock.ErrSessionExpired, lock.ErrLockLost, lock.ErrNotHeld, lock.ErrTokenMismatch, lock.ErrInvalid, lock.ErrUnavailable,
	} {
		if errors.Is(err, answer) {
			return err
		}
	}
	err = postgres.Classify(ctx, err)
	if errors.Is(err, postgres.ErrOutcomeUnknown) {
		return fmt.Errorf("%w: %w", lock.ErrUnknownOutcome, err)
	}
	if postgres.State(err) == "" {
		return fmt.Errorf("%w: %w", lock.ErrUnavailable, err) // the server didn't answer
	}
	for _, passing := range []error{postgres.ErrUnavailable, postgres.ErrReadOnly, postgres.ErrTimeout, postgres.ErrCanceled, postgres.ErrSerialization} {
		if errors.Is(err, passing) {
			return fmt.Errorf("%w: %w", lock.ErrUnavailable, err)
		}
	}
	return err
}

// OpenSession implements lock.Store.
func (s *Store) OpenSession(ctx context.Context, ownerID string, ttl time.Duration) (lock.Session, error) {
	session := lock.Session{ID: uuid.New(), OwnerID: ownerID, TTL: ttl}
	err := s.inTx(ctx, "open session", func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, openSession, session.ID, ownerID, ttl.Seconds(), ttl.Milliseconds()).Scan(&session.ExpiresAt)
	})
	return session, err
}

// Heartbeat implements lock.Store.
func (s *Store) Heartbeat(ctx context.Context, id uuid.UUID) (session lock.Session, held int, now time.Time, err error) {
	err = s.inTx(ctx, "heartbeat", func(ctx context.Context, tx pgx.Tx) error {
		var live bool
		var ttlMillis int64
		err := tx.QueryRow(ctx, readSession, id).Scan(&session.OwnerID, &ttlMillis, &live)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			return lock.ErrSessionUnknown
		case err != nil:
			return err
		case !live:
			return lock.ErrSessionExpired
		}
		session.ID, session.TTL = id, time.Duration(ttlMillis)*time.Millisecond
		err = tx.QueryRow(ctx, heartbeat, id, session.TTL.Seconds()).Scan(&session.ExpiresAt)
		if errors.Is(err, pgx.ErrNoRows) {
			return lock.ErrSessionUnknown // deleted since the statement before
		}
		if err != nil {
			return err
		}
		return tx.QueryRow(ctx, countSession, id).Scan(&held, &now)
	})
	return session, held, now, err
}

// CloseSession implements lock.Store.
func (s *Store) CloseSession(ctx context.Context, id uuid.UUID) ([]lock.Ended, error) {
	var ended []lock.Ended
	err := s.inTx(ctx, "close session", func(ctx context.Context, tx pgx.Tx) error {
		batch := &pgx.Batch{}
		batch.Queue(holdSession, id)
		batch.Queue(grantsOfSession, id).Query(func(rows pgx.Rows) (err error) {
			ended, err = pgx.CollectRows(rows, scanEnded)
			return err
		})
		batch.Queue(closeSession, id).Exec(func(tag pgconn.CommandTag) error {
			if tag.RowsAffected() == 0 {
				return lock.ErrSessionUnknown
			}
			return nil
		})
		return tx.SendBatch(ctx, batch).Close()
	})
	if err != nil {
		return nil, err
	}
	for _, e := range ended {
		s.freed(ctx, e.Key, e.Token)
	}
	return ended, nil
}

// scanEnded reads a grant that ends with its session. Had its own time been over before, it has expired.
func scanEnded(row pgx.CollectableRow) (e lock.Ended, err error) {
	var held, overdue float64
	err = row.Scan(&e.Key, &e.Token, &e.OwnerID, &held, &overdue)
	if e.Expired = overdue >= 0; e.Expired {
		e.Overdue = seconds(overdue)
	} else {
		e.Held = max(seconds(held), 0)
	}
	return e, err
}

// CountHeld implements lock.Store.
func (s *Store) CountHeld(ctx context.Context) (int64, error) {
	var n int64
	if err := s.pool.QueryRow(ctx, countHeld).Scan(&n); err != nil {
		return 0, fmt.Errorf("count held locks: %w", identify(ctx, err))
	}
	return n, nil
}
