package pgstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"fenceline/internal/grouped"
	"fenceline/internal/postgres"
	"fenceline/lockd/lock"
)

// kind is one kind of call: how a group of them is put into a pipeline, and how a member's row is read.
type kind[A, R any] struct {
	queue func(batch *pgx.Batch, members []*grouped.Member[A, R], limits postgres.TxOptions) *pgx.QueuedQuery
	scan  func(rows pgx.Rows, m *grouped.Member[A, R]) (outcome[R], error)
}

// outcome is what its row says of one call. If it wrote, that holds only once the commit is known; what found nothing to write is true
// whatever became of the others. Swept says that a dead session was ended, which may have freed more keys.
type outcome[R any] struct {
	answer R
	err    error
	wrote  bool
	swept  bool
}

const (
	// defaultFlights: while one large group waits for the disk the other one is prepared.
	defaultFlights = 2
	defaultSize    = 64
	// company is what makes a second group worth its own commit; with fewer its members wait for the first one to return, for companyPatience at most.
	company         = defaultSize / 2
	companyPatience = 20 * time.Millisecond
	maxWaiting      = 10_000
	// groupPatience is how long a group waits for a row that somebody else holds, before its members go their own ways. A neighbour's commit is
	// shorter, unless the disk is very slow.
	groupPatience = 250 * time.Millisecond
	// aloneAttempts is for one that loses against concurrent transactions, or finds the token source to have moved.
	aloneAttempts = 5
)

func newGrouper[A, R any](s *Store, k kind[A, R]) *grouped.Grouper[A, R] {
	g := &grouped.Grouper[A, R]{Flights: defaultFlights, Size: defaultSize, Company: company, Patience: companyPatience, Waiting: maxWaiting, Alone: s.alone}
	g.Send = func(ctx context.Context, members []*grouped.Member[A, R]) { together(ctx, s, k, members) }
	g.SendAlone = func(ctx context.Context, m *grouped.Member[A, R]) { alone(ctx, s, k, m) }
	return g
}

// do is one call through its grouper.
func do[A, R any](ctx context.Context, s *Store, doing string, g *grouped.Grouper[A, R], key string, ask A) (answer R, err error) {
	if err = s.trusted(ctx); err == nil {
		answer, err = g.Do(ctx, key, ask)
	}
	if errors.Is(err, grouped.ErrNotSent) {
		err = fmt.Errorf("%w: %w", lock.ErrUnavailable, err)
	}
	if err != nil {
		return answer, fmt.Errorf("%s: %w", doing, err)
	}
	return answer, nil
}

// limit bounds a transaction that nobody waits for any more; what it cuts short has an unknown outcome. Each statement's own limit is well within.
func (s *Store) limit() time.Duration { return 2*s.timeout + 2*time.Second }

// together sends a group. When it is undone, because a row is locked by somebody else for too long, because of a deadlock or a
// fault in one member's data, each member runs alone: one key's trouble is its own.
func together[A, R any](ctx context.Context, s *Store, k kind[A, R], members []*grouped.Member[A, R]) {
	ctx, cancel := context.WithTimeout(ctx, s.limit())
	defer cancel()
	// One order of keys for the rows of all groups, so that an acquiring and a releasing group can't wait for each other in a circle.
	slices.SortFunc(members, func(a, b *grouped.Member[A, R]) int { return cmp.Compare(a.Key, b.Key) })
	outcomes, err := trip(ctx, s, k, members, min(groupPatience, s.timeout))
	if again, undone := s.undone(ctx, err); again {
		outcomes, err = trip(ctx, s, k, members, min(groupPatience, s.timeout))
	} else {
		err = undone
	}
	if errors.Is(err, errUndone) {
		for _, m := range members {
			m.Retry = true
		}
		return
	}
	settle(members, outcomes, err)
}

// alone is a group of one, with all the time that a statement has. A caller that has gone doesn't cut it short, since its outcome would
// then be unknown.
func alone[A, R any](ctx context.Context, s *Store, k kind[A, R], m *grouped.Member[A, R]) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.limit())
	defer cancel()
	members := []*grouped.Member[A, R]{m}
	var outcomes []outcome[R]
	var err error
	for range aloneAttempts {
		var again bool
		outcomes, err = trip(ctx, s, k, members, s.timeout)
		again, err = s.undone(ctx, err)
		if !again && !errors.Is(postgres.Classify(ctx, err), postgres.ErrSerialization) {
			break
		}
	}
	if errors.Is(err, errUndone) {
		err = identify(ctx, sessionGone(err))
	}
	settle(members, outcomes, err)
}

// trip runs a group's transaction and returns an outcome for each member whose row was read.
func trip[A, R any](ctx context.Context, s *Store, k kind[A, R], members []*grouped.Member[A, R], wait time.Duration) ([]outcome[R], error) {
	outcomes := make([]outcome[R], 0, len(members))
	swept := false
	err := s.inOneTrip(ctx, func(batch *pgx.Batch) {
		k.queue(batch, members, postgres.TxOptions{StatementTimeout: s.timeout, LockTimeout: wait}).Query(func(rows pgx.Rows) error {
			defer rows.Close()
			for rows.Next() && len(outcomes) < len(members) {
				o, err := k.scan(rows, members[len(outcomes)])
				if err != nil {
					return err
				}
				outcomes = append(outcomes, o)
				swept = swept || o.swept
			}
			return rows.Err()
		})
	})
	if err == nil && swept {
		s.freed(ctx, "", 0) // whatever else the dead sessions held
	}
	return outcomes, err
}

// settle gives the members their verdicts.
func settle[A, R any](members []*grouped.Member[A, R], outcomes []outcome[R], err error) {
	for i, m := range members {
		switch {
		case i < len(outcomes) && (err == nil || !outcomes[i].wrote):
			m.Answer, m.Err = outcomes[i].answer, outcomes[i].err
		case err == nil:
			m.Err = fmt.Errorf("%w: the database gave no answer for this key", lock.ErrUnknownOutcome)
		default:
			m.Err = err
		}
	}
}

// SQLSTATEs with which demand_token_source (lockdb/V7) ends a transaction that must not draw.
const (
	stateIncarnation = "LK002"
	stateDurability  = "LK003"
)

// undone says whether a transaction that the server refused may simply be sent again, since the reason is gone. The error that it returns is
// errUndone no more when it concerns everybody and not only this transaction.
func (s *Store) undone(ctx context.Context, err error) (again bool, _ error) {
	switch postgres.State(err) {
	case stateIncarnation:
		if err := s.adopt(ctx); err != nil {
			return false, fmt.Errorf("%w: %w", lock.ErrUnavailable, err)
		}
		return true, nil
	case stateDurability:
		s.checked.Store(false) // the next call starts with the whole Check, whose error names the setting
		return false, fmt.Errorf("%w: %w", lock.ErrUnavailable, postgres.ErrNotDurable)
	}
	return false, err
}
