package pgmark

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"fenceline/internal/postgres"
	"fenceline/sidecar/mark"
)

// Rejections keeps rejections in fence.rejection. It implements mark.RejectionLog.
type Rejections struct {
	store     func() *Store // the one in use: its pool may change
	sidecarID string
}

// NewRejections returns the log of one sidecar.
func NewRejections(sidecarID string, store func() *Store) *Rejections {
	return &Rejections{store: store, sidecarID: sidecarID}
}

// appendRejections: one statement for a batch, however long. Rows are only ever added; nothing reads them to decide.
const appendRejections = `
INSERT INTO fence.rejection (guard, key, route, mode, presented_token, highest_token, owner_id, trace_id, rejected_at, sidecar_id)
SELECT r.*, $10::text
  FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::bigint[], $7::text[], $8::text[], $9::timestamptz[]) AS r`

// Append implements mark.RejectionLog.
func (r *Rejections) Append(ctx context.Context, list []mark.Rejection) error {
	var guards, keys, routes, modes, owners, traces []string
	var presented, highest []int64
	var at []time.Time
	for _, one := range list {
		guards, keys, routes, modes = append(guards, one.Guard), append(keys, one.Key), append(routes, one.Route), append(modes, one.Mode)
		presented, highest = append(presented, int64(one.Presented)), append(highest, int64(one.Highest))
		owners, traces, at = append(owners, one.Owner), append(traces, one.Trace), append(at, one.At)
	}
	err := r.store().Run(ctx, appendRejections, []any{guards, keys, routes, modes, presented, highest, owners, traces, at, r.sidecarID})
	if err != nil {
		return fmt.Errorf("record rejections: %w", err)
	}
	return nil
}

// pruneRejections removes old rows, some at a time, so that no statement is long.
const pruneRejections = `
DELETE FROM fence.rejection
 WHERE id IN (SELECT id FROM fence.rejection WHERE rejected_at < now() - $1::interval ORDER BY rejected_at LIMIT 1000)`

// Prune implements mark.RejectionLog.
func (r *Rejections) Prune(ctx context.Context, keep time.Duration) error {
	for {
		tag, err := r.store().pool.Exec(ctx, pruneRejections, keep)
		if err != nil {
			return fmt.Errorf("prune rejections: %w", postgres.Classify(ctx, err))
		}
		if tag.RowsAffected() == 0 {
			return nil
		}
	}
}

// Run implements mark.StatementRunner: settings and statement in one pipeline, hence one transaction.
func (s *Store) Run(ctx context.Context, statement string, args []any) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	batch := &pgx.Batch{}
	patience := s.timeout - s.timeout/4
	postgres.QueueSetup(batch, postgres.TxOptions{StatementTimeout: patience, LockTimeout: patience})
	batch.Queue(statement, args...)
	if err := s.pool.SendBatch(ctx, batch).Close(); err != nil {
		return postgres.Classify(ctx, err)
	}
	return nil
}
