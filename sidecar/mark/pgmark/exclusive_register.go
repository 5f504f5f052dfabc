package pgmark

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"fenceline/internal/postgres"
	"fenceline/lockd/lock"
	"fenceline/sidecar/mark"
)

// registerOwned is Register for a guard with ownership: exclusive. Its row is in memory before its raise is sent, so that there is no moment in which the mark is raised and the
// request can't be seen.
func (s *Store) registerOwned(ctx context.Context, g guard, e mark.Entry) (mark.Registration, error) {
	own := s.claims.of(g.name)
	answer, decided, err := own.enter(e, s.lives.current(), func() lock.Token { return s.marks.get(g.name, e.Key) })
	switch {
	case errors.Is(err, mark.ErrStandby) && s.lives.alive():
		return answer, own.standby(g.name)
	case err != nil:
		return answer, mark.ErrNoLife
	case decided:
		return answer, nil
	}
	leave := func() {
		own.settle([]mark.Row{answer.Row})
		s.claims.gone([][2]string{{g.name, e.Key}}) // somebody may have waited for it
	}
	if err := s.trusted(ctx); err != nil {
		leave()
		return mark.Registration{}, fmt.Errorf("register: %w", err)
	}
	raised, err := s.groups[g.name].Do(ctx, e.Key, asked{entry: e})
	if err != nil {
		// The mark may have been raised all the same, so what memory knows of it isn't to be trusted.
		s.marks.forget(g.name, e.Key)
		leave()
		return s.registerFault(ctx, err)
	}
	if raised.Verdict != mark.Admitted {
		leave()
		return raised, nil
	}
	return mark.Registration{Decision: raised.Decision, Row: answer.Row, Older: own.look(e)}, nil
}

// lookOwned is Look: the mark as the store has it, then memory.
func (s *Store) lookOwned(ctx context.Context, g guard, e mark.Entry, row mark.Row) (mark.Sight, error) {
	highest, _, err := s.read(ctx, g, e.Key)
	if err != nil {
		return mark.Sight{}, fmt.Errorf("look: %w", err)
	}
	sight := s.claims.of(g.name).sight(e, row, s.lives.current(), s.releasedOwn(g))
	sight.Mark = highest
	return sight, nil
}

// releasedOwn says of a row whether time has settled it. The wall clock and the monotonic one must both say so.
func (s *Store) releasedOwn(g guard) func(*ownRow) bool {
	return func(r *ownRow) bool {
		if r.unsettled.IsZero() || !g.unsettled.Releases() {
			return false
		}
		now := time.Now()
		return min(now.Sub(r.unsettled), now.Round(0).Sub(r.unsettled.Round(0))) > g.unsettled.After
	}
}

// tidyOwned is a heartbeat's work in memory: what time has settled goes, and what is old enough is shown to its life.
func (s *Store) tidyOwned(life uuid.UUID, pulse *mark.Pulse) {
	for _, c := range s.ordered {
		if !c.Exclusive() {
			continue
		}
		own := s.claims.of(c.Name)
		s.claims.gone(own.remove(c.Name, s.releasedOwn(s.guards[c.Name])))
		for _, r := range own.list() {
			if r.life == life && time.Since(r.admitted) > 2*s.timeout+straggler {
				pulse.Own = append(pulse.Own, r.row)
			}
		}
	}
}

// loseClaims is for the end of a life. It returns the guards of which nothing is in flight.
func (s *Store) loseClaims() (settled []string) {
	for _, c := range s.ordered {
		if c.Exclusive() && s.claims.of(c.Name).lose() {
			settled = append(settled, c.Name)
		}
	}
	return settled
}

// apart tells the rows of exclusive guards from those of the database.
func apart(rows []mark.Row) (own, others []mark.Row) {
	for _, row := range rows {
		if row > firstOwn {
			own = append(own, row)
		} else {
			others = append(others, row)
		}
	}
	return own, others
}

// inOwned does something with every exclusive guard's rows.
func (s *Store) inOwned(do func(*owned)) {
	for _, c := range s.ordered {
		if c.Exclusive() {
			do(s.claims.of(c.Name))
		}
	}
}

// standingOwned lists what is in this process's memory.
func (s *Store) standingOwned(guard string, limit int) (out []mark.Standing) {
	for _, c := range s.ordered {
		if !c.Exclusive() || guard != "" && guard != c.Name {
			continue
		}
		for _, r := range s.claims.of(c.Name).list() {
			if len(out) == limit {
				return out
			}
			out = append(out, mark.Standing{
				Row: r.row, Guard: c.Name, Key: r.entry.Key, Token: r.entry.Token, Life: r.life.String(), Sidecar: s.id, Route: r.entry.Route, Owner: r.entry.Owner,
				AdmittedAt: r.admitted, UnsettledAt: r.unsettled,
			})
		}
	}
	return out
}

const recordSettled = `INSERT INTO fence.settlement (guard, key, token, inflight, operator, reason) VALUES ($1, $2, $3, $4, $5, $6)`

// settleOwned settles an unsettled request in memory on an operator's word. It is recorded first.
func (s *Store) settleOwned(ctx context.Context, row mark.Row, operator, reason string) (found bool, err error) {
	if strings.TrimSpace(operator) == "" || strings.TrimSpace(reason) == "" {
		return false, errNobody
	}
	for _, c := range s.ordered {
		if !c.Exclusive() {
			continue
		}
		own := s.claims.of(c.Name)
		for _, r := range own.list() {
			if r.row != row || r.unsettled.IsZero() {
				continue
			}
			if _, err := s.pool.Exec(ctx, recordSettled, c.Name, r.entry.Key, int64(r.entry.Token), int64(row), operator, reason); err != nil {
				return false, fmt.Errorf("settle: %w: %w", mark.ErrUnavailable, postgres.Classify(ctx, err))
			}
			s.claims.gone(own.remove(c.Name, func(other *ownRow) bool { return other.row == row }))
			return true, nil
		}
	}
	return false, nil
}

// writeOwned raises a mark beside the register, for an operator and for requests in shadow: only the owner may, since it knows the marks from memory.
func (s *Store) writeOwned(ctx context.Context, g guard, statement string, a mark.Admission, maxJump int64) (mark.Decision, error) {
	life := s.lives.current()
	if !s.claims.of(g.name).heldBy(life) {
		return mark.Decision{}, s.claims.of(g.name).standby(g.name)
	}
	var admitted, holds bool
	err := postgres.InTx(ctx, s.pool, postgres.TxOptions{StatementTimeout: s.timeout, LockTimeout: s.timeout}, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, claimShared, g.name); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, holdsClaim, g.name, life).Scan(&holds); err != nil || !holds {
			return err
		}
		var token int64
		var durable bool
		err := tx.QueryRow(ctx, statement, a.Key, int64(a.Token), maxJump).Scan(&token, &durable)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			return nil
		case err == nil && !durable:
			return postgres.ErrNotDurable
		}
		admitted = err == nil
		return err
	})
	s.marks.forget(g.name, a.Key)
	switch {
	case err != nil:
		return s.fault(ctx, err)
	case !holds:
		return mark.Decision{}, s.claims.of(g.name).standby(g.name)
	case admitted:
		return mark.Decision{Verdict: mark.Admitted}, nil
	}
	return s.explain(ctx, g, a, maxJump)
}
