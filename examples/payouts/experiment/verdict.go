package experiment

import (
	"fmt"
	"slices"

	"fenceline/paysvc/invariant"
)

// Money is an amount in minor units (cents).
type Money int64

// String shows the amount with two decimals.
func (m Money) String() string {
	sign := ""
	if m < 0 {
		sign, m = "-", -m
	}
	return fmt.Sprintf("%s%d.%02d", sign, m/100, m%100)
}

// Truth is what one payout came to, read from paydb and from the rail's own log when
// everything has ended: not what any worker believes.
type Truth struct {
	PayoutID, AccountID string
	Amount              Money
	State               string
	Transfers           []Transfer // what the rail carried out for this payout
	DebitRows           int        // ledger rows that take money from the payer
	Debited             Money      // their sum
	Balance             Money      // the payer account's balance
	EntriesSum          Money      // Σ CREDIT − Σ DEBIT over the payer account's ledger rows
	ClearingBalance     Money
	ClearingSum         Money
}

// Transfer is one line of the rail's log.
type Transfer struct {
	Reference string
	Amount    Money
}

// Transferred is the sum that left through the rail.
func (t Truth) Transferred() Money {
	var sum Money
	for _, transfer := range t.Transfers {
		sum += transfer.Amount
	}
	return sum
}

// Corruption lists what is wrong with the money, in words; none means that it is right.
// The three tests are those that define "corrupted": more than one transfer for
// a payout, transfers that the ledger's debits don't match, a balance that its entries don't explain.
func (t Truth) Corruption() []string {
	wrong := t.ownCorruption()
	if t.ClearingBalance != t.ClearingSum {
		wrong = append(wrong, fmt.Sprintf("the clearing balance is %s, its entries sum to %s", t.ClearingBalance, t.ClearingSum))
	}
	return wrong
}

// ownCorruption leaves the clearing account out, which all payouts of a run share.
func (t Truth) ownCorruption() []string {
	var wrong []string
	if n := len(t.Transfers); n > 1 {
		wrong = append(wrong, fmt.Sprintf("the rail made %d transfers for one payout", n))
	}
	if t.Transferred() != t.Debited {
		wrong = append(wrong, fmt.Sprintf("%s left through the rail, the ledger debits %s", t.Transferred(), t.Debited))
	}
	if t.Balance != t.EntriesSum {
		wrong = append(wrong, fmt.Sprintf("the balance is %s, its entries sum to %s", t.Balance, t.EntriesSum))
	}
	return wrong
}

// Refusal is one request that a sidecar or a fenced process fenced out, from its own log.
type Refusal struct {
	Guard              string
	Owner              string
	Route              string
	Presented, Highest int64 // the token presented and the highest token seen
}

// Scene is one payout with its two workers: A, stopped before the step, and B, who
// takes over.
type Scene struct {
	Step              string // what A was stopped before: submit or post
	Guard             string // the guard that stands before that step
	OwnerA, OwnerB    string
	TokenA, TokenB    int64
	OutcomeA, ResultB string
	Truth             Truth
	Refusals          []Refusal
}

// corruption is what is wrong with the money in the scene. Where another scene's guard is missing the clearing account shows that one's
// corruption, and says nothing about this one.
func (s Setup) corruption(scene Scene) []string {
	if s.whole() || !s.guarded(scene.Guard) {
		return scene.Truth.Corruption()
	}
	return scene.Truth.ownCorruption()
}

// Result is one run of one set-up.
type Result struct {
	Setup      Setup
	Scenes     []Scene
	Invariants invariant.Report
}

// Corrupted says whether money was lost or made in any scene.
func (r Result) Corrupted() bool {
	return slices.ContainsFunc(r.Scenes, func(s Scene) bool { return len(r.Setup.corruption(s)) > 0 })
}

// Verdict is one word for the set-up.
func (r Result) Verdict() string {
	if r.Corrupted() {
		return "CORRUPTED"
	}
	return "HELD"
}

// Judge compares a set-up's run with what it must show and returns why it failed, or
// nil. A scene whose guard is missing must be corrupted: a run in which nothing went wrong
// proves nothing. A scene with its guard may not be, its payout must be posted, by B, and A must have been
// fenced out at that scene's own guard with a token below the highest. With both guards every invariant holds; with none some don't.
func Judge(r Result) error {
	for _, s := range r.Scenes {
		if err := judgeScene(r.Setup, s); err != nil {
			return fmt.Errorf("%s, A stopped before its %s: %w", r.Setup.Title, s.Step, err)
		}
	}
	return judgeInvariants(r)
}

// judgeInvariants asks the checker, whose evidence is its own: the history of every row, the grant log, the rail's log.
func judgeInvariants(r Result) error {
	err := r.Invariants.Err()
	switch {
	case len(r.Invariants.Checked) != invariants:
		return fmt.Errorf("%s: only %v could be checked", r.Setup.Title, r.Invariants.Checked)
	case r.Setup.whole() && err != nil:
		return fmt.Errorf("%s: invariants don't hold: %w", r.Setup.Title, err)
	case !r.Setup.whole() && err == nil:
		return fmt.Errorf("%s: the money is corrupted, yet every invariant holds: the checker is blind", r.Setup.Title)
	}
	return nil
}

// invariants is how many there are.
const invariants = 8

func judgeScene(setup Setup, s Scene) error {
	wrong, guarded := setup.corruption(s), setup.guarded(s.Guard)
	switch {
	case s.TokenA <= 0 || s.TokenB <= s.TokenA:
		return fmt.Errorf("no takeover happened: A had token %d, B %d", s.TokenA, s.TokenB)
	case s.ResultB != "posted":
		return fmt.Errorf("worker B was to post the payout; it ended with %q", s.ResultB)
	case s.Truth.State != "POSTED":
		return fmt.Errorf("the payout ended in state %s", s.Truth.State)
	case !guarded && len(wrong) == 0:
		return fmt.Errorf("nothing went wrong without the guard %q, so this run proves nothing (A ended with %q)", s.Guard, s.OutcomeA)
	case !guarded:
		return judgeOthers(setup, s)
	case len(wrong) > 0:
		return fmt.Errorf("the guarded system is corrupted: %v", wrong)
	case len(s.Truth.Transfers) != 1:
		return fmt.Errorf("the rail made %d transfers, want one", len(s.Truth.Transfers))
	}
	return judgeRefusal(s)
}

// judgeOthers wants refusals, in a scene whose own guard is missing, by the other guard only if that is there, and of A only.
func judgeOthers(setup Setup, s Scene) error {
	for _, refusal := range s.Refusals {
		if !setup.guarded(refusal.Guard) || refusal.Owner != s.OwnerA {
			return fmt.Errorf("nobody can have refused this here: %+v", refusal)
		}
	}
	return nil
}

// judgeRefusal wants A, and nobody else, fenced out at the scene's guard.
func judgeRefusal(s Scene) error {
	if s.OutcomeA != "fenced_out" {
		return fmt.Errorf("worker A was to be fenced out; it ended with %q", s.OutcomeA)
	}
	if len(s.Refusals) != 1 {
		return fmt.Errorf("want exactly one refusal, by guard %q; got %+v", s.Guard, s.Refusals)
	}
	refusal := s.Refusals[0]
	if refusal.Guard != s.Guard || refusal.Owner != s.OwnerA || refusal.Presented != s.TokenA || refusal.Highest != s.TokenB {
		return fmt.Errorf("want %s refused by guard %q with token %d against %d; got %+v", s.OwnerA, s.Guard, s.TokenA, s.TokenB, refusal)
	}
	return nil
}
