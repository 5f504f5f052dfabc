package pgmark

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"fenceline/internal/postgres"
	"fenceline/sidecar/mark"
)

const (
	// removeReleased: what was unsettled for longer than the guard allows blocks nobody any more. The store's clock decides, the same for all sidecars.
	removeReleased = `
DELETE FROM fence.inflight WHERE guard = $1 AND key = $2 AND token < $3 AND unsettled_at < clock_timestamp() - $4::interval`
	lookOwn = `
SELECT EXISTS (SELECT FROM fence.inflight AS f JOIN fence.sidecar AS s ON s.life = f.life
                WHERE f.id = $1 AND f.unsettled_at IS NULL AND s.ended_at IS NULL)`
	lookOlder = `SELECT id FROM fence.inflight WHERE guard = $1 AND key = $2 AND token < $3`
)

// Look implements mark.Register. The statements run in this order, each seeing what was committed before it: the mark first, so that whoever raises it afterwards
// finds our row.
func (s *Store) Look(ctx context.Context, e mark.Entry, row mark.Row) (mark.Sight, error) {
	g, ok := s.guards[e.Guard]
	if !ok {
		return mark.Sight{}, fmt.Errorf("no guard %s", e.Guard)
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	if err := s.trusted(ctx); err != nil {
		return mark.Sight{}, fmt.Errorf("look: %w", err)
	}
	if g.config.Exclusive() {
		return s.lookOwned(ctx, g, e, row)
	}
	var sight mark.Sight
	batch := &pgx.Batch{}
	postgres.QueueSetup(batch, postgres.TxOptions{StatementTimeout: s.timeout - s.timeout/4, LockTimeout: lockPatience})
	if g.unsettled.Releases() {
		batch.Queue(removeReleased, e.Guard, e.Key, int64(e.Token), g.unsettled.After)
	}
	batch.Queue(g.effects.see, e.Key).QueryRow(func(r pgx.Row) error {
		err := r.Scan(&sight.Mark)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	})
	batch.Queue(lookOwn, int64(row)).QueryRow(func(r pgx.Row) error { return r.Scan(&sight.Present) })
	batch.Queue(lookOlder, e.Guard, e.Key, int64(e.Token)).Query(func(rows pgx.Rows) (err error) {
		sight.Older, err = pgx.CollectRows(rows, pgx.RowTo[mark.Row])
		return err
	})
	if err := s.pool.SendBatch(ctx, batch).Close(); err != nil {
		return mark.Sight{}, fmt.Errorf("look: %w: %w", mark.ErrUnavailable, postgres.Classify(ctx, err))
	}
	return sight, nil
}

const (
	// notDurable: a settlement that a crash loses lets others wait, and nothing else.
	notDurable  = `SELECT set_config('synchronous_commit', 'off', true), set_config('statement_timeout', $1, true), set_config('lock_timeout', $1, true)`
	removeRows  = `DELETE FROM fence.inflight WHERE id = ANY ($1) RETURNING guard, key, token`
	unsettleRow = `UPDATE fence.inflight SET unsettled_at = clock_timestamp() WHERE id = ANY ($1) AND unsettled_at IS NULL`

	// hintWaiting tells other lives that wait for a key. A notice makes the commits of all transactions with one wait for each other, so there is one only
	// where somebody waits.
	hintWaiting = `
SELECT pg_notify('fence_settled', w.guard || ' ' || w.key)
  FROM (SELECT DISTINCT f.guard, f.key FROM fence.inflight AS f JOIN unnest($1::text[], $2::text[], $3::bigint[]) AS d (guard, key, token)
            ON f.guard = d.guard AND f.key = d.key AND f.token > d.token
         WHERE f.life <> $4::uuid) AS w`
)

// Settle implements mark.Register.
func (s *Store) Settle(ctx context.Context, rows []mark.Row) error {
	own, rows := apart(rows)
	if len(own) > 0 {
		s.inOwned(func(o *owned) { o.settle(own) })
	}
	if len(rows) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 2*s.timeout)
	defer cancel()
	var gone freed
	batch := &pgx.Batch{}
	batch.Queue(notDurable, fmt.Sprintf("%dms", s.timeout.Milliseconds()))
	batch.Queue(removeRows, numbers(rows)).Query(gone.read)
	if err := s.pool.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("settle: %w: %w", mark.ErrUnavailable, postgres.Classify(ctx, err))
	}
	s.hint(ctx, gone)
	return nil
}

// freed are rows that were removed, for those who may wait for them.
type freed struct {
	guards, keys []string
	tokens       []int64
}

// read takes what a removing statement gives back: guard, key and token.
func (f *freed) read(rows pgx.Rows) error {
	defer rows.Close()
	for rows.Next() {
		var guard, key string
		var token int64
		if err := rows.Scan(&guard, &key, &token); err != nil {
			return err
		}
		f.guards, f.keys, f.tokens = append(f.guards, guard), append(f.keys, key), append(f.tokens, token)
	}
	return rows.Err()
}

// hint is lost when it fails; whoever waits looks again by himself.
func (s *Store) hint(ctx context.Context, gone freed) {
	if len(gone.guards) > 0 {
		_, _ = s.pool.Exec(ctx, hintWaiting, gone.guards, gone.keys, gone.tokens, s.lives.current())
	}
}

func numbers(rows []mark.Row) []int64 {
	out := make([]int64, 0, len(rows))
	for _, row := range rows {
		out = append(out, int64(row))
	}
	return out
}

// Unsettle implements mark.Register.
func (s *Store) Unsettle(ctx context.Context, rows []mark.Row) error {
	own, rows := apart(rows)
	if len(own) > 0 {
		s.inOwned(func(o *owned) { o.unsettle(own) })
	}
	if len(rows) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 2*s.timeout)
	defer cancel()
	if _, err := s.pool.Exec(ctx, unsettleRow, numbers(rows)); err != nil {
		return fmt.Errorf("unsettle: %w: %w", mark.ErrUnavailable, postgres.Classify(ctx, err))
	}
	return nil
}
