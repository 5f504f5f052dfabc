// Package marktest is the conformance suite that every mark store passes. Scenarios return errors, so that a broken store can be shown to
// fail them.
package marktest

import (
	"context"
	"errors"
	"fmt"
	"math"

	"fenceline/lockd/lock"
	"fenceline/sidecar/mark"
)

// Env is a store with what a scenario can't do through its interface.
type Env struct {
	mark.OperatedStore
	// Reject and Insert are guards that differ in what a key without a mark means.
	Reject, Insert string
	MaxJump        int64
	// NewKey makes a key that both guards accept, with the mark Base under Reject and none under Insert.
	NewKey func(ctx context.Context) (string, error)
	// Base is the lowest mark that there can be: 0, or 1 where marks are the sidecar's own.
	Base lock.Token
	// Stranger is a well-formed key that nobody knows.
	Stranger string
	// TakesStrangers is set when a key under Insert refers to nothing that must be there.
	TakesStrangers bool
	// Set writes a mark of Reject past the store, as somebody else might.
	Set func(ctx context.Context, key string, token lock.Token) error
	// Crash stops the store without letting it tidy up and starts it again. It is nil where the store runs for others too.
	Crash func(ctx context.Context) error
	// Block holds the key's row of Reject in a transaction of somebody else until release is called. It is for SharedScenarios.
	Block func(ctx context.Context, key string) (release func() error, err error)
}

// Scenario is one row of the suite.
type Scenario struct {
	Name string
	Run  func(ctx context.Context, e Env) error
}

// RaceName is the scenario that takes longest: many admitters on one key.
const RaceName = "noLowerTokenIsAdmittedAfterAHigherOneByConcurrentAdmitters"

// SharedScenarios are for stores in a database that others use too, beside Scenarios.
func SharedScenarios() []Scenario {
	return []Scenario{
		{"lookupFindsOneKeyOrNoneAndNeverGuesses", lookups},
		{"rowHeldBySomebodyElseIsAFaultAndNoAdmission", blockedRow},
	}
}

// Scenarios is the suite for every store.
func Scenarios() []Scenario {
	return []Scenario{
		{"higherTokenIsAdmittedAndLowerFencedOut", lowerIsFencedOut},
		{"equalTokenIsAdmittedOnlyWhereTheRouteSaysSo", equalToken},
		{"keyWithoutAMarkIsRejectedOrGetsOneAsTheGuardSays", missingMark},
		{"implausibleTokenChangesNothing", implausibleToken},
		{"largestMarkHoldsAgainstEveryToken", largestMark},
		{"keysAndGuardsDoNotTouchEachOther", independentKeys},
		{"operatorRaisesAndNeverLowers", operatorRaises},
		{RaceName, OrderOfAdmissions},
	}
}

func (e Env) admit(ctx context.Context, guard, key string, token lock.Token, newer bool) (mark.Decision, error) {
	return e.Admit(ctx, mark.Admission{Guard: guard, Key: key, Token: token, Newer: newer})
}

// want admits and compares the decision.
func (e Env) want(ctx context.Context, guard, key string, token lock.Token, newer bool, verdict mark.Verdict, highest lock.Token) error {
	got, err := e.admit(ctx, guard, key, token, newer)
	if err != nil {
		return fmt.Errorf("admit %d: %w", token, err)
	}
	if got.Verdict != verdict || verdict != mark.Admitted && got.Highest != highest {
		return fmt.Errorf("admit %d (newer %t): %s, highest %d; want %s, highest %d", token, newer, got.Verdict, got.Highest, verdict, highest)
	}
	return nil
}

func (e Env) wantMark(ctx context.Context, guard, key string, want lock.Token) error {
	got, _, err := e.Read(ctx, guard, key)
	if err != nil {
		return fmt.Errorf("read mark: %w", err)
	}
	if got != want {
		return fmt.Errorf("the mark is %d, want %d", got, want)
	}
	return nil
}

func (e Env) guards() []string { return []string{e.Reject, e.Insert} }

