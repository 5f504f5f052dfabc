package experiment

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fenceline/paysvc/invariant"
)

// The fleet in small: three workers, sixty payouts, one kill or pause after the other. The large one is `make fleet`.
func TestSmallFleetLosesAndMakesNoMoney(t *testing.T) {
	ctx, b, out := newBench(t)
	setup := FleetSetups()[0]
	result, err := b.RunFleet(ctx, setup, Fleet{
		Executors: 3, Payouts: 60, Accounts: 6, Seed: 7, LoseAnswer: 0.05, Decline: 0.03, Calm: 600 * time.Millisecond,
	})
	require.NoError(t, err)
	require.NoError(t, JudgeFleet(result))
	require.NoError(t, PrintFleets(out, []FleetResult{result}))
	require.Contains(t, out.String(), "HELD")
}

// The judge can say no.
func TestFleetThatDidHarmIsFound(t *testing.T) {
	t.Parallel()
	good := func() FleetResult {
		return FleetResult{
			Fleet: Fleet{Payouts: 10}, Kills: 1, Pauses: 1, Agreed: true,
			States: map[string]int64{"POSTED": 8, "FAILED": 1, "RAIL_AMBIGUOUS": 1}, Discrepancies: map[string]int64{"ambiguous_unresolved": 1},
			After: map[string]int64{"POSTED": 9, "FAILED": 1}, Invariants: invariant.Report{Checked: make([]string, invariants)},
		}
	}
	require.NoError(t, JudgeFleet(good()))
	for says, harm := range map[string]func(r *FleetResult){
		"came to an end":       func(r *FleetResult) { r.States["CLAIMED"] = r.States["POSTED"]; delete(r.States, "POSTED") },
		"of 11 payouts":        func(r *FleetResult) { r.Fleet.Payouts = 11 },
		"multiple_transfers":   func(r *FleetResult) { r.Discrepancies["multiple_transfers"] = 1 },
		"ambiguous_unresolved": func(r *FleetResult) { r.Discrepancies["ambiguous_unresolved"] = 2 },
		"INV-02": func(r *FleetResult) {
			r.Invariants.Violations = []invariant.Violation{{Invariant: invariant.OneSubmission}}
		},
		"were checked":              func(r *FleetResult) { r.Invariants.Checked = nil },
		"nobody was disturbed":      func(r *FleetResult) { r.Kills = 0 },
		"not everything is settled": func(r *FleetResult) { r.Agreed = false },
	} {
		r := good()
		harm(&r)
		require.ErrorContains(t, JudgeFleet(r), says)
		var out bytes.Buffer
		require.NoError(t, PrintFleets(&out, []FleetResult{r}))
		require.Contains(t, out.String(), "FAILED: ")
	}
}
