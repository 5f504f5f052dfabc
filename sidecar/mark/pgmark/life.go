package pgmark

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"fenceline/internal/postgres"
	"fenceline/sidecar/config"
	"fenceline/sidecar/mark"
)

// silence is how long a life may go without a heartbeat before others may declare it dead.
const silence = 5 * time.Second

// lives is this sidecar's present life.
type lives struct {
	mu   sync.Mutex
	life uuid.UUID // zero: none
}

func (l *lives) current() uuid.UUID {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.life
}

func (l *lives) alive() bool { return l.current() != uuid.Nil }

func (l *lives) set(life uuid.UUID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.life = life
}

// Silence implements mark.Register.
func (s *Store) Silence() time.Duration { return silence }

const (
	// oneAtATime: two sidecars of one id, or with two definitions of a guard, must not look past each other while they begin.
	oneAtATime = `SELECT pg_advisory_xact_lock(hashtextextended('fence.begin', 0))`

	declareDead = `
UPDATE fence.sidecar SET ended_at = clock_timestamp()
 WHERE life IN (SELECT life FROM fence.sidecar
                 WHERE ended_at IS NULL AND heartbeat_at < clock_timestamp() - $1::interval AND life <> $2
                   FOR NO KEY UPDATE SKIP LOCKED)`

	// unsettleDead also finds rows that were registered while their life was being declared dead: their moment is a later one then, which only lets others wait longer.
	unsettleDead = `
UPDATE fence.inflight SET unsettled_at = clock_timestamp()
 WHERE unsettled_at IS NULL AND life IN (SELECT life FROM fence.sidecar WHERE ended_at IS NOT NULL)`

	sameID = `SELECT EXISTS (SELECT FROM fence.sidecar WHERE id = $1 AND ended_at IS NULL)`

	// settleWithUs: the resource died with the former lives of this id.
	settleWithUs = `
DELETE FROM fence.inflight AS f USING fence.sidecar AS s
 WHERE s.life = f.life AND s.id = $1 AND s.ended_at IS NOT NULL AND f.guard = ANY ($2)`

	otherDefinition = `
SELECT EXISTS (SELECT FROM fence.guard WHERE guard = $1 AND definition <> $2)
   AND (EXISTS (SELECT FROM fence.inflight WHERE guard = $1) OR EXISTS (SELECT FROM fence.sidecar WHERE ended_at IS NULL AND $1 = ANY (guards)))`

	defineGuard = `
INSERT INTO fence.guard AS g (guard, definition) VALUES ($1, $2)
ON CONFLICT (guard) DO UPDATE SET definition = EXCLUDED.definition, updated_at = now() WHERE g.definition <> EXCLUDED.definition`

	// forgetLives keeps the table small.
	forgetLives = `
DELETE FROM fence.sidecar AS s
 WHERE s.ended_at < now() - interval '1 day' AND NOT EXISTS (SELECT FROM fence.inflight AS f WHERE f.life = s.life)
   AND NOT EXISTS (SELECT FROM fence.claim AS c WHERE c.life = s.life)`

	insertLife = `INSERT INTO fence.sidecar (life, id, guards, started_at, heartbeat_at) VALUES ($1, $2, $3, clock_timestamp(), clock_timestamp())`
)

// definition identifies what two sidecars must agree on to share a guard.
func definition(g config.Guard) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q %q %s %s %s", g.Mark.Table, g.Mark.Key, g.Mark.Token, g.Mark.KeyType, g.Order, g.Unsettled.Then, g.Unsettled.After))
	if g.Exclusive() { // shared guards keep the hash that they have had
		sum = sha256.Sum256(fmt.Appendf(sum[:], "%s", g.Ownership))
	}
	return hex.EncodeToString(sum[:])
}

// Begin implements mark.Register.
func (s *Store) Begin(ctx context.Context) error {
	life := uuid.New()
	var found map[string]claim
	var names, dieWithUs []string
	for _, g := range s.ordered {
		names = append(names, g.Name)
		if g.DiesWithUs {
			dieWithUs = append(dieWithUs, g.Name)
		}
	}
	if err := s.checkContract(ctx); err != nil {
		return fmt.Errorf("the sidecar's own tables (sidecar migrate makes them): %w", err)
	}
	options := postgres.TxOptions{StatementTimeout: 2 * s.timeout, LockTimeout: s.timeout}
	// In a transaction of its own: whoever is silent is dead from now on, also where this life can't begin yet.
	err := postgres.InTx(ctx, s.pool, options, func(ctx context.Context, tx pgx.Tx) error {
		return execAll(ctx, tx, statement{declareDead, []any{silence, uuid.Nil}}, statement{unsettleDead, nil})
	})
	if err != nil {
		return fmt.Errorf("declare silent lives dead: %w", err)
	}
	err = postgres.InTx(ctx, s.pool, options, func(ctx context.Context, tx pgx.Tx) error {
		if err := execAll(ctx, tx, statement{oneAtATime, nil}); err != nil {
			return err
		}
		var taken bool
		if err := tx.QueryRow(ctx, sameID, s.id).Scan(&taken); err != nil {
			return err
		}
		if taken {
			return fmt.Errorf("%w: id %s. Give each sidecar an id of its own; after a crash the former life counts as alive for %s", mark.ErrSameID, s.id, silence)
		}
		for _, g := range s.ordered {
			var other bool
			if err := tx.QueryRow(ctx, otherDefinition, g.Name, definition(g)).Scan(&other); err != nil {
				return err
			}
			if other {
				return fmt.Errorf("guard %s: %w (where its marks are, key_type, order, unsettled)", g.Name, mark.ErrOtherDefinition)
			}
			if _, err := tx.Exec(ctx, defineGuard, g.Name, definition(g)); err != nil {
				return err
			}
			if !g.Exclusive() {
				if err := sharedAgain(ctx, tx, g); err != nil {
					return err
				}
			}
		}
		if err := execAll(ctx, tx, statement{settleWithUs, []any{s.id, dieWithUs}}, statement{forgetLives, nil}, statement{insertLife, []any{life, s.id, names}}); err != nil {
			return err
		}
		var err error
		found, err = s.takeClaims(ctx, tx, life)
		return err
	})
	if err != nil {
		return fmt.Errorf("begin a life in the register: %w", err)
	}
	s.marks.clear()
	s.lives.set(life)
	s.noteClaims(found, life)
	return nil
}

