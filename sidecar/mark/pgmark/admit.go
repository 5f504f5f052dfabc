package pgmark

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"fenceline/internal/grouped"
	"fenceline/internal/postgres"
	"fenceline/lockd/lock"
	"fenceline/sidecar/config"
	"fenceline/sidecar/mark"
)

// admitting is one admission on its way.
type admitting = grouped.Member[mark.Admission, mark.Decision]

// remembered is how long a mark that was seen refuses lower tokens unasked, where nothing but admissions is ordered. Sidecars of such guards aren't registered, so nothing
// tells them that somebody has lowered a mark by hand; after this time the store does. Refusing too much for so long harms nobody's order.
const remembered = 5 * time.Second

// newAdmissions sends the admissions of one guard.
func (s *Store) newAdmissions(g guard) *grouped.Grouper[mark.Admission, mark.Decision] {
	q := &grouped.Grouper[mark.Admission, mark.Decision]{Flights: maxFlights, Size: maxGroup, Waiting: maxWaiting, Alone: s.alone}
	q.Send = func(ctx context.Context, group []*admitting) {
		err := s.admit(ctx, g, group)
		for _, m := range group {
			switch {
			case err == nil:
			case aGroupAtFault(err): // perhaps a neighbour's fault: each goes alone
				m.Retry = true
			default:
				m.Err = err
			}
		}
	}
	q.SendAlone = func(ctx context.Context, m *admitting) {
		m.Answer, m.Err = s.decide(ctx, g, g.admission(m.Ask), m.Ask, s.maxJump)
	}
	return q
}

func (g guard) admission(a mark.Admission) string {
	if a.Newer {
		return g.newer
	}
	return g.newerOrSame
}

// admit runs a group's transaction: one commit for all that arrived together. A key is in it once, so the order within it doesn't matter.
func (s *Store) admit(ctx context.Context, g guard, group []*admitting) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	var i []int32
	var keys []string
	var tokens []int64
	var newer []bool
	for n, m := range group {
		i, keys, tokens, newer = append(i, int32(n)), append(keys, m.Ask.Key), append(tokens, int64(m.Ask.Token)), append(newer, m.Ask.Newer)
	}
	patience := s.timeout - s.timeout/4
	batch := &pgx.Batch{}
	batch.Queue(readCommitted)
	postgres.QueueSetup(batch, postgres.TxOptions{StatementTimeout: patience, LockTimeout: min(patience, lockPatience)})
	batch.Queue(g.admit.free, i, keys, tokens, newer)
	var judged []judgement
	batch.Queue(g.admit.raise, i, keys, tokens, newer, s.maxJump, g.name).Query(func(rows pgx.Rows) (err error) {
		judged, err = pgx.CollectRows(rows, pgx.RowToStructByPos[judgement])
		if err == nil && len(judged) > 0 && !judged[0].Durable {
			s.checked.Store(false)
			err = postgres.ErrNotDurable
		}
		return err
	})
	if err := s.pool.SendBatch(ctx, batch).Close(); err != nil {
		return err // also when only the commit failed: an unknown outcome is no admission
	}
	for _, j := range judged {
		s.judge(g, group[j.I], j)
	}
	s.groupSize(g.name, len(group))
	return nil
}

// judgement is what the statement says of an entry.
type judgement struct {
	I        int32
	Admitted bool
	Highest  *int64 // the mark as it was; nil for none
	Durable  bool
}

func (s *Store) judge(g guard, m *admitting, j judgement) {
	if j.Admitted {
		m.Answer = mark.Decision{Verdict: mark.Admitted}
		return
	}
	var highest lock.Token
	if j.Highest != nil {
		highest = lock.Token(*j.Highest)
	}
	if m.Answer = m.Ask.Judge(highest, j.Highest != nil, g.mark.Missing == config.MissingReject, s.maxJump); m.Answer.Verdict == mark.Admitted {
		m.Answer, m.Retry = mark.Decision{}, true
	}
}

// admitInGroup has a token admitted, or refuses it by what was seen: a mark that was seen committed only grows.
func (s *Store) admitInGroup(ctx context.Context, a mark.Admission) (mark.Decision, error) {
	if highest := s.marks.recent(a.Guard, a.Key, s.remembered); highest > a.Token {
		return mark.Decision{Verdict: mark.FencedOut, Highest: highest}, nil
	}
	decision, err := s.admissions[a.Guard].Do(ctx, a.Key, a)
	switch {
	case errors.Is(err, mark.ErrUnavailable), errors.Is(err, mark.ErrWentBack): // it went alone
		return mark.Decision{}, err
	case errors.Is(err, grouped.ErrKeyBusy):
		return mark.Decision{}, fmt.Errorf("admit: %w: %w: %w", mark.ErrUnavailable, mark.ErrBusy, err)
	case err != nil:
		return s.fault(ctx, err)
	case decision.Verdict == mark.Admitted:
		s.marks.put(a.Guard, a.Key, a.Token)
	case decision.Verdict == mark.FencedOut:
		s.marks.put(a.Guard, a.Key, decision.Highest)
	}
	return decision, nil
}
