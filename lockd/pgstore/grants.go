package pgstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"fenceline/internal/postgres"
	"fenceline/lockd/lock"
)

// sessionGone recognises the foreign key that refuses a grant under a session that has just been deleted.
func sessionGone(err error) error {
	if code, _ := postgres.Constraint(err); code == postgres.ForeignKeyViolation {
		return fmt.Errorf("%w: %w", lock.ErrSessionUnknown, err)
	}
	return err
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
	revoke := func() error {
		return s.inTx(ctx, "revoke", func(ctx context.Context, tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, orderDraws, request.Key); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, holdEntry, request.Key); err != nil {
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
	}
	err := revoke()
	again, err := s.undone(ctx, err)
	if again {
		err = revoke()
	}
	if err != nil {
		return lock.Revocation{}, err
	}
	s.freed(ctx, request.Key, result.RevokedToken)
	return result, nil
}

func (s *Store) endAndRecord(ctx context.Context, tx pgx.Tx, request lock.RevokeRequest, result *lock.Revocation) error {
	batch := &pgx.Batch{}
	batch.Queue(demandSource)
	batch.Queue(release, request.Key, result.RevokedToken).QueryRow(func(row pgx.Row) error { return row.Scan(&result.RevokedToken) }) // lockEntry keeps it there
	batch.Queue(recordRevocation, request.Key, result.PreviousOwner, result.RevokedToken, request.Operator, request.Reason).
		QueryRow(func(row pgx.Row) error { return row.Scan(&result.ID) })
	batch.Queue(s.floor).QueryRow(func(row pgx.Row) error { return row.Scan(&result.NewTokenFloor) })
	return tx.SendBatch(ctx, batch).Close()
}

func seconds(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }
