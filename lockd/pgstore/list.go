package pgstore

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"fenceline/lockd/lock"
)

// listGrants reads a page of live grants. Keys are compared by their bytes (COLLATE "C"), and the prefix as it is: in LIKE, _ would stand for any
// character, and keys may hold it. No row, one or many, in the order of keys.
const listGrants = `
SELECT e.lock_key, e.owner_id, e.session_id, e.fencing_token, e.acquired_at, e.expires_at
  FROM lock_entry e
  JOIN lock_session s USING (session_id)
 WHERE starts_with(e.lock_key, $1) AND e.lock_key COLLATE "C" > $2
   AND e.expires_at > now() AND s.expires_at > now()
 ORDER BY e.lock_key COLLATE "C"
 LIMIT $3`

// Grants implements lock.Lister.
func (s *Store) Grants(ctx context.Context, prefix, after string, limit int) (grants []lock.Grant, more bool, err error) {
	rows, err := s.pool.Query(ctx, listGrants, prefix, after, limit+1) // one more tells whether there is another page
	if err == nil {
		grants, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (g lock.Grant, err error) {
			err = row.Scan(&g.Key, &g.OwnerID, &g.SessionID, &g.Token, &g.AcquiredAt, &g.ExpiresAt)
			g.TTL = g.ExpiresAt.Sub(g.AcquiredAt)
			return g, err
		})
	}
	if err != nil {
		return nil, false, fmt.Errorf("list locks: %w", identify(ctx, err))
	}
	grants, more = page(grants, limit)
	return grants, more, nil
}

// listRevocations reads a page of the record. No row, one or many, in the order of ids.
const listRevocations = `
SELECT id, lock_key, prev_owner, prev_token, operator, reason, revoked_at
  FROM lock_revocation
 WHERE id > $1
 ORDER BY id
 LIMIT $2`

// Revocations implements lock.Lister.
func (s *Store) Revocations(ctx context.Context, after int64, limit int) (records []lock.RevocationRecord, more bool, err error) {
	rows, err := s.pool.Query(ctx, listRevocations, after, limit+1)
	if err == nil {
		records, err = pgx.CollectRows(rows, pgx.RowToStructByPos[lock.RevocationRecord])
	}
	if err != nil {
		return nil, false, fmt.Errorf("list revocations: %w", identify(ctx, err))
	}
	records, more = page(records, limit)
	return records, more, nil
}

func page[T any](all []T, limit int) ([]T, bool) {
	if len(all) > limit {
		return all[:limit], true
	}
	return all, false
}
