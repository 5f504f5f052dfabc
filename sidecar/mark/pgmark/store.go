// Package pgmark keeps marks in PostgreSQL: in columns of existing tables, or in the sidecar's own table fence.mark.
package pgmark

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"fenceline/internal/grouped"
	"fenceline/internal/postgres"
	"fenceline/lockd/lock"
	"fenceline/sidecar/config"
	"fenceline/sidecar/mark"
)

// Store implements mark.OperatedStore and mark.Register.
type Store struct {
	pool    *pgxpool.Pool
	guards  map[string]guard
	timeout time.Duration
	maxJump int64
	checked atomic.Bool

	admissions map[string]*grouped.Grouper[mark.Admission, mark.Decision]
	remembered time.Duration // how long a mark that was seen refuses lower tokens

	// What the register of requests in flight needs.
	ordered   []config.Guard // those that order effects
	groups    map[string]*grouped.Grouper[asked, mark.Registration]
	alone     chan struct{} // a place for each registration that waits for a lock
	marks     *marks
	lives     *lives
	claims    *claims
	id        string
	listenURL string
	groupSize func(guard string, members int)
}

type guard struct {
	statements
	effects   effectStatements
	admit     admitStatements
	name      string
	config    config.Guard
	unsettled config.Unsettled
	mark      config.Mark
	// readOnly is set where the resource raises the marks: they are compared and left alone.
	readOnly bool
}

// New returns a store for the guards. Timeout bounds one admission; maxJump is the largest plausible distance between
// a token and the mark.
func New(pool *pgxpool.Pool, guards []config.Guard, timeout time.Duration, maxJump int64) *Store {
	s := &Store{
		pool: pool, guards: map[string]guard{}, timeout: timeout, maxJump: maxJump,
		remembered: remembered, admissions: map[string]*grouped.Grouper[mark.Admission, mark.Decision]{},
		groups: map[string]*grouped.Grouper[asked, mark.Registration]{}, alone: make(chan struct{}, max(int(pool.Config().MaxConns)/2, 1)), marks: &marks{}, lives: &lives{}, claims: newClaims(),
		groupSize: func(string, int) {},
	}
	for _, c := range guards {
		g := guard{
			statements: build(c), admit: buildAdmit(c), name: c.Name, config: c, unsettled: c.Unsettled, mark: c.Mark, readOnly: c.Advance == config.AdvanceResource,
		}
		if c.OrdersEffects() {
			g.effects = buildEffects(c)
			s.ordered = append(s.ordered, c)
			s.groups[c.Name] = s.newGroups(g)
		}
		s.guards[c.Name], s.admissions[c.Name] = g, s.newAdmissions(g)
	}
	return s
}

