package reconcile

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"fenceline/paysvc/payout"
	"fenceline/paysvc/reconcile/finding"
)

// WriteJSON writes the report for programs.
func (r Report) WriteJSON(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(r); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// WriteText writes the report for people.
func (r Report) WriteText(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	c := r.Checked
	fmt.Fprintf(table, "compared %d payouts, %d submissions, %d transfers, %d ledger entries, %d accounts\n\n", c.Payouts, c.Submissions, c.Transfers, c.Entries, c.Accounts)
	fmt.Fprintln(table, "DISCREPANCY\tCOUNT\tMEANING")
	texts := finding.Classes()
	for i, d := range r.Discrepancies {
		fmt.Fprintf(table, "%s\t%d\t%s\n", d.Class, d.Count, texts[i].Text)
	}
	fmt.Fprintln(table)
	for _, d := range r.Discrepancies {
		for _, f := range d.Found {
			fmt.Fprintf(table, "%s\t%s\t%s\n", d.Class, f.Subject, f.Detail)
		}
		if more := d.Count - int64(len(d.Found)); more > 0 {
			fmt.Fprintf(table, "%s\t… and %d more\n", d.Class, more)
		}
	}
	fmt.Fprintln(table, "\nSTATE\tPAYOUTS")
	for _, state := range payout.States() {
		fmt.Fprintf(table, "%s\t%d\n", state, r.States[string(state)])
	}
	fmt.Fprintln(table, "\nCURRENCY\tTRANSFERRED\tDEBITED\tPAID BUT NOT POSTED")
	for _, t := range r.Totals {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", t.Currency, t.TransferredMinor, t.DebitedMinor, t.OpenMinor)
	}
	i := r.Information
	fmt.Fprintf(table, "\nfenced submissions: %d, acknowledged and still to be posted: %d, events not delivered: %d, of these parked: %d\n",
		i.FencedSubmissions, i.AckedNotPosted, i.UndeliveredEvents, i.ParkedEvents)
	if s := r.Resolved; s != nil {
		fmt.Fprintf(table, "ambiguous payouts resolved: %d acknowledged, %d failed, %d undecided\n", s.Acknowledged, s.Failed, s.Undecided)
	}
	fmt.Fprintf(table, "\n%s\n", r.verdict())
	if err := table.Flush(); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

func (r Report) verdict() string {
	if r.Clean {
		return "clean: everything agrees"
	}
	return fmt.Sprintf("%d discrepancies", r.Count())
}
