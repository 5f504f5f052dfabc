package pgmark

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"fenceline/internal/postgres"
	"fenceline/lockd/lock"
	"fenceline/sidecar/config"
	"fenceline/sidecar/mark"
)

// asked is one registration on its way through a group.
type asked struct {
	entry  mark.Entry
	shared bool // the mark is believed to be the token
}

// answered is what its group brought.
type answered struct {
	mark.Registration
	err   error
	alone bool // nothing was decided in the group: somebody else holds the key or its row, or a neighbour's data was at fault
}

// register runs a group's transaction. A group of one that goes alone waits for locks, all others take what is free.
func (s *Store) register(ctx context.Context, g guard, group []*asked, alone bool) ([]answered, error) {
	p := parameters(group)
	life := s.lives.current()
	batch := &pgx.Batch{}
	patience := s.timeout - s.timeout/4
	batch.Queue(readCommitted)
	postgres.QueueSetup(batch, postgres.TxOptions{StatementTimeout: patience, LockTimeout: min(patience, lockPatience)})
	keys, rows := lockKeys, g.effects.free
	if alone {
		keys, rows = lockKeyWaiting, g.effects.waiting
	}
	batch.Queue(keys, p.i, p.key, p.shared, g.name)
	batch.Queue(rows, p.i, p.key, p.shared, p.raise)
	placed := map[string]mark.Row{}
	batch.Queue(g.effects.raise, p.i, p.key, p.shared, p.token, p.raise, p.newer, p.route, p.owner, s.maxJump, g.name, life).Query(func(rows pgx.Rows) error {
		return s.readRows(rows, placed)
	})
	out := make([]answered, len(group))
	batch.Queue(g.effects.look, p.i, p.key, g.name, p.token, life).Query(func(rows pgx.Rows) error {
		defer rows.Close()
		for rows.Next() {
			if err := s.readLook(rows, g, group, placed, alone, out); err != nil {
				return err
			}
		}
		return rows.Err()
	})
	if err := s.pool.SendBatch(ctx, batch).Close(); err != nil {
		return nil, err // also when only the commit failed: an unknown outcome is no admission
	}
	s.remember(g.name, group, out)
	return out, nil
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

func parameters(group []*asked) arrays {
	var p arrays
	for i, a := range group {
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

// readLook reads one entry's line of the look and decides what came of it.
func (s *Store) readLook(rows pgx.Rows, g guard, group []*asked, placed map[string]mark.Row, alone bool, out []answered) error {
	var i int32
	var locked, free, alive bool
	var highest *int64
	var older []mark.Row
	if err := rows.Scan(&i, &locked, &highest, &free, &older, &alive); err != nil {
		return err
	}
	e := group[i].entry
	if row := placed[e.Key]; row != 0 {
		out[i] = answered{Registration: mark.Registration{Decision: mark.Decision{Verdict: mark.Admitted}, Row: row, Older: older}}
		return nil
	}
	if !alive {
		out[i].err = mark.ErrNoLife
		return nil
	}
	var seen lock.Token
	if highest != nil {
		seen = lock.Token(*highest)
	}
	decision := e.Judge(seen, highest != nil, g.mark.Missing == config.MissingReject, s.maxJump)
	switch {
	case decision.Verdict != mark.Admitted:
		out[i].Decision = decision
	case !alone: // the key or its row was held, or the belief about the mark was wrong
		out[i].alone = true
	default:
		// It had the key and its row for itself, and the mark that it sees would admit it: somebody who asks nobody for the key wrote it meanwhile.
		out[i].err = fmt.Errorf("guard %s: %w: it stands at %d, below what refused %d a moment before", g.name, mark.ErrWentBack, seen, e.Token)
	}
	return nil
}

// Register implements mark.Register.
func (s *Store) Register(ctx context.Context, e mark.Entry) (mark.Registration, error) {
	g, ok := s.guards[e.Guard]
	if !ok || g.readOnly {
		return mark.Registration{}, fmt.Errorf("no guard %s that orders effects", e.Guard)
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
	a := &asked{entry: e, shared: !e.Newer && s.marks.get(e.Guard, e.Key) == e.Token}
	answer, err := s.groups[e.Guard].do(ctx, a)
	if err == nil && answer.alone {
		answer, err = s.registerAlone(ctx, g, a)
	}
	if err != nil {
		return s.registerFault(ctx, err)
	}
	return answer.Registration, answer.err
}

func (s *Store) registerAlone(ctx context.Context, g guard, a *asked) (answered, error) {
	own := &asked{entry: a.entry}
	select {
	case s.alone <- struct{}{}:
		defer func() { <-s.alone }()
	case <-ctx.Done():
		return answered{}, mark.ErrBusy
	}
	out, err := s.register(ctx, g, []*asked{own}, true)
	if err != nil {
		return answered{}, err
	}
	return out[0], nil
}

const lockNotAvailable = "55P03"

func (s *Store) registerFault(ctx context.Context, err error) (mark.Registration, error) {
	switch {
	case errors.Is(err, mark.ErrBusy):
		return mark.Registration{}, err
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
