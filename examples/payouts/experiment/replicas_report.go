package experiment

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// PrintReplicas writes one line for each story: how often it was told, what landed in what order, and what went wrong how often.
func PrintReplicas(w io.Writer, results []ReplicaResult) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, strings.Join([]string{"\nset-up", "runs", "older write last", "two transfers", "B was told busy", "settled by operator", "verdict"}, "\t"))
	for len(results) > 0 {
		n := 1
		for n < len(results) && results[n].Story.Name == results[0].Story.Name {
			n++
		}
		fmt.Fprintln(table, strings.Join(replicaRow(results[:n]), "\t"))
		results = results[n:]
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	return nil
}

func replicaRow(runs []ReplicaResult) []string {
	wrong, busy, settled := 0, 0, 0
	for _, r := range runs {
		if r.Violation() != "" {
			wrong++
		}
		if r.Busy > 0 {
			busy++
		}
		if r.Settled {
			settled++
		}
	}
	of := func(n int) string { return fmt.Sprintf("%d of %d", n, len(runs)) }
	last, twice := of(wrong), "-"
	if runs[0].Story.Takeover {
		last, twice = "-", of(wrong)
	}
	verdict := "HELD"
	if wrong > 0 {
		verdict = "CORRUPTED"
	}
	return []string{runs[0].Story.Title, fmt.Sprint(len(runs)), last, twice, of(busy), of(settled), verdict}
}
