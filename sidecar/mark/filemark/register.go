package filemark

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"fenceline/sidecar/config"
	"fenceline/sidecar/mark"
)

const (
	// settleWithin is how soon a row that was settled in memory is taken out of the file, where no commit comes earlier.
	settleWithin = 50 * time.Millisecond
	// silence never ends in practice: the file's lock lets no other sidecar declare this one dead.
	silence = 365 * 24 * time.Hour
	// registering is what a registration may take beside the store's time-out until its caller knows of it.
	registering = 10 * time.Second
)

var _ mark.Register = (*Store)(nil)

// definition differs where two configurations would order a guard's requests differently.
func definition(g config.Guard) string {
	text, err := json.Marshal([]any{g.Mark.KeyType, g.OrdersEffects(), g.Unsettled.After, g.Unsettled.Then})
	if err != nil {
		return err.Error() // can't be: texts, numbers and a bool
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// Begin implements mark.Register. The file's lock makes this the only life there is, so all rows are of former ones: they are unsettled from now on, or settled where the
// resource has ended with the sidecar. That it ended can be true of a process that came before only, never of an earlier life of this one.
func (s *Store) Begin(ctx context.Context) error {
	return s.file.work(ctx, s.timeout, func(op *operation, changes *staged) error {
		flights := &s.file.flights
		flights.mu.Lock()
		left := flights.standing("")
		err := s.leaveBehind(changes, left)
		flights.mu.Unlock()
		if err != nil {
			return err
		}
		for name, g := range s.guards {
			same, err := changes.define(name, definition(g))
			if err != nil {
				return err
			}
			if !same {
				op.err = fmt.Errorf("guard %s: %w; start with the former configuration of the guard, or settle them (sidecar settle)", name, mark.ErrOtherDefinition)
				return nil // that they are unsettled is true all the same
			}
		}
		life := uuid.NewString()
		changes.life = &life
		return nil
	})
}

// leaveBehind is for the rows of lives that have ended. The caller holds the lock.
func (s *Store) leaveBehind(changes *staged, left []*flight) error {
	for _, one := range left {
		_, ours := s.file.flights.begun[one.Life]
		step := func() error { return changes.unsettle(one) }
		if s.guards[one.Guard].DiesWithUs && !ours {
			step = func() error { return changes.remove(one.row) }
		}
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// End implements mark.Register.
func (s *Store) End(ctx context.Context) error {
	return s.file.work(ctx, s.timeout, func(_ *operation, changes *staged) error {
		none := ""
		changes.life = &none
		return changes.each(changes.unsettle)
	})
}

// each does something to all rows that stand.
func (s *staged) each(do func(*flight) error) error {
	flights := &s.file.flights
	flights.mu.Lock()
	defer flights.mu.Unlock()
	for _, one := range flights.standing("") {
		if err := do(one); err != nil {
			return err
		}
	}
	return nil
}

// lifeNow is the life as this transaction sees it.
func (s *staged) lifeNow() string {
	if s.life != nil {
		return *s.life
	}
	s.file.flights.mu.Lock()
	defer s.file.flights.mu.Unlock()
	return s.file.flights.life
}

// Silence implements mark.Register.
func (s *Store) Silence() time.Duration { return silence }

// Beat implements mark.Register. It waits for the disk only when there is something to write. An admission whose answer was lost is settled by the file itself, so
// Own never has one.
func (s *Store) Beat(ctx context.Context) (mark.Pulse, error) {
	if err := s.file.usable(); err != nil {
		return mark.Pulse{}, fmt.Errorf("%w: %w", mark.ErrUnavailable, err)
	}
	now := time.Now()
	flights := &s.file.flights
	flights.mu.Lock()
	alive, due := flights.life != "", len(flights.settled) > 0
	for _, one := range flights.rows {
		due = due || s.released(one, now)
	}
	flights.mu.Unlock()
	if !alive {
		return mark.Pulse{Lost: true}, nil
	}
	if due {
		if err := s.file.work(ctx, s.timeout, func(_ *operation, changes *staged) error {
			changes.flush = true
			return changes.each(func(one *flight) error {
				if s.released(one, now) {
					return changes.remove(one.row)
				}
				return nil
			})
		}); err != nil {
			return mark.Pulse{}, err
		}
	}
	return s.pulse(now), nil
}

func (s *Store) pulse(now time.Time) mark.Pulse {
	flights := &s.file.flights
	flights.mu.Lock()
	defer flights.mu.Unlock()
	var p mark.Pulse
	for _, one := range flights.standing("") {
		if one.Life == flights.life && now.Sub(one.known) > s.timeout+registering {
			p.Own = append(p.Own, one.row)
		}
	}
	return p
}

// released says whether time has settled a row. Two clocks must agree that it has: the wall clock since the recorded moment, and this process's monotonic clock since it learned of it.
// A wall clock that is set forward (a machine that starts in 1970 and is then told the time) would otherwise let an older request's effect come after a newer one's; with
// both, it can only come later. What that costs: after a restart a row stands for the whole time once more, and where the wall clock is set back it stands until the clock has come
// up to the recorded moment again, or an operator settles it. The monotonic clock stands still while the machine sleeps, which is later too.
func (s *Store) released(one *flight, now time.Time) bool {
	g, known := s.guards[one.Guard]
	if !known || !g.Unsettled.Releases() || one.UnsettledAt.IsZero() {
		return false
	}
	passed := min(now.Sub(one.unsettled), now.Round(0).Sub(one.UnsettledAt))
	return passed > g.Unsettled.After
}

// Register implements mark.Register. When it returns an error, and the row became durable all the same, the file settles it: the caller sends nothing after an error.
func (s *Store) Register(ctx context.Context, e mark.Entry) (mark.Registration, error) {
	g, ok := s.guards[e.Guard]
	if !ok {
		return mark.Registration{}, fmt.Errorf("no guard %s", e.Guard)
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	op := &operation{
		admission: e.Admission, reject: g.Mark.Missing == config.MissingReject, maxJump: s.maxJump,
		entry: &e, sidecar: s.id, definition: definition(g),
	}
	decision, err := s.file.do(ctx, op)
	if err != nil || decision.Verdict != mark.Admitted {
		return mark.Registration{Decision: decision}, err
	}
	return mark.Registration{Decision: decision, Row: op.row, Older: op.older}, nil
}

// Look implements mark.Register.
func (s *Store) Look(ctx context.Context, e mark.Entry, row mark.Row) (mark.Sight, error) {
	if err := s.Check(ctx); err != nil { // after a commit that failed, one that succeeds comes first
		return mark.Sight{}, fmt.Errorf("%w: %w", mark.ErrUnavailable, err)
	}
	token, _, err := s.Read(ctx, e.Guard, e.Key)
	if err != nil {
		return mark.Sight{}, err
	}
	flights := &s.file.flights
	flights.mu.Lock()
	defer flights.mu.Unlock()
	own := flights.stands(row)
	return mark.Sight{Present: own != nil && flights.underWay(own), Mark: token, Older: flights.older(place{e.Guard, e.Key}, e.Token)}, nil
}

// Settle implements mark.Register. It is told to memory, and written with the next commit, or soon. What a crash loses of it is harmless: the row is still in the file, so
// it is unsettled after the next start and blocks higher tokens although it needn't; nothing is let through that shouldn't be. In return a settled request costs no
// commit of its own where others come.
func (s *Store) Settle(_ context.Context, rows []mark.Row) error {
	flights := &s.file.flights
	flights.mu.Lock()
	defer flights.mu.Unlock()
	for _, row := range rows {
		if flights.rows[row] != nil {
			flights.settled[row] = struct{}{}
		}
	}
	if len(flights.settled) > 0 && !flights.flushing {
		flights.flushing = true
		time.AfterFunc(settleWithin, s.file.flush)
	}
	return nil
}

// flush has what was settled in memory written. What fails here is tried again by the next commit or heartbeat.
func (f *File) flush() {
	f.flights.mu.Lock()
	f.flights.flushing = false
	waiting := len(f.flights.settled) > 0
	f.flights.mu.Unlock()
	if waiting {
		_ = f.queue.add(&operation{ctx: context.Background(), flush: true, done: make(chan struct{})}) // closed: Close has written it
	}
}

// Unsettle implements mark.Register.
func (s *Store) Unsettle(ctx context.Context, rows []mark.Row) error {
	return s.file.work(ctx, s.timeout, func(_ *operation, changes *staged) error {
		flights := &s.file.flights
		flights.mu.Lock()
		defer flights.mu.Unlock()
		for _, row := range rows {
			if one := flights.stands(row); one != nil {
				if err := changes.unsettle(one); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// Hints implements mark.Register. Nobody else uses the file, so there is nothing to hint at.
func (s *Store) Hints(ctx context.Context, _ func(guard, key string)) { <-ctx.Done() }

// Standing implements mark.Register.
func (s *Store) Standing(_ context.Context, guard string, limit int) ([]mark.Standing, error) {
	flights := &s.file.flights
	flights.mu.Lock()
	defer flights.mu.Unlock()
	var list []mark.Standing
	for _, one := range flights.standing(guard) {
		if len(list) >= limit {
			break
		}
		list = append(list, mark.Standing{
			Row: one.row, Guard: one.Guard, Key: one.Key, Token: one.Token, Life: one.Life, Sidecar: one.Sidecar, Route: one.Route, Owner: one.Owner,
			AdmittedAt: one.AdmittedAt, UnsettledAt: one.UnsettledAt,
		})
	}
	return list, nil
}

// SettleUnsettled implements mark.Register. Who did it and why stays in the file. One that is under way isn't found.
func (s *Store) SettleUnsettled(ctx context.Context, row mark.Row, operator, reason string) (found bool, err error) {
	if strings.TrimSpace(operator) == "" || strings.TrimSpace(reason) == "" {
		return false, errors.New("settling a request needs an operator and a reason")
	}
	var settled *flight
	err = s.file.work(ctx, s.timeout, func(_ *operation, changes *staged) error {
		flights := &s.file.flights
		flights.mu.Lock()
		one := flights.stands(row)
		_, gone := changes.removed[row]
		_, unsettled := changes.unsettled[row]
		underWay := one != nil && flights.underWay(one) && !unsettled
		flights.mu.Unlock()
		if one == nil || gone || underWay {
			return nil
		}
		settled = one
		return errors.Join(changes.remove(row), record(changes.tx, Change{
			At: changes.now.UTC(), Guard: one.Guard, Key: one.Key, Operator: operator, Reason: reason, Settled: row, Token: one.Token,
		}))
	})
	if err != nil {
		return false, err
	}
	return settled != nil, nil
}

// work has something done to the register in the next transaction.
func (f *File) work(ctx context.Context, timeout time.Duration, do func(*operation, *staged) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	op := &operation{}
	op.work = func(s *staged) error { return do(op, s) }
	_, err := f.do(ctx, op)
	return err
}
