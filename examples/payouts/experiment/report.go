package experiment

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// Print writes the truth of one set-up as a table: one column a scene, so that the two
// payouts can be read side by side.
func (r Result) Print(w io.Writer) error {
	fmt.Fprintf(w, "\n%s: %s\n\n", r.Setup.Title, r.Verdict())
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	for _, row := range r.rows() {
		fmt.Fprintln(table, "  "+strings.Join(row, "\t"))
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	return nil
}

// rows builds the table line by line: a label, then one cell for each scene.
func (r Result) rows() [][]string {
	row := func(label string, cell func(Scene) string) []string {
		cells := []string{label}
		for _, s := range r.Scenes {
			cells = append(cells, cell(s))
		}
		return cells
	}
	return [][]string{
		row("", func(s Scene) string { return "A stopped before its " + s.Step }),
		row("tokens", func(s Scene) string { return fmt.Sprintf("A %d, then B %d", s.TokenA, s.TokenB) }),
		row("worker B ended", func(s Scene) string { return words(s.ResultB) }),
		row("worker A ended", func(s Scene) string { return words(s.OutcomeA) }),
		row("refused", func(s Scene) string { return refusals(s.Refusals) }),
		row("amount of the payout", func(s Scene) string { return s.Truth.Amount.String() }),
		row("rail received", func(s Scene) string { return transfers(s.Truth.Transfers) }),
		row("ledger debits", func(s Scene) string { return fmt.Sprintf("%d × %s", s.Truth.DebitRows, perRow(s.Truth)) }),
		row("balance / Σ entries", func(s Scene) string { return compare(s.Truth.Balance, s.Truth.EntriesSum) }),
		row("clearing / Σ entries", func(s Scene) string { return compare(s.Truth.ClearingBalance, s.Truth.ClearingSum) }),
		row("money", r.money),
	}
}

func (r Result) money(s Scene) string {
	if len(r.Setup.corruption(s)) > 0 {
		return "CORRUPTED"
	}
	return "right"
}

// PrintAll writes one table for all set-ups: a line for each scene.
func PrintAll(w io.Writer, results []Result) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, strings.Join([]string{
		"\nset-up", "A stopped before", "tokens A, B", "rail received", "ledger debits", "balance / Σ entries", "refused", "broken", "money", "verdict",
	}, "\t"))
	for _, r := range results {
		for i, s := range r.Scenes {
			title, verdict := "", ""
			if i == 0 {
				title, verdict = r.Setup.Title, r.verdictWhere()
			}
			fmt.Fprintln(table, strings.Join([]string{
				title, s.Step, fmt.Sprintf("%d, %d", s.TokenA, s.TokenB), transfers(s.Truth.Transfers), fmt.Sprintf("%d × %s", s.Truth.DebitRows, perRow(s.Truth)),
				compare(s.Truth.Balance, s.Truth.EntriesSum), refusals(s.Refusals), broken(r, s), r.money(s), verdict,
			}, "\t"))
		}
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	return nil
}

// verdictWhere is the verdict, and with one guard alone where it held.
func (r Result) verdictWhere() string {
	if r.Setup.whole() || !r.Setup.guarded(guardAccount) && !r.Setup.guarded(guardRail) {
		return r.Verdict()
	}
	var held []string
	for _, s := range r.Scenes {
		if len(r.Setup.corruption(s)) == 0 {
			held = append(held, s.Guard)
		}
	}
	return "HELD at " + strings.Join(held, " and ") + " only"
}

// broken names the invariants that are violated for the scene's payout, account or lock.
func broken(r Result, s Scene) string {
	var names []string
	for _, v := range r.Invariants.Violations {
		if (v.PayoutID == s.Truth.PayoutID || v.Account == s.Truth.AccountID || v.Account == "payout:"+s.Truth.AccountID) && !slices.Contains(names, v.Invariant) {
			names = append(names, v.Invariant)
		}
	}
	if len(names) == 0 {
		return "nothing"
	}
	return strings.Join(names, " ")
}

func words(outcome string) string { return strings.ReplaceAll(outcome, "_", " ") }

func refusals(list []Refusal) string {
	if len(list) == 0 {
		return "nobody"
	}
	var out []string
	for _, r := range list {
		out = append(out, fmt.Sprintf("%s at guard %s: token %d < %d", r.Owner, r.Guard, r.Presented, r.Highest))
	}
	return strings.Join(out, "; ")
}

func transfers(list []Transfer) string {
	if len(list) == 0 {
		return "nothing"
	}
	return fmt.Sprintf("%d × %s", len(list), list[0].Amount)
}

func perRow(t Truth) Money {
	if t.DebitRows == 0 {
		return 0
	}
	return t.Debited / Money(t.DebitRows)
}

func compare(balance, sum Money) string {
	if balance == sum {
		return fmt.Sprintf("%s = %s", balance, sum)
	}
	return fmt.Sprintf("%s ≠ %s", balance, sum)
}
