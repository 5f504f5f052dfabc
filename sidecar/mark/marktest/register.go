package marktest

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"fenceline/lockd/lock"
	"fenceline/sidecar/mark"
)

// RegisterEnv is a register with what a scenario can't do through its interface.
type RegisterEnv struct {
	// Open gives a sidecar of that id a register on the common store, with a life. Where a store takes one sidecar only, it is the same one every time.
	Open func(ctx context.Context, id string) (mark.Register, error)
	// Hold and Release are guards that differ in what becomes of unsettled requests; both make marks for new keys.
	Hold, Release string
	// NewKey makes a key that both guards accept.
	NewKey func(ctx context.Context) (string, error)
	// Age makes what is unsettled older than Release's time.
	Age func(ctx context.Context) error
}

// RegisterScenario is one row of the suite for registers.
type RegisterScenario struct {
	Name string
	Run  func(ctx context.Context, e RegisterEnv) error
}

// RegisterScenarios is the suite for every register.
func RegisterScenarios() []RegisterScenario {
	return []RegisterScenario{
		{"whatIsRegisteredBlocksHigherTokensUntilItIsSettled", olderBlocks},
		{"equalTokensDoNotBlockEachOther", equalTokens},
		{"barrierOfOnceOnlyTokensLeavesItsOwnToBeUsed", barrierBelow},
		{"barrierShutsOutATokenThatWasAdmittedBefore", barrierShuts},
		{"onlyWhatIsUnsettledMayBeSettledByHand", byHand},
		{"unsettledRequestIsReleasedByTimeOnlyWhereTheGuardSaysSo", byTime},
		{"endedLifeLeavesItsRequestsUnsettledAndRegistersNoMore", endedLife},
		{"strayRegistrationIsShownToItsOwnLife", standingList},
		{"nothingOlderIsInFlightWhereNothingOlderWasSeen", OrderOfEffects},
	}
}

func entry(guard, key string, token lock.Token, newer bool) mark.Entry {
	return mark.Entry{Admission: mark.Admission{Guard: guard, Key: key, Token: token, Newer: newer}, Raise: token, Route: "write", Owner: "alice"}
}

// want registers and compares the decision and what it found.
func want(ctx context.Context, r mark.Register, e mark.Entry, verdict mark.Verdict, older ...mark.Row) (mark.Row, error) {
	got, err := r.Register(ctx, e)
	switch {
	case err != nil:
		return 0, fmt.Errorf("register %d: %w", e.Token, err)
	case got.Verdict != verdict:
		return 0, fmt.Errorf("register %d: %s, want %s", e.Token, got.Verdict, verdict)
	case !slices.Equal(got.Older, older) && len(got.Older)+len(older) > 0:
		return 0, fmt.Errorf("register %d: older requests %v, want %v", e.Token, got.Older, older)
	case verdict == mark.Admitted && got.Row == 0:
		return 0, fmt.Errorf("register %d: admitted without a row", e.Token)
	}
	return got.Row, nil
}

func look(ctx context.Context, r mark.Register, e mark.Entry, row mark.Row, want mark.Sight) error {
	got, err := r.Look(ctx, e, row)
	if err != nil {
		return err
	}
	if got.Present != want.Present || got.Mark != want.Mark || !slices.Equal(got.Older, want.Older) && len(got.Older)+len(want.Older) > 0 {
		return fmt.Errorf("look for %d: %+v, want %+v", e.Token, got, want)
	}
	return nil
}

// two opens two sidecars and a key.
func (e RegisterEnv) two(ctx context.Context) (a, b mark.Register, key string, err error) {
	a, errA := e.Open(ctx, "a")
	b, errB := e.Open(ctx, "b")
	key, errKey := e.NewKey(ctx)
	return a, b, key, errors.Join(errA, errB, errKey)
}

func olderBlocks(ctx context.Context, env RegisterEnv) error {
	a, b, key, err := env.two(ctx)
	if err != nil {
		return err
	}
	old, next := entry(env.Hold, key, 5, true), entry(env.Hold, key, 6, true)
	first, err := want(ctx, a, old, mark.Admitted)
	if err != nil {
		return err
	}
	second, err := want(ctx, b, next, mark.Admitted, first)
	if err != nil {
		return err
	}
	if _, err := want(ctx, a, old, mark.FencedOut); err != nil {
		return err
	}
	if err := errors.Join(
		look(ctx, b, next, second, mark.Sight{Present: true, Mark: 6, Older: []mark.Row{first}}),
		a.Unsettle(ctx, []mark.Row{first}),
		look(ctx, b, next, second, mark.Sight{Present: true, Mark: 6, Older: []mark.Row{first}}),
		look(ctx, a, old, first, mark.Sight{Mark: 6}),
		a.Settle(ctx, []mark.Row{first}),
		a.Settle(ctx, []mark.Row{first}), // it is gone already
	); err != nil {
		return err
	}
	return errors.Join(wantLook(ctx, b, next, second, mark.Sight{Present: true, Mark: 6}), b.Settle(ctx, []mark.Row{second}))
}

// wantLook is look for a store that takes a moment to write a settlement.
func wantLook(ctx context.Context, r mark.Register, e mark.Entry, row mark.Row, want mark.Sight) error {
	for {
		err := look(ctx, r, e, row, want)
		if err == nil || ctx.Err() != nil {
			return err
		}
	}
}

func equalTokens(ctx context.Context, env RegisterEnv) error {
	a, b, key, err := env.two(ctx)
	if err != nil {
		return err
	}
	same := entry(env.Hold, key, 5, false)
	for _, r := range []mark.Register{a, b, a, b} {
		if _, err := want(ctx, r, same, mark.Admitted); err != nil {
			return err
		}
	}
	if _, err := want(ctx, b, entry(env.Hold, key, 5, true), mark.FencedOut); err != nil {
		return err
	}
	got, err := b.Register(ctx, entry(env.Hold, key, 6, false))
	if err != nil || got.Verdict != mark.Admitted || len(got.Older) != 4 {
		return fmt.Errorf("a higher token: %+v, %w; want four older requests", got, err)
	}
	return nil
}

func barrierBelow(ctx context.Context, env RegisterEnv) error {
	a, _, key, err := env.two(ctx)
	if err != nil {
		return err
	}
	for _, token := range []lock.Token{1, 7} {
		e := entry(env.Hold, key, token, false)
		e.Raise--
		row, err := want(ctx, a, e, mark.Admitted)
		if err != nil {
			return err
		}
		if err := look(ctx, a, e, row, mark.Sight{Present: true, Mark: token - 1}); err != nil {
			return err
		}
		if err := a.Settle(ctx, []mark.Row{row}); err != nil {
			return err
		}
	}
	if _, err := want(ctx, a, entry(env.Hold, key, 6, true), mark.FencedOut); err != nil {
		return err
	}
	if _, err := want(ctx, a, entry(env.Hold, key, 7, true), mark.Admitted); err != nil {
		return err
	}
	_, err = want(ctx, a, entry(env.Hold, key, 7, true), mark.FencedOut)
	return err
}

// barrierShuts: whoever was admitted and comes again after a barrier of a newer token is refused, whatever the register remembers of the key.
func barrierShuts(ctx context.Context, env RegisterEnv) error {
	a, _, key, err := env.two(ctx)
	if err != nil {
		return err
	}
	old, below, barrier := entry(env.Hold, key, 5, false), entry(env.Hold, key, 8, false), entry(env.Hold, key, 9, false)
	barrier.Raise--
	for _, e := range []mark.Entry{old, old, barrier} {
		row, err := want(ctx, a, e, mark.Admitted)
		if err != nil {
			return err
		}
		if err := a.Settle(ctx, []mark.Row{row}); err != nil {
			return err
		}
	}
	if _, err := want(ctx, a, old, mark.FencedOut); err != nil {
		return err
	}
	// The mark is the token below the barrier's, until the barrier's own is used.
	for _, e := range []mark.Entry{below, entry(env.Hold, key, 9, true), barrier} {
		row, err := want(ctx, a, e, mark.Admitted)
		if err != nil {
			return err
		}
		if err := a.Settle(ctx, []mark.Row{row}); err != nil {
			return err
		}
	}
	_, err = want(ctx, a, below, mark.FencedOut)
	return err
}

func byHand(ctx context.Context, env RegisterEnv) error {
	a, b, key, err := env.two(ctx)
	if err != nil {
		return err
	}
	row, err := want(ctx, a, entry(env.Hold, key, 5, true), mark.Admitted)
	if err != nil {
		return err
	}
	if found, err := b.SettleUnsettled(ctx, row, "carol", "looked it up"); err != nil || found {
		return fmt.Errorf("a request under way was settled by hand: %t, %w", found, err)
	}
	if err := a.Unsettle(ctx, []mark.Row{row}); err != nil {
		return err
	}
	if _, err := b.SettleUnsettled(ctx, row, "", "looked it up"); err == nil {
		return errors.New("nobody settled it")
	}
	if found, err := b.SettleUnsettled(ctx, row, "carol", "looked it up"); err != nil || !found {
		return fmt.Errorf("an unsettled request wasn't settled by hand: %t, %w", found, err)
	}
	_, err = want(ctx, b, entry(env.Hold, key, 6, true), mark.Admitted)
	return err
}

func byTime(ctx context.Context, env RegisterEnv) error {
	for _, guard := range []string{env.Hold, env.Release} {
		a, b, key, err := env.two(ctx)
		if err != nil {
			return err
		}
		next := entry(guard, key, 6, true)
		row, err := want(ctx, a, entry(guard, key, 5, true), mark.Admitted)
		if err != nil {
			return err
		}
		second, err := want(ctx, b, next, mark.Admitted, row)
		if err != nil {
			return err
		}
		if err := errors.Join(env.Age(ctx), look(ctx, b, next, second, mark.Sight{Present: true, Mark: 6, Older: []mark.Row{row}}),
			a.Unsettle(ctx, []mark.Row{row}), look(ctx, b, next, second, mark.Sight{Present: true, Mark: 6, Older: []mark.Row{row}}), env.Age(ctx)); err != nil {
			return fmt.Errorf("guard %s: %w", guard, err)
		}
		sight := mark.Sight{Present: true, Mark: 6}
		if guard == env.Hold {
			sight.Older = []mark.Row{row}
		}
		if err := look(ctx, b, next, second, sight); err != nil {
			return fmt.Errorf("guard %s, long after: %w", guard, err)
		}
	}
	return nil
}

func endedLife(ctx context.Context, env RegisterEnv) error {
	a, b, key, err := env.two(ctx)
	if err != nil {
		return err
	}
	row, err := want(ctx, a, entry(env.Hold, key, 5, false), mark.Admitted)
	if err != nil {
		return err
	}
	if err := a.End(ctx); err != nil {
		return err
	}
	if _, err := a.Register(ctx, entry(env.Hold, key, 5, false)); !errors.Is(err, mark.ErrNoLife) {
		return fmt.Errorf("registered without a life: %v", err) //nolint:errorlint // shown
	}
	if a == b {
		if err := a.Begin(ctx); err != nil {
			return err
		}
	}
	if _, err := want(ctx, b, entry(env.Hold, key, 6, true), mark.Admitted, row); err != nil {
		return err
	}
	list, err := b.Standing(ctx, env.Hold, 1000)
	if err != nil || !slices.ContainsFunc(list, func(s mark.Standing) bool {
		return s.Row == row && !s.UnsettledAt.IsZero() && s.Key == key && s.Token == 5
	}) {
		return fmt.Errorf("the ended life's request isn't listed as unsettled: %+v, %w", list, err)
	}
	return nil
}

func standingList(ctx context.Context, env RegisterEnv) error {
	a, _, key, err := env.two(ctx)
	if err != nil {
		return err
	}
	row, err := want(ctx, a, entry(env.Hold, key, 5, false), mark.Admitted)
	if err != nil {
		return err
	}
	if err := env.Age(ctx); err != nil {
		return err
	}
	pulse, err := a.Beat(ctx)
	if err != nil || pulse.Lost || !slices.Contains(pulse.Own, row) {
		return fmt.Errorf("heartbeat: %+v, %w; want row %d among its own", pulse, err, row)
	}
	return nil
}
