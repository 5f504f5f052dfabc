package marktest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"fenceline/lockd/lock"
	"fenceline/sidecar/mark"
)

const (
	admitters = 24
	perKey    = 25
)

// ErrOutOfOrder is what OrderOfAdmissions finds: a lower token was admitted after a higher one, or a mark went back.
var ErrOutOfOrder = errors.New("out of order")

// OrderOfAdmissions is the guarantee itself. Many admitters present tokens for one key. An admission that began after another had
// ended must not have a lower token: order is only claimed where there is one.
func OrderOfAdmissions(ctx context.Context, e Env) error {
	for _, guard := range e.guards() {
		key, err := e.NewKey(ctx)
		if err != nil {
			return err
		}
		if err := race(ctx, e, guard, key); err != nil {
			return fmt.Errorf("guard %s: %w", guard, err)
		}
	}
	return nil
}

func race(ctx context.Context, e Env, guard, key string) error {
	var next atomic.Int64
	var mu sync.Mutex
	var ended lock.Token // the highest token whose admission has ended
	group, groupCtx := errgroup.WithContext(ctx)
	for i := range admitters {
		group.Go(func() error {
			for range perKey {
				token := lock.Token(next.Add(1))
				if i%3 == 0 && token > 6 {
					token -= 6 // a stale one
				}
				mu.Lock()
				before := ended
				mu.Unlock()
				decision, err := e.admit(groupCtx, guard, key, token, i%2 == 0)
				if errors.Is(err, mark.ErrUnavailable) {
					continue // a crowded row: a fault is no admission
				}
				if err != nil {
					return err
				}
				if decision.Verdict != mark.Admitted {
					continue
				}
				if token < before {
					return fmt.Errorf("%w: token %d was admitted after %d", ErrOutOfOrder, token, before)
				}
				mu.Lock()
				ended = max(ended, token)
				mu.Unlock()
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	got, _, err := e.Read(ctx, guard, key)
	if err != nil {
		return fmt.Errorf("read the mark after the race: %w", err)
	}
	if got < ended || ended == 0 {
		return fmt.Errorf("%w: the mark is %d, the highest admitted token %d", ErrOutOfOrder, got, ended)
	}
	return nil
}

// ReadThenWrite is the admission of a store that decides in one step and writes in another, as a control for OrderOfAdmissions. Its first
// admitted request writes last of all, so that it is overtaken on every run and not by luck.
func ReadThenWrite(e Env, write func(ctx context.Context, a mark.Admission) error) func(context.Context, mark.Admission) (mark.Decision, error) {
	var stalled atomic.Bool
	var ended atomic.Int64
	others := make(chan struct{})
	return func(ctx context.Context, a mark.Admission) (mark.Decision, error) {
		highest, found, err := e.Read(ctx, a.Guard, a.Key)
		if err != nil {
			return mark.Decision{}, err
		}
		decision := a.Judge(highest, found, false, e.MaxJump)
		if decision.Verdict == mark.Admitted && stalled.CompareAndSwap(false, true) {
			select {
			case <-others:
				return decision, write(ctx, a)
			case <-ctx.Done(): // another one was found before
				return decision, ctx.Err()
			}
		}
		defer func() {
			if ended.Add(1) == (admitters-1)*perKey {
				close(others)
			}
		}()
		select {
		case <-others: // what the stalled one's own admitter asks for afterwards
			return mark.Decision{Verdict: mark.FencedOut, Highest: highest}, nil
		default:
		}
		if decision.Verdict != mark.Admitted {
			return decision, nil
		}
		return decision, write(ctx, a)
	}
}
