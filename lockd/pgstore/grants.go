package pgstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"fenceline/internal/postgres"
	"fenceline/lockd/lock"
)

// Insert implements lock.Store. All statements go out in one pipeline; the decision to commit is made when all
// answers are there, so that a refused session leaves no grant.
func (s *Store) Insert(ctx context.Context, key, ownerID string, session uuid.UUID, ttl time.Duration) (lock.Acquired, error) {
	var result lock.Acquired
	err := s.inTx(ctx, "acquire", func(ctx context.Context, tx pgx.Tx) error {
		result = lock.Acquired{Grant: lock.Grant{Key: key, TTL: ttl}}
		batch := &pgx.Batch{}
		batch.Queue(s.sql.order, key)
		batch.Queue(s.sql.durable).QueryRow(s.mustBeDurable)
		batch.Queue(s.sql.session, session).QueryRow(func(row pgx.Row) error { return checkSession(row, ownerID) })
		batch.Queue(readEnded, key).QueryRow(func(row pgx.Row) error {
			var err error
			result.Ended, err = scanEnded(row, key)
			return err
		})
		batch.Queue(s.sql.endDead, key)
		batch.Queue(s.sql.acquire, key, ownerID, session, ttl.Seconds()).QueryRow(func(row pgx.Row) error {
			g := &result.Grant
			err := row.Scan(&g.Token, &g.OwnerID, &g.SessionID, &g.AcquiredAt, &g.ExpiresAt)
			result.Granted = err == nil
			return ignoreNoRows(err)
		})
		batch.Queue(readHolder, key).QueryRow(func(row pgx.Row) error {
			return ignoreNoRows(row.Scan(&result.Holder.OwnerID, &result.Holder.ExpiresAt))
		})
		if err := tx.SendBatch(ctx, batch).Close(); err != nil {
			return sessionGone(err)
		}
		if !result.Granted {
			result.Grant, result.Ended = lock.Grant{}, nil
			return errContended
		}
		result.Holder = lock.Holder{}
		return nil
	})
	if err != nil && !errors.Is(err, errContended) {
		return lock.Acquired{}, err
	}
	return result, nil
}

// errContended rolls a contended acquire back. There is nothing to keep, yet a commit would wait for the disk: ON CONFLICT DO UPDATE has
// locked the holder's row, which makes the transaction one that wrote.
var errContended = errors.New("contended")

func scanEnded(row pgx.Row, key string) (*lock.Expired, error) {
	ended := &lock.Expired{Key: key}
	var overdue float64
	err := row.Scan(&ended.Token, &overdue)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil //nolint:nilnil // nothing has ended, which is no error
	}
	ended.Overdue = seconds(overdue)
	return ended, err
}

// checkSession refuses a session that isn't live, and an owner that isn't the session's.
func checkSession(row pgx.Row, ownerID string) error {
	var owner string
	var live bool
	err := row.Scan(&owner, &live)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return lock.ErrSessionUnknown
	case err != nil:
		return err
	case !live:
		return lock.ErrSessionExpired
	case owner != ownerID:
		return fmt.Errorf("%w: X-Owner-Id: the session belongs to another owner", lock.ErrInvalid)
	}
	return nil
}

// sessionGone recognises the foreign key that refuses a grant under a session that has just been deleted.
func sessionGone(err error) error {
	if code, _ := postgres.Constraint(err); code == postgres.ForeignKeyViolation {
		return fmt.Errorf("%w: %w", lock.ErrSessionUnknown, err)
	}
	return err
}

func ignoreNoRows(err error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	return err
}