func lowerIsFencedOut(ctx context.Context, e Env) error {
	for _, guard := range e.guards() {
		key, err := e.NewKey(ctx)
		if err != nil {
			return err
		}
		for _, newer := range []bool{true, false} {
			base := lock.Token(10)
			if !newer {
				base = 20
			}
			if err := errors.Join(
				e.want(ctx, guard, key, base, newer, mark.Admitted, 0),
				e.want(ctx, guard, key, base-1, newer, mark.FencedOut, base),
				e.want(ctx, guard, key, 1, newer, mark.FencedOut, base),
				e.want(ctx, guard, key, base+5, newer, mark.Admitted, 0),
				e.want(ctx, guard, key, base, newer, mark.FencedOut, base+5),
				e.wantMark(ctx, guard, key, base+5),
			); err != nil {
				return fmt.Errorf("guard %s: %w", guard, err)
			}
		}
	}
	return nil
}

func equalToken(ctx context.Context, e Env) error {
	for _, guard := range e.guards() {
		key, err := e.NewKey(ctx)
		if err != nil {
			return err
		}
		if err := errors.Join(
			e.want(ctx, guard, key, 7, false, mark.Admitted, 0),
			e.want(ctx, guard, key, 7, false, mark.Admitted, 0),
			e.want(ctx, guard, key, 7, true, mark.FencedOut, 7),
		); err != nil {
			return fmt.Errorf("guard %s: %w", guard, err)
		}
	}
	return nil
}

func missingMark(ctx context.Context, e Env) error {
	key, err := e.NewKey(ctx)
	if err != nil {
		return err
	}
	stranger := mark.KeyNotFound // what it refers to isn't there
	if e.TakesStrangers {
		stranger = mark.Admitted
	}
	return errors.Join(
		e.want(ctx, e.Reject, e.Stranger, 5, false, mark.KeyNotFound, 0),
		e.want(ctx, e.Insert, key, 5, true, mark.Admitted, 0),
		e.wantMark(ctx, e.Insert, key, 5),
		e.want(ctx, e.Insert, e.Stranger, 5, true, stranger, 0),
		e.want(ctx, e.Reject, e.Stranger, 5, false, mark.KeyNotFound, 0), // what another guard admitted makes no mark here
	)
}

func implausibleToken(ctx context.Context, e Env) error {
	for _, guard := range e.guards() {
		key, err := e.NewKey(ctx)
		if err != nil {
			return err
		}
		limit, base := lock.Token(e.MaxJump), lock.Token(0)
		if guard == e.Reject {
			base = e.Base
		}
		if err := errors.Join(
			e.want(ctx, guard, key, base+limit+1, false, mark.Implausible, base),
			e.want(ctx, guard, key, math.MaxInt64, true, mark.Implausible, base),
			e.want(ctx, guard, key, base+limit, true, mark.Admitted, 0), // exactly as far as allowed
			e.want(ctx, guard, key, base+2*limit+1, true, mark.Implausible, base+limit),
			e.want(ctx, guard, key, base+2*limit, true, mark.Admitted, 0), // measured from the mark, not from 0
			e.wantMark(ctx, guard, key, base+2*limit),
		); err != nil {
			return fmt.Errorf("guard %s: %w", guard, err)
		}
	}
	return nil
}

func largestMark(ctx context.Context, e Env) error {
	key, err := e.NewKey(ctx)
	if err != nil {
		return err
	}
	if err := e.Set(ctx, key, math.MaxInt64); err != nil {
		return err
	}
	return errors.Join(
		e.want(ctx, e.Reject, key, math.MaxInt64-1, false, mark.FencedOut, math.MaxInt64),
		e.want(ctx, e.Reject, key, math.MaxInt64, true, mark.FencedOut, math.MaxInt64),
		e.want(ctx, e.Reject, key, math.MaxInt64, false, mark.Admitted, 0),
		e.want(ctx, e.Reject, key, 1, false, mark.FencedOut, math.MaxInt64),
	)
}

func independentKeys(ctx context.Context, e Env) error {
	a, errA := e.NewKey(ctx)
	b, errB := e.NewKey(ctx)
	return errors.Join(errA, errB,
		e.want(ctx, e.Reject, a, 50, true, mark.Admitted, 0),
		e.want(ctx, e.Reject, b, 10, true, mark.Admitted, 0),
		e.want(ctx, e.Insert, a, 10, true, mark.Admitted, 0),
		e.wantMark(ctx, e.Reject, a, 50), e.wantMark(ctx, e.Reject, b, 10), e.wantMark(ctx, e.Insert, a, 10),
	)
}

