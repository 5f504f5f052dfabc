package experiment

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/jackc/pgx/v5"

	"fenceline/internal/process"
	"fenceline/paysvc/invariant"
)

// FleetResult is what a fleet did.
type FleetResult struct {
	Setup         Setup
	Fleet         Fleet
	Kills, Pauses int
	// States are the payouts that aren't opening balances, by state, when nothing was left to do.
	States map[string]int64
	// Discrepancies are the classes that the reconciler found something in.
	Discrepancies map[string]int64
	Invariants    invariant.Report
	// After is States once more, when the reconciler had decided about the ambiguous payouts by the rail's evidence and a worker had finished them; Agreed says that
	// it then found nothing.
	After  map[string]int64
	Agreed bool
}

// groupReconcile is the role of the reconciler.
const groupReconcile = "reconcile"

// selectFleetStates counts payouts by state. The opening balances stand under payouts of their own, which are POSTED from the start.
const selectFleetStates = `SELECT state, count(*) FROM payout WHERE idempotency_key NOT LIKE 'opening-balance:%' GROUP BY state`

func (s *System) countStates(ctx context.Context) (map[string]int64, error) {
	conn, err := pgx.Connect(ctx, s.databases.pay.URL(s.databases.payName))
	if err != nil {
		return nil, fmt.Errorf("connect to paydb: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	rows, err := conn.Query(ctx, selectFleetStates)
	if err != nil {
		return nil, fmt.Errorf("count payouts: %w", err)
	}
	states := map[string]int64{}
	var state string
	var n int64
	if _, err := pgx.ForEachRow(rows, []any{&state, &n}, func() error { states[state] = n; return nil }); err != nil {
		return nil, fmt.Errorf("count payouts: %w", err)
	}
	return states, nil
}

// lookAtFleet reads the truth, then lets the reconciler decide about what is ambiguous and a worker finish that.
func (s *System) lookAtFleet(ctx context.Context, result *FleetResult) (err error) {
	s.bench.Progress("%s: reconciling with the rail, checking the invariants", s.Setup.Title)
	if result.States, err = s.countStates(ctx); err != nil {
		return err
	}
	databaseURL, err := s.login(ctx, s.databases.pay, s.databases.payName, groupReconcile)
	if err != nil {
		return err
	}
	if result.Discrepancies, err = s.reconcile(ctx, databaseURL, "reconcile"); err != nil {
		return err
	}
	if result.Invariants, err = s.checkInvariants(ctx); err != nil {
		return err
	}
	// The rail records a transfer before it answers or doesn't, and nothing is under way any more: its answer window is over.
	if _, err = s.reconcile(ctx, databaseURL, "reconcile-resolve", "--resolve", "--rail-window", "0s"); err != nil {
		return err
	}
	err = runToEnd(ctx, process.Spec{Name: "executor-last", Path: s.bench.program("paysvc"), LogDir: s.dir, Args: append([]string{
		"executor", "--once", "--owner", "executor-last", "--lockd", s.lockd, "--resource", s.resource, "--rail-proxy", s.railProxy, "--acquire-wait", (2 * fleetTTL).String(),
	}, s.barriers()...)})
	if err != nil {
		return err
	}
	if result.After, err = s.countStates(ctx); err != nil {
		return err
	}
	left, err := s.reconcile(ctx, databaseURL, "reconcile-after")
	result.Agreed = err == nil && len(left) == 0
	return err
}

// reconcile runs the reconciler and returns the classes with something in them.
func (s *System) reconcile(ctx context.Context, databaseURL, name string, flags ...string) (map[string]int64, error) {
	p, err := process.Start(ctx, process.Spec{
		Name: name, Path: s.bench.program("paysvc"), LogDir: s.dir, Env: []string{"PAYSVC_DATABASE_URL=" + databaseURL},
		Args: append([]string{"reconcile", "--rail", s.address("rail-stub"), "--output", "json", "--settle", "0s", "--log-level", "error"}, flags...),
	})
	if err != nil {
		return nil, err
	}
	code, err := p.Wait(ctx)
	if err != nil {
		return nil, err
	}
	output, err := os.ReadFile(p.LogFile())
	if err != nil {
		return nil, fmt.Errorf("read report: %w", err)
	}
	document, _, whole := strings.Cut(string(output), "\n}\n")
	var report struct {
		Discrepancies []struct {
			Class string
			Count int64
		}
	}
	if (code != 0 && code != 2) || !whole || json.Unmarshal([]byte(document+"}"), &report) != nil || len(report.Discrepancies) == 0 {
		return nil, fmt.Errorf("%s ended with exit code %d:\n%s", name, code, p.Tail())
	}
	found := map[string]int64{}
	for _, d := range report.Discrepancies {
		if d.Count > 0 {
			found[d.Class] = d.Count
		}
	}
	return found, nil
}

// address is the base URL of a listener by its name.
func (s *System) address(name string) string {
	for _, a := range s.addresses {
		if a.Name == name {
			return a.URL
		}
	}
	return ""
}

// JudgeFleet returns why the fleet did harm, or nil: every payout must have come to an end or be known to be ambiguous, nothing may contradict anything, and every
// invariant must hold. Somebody must have been disturbed, else nothing was shown.
func JudgeFleet(r FleetResult) error {
	total, ended := int64(0), r.States["POSTED"]+r.States["FAILED"]+r.States["RAIL_AMBIGUOUS"]
	for _, n := range r.States {
		total += n
	}
	unexplained := map[string]int64{}
	for class, n := range r.Discrepancies {
		if class != "ambiguous_unresolved" || n != r.States["RAIL_AMBIGUOUS"] {
			unexplained[class] = n
		}
	}
	switch {
	case total != int64(r.Fleet.Payouts) || ended != total:
		return fmt.Errorf("of %d payouts %d came to an end: %v", r.Fleet.Payouts, ended, r.States)
	case len(unexplained) > 0:
		return fmt.Errorf("the reconciler found %v", unexplained)
	case len(r.Invariants.Checked) != invariants:
		return fmt.Errorf("only %v were checked", r.Invariants.Checked)
	case r.Invariants.Err() != nil:
		return fmt.Errorf("invariants don't hold: %w", r.Invariants.Err())
	case r.Kills == 0 || r.Pauses == 0:
		return fmt.Errorf("%d kills and %d pauses: nobody was disturbed, so nothing is shown", r.Kills, r.Pauses)
	case !r.Agreed || r.After["RAIL_AMBIGUOUS"] != 0 || r.After["POSTED"]+r.After["FAILED"] != total:
		return fmt.Errorf("after the rail's evidence not everything is settled: %v", r.After)
	}
	return nil
}

// PrintFleets writes one line for each result.
func PrintFleets(w io.Writer, results []FleetResult) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\nSET-UP\tSEED\tKILLS\tPAUSES\tPOSTED\tFAILED\tAMBIGUOUS\tINVARIANTS\tAFTER THE RAIL'S EVIDENCE\tVERDICT")
	for _, r := range results {
		verdict, broken := "HELD", "hold"
		if err := JudgeFleet(r); err != nil {
			verdict = "FAILED: " + strings.SplitN(err.Error(), "\n", 2)[0]
		}
		if names := r.Invariants.Broken(); len(names) > 0 {
			broken = strings.Join(names, " ")
		}
		fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%s\t%d posted, %d failed\t%s\n", r.Setup.Title, r.Fleet.Seed, r.Kills, r.Pauses,
			r.States["POSTED"], r.States["FAILED"], r.States["RAIL_AMBIGUOUS"], broken, r.After["POSTED"], r.After["FAILED"], verdict)
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	return nil
}