// Admit implements mark.Store.
func (s *Store) Admit(ctx context.Context, a mark.Admission) (mark.Decision, error) {
	g, ok := s.guards[a.Guard]
	if !ok {
		return mark.Decision{}, fmt.Errorf("no guard %s", a.Guard)
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	if err := s.trusted(ctx); err != nil {
		return mark.Decision{}, fmt.Errorf("admit: %w", err)
	}
	if g.readOnly {
		return s.compare(ctx, g, a)
	}
	if g.config.Exclusive() {
		return s.writeOwned(ctx, g, g.admission(a), a, s.maxJump)
	}
	return s.admitInGroup(ctx, a)
}

// compare judges by the mark as it stands. Another token may be let through at the same time: the order is the resource's to keep.
func (s *Store) compare(ctx context.Context, g guard, a mark.Admission) (mark.Decision, error) {
	highest, found, err := s.read(ctx, g, a.Key)
	if err != nil {
		return mark.Decision{}, fmt.Errorf("compare: %w", err)
	}
	return a.Judge(highest, found, g.mark.Missing == config.MissingReject, s.maxJump), nil
}

// Raise implements mark.OperatedStore.
func (s *Store) Raise(ctx context.Context, guardName, key string, token lock.Token) (mark.Decision, error) {
	g, ok := s.guards[guardName]
	if !ok {
		return mark.Decision{}, fmt.Errorf("no guard %s", guardName)
	}
	if g.readOnly {
		return mark.Decision{}, fmt.Errorf("guard %s: the resource raises its marks", guardName)
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	if err := s.trusted(ctx); err != nil {
		return mark.Decision{}, fmt.Errorf("raise: %w", err)
	}
	if g.config.Exclusive() {
		return s.writeOwned(ctx, g, g.raise, mark.Admission{Guard: guardName, Key: key, Token: token, Newer: true}, math.MaxInt64)
	}
	return s.decide(ctx, g, g.raise, mark.Admission{Guard: guardName, Key: key, Token: token, Newer: true}, math.MaxInt64)
}

func (s *Store) decide(ctx context.Context, g guard, statement string, a mark.Admission, maxJump int64) (mark.Decision, error) {
	var admitted bool
	err := again(ctx, func() (err error) {
		admitted, err = s.raise(ctx, statement, a, maxJump)
		return err
	})
	switch {
	case err != nil:
		return s.fault(ctx, err)
	case admitted:
		return mark.Decision{Verdict: mark.Admitted}, nil
	}
	return s.explain(ctx, g, a, maxJump)
}

// attempts is how often a transaction runs that loses against a concurrent one.
const attempts = 3

// again runs a whole transaction once more when the server has rolled it back in favour of a concurrent one (40001, 40P01): nothing of it is there, so
// that is as safe as the first time. ctx bounds all attempts together.
func again(ctx context.Context, run func() error) (err error) {
	for range attempts {
		if err = run(); !errors.Is(postgres.Classify(ctx, err), postgres.ErrSerialization) {
			break
		}
	}
	return err
}

// raise runs the conditional statement and its settings as one pipeline with one Sync, hence as one transaction: when the pipeline
// has ended without an error, it is committed, and durably so.
func (s *Store) raise(ctx context.Context, statement string, a mark.Admission, maxJump int64) (admitted bool, err error) {
	batch := &pgx.Batch{}
	// The server gives up before we do, so that a statement that waited for a row is over when we answer: one that we had
	// only stopped listening to could still raise the mark later.
	patience := s.timeout - s.timeout/4
	batch.Queue(readCommitted)
	postgres.QueueSetup(batch, postgres.TxOptions{StatementTimeout: patience, LockTimeout: min(patience, lockPatience)})
	// What groups try before they insert a key.
	batch.Queue(lockKeyWaiting, []int32{0}, []string{a.Key}, []bool{false}, a.Guard)
	batch.Queue(statement, a.Key, int64(a.Token), maxJump).QueryRow(func(row pgx.Row) error {
		var token int64
		var durable bool
		err := row.Scan(&token, &durable)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			return nil
		case err == nil && !durable:
			s.checked.Store(false)
			return postgres.ErrNotDurable
		}
		admitted = err == nil && token == int64(a.Token)
		return err
	})
	if err := s.pool.SendBatch(ctx, batch).Close(); err != nil {
		return false, err // also when only the commit failed: an unknown outcome is no admission
	}
	return admitted, nil
}

// fault tells a key that can't have a mark from a store that can't be used.
func (s *Store) fault(ctx context.Context, err error) (mark.Decision, error) {
	if code, _ := postgres.Constraint(err); code == postgres.ForeignKeyViolation {
		return mark.Decision{Verdict: mark.KeyNotFound}, nil
	}
	if postgres.State(err) == lockNotAvailable {
		err = fmt.Errorf("%w: %w", mark.ErrBusy, err)
	}
	return mark.Decision{}, fmt.Errorf("admit: %w: %w", mark.ErrUnavailable, postgres.Classify(ctx, err))
}

// explain reads the mark once to say why a request wasn't admitted. The refusal itself is final: this read decides
// nothing but its wording.
func (s *Store) explain(ctx context.Context, g guard, a mark.Admission, maxJump int64) (mark.Decision, error) {
	highest, found, err := s.read(ctx, g, a.Key)
	if err != nil {
		return mark.Decision{}, err
	}
	if decision := a.Judge(highest, found, g.mark.Missing == config.MissingReject, maxJump); decision.Verdict != mark.Admitted {
		return decision, nil
	}
	// The statement refused a token that the mark read now would admit: the mark was lowered in between.
	return mark.Decision{}, fmt.Errorf("guard %s: %w: it stands at %d, below what refused %d a moment before", a.Guard, mark.ErrWentBack, highest, a.Token)
}

// Read implements mark.Store.
func (s *Store) Read(ctx context.Context, guardName, key string) (lock.Token, bool, error) {
	g, ok := s.guards[guardName]
	if !ok {
		return 0, false, fmt.Errorf("no guard %s", guardName)
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	return s.read(ctx, g, key)
}

func (s *Store) read(ctx context.Context, g guard, key string) (token lock.Token, found bool, err error) {
	err = s.pool.QueryRow(ctx, g.statements.read, key).Scan(&token)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("read mark: %w: %w", mark.ErrUnavailable, postgres.Classify(ctx, err))
	}
	return token, true, nil
}

// SQLSTATE codes of values that don't fit a type.
const (
	invalidText = "22P02"
	outOfRange  = "22003"
)

// Lookup implements mark.Store. The transaction is read-only, whatever the query says.
func (s *Store) Lookup(ctx context.Context, query string, args []string) (key string, found bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	if err := s.trusted(ctx); err != nil {
		return "", false, fmt.Errorf("lookup: %w", err)
	}
	values := make([]any, 0, len(args))
	for _, arg := range args {
		values = append(values, arg)
	}
	var keys []*string
	batch := &pgx.Batch{}
	batch.Queue("SELECT set_config('transaction_read_only', 'on', true), set_config('statement_timeout', $1, true)", fmt.Sprintf("%dms", max(s.timeout.Milliseconds(), 1)))
	batch.Queue("SELECT key::text FROM ("+query+") AS lookup (key) LIMIT 2", values...).Query(func(rows pgx.Rows) error {
		keys, err = pgx.CollectRows(rows, pgx.RowTo[*string])
		return err
	})
	if err := s.pool.SendBatch(ctx, batch).Close(); err != nil {
		return lookupFault(ctx, err)
	}
	switch {
	case len(keys) == 0 || keys[0] == nil:
		return "", false, nil
	case len(keys) > 1:
		return "", false, mark.ErrAmbiguousKey
	}
	return *keys[0], true, nil
}

// lookupFault: a value that isn't of the column's type (a UUID that is none, a number that is too large) finds nothing.
func lookupFault(ctx context.Context, err error) (string, bool, error) {
	switch postgres.State(err) {
	case invalidText, outOfRange:
		return "", false, nil
	}
	return "", false, fmt.Errorf("lookup: %w: %w", mark.ErrUnavailable, postgres.Classify(ctx, err))
}