// operatorRaises: an operator may go past max_jump, and makes what is lower no admission any more.
func operatorRaises(ctx context.Context, e Env) error {
	for _, guard := range e.guards() {
		key, err := e.NewKey(ctx)
		if err != nil {
			return err
		}
		high := 5 * lock.Token(e.MaxJump)
		if err := errors.Join(
			e.wantRaise(ctx, guard, key, high, mark.Admitted, 0),
			e.want(ctx, guard, key, high-1, false, mark.FencedOut, high),
			e.wantRaise(ctx, guard, key, high-1, mark.FencedOut, high),
			e.wantRaise(ctx, guard, key, high, mark.FencedOut, high),
			e.wantMark(ctx, guard, key, high),
			e.want(ctx, guard, key, high+1, true, mark.Admitted, 0),
		); err != nil {
			return fmt.Errorf("guard %s: %w", guard, err)
		}
	}
	return nil
}

func (e Env) wantRaise(ctx context.Context, guard, key string, token lock.Token, verdict mark.Verdict, highest lock.Token) error {
	got, err := e.Raise(ctx, guard, key, token)
	if err != nil {
		return fmt.Errorf("raise to %d: %w", token, err)
	}
	if got.Verdict != verdict || verdict != mark.Admitted && got.Highest != highest {
		return fmt.Errorf("raise to %d: %s, highest %d; want %s, highest %d", token, got.Verdict, got.Highest, verdict, highest)
	}
	return nil
}

func lookups(ctx context.Context, e Env) error {
	for query, want := range map[string]string{
		"SELECT $1::text": "x", "SELECT $1::text WHERE false": "", "SELECT NULL::text WHERE $1 <> ''": "",
		// The value isn't one of the type: nothing has it.
		"SELECT $1::uuid": "", "SELECT $1::bigint": "",
	} {
		key, found, err := e.Lookup(ctx, query, []string{"x"})
		if err != nil || key != want || found != (want != "") {
			return fmt.Errorf("%s: %q, %t, %w", query, key, found, err)
		}
	}
	if key, found, err := e.Lookup(ctx, "SELECT $1::bigint", []string{"99999999999999999999"}); err != nil || found {
		return fmt.Errorf("number that is too large: %q, %t, %w", key, found, err)
	}
	if _, _, err := e.Lookup(ctx, "SELECT unnest(ARRAY[$1, 'y'])", []string{"x"}); !errors.Is(err, mark.ErrAmbiguousKey) {
		return fmt.Errorf("two rows: %v", err) //nolint:errorlint // shown, not wrapped
	}
	if _, _, err := e.Lookup(ctx, "SELECT $1 FROM nowhere", []string{"x"}); !errors.Is(err, mark.ErrUnavailable) {
		return fmt.Errorf("broken query: %v", err) //nolint:errorlint // shown, not wrapped
	}
	return nil
}

func blockedRow(ctx context.Context, e Env) error {
	key, err := e.NewKey(ctx)
	if err != nil {
		return err
	}
	release, err := e.Block(ctx, key)
	if err != nil {
		return err
	}
	decision, err := e.admit(ctx, e.Reject, key, 5, true)
	if !errors.Is(err, mark.ErrUnavailable) {
		return errors.Join(fmt.Errorf("admission on a held row: %+v, %v; want a fault", decision, err), release()) //nolint:errorlint // shown
	}
	if err := release(); err != nil {
		return err
	}
	return e.want(ctx, e.Reject, key, 5, true, mark.Admitted, 0)
}

// SurvivesACrash wants a mark that was said to be raised to be there after a crash. It is apart from the others, since it needs a store of
// its own.
func SurvivesACrash(ctx context.Context, e Env) error {
	for round := lock.Token(1); round <= 3; round++ {
		for _, guard := range e.guards() {
			key, err := e.NewKey(ctx)
			if err != nil {
				return err
			}
			if err := e.want(ctx, guard, key, 100*round, true, mark.Admitted, 0); err != nil {
				return err
			}
			if err := e.Crash(ctx); err != nil {
				return err
			}
			if err := e.wantEventually(ctx, guard, key, 100*round); err != nil {
				return err
			}
			if err := e.want(ctx, guard, key, 100*round-1, false, mark.FencedOut, 100*round); err != nil {
				return fmt.Errorf("after the crash: %w", err)
			}
		}
	}
	return nil
}

// wantEventually reads the mark as soon as the store answers again. Connections that died with the server are found out one by one.
func (e Env) wantEventually(ctx context.Context, guard, key string, want lock.Token) error {
	for {
		err := e.wantMark(ctx, guard, key, want)
		if !errors.Is(err, mark.ErrUnavailable) || ctx.Err() != nil {
			return err
		}
	}
}
