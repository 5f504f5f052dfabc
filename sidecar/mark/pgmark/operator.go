package pgmark

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"fenceline/internal/postgres"
	"fenceline/lockd/lock"
	"fenceline/sidecar/mark"
)

// cutHint takes a notice apart: guard, a space, key.
func cutHint(payload string) (guard, key string, ok bool) { return strings.Cut(payload, " ") }

// Identify says who this sidecar is, and where it listens for hints. It comes before Begin.
func (s *Store) Identify(id, listenURL string) { s.id, s.listenURL = id, listenURL }

// ObserveGroups has the size of each group reported.
func (s *Store) ObserveGroups(observe func(guard string, members int)) { s.groupSize = observe }

// Succeed takes over the life of the store of a former configuration, which must be on the same database.
func (s *Store) Succeed(former *Store) { s.lives, s.claims = former.lives, former.claims }

const standing = `
SELECT f.id, f.guard, f.key, f.token, f.life::text, s.id, f.route, f.owner_id, f.admitted_at, f.unsettled_at
  FROM fence.inflight AS f JOIN fence.sidecar AS s ON s.life = f.life
 WHERE $1 = '' OR f.guard = $1
 ORDER BY f.id LIMIT $2`

// Standing implements mark.Register.
func (s *Store) Standing(ctx context.Context, guard string, limit int) ([]mark.Standing, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*s.timeout)
	defer cancel()
	own := s.standingOwned(guard, limit)
	rows, err := s.pool.Query(ctx, standing, guard, limit)
	if err != nil {
		return nil, fmt.Errorf("list requests in flight: %w: %w", mark.ErrUnavailable, postgres.Classify(ctx, err))
	}
	out, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (mark.Standing, error) {
		var one mark.Standing
		var unsettled *time.Time
		err := r.Scan(&one.Row, &one.Guard, &one.Key, &one.Token, &one.Life, &one.Sidecar, &one.Route, &one.Owner, &one.AdmittedAt, &unsettled)
		if unsettled != nil {
			one.UnsettledAt = *unsettled
		}
		return one, err
	})
	if err != nil {
		return nil, fmt.Errorf("list requests in flight: %w: %w", mark.ErrUnavailable, postgres.Classify(ctx, err))
	}
	return append(out, own[:min(len(own), limit-len(out))]...), nil
}

var errNobody = errors.New("want an operator and a reason")

const (
	// settleByOperator: only what is unsettled may be settled by hand. A request that is still under way would go on having its effect.
	settleByOperator = `
WITH d AS (DELETE FROM fence.inflight WHERE (id = $1 OR life::text = $2) AND unsettled_at IS NOT NULL RETURNING id, guard, key, token)
INSERT INTO fence.settlement (guard, key, token, inflight, operator, reason) SELECT guard, key, token, id, $3, $4 FROM d RETURNING guard, key, token`

	liveServers = `SELECT array_agg(id ORDER BY id) FROM fence.sidecar WHERE ended_at IS NULL AND $1 = ANY (guards)`
	recordReset = `INSERT INTO fence.settlement (guard, key, token, reset_to, operator, reason) VALUES ($1, $2, $3, $4, $5, $6)`
)

// SettleUnsettled implements mark.Register.
func (s *Store) SettleUnsettled(ctx context.Context, row mark.Row, operator, reason string) (found bool, err error) {
	if row > firstOwn {
		return s.settleOwned(ctx, row, operator, reason)
	}
	n, err := s.settleByOperator(ctx, int64(row), "", operator, reason)
	return n > 0, err
}

// SettleLife removes all unsettled rows of one life on an operator's word, and returns how many.
func (s *Store) SettleLife(ctx context.Context, life, operator, reason string) (int, error) {
	return s.settleByOperator(ctx, 0, life, operator, reason)
}

func (s *Store) settleByOperator(ctx context.Context, row int64, life, operator, reason string) (int, error) {
	if strings.TrimSpace(operator) == "" || strings.TrimSpace(reason) == "" {
		return 0, errNobody
	}
	var gone freed
	err := postgres.InTx(ctx, s.pool, postgres.TxOptions{}, func(ctx context.Context, tx pgx.Tx) error {
		gone = freed{}
		rows, err := tx.Query(ctx, settleByOperator, row, life, operator, reason)
		if err != nil {
			return err
		}
		return gone.read(rows)
	})
	if err != nil {
		return 0, fmt.Errorf("settle: %w: %w", mark.ErrUnavailable, err)
	}
	s.hint(ctx, gone)
	return len(gone.guards), nil
}

// Faults of ResetMark.
var (
	// ErrServed means that a sidecar that is alive serves the guard: it remembers marks.
	ErrServed = errors.New("a sidecar serves this guard")
	// ErrOtherMark means that the mark isn't what the operator expects.
	ErrOtherMark = errors.New("the mark isn't the expected one")
)

// ResetMark sets a mark, higher or lower, on an operator's word, and records it. It works only while nothing of the guard is in flight and no sidecar
// serves it: those that are stopped are out of order at once, those that were killed when their silence has lasted long enough.
func (s *Store) ResetMark(ctx context.Context, guardName, key string, to, expected lock.Token, operator, reason string) error {
	g, ok := s.guards[guardName]
	if !ok || g.readOnly {
		return fmt.Errorf("no guard %s whose marks the sidecar raises", guardName)
	}
	if !g.config.OrdersEffects() {
		return fmt.Errorf("guard %s orders admissions only: its sidecars aren't registered, so nothing tells whether one serves it", guardName)
	}
	at := locate(g.config)
	err := postgres.InTx(ctx, s.pool, postgres.TxOptions{}, func(ctx context.Context, tx pgx.Tx) error {
		if err := execAll(ctx, tx, statement{oneAtATime, nil}, statement{declareDead, []any{silence, s.lives.current()}}, statement{unsettleDead, nil}); err != nil {
			return err
		}
		var serving []string
		if err := tx.QueryRow(ctx, liveServers, guardName).Scan(&serving); err != nil {
			return err
		}
		if len(serving) > 0 {
			return fmt.Errorf("%w: stop %s first", ErrServed, strings.Join(serving, ", "))
		}
		tag, err := tx.Exec(ctx, fmt.Sprintf("UPDATE %s AS m SET %s = $2 WHERE %s AND m.%s = $3", at.table, at.token, at.is("m"), at.token), key, int64(to), int64(expected))
		if err != nil {
			return err
		}
		if tag.RowsAffected() != 1 {
			return fmt.Errorf("%w: guard %s, key %s doesn't stand at %d", ErrOtherMark, guardName, key, expected)
		}
		return execAll(ctx, tx, statement{recordReset, []any{guardName, key, int64(expected), int64(to), operator, reason}})
	})
	if err != nil {
		return fmt.Errorf("reset mark: %w", err)
	}
	s.marks.clear()
	return nil
}
