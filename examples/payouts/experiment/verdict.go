package experiment

import (
	"fmt"
	"slices"
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
	if t.ClearingBalance != t.ClearingSum {
		wrong = append(wrong, fmt.Sprintf("the clearing balance is %s, its entries sum to %s", t.ClearingBalance, t.ClearingSum))
	}
	return wrong
}

// Refusal is one request that a sidecar fenced out, from that sidecar's own log.
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

// Result is one run of one set-up.
type Result struct {
	Setup  Setup
	Scenes []Scene
}

// Corrupted says whether money was lost or made in any scene.
func (r Result) Corrupted() bool {
	return slices.ContainsFunc(r.Scenes, func(s Scene) bool { return len(s.Truth.Corruption()) > 0 })
}

// Verdict is one word for the set-up.
func (r Result) Verdict() string {
	if r.Corrupted() {
		return "CORRUPTED"
	}
	return "HELD"
}

// Judge compares a set-up's run with what it must show and returns why it failed, or
// nil. Without a guard every scene must be corrupted: a run in which nothing went wrong
// proves nothing. With guards no scene may be, every payout must be posted, by B, and A must have been
// fenced out at that scene's own guard with a token below the highest.
func Judge(r Result) error {
	for _, s := range r.Scenes {
		if err := judgeScene(r.Setup, s); err != nil {
			return fmt.Errorf("%s, A stopped before its %s: %w", r.Setup.Title, s.Step, err)
		}
	}
	return nil
}

func judgeScene(setup Setup, s Scene) error {
	wrong := s.Truth.Corruption()
	switch {
	case s.TokenA <= 0 || s.TokenB <= s.TokenA:
		return fmt.Errorf("no takeover happened: A had token %d, B %d", s.TokenA, s.TokenB)
	case s.ResultB != "posted":
		return fmt.Errorf("worker B was to post the payout; it ended with %q", s.ResultB)
	case s.Truth.State != "POSTED":
		return fmt.Errorf("the payout ended in state %s", s.Truth.State)
	case !setup.Sidecars && len(wrong) == 0:
		return fmt.Errorf("nothing went wrong without the sidecar, so this run proves nothing (A ended with %q)", s.OutcomeA)
	case !setup.Sidecars && len(s.Refusals) > 0:
		return fmt.Errorf("a sidecar refused something, but this set-up has none: %+v", s.Refusals)
	case setup.Sidecars && len(wrong) > 0:
		return fmt.Errorf("the guarded system is corrupted: %v", wrong)
	case setup.Sidecars && len(s.Truth.Transfers) != 1:
		return fmt.Errorf("the rail made %d transfers, want one", len(s.Truth.Transfers))
	case setup.Sidecars:
		return judgeRefusal(s)
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
