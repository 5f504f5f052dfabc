package pgstore

import (
	"context"
	"maps"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"fenceline/lockd/lock"
)

// Reap implements lock.Store.
func (s *Store) Reap(ctx context.Context, batch int) (expired []lock.Ended, more bool, err error) {
	err = s.inTx(ctx, "reap", func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, reapEntries, batch)
		if err != nil {
			return err
		}
		expired, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (lock.Ended, error) {
			e := lock.Ended{Expired: true}
			var overdue float64
			err := row.Scan(&e.Key, &e.Token, &e.OwnerID, &overdue)
			e.Overdue = seconds(overdue)
			return e, err
		})
		if err != nil {
			return err
		}
		ended, sessions, err := s.reapSessions(ctx, tx, batch)
		more = len(expired) == batch || sessions == batch
		expired = append(expired, ended...)
		return err
	})
	if err != nil {
		return nil, false, err
	}
	for _, e := range expired {
		s.freed(ctx, e.Key, e.Token)
	}
	return expired, more, nil
}

// reapSessions deletes expired sessions; their grants end with them.
func (s *Store) reapSessions(ctx context.Context, tx pgx.Tx, batch int) (ended []lock.Ended, sessions int, err error) {
	rows, err := tx.Query(ctx, listDoomed, batch)
	if err != nil {
		return nil, 0, err
	}
	doomed := map[string]bool{} // a session stands in as many rows as it has grants
	var id uuid.UUID
	var key *string
	var owner *string
	var token *lock.Token
	var overdue float64
	_, err = pgx.ForEachRow(rows, []any{&id, &key, &token, &owner, &overdue}, func() error {
		doomed[id.String()] = true
		if key != nil {
			ended = append(ended, lock.Ended{Key: *key, Token: *token, OwnerID: *owner, Expired: true, Overdue: seconds(overdue)})
		}
		return nil
	})
	if err != nil || len(doomed) == 0 {
		return nil, 0, err
	}
	_, err = tx.Exec(ctx, reapSessions, slices.Collect(maps.Keys(doomed)))
	return ended, len(doomed), err
}
