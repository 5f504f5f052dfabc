package experiment

import (
	"fmt"
	"io"
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
		row("money", func(s Scene) string {
			if len(s.Truth.Corruption()) > 0 {
				return "CORRUPTED"
			}
			return "right"
		}),
	}
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