// Extend implements lock.Store.
func (s *Store) Extend(ctx context.Context, key string, token lock.Token, ttl time.Duration) (lock.Grant, error) {
	var grant lock.Grant
	err := s.inTx(ctx, "renew", func(ctx context.Context, tx pgx.Tx) error {
		grant = lock.Grant{Key: key, TTL: ttl}
		lost := false
		batch := &pgx.Batch{}
		batch.Queue(s.sql.endDead, key) // a grant under a dead session is over
		batch.Queue(s.sql.renew, key, token, ttl.Seconds()).QueryRow(func(row pgx.Row) error {
			err := row.Scan(&grant.Token, &grant.ExpiresAt)
			lost = errors.Is(err, pgx.ErrNoRows)
			return ignoreNoRows(err)
		})
		batch.Queue(readRenewed, key).QueryRow(func(row pgx.Row) error {
			return ignoreNoRows(row.Scan(&grant.OwnerID, &grant.SessionID, &grant.AcquiredAt))
		})
		if err := tx.SendBatch(ctx, batch).Close(); err != nil {
			return err
		}
		if lost {
			return lock.ErrLockLost
		}
		return nil
	})
	return grant, err
}

// Delete implements lock.Store.
func (s *Store) Delete(ctx context.Context, key string, token lock.Token) (lock.Released, error) {
	var result lock.Released
	err := s.inTx(ctx, "release", func(ctx context.Context, tx pgx.Tx) error {
		result = lock.Released{Stale: true}
		batch := &pgx.Batch{}
		batch.Queue(readHeld, key, token).QueryRow(func(row pgx.Row) error {
			var held float64
			err := row.Scan(&held)
			result.Held = max(seconds(held), 0)
			return ignoreNoRows(err)
		})
		batch.Queue(s.sql.release, key, token).Exec(func(tag pgconn.CommandTag) error {
			result.Stale = tag.RowsAffected() == 0
			return nil
		})
		return tx.SendBatch(ctx, batch).Close()
	})
	return result, err
}

// Read implements lock.Store.
func (s *Store) Read(ctx context.Context, key string) (grant lock.Grant, held bool, err error) {
	grant.Key = key
	err = s.pool.QueryRow(ctx, readEntry, key).Scan(&grant.OwnerID, &grant.SessionID, &grant.Token, &grant.AcquiredAt, &grant.ExpiresAt)
	if errors.Is(err, pgx.ErrNoRows) {
		return lock.Grant{}, false, nil
	}
	if err != nil {
		return lock.Grant{}, false, fmt.Errorf("inspect: %w", identify(ctx, err))
	}
	grant.TTL = grant.ExpiresAt.Sub(grant.AcquiredAt)
	return grant, true, nil
}

// Revoke implements lock.Store. The floor is drawn while the key is locked against other draws, so a grant that commits
// later for this key has drawn later and is above it.
func (s *Store) Revoke(ctx context.Context, request lock.RevokeRequest) (lock.Revocation, error) {
	var result lock.Revocation
	err := s.inTx(ctx, "revoke", func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, s.sql.order, request.Key); err != nil {
			return err
		}
		err := tx.QueryRow(ctx, lockEntry, request.Key).Scan(&result.RevokedToken, &result.PreviousOwner)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			return lock.ErrNotHeld
		case err != nil:
			return err
		case request.Expected != 0 && request.Expected != result.RevokedToken:
			return fmt.Errorf("%w: %s, not %s", lock.ErrTokenMismatch, result.RevokedToken, request.Expected)
		}
		return s.endAndRecord(ctx, tx, request, &result)
	})
	return result, err
}

func (s *Store) endAndRecord(ctx context.Context, tx pgx.Tx, request lock.RevokeRequest, result *lock.Revocation) error {
	batch := &pgx.Batch{}
	batch.Queue(s.sql.durable).QueryRow(s.mustBeDurable)
	batch.Queue(release, request.Key, result.RevokedToken).QueryRow(func(row pgx.Row) error { return row.Scan(&result.RevokedToken) }) // lockEntry keeps it there
	batch.Queue(recordRevocation, request.Key, result.PreviousOwner, result.RevokedToken, request.Operator, request.Reason).
		QueryRow(func(row pgx.Row) error { return row.Scan(&result.ID) })
	batch.Queue(s.sql.floor).QueryRow(func(row pgx.Row) error { return row.Scan(&result.NewTokenFloor) })
	return tx.SendBatch(ctx, batch).Close()
}

func seconds(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }
