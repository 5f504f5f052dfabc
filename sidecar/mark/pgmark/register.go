package pgmark

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"fenceline/internal/grouped"
	"fenceline/internal/postgres"
	"fenceline/lockd/lock"
	"fenceline/sidecar/config"
	"fenceline/sidecar/mark"
)

// asked is what a registration asks for.
type asked struct {
	entry  mark.Entry
	shared bool // the mark is believed to be the token
}

// registering is one registration on its way.
type registering = grouped.Member[asked, mark.Registration]

const (
	maxGroup = 128
	// maxFlights: while one group waits for the disk the next one is prepared.
	maxFlights = 2
	// maxWaiting is far above limits.in_flight, which bounds what comes.
	maxWaiting = 100_000
)

// newGroups sends the registrations of one guard.
func (s *Store) newGroups(g guard) *grouped.Grouper[asked, mark.Registration] {
	q := &grouped.Grouper[asked, mark.Registration]{Flights: maxFlights, Size: maxGroup, Waiting: maxWaiting, Alone: s.alone}
	q.Send = func(ctx context.Context, group []*registering) {
		err := s.register(ctx, g, group, false)
		for _, m := range group {
			switch {
			case err == nil:
			case aGroupAtFault(err) && len(group) > 1: // perhaps a neighbour's fault: each goes alone
				m.Retry = true
			default:
				m.Err = err
			}
		}
	}
	q.SendAlone = func(ctx context.Context, m *registering) {
		m.Ask.shared = false
		if err := s.register(ctx, g, []*registering{m}, true); err != nil {
			m.Err = err
		}
	}
	return q
}

// register runs a group's transaction and gives its members what came of it, unless it failed. One that is a group by itself runs again when it lost against a
// concurrent transaction; of several each then goes alone.
func (s *Store) register(ctx context.Context, g guard, group []*registering, alone bool) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	if len(group) > 1 {
		return s.registerOnce(ctx, g, group, alone)
	}
	return again(ctx, func() error { return s.registerOnce(ctx, g, group, alone) })
}

// registerOnce: a group of one that goes alone waits for locks, all others take what is free.
func (s *Store) registerOnce(ctx context.Context, g guard, group []*registering, alone bool) error {
	p := parameters(group)
	life := s.lives.current()
	batch := &pgx.Batch{}
	patience := s.timeout - s.timeout/4
	batch.Queue(readCommitted)
	postgres.QueueSetup(batch, postgres.TxOptions{StatementTimeout: patience, LockTimeout: min(patience, lockPatience)})
	keys, rows := g.effects.lock, g.effects.free
	if alone {
		keys, rows = g.effects.lockWaiting, g.effects.waiting
	}
	if g.config.Exclusive() {
		batch.Queue(claimShared, g.name)
	}
	batch.Queue(keys, p.i, p.key, p.shared, g.name)
	batch.Queue(rows, p.i, p.key, p.shared, p.raise)
	placed := map[string]mark.Row{}
	batch.Queue(g.effects.raise, p.i, p.key, p.shared, p.token, p.raise, p.newer, p.route, p.owner, s.maxJump, g.name, life).Query(func(rows pgx.Rows) error {
		return s.readRows(rows, placed)
	})
	looks := make([]looked, 0, len(group))
	batch.Queue(g.effects.look, p.i, p.key, g.name, p.token, life).Query(func(rows pgx.Rows) (err error) {
		looks, err = pgx.AppendRows(looks, rows, pgx.RowToStructByPos[looked])
		return err
	})
	if err := s.pool.SendBatch(ctx, batch).Close(); err != nil {
		return err // also when only the commit failed: an unknown outcome is no admission
	}
	for _, l := range looks {
		s.decideOn(group[l.I], g, l, placed, alone)
	}
	s.remember(g.name, group)
	s.groupSize(g.name, len(group))
	return nil
}

// lockPatience stays below the server's deadlock_timeout (1 s by default), so that the resource is never chosen as a deadlock's victim.
const lockPatience = 800 * time.Millisecond

// array parameters of a group.
type arrays struct {
	i             []int32
	key           []string
	shared, newer []bool
	token, raise  []int64
	route, owner  []string
}

func parameters(group []*registering) arrays {
	var p arrays
	for i, m := range group {
		a := m.Ask
		p.i, p.key, p.shared = append(p.i, int32(i)), append(p.key, a.entry.Key), append(p.shared, a.shared)
		p.newer, p.token, p.raise = append(p.newer, a.entry.Newer), append(p.token, int64(a.entry.Token)), append(p.raise, int64(a.entry.Raise))
		p.route, p.owner = append(p.route, a.entry.Route), append(p.owner, strings.ToValidUTF8(a.entry.Owner, ""))
	}
	return p
}

func (s *Store) readRows(rows pgx.Rows, placed map[string]mark.Row) error {
	defer rows.Close()
	for rows.Next() {
		var key string
		var row mark.Row
		var durable bool
		if err := rows.Scan(&key, &row, &durable); err != nil {
			return err
		}
		if !durable {
			s.checked.Store(false)
			return postgres.ErrNotDurable
		}
		placed[key] = row
	}
	return rows.Err()
}

// looked is an entry's line of the look.
type looked struct {
	I       int32
	Highest *int64 // the mark as it stands; nil for none
	Older   []mark.Row
	Alive   bool
}

// decideOn says what came of an entry, by what was registered and what the look found.
func (s *Store) decideOn(m *registering, g guard, l looked, placed map[string]mark.Row, alone bool) {
	e := m.Ask.entry
	if row := placed[e.Key]; row != 0 {
		m.Answer = mark.Registration{Decision: mark.Decision{Verdict: mark.Admitted}, Row: row, Older: l.Older}
		return
	}
	if !l.Alive {
		m.Err = mark.ErrNoLife
		return
	}
	var seen lock.Token
	if l.Highest != nil {
		seen = lock.Token(*l.Highest)
	}
	decision := e.Judge(seen, l.Highest != nil, g.mark.Missing == config.MissingReject, s.maxJump)
	switch {
	case decision.Verdict != mark.Admitted:
		m.Answer.Decision = decision
	case !alone: // the key or its row was held, or the belief about the mark was wrong
		m.Retry = true
	default:
		// It had the key and its row for itself, and the mark that it sees would admit it: somebody who asks nobody for the key wrote it meanwhile.
		m.Err = fmt.Errorf("guard %s: %w: it stands at %d, below what refused %d a moment before", g.name, mark.ErrWentBack, seen, e.Token)
	}
}

// Register implements mark.Register.
func (s *Store) Register(ctx context.Context, e mark.Entry) (mark.Registration, error) {
	g, ok := s.guards[e.Guard]
	if !ok || g.readOnly {
		return mark.Registration{}, fmt.Errorf("no guard %s that orders effects", e.Guard)
	}
	if g.config.Exclusive() {
		ctx, cancel := context.WithTimeout(ctx, s.timeout)
		defer cancel()
		return s.registerOwned(ctx, g, e)
	}
	if highest := s.marks.get(e.Guard, e.Key); highest > e.Token {
		// A mark that was seen committed is never lowered while a sidecar serves the guard (ResetMark), so this is what the store would say, too.
		return mark.Registration{Decision: mark.Decision{Verdict: mark.FencedOut, Highest: highest}}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	if err := s.trusted(ctx); err != nil {
		return mark.Registration{}, fmt.Errorf("register: %w", err)
	}
	if !s.lives.alive() {
		return mark.Registration{}, mark.ErrNoLife
	}
	answer, err := s.groups[e.Guard].Do(ctx, e.Key, asked{entry: e, shared: !e.Newer && s.marks.get(e.Guard, e.Key) == e.Token})
	if err != nil {
		return s.registerFault(ctx, err)
	}
	return answer, nil
}

const lockNotAvailable = "55P03"

func (s *Store) registerFault(ctx context.Context, err error) (mark.Registration, error) {
	switch {
	case errors.Is(err, mark.ErrNoLife), errors.Is(err, mark.ErrWentBack):
		return mark.Registration{}, err
	case errors.Is(err, grouped.ErrKeyBusy):
		return mark.Registration{}, fmt.Errorf("%w: %w", mark.ErrBusy, err)
	case postgres.State(err) == lockNotAvailable:
		return mark.Registration{}, fmt.Errorf("%w: %w", mark.ErrBusy, postgres.Classify(ctx, err))
	}
	decision, err := s.fault(ctx, err)
	return mark.Registration{Decision: decision}, err
}

// aGroupAtFault says whether a group failed for a reason that may be one member's: the server said so, and the connection is in order.
func aGroupAtFault(err error) bool {
	var server *pgconn.PgError
	if !errors.As(err, &server) {
		return false
	}
	switch server.Code[:2] {
	case "22", "23", "40", "55", "21":
		return true
	}
	return false
}