type statement struct {
	sql  string
	args []any
}

func execAll(ctx context.Context, tx pgx.Tx, statements ...statement) error {
	for _, one := range statements {
		if _, err := tx.Exec(ctx, one.sql, one.args...); err != nil {
			return err
		}
	}
	return nil
}

const (
	beat      = `UPDATE fence.sidecar SET heartbeat_at = clock_timestamp() WHERE life = $1 AND ended_at IS NULL`
	release   = `DELETE FROM fence.inflight WHERE guard = $1 AND unsettled_at < clock_timestamp() - $2::interval RETURNING guard, key, token`
	ownRows   = `SELECT id FROM fence.inflight WHERE life = $1 AND admitted_at < clock_timestamp() - $2::interval`
	endLife   = `UPDATE fence.sidecar SET ended_at = clock_timestamp() WHERE life = $1 AND ended_at IS NULL`
	straggler = 5 * time.Second // beyond its time limits a registration may take so long, on a server that was stopped in between
)

// Beat implements mark.Register.
func (s *Store) Beat(ctx context.Context) (mark.Pulse, error) {
	life := s.lives.current()
	if life == uuid.Nil {
		return mark.Pulse{Lost: true}, nil
	}
	var pulse mark.Pulse
	var gone freed
	var found map[string]claim
	err := postgres.InTx(ctx, s.pool, postgres.TxOptions{StatementTimeout: 2 * s.timeout, LockTimeout: s.timeout}, func(ctx context.Context, tx pgx.Tx) error {
		pulse, gone = mark.Pulse{}, freed{}
		tag, err := tx.Exec(ctx, beat, life)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			pulse.Lost = true
			return nil
		}
		if err := execAll(ctx, tx, statement{declareDead, []any{silence, life}}, statement{unsettleDead, nil}); err != nil {
			return err
		}
		for _, g := range s.ordered {
			if !g.Unsettled.Releases() {
				continue
			}
			rows, err := tx.Query(ctx, release, g.Name, g.Unsettled.After)
			if err != nil {
				return err
			}
			if err := gone.read(rows); err != nil {
				return err
			}
		}
		rows, err := tx.Query(ctx, ownRows, life, 2*s.timeout+straggler)
		if err != nil {
			return err
		}
		if pulse.Own, err = pgx.CollectRows(rows, pgx.RowTo[mark.Row]); err != nil {
			return err
		}
		found, err = s.takeClaims(ctx, tx, life)
		return err
	})
	if err != nil {
		return mark.Pulse{}, fmt.Errorf("heartbeat: %w: %w", mark.ErrUnavailable, err)
	}
	if pulse.Lost {
		s.lives.set(uuid.Nil)
		s.loseClaims()
	} else {
		s.noteClaims(found, life)
		s.tidyOwned(life, &pulse)
	}
	s.hint(ctx, gone)
	return pulse, nil
}

// End implements mark.Register.
func (s *Store) End(ctx context.Context) error {
	life := s.lives.current()
	if life == uuid.Nil {
		return nil
	}
	s.lives.set(uuid.Nil)
	settled := s.loseClaims()
	err := postgres.InTx(ctx, s.pool, postgres.TxOptions{}, func(ctx context.Context, tx pgx.Tx) error {
		for _, guard := range settled {
			if err := execAll(ctx, tx, statement{settleClaim, []any{guard, life}}); err != nil {
				return err
			}
		}
		return execAll(ctx, tx, statement{endLife, []any{life}}, statement{unsettleDead, nil})
	})
	if err != nil {
		return fmt.Errorf("end the life in the register: %w", err)
	}
	return nil
}

// Hints implements mark.Register. It listens on a connection of its own, past a pooler.
func (s *Store) Hints(ctx context.Context, hint func(guard, key string)) {
	s.claims.hintTo(hint)
	for pause := time.Duration(0); ; pause = min(pause*2+100*time.Millisecond, 5*time.Second) {
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		if s.listen(ctx, hint) {
			pause = 0
		}
	}
}

// listen says whether it came as far as listening.
func (s *Store) listen(ctx context.Context, hint func(guard, key string)) bool {
	conn, err := pgx.Connect(ctx, s.listenURL)
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if _, err := conn.Exec(ctx, "LISTEN fence_settled"); err != nil {
		return false
	}
	for {
		notice, err := conn.WaitForNotification(ctx)
		if err != nil {
			return !errors.Is(err, context.Canceled)
		}
		if guard, key, ok := cutHint(notice.Payload); ok {
			hint(guard, key)
		}
	}
}
