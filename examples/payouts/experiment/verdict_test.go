package experiment

import (
	"testing"

	"github.com/stretchr/testify/require"

	"fenceline/paysvc/invariant"
)

func soundTruth() Truth {
	return Truth{
		State: "POSTED", Amount: 2500, Transfers: []Transfer{{Reference: "r1", Amount: 2500}}, DebitRows: 1, Debited: 2500,
		Balance: 97500, EntriesSum: 97500, ClearingBalance: 5000, ClearingSum: 5000,
	}
}

func guardedScene() Scene {
	return Scene{
		Step: "submit", Guard: "rail", OwnerA: "a", OwnerB: "b", TokenA: 3, TokenB: 5, OutcomeA: "fenced_out", ResultB: "posted",
		Truth: soundTruth(), Refusals: []Refusal{{Guard: "rail", Owner: "a", Presented: 3, Highest: 5}},
	}
}

func TestEveryKindOfCorruptionIsFound(t *testing.T) {
	t.Parallel()
	require.Empty(t, soundTruth().Corruption())
	for name, spoil := range map[string]func(*Truth){
		"two transfers":                 func(t *Truth) { t.Transfers = append(t.Transfers, Transfer{Amount: 0}) },
		"transfer without a debit":      func(t *Truth) { t.Debited = 0 },
		"debit without a transfer":      func(t *Truth) { t.Transfers = nil },
		"balance without entries":       func(t *Truth) { t.Balance -= 2500 },
		"clearing balance without rows": func(t *Truth) { t.ClearingBalance += 2500 },
	} {
		truth := soundTruth()
		spoil(&truth)
		require.NotEmpty(t, truth.Corruption(), name)
	}
}

func TestGuardedRunPassesOnlyWhenEverythingHeldAndAWasRefusedAtItsGuard(t *testing.T) {
	t.Parallel()
	setup := Setup{Title: "plain with sidecars", Sidecars: Both()}
	require.NoError(t, Judge(Result{Setup: setup, Scenes: []Scene{guardedScene()}, Invariants: report()}))
	for name, spoil := range map[string]func(*Scene){
		"money corrupted":         func(s *Scene) { s.Truth.Balance-- },
		"no transfer":             func(s *Scene) { s.Truth.Transfers, s.Truth.Debited = nil, 0 },
		"payout not posted":       func(s *Scene) { s.Truth.State = "RAIL_ACKED" },
		"no takeover":             func(s *Scene) { s.TokenB = s.TokenA },
		"A not refused":           func(s *Scene) { s.OutcomeA = "posted" },
		"A gave up by itself":     func(s *Scene) { s.OutcomeA, s.Refusals = "lock_lost", nil },
		"no refusal logged":       func(s *Scene) { s.Refusals = nil },
		"refused by another":      func(s *Scene) { s.Refusals[0].Guard = "account" },
		"B refused":               func(s *Scene) { s.Refusals[0].Owner = "b" },
		"two refusals":            func(s *Scene) { s.Refusals = append(s.Refusals, s.Refusals[0]) },
		"token not A's":           func(s *Scene) { s.Refusals[0].Presented = 4 },
		"highest token not B's":   func(s *Scene) { s.Refusals[0].Highest = 4 },
		"B did not finish":        func(s *Scene) { s.ResultB = "skipped" },
		"A had no token to begin": func(s *Scene) { s.TokenA = 0 },
	} {
		scene := guardedScene()
		spoil(&scene)
		require.Error(t, Judge(Result{Setup: setup, Scenes: []Scene{guardedScene(), scene}, Invariants: report()}), name)
	}
}

func TestUnguardedRunInWhichNothingWentWrongIsAFailedExperiment(t *testing.T) {
	t.Parallel()
	setup := Setup{Title: "plain without sidecar"}
	scene := guardedScene()
	scene.OutcomeA, scene.Refusals = "posted", nil
	require.ErrorContains(t, Judge(Result{Setup: setup, Scenes: []Scene{scene}}), "proves nothing")

	corrupted := scene
	corrupted.Truth.Balance -= 2500
	require.NoError(t, Judge(Result{Setup: setup, Scenes: []Scene{corrupted}, Invariants: report("INV-03")}))
	require.ErrorContains(t, Judge(Result{Setup: setup, Scenes: []Scene{corrupted}, Invariants: report()}), "blind")
	require.ErrorContains(t, Judge(Result{Setup: setup, Scenes: []Scene{corrupted, scene}}), "proves nothing", "each scene by itself")
}

// report is a checker's, with everything checked and these violated.
func report(broken ...string) invariant.Report {
	r := invariant.Report{Checked: make([]string, 8)}
	for _, name := range broken {
		r.Violations = append(r.Violations, invariant.Violation{Invariant: name})
	}
	return r
}

func TestGuardedRunFailsWhenAnInvariantIsBrokenOrWasNotChecked(t *testing.T) {
	t.Parallel()
	r := Result{Setup: Setup{Sidecars: Both()}, Scenes: []Scene{guardedScene()}, Invariants: report("INV-01")}
	require.ErrorContains(t, Judge(r), "invariants don't hold: INV-01")
	r.Invariants = invariant.Report{Checked: []string{"INV-02", "INV-03"}}
	require.ErrorContains(t, Judge(r), "only [INV-02 INV-03] could be checked")
}

// With one guard alone its own scene must hold and the other one must not.
func TestEachGuardAloneIsJudgedByItsOwnScene(t *testing.T) {
	t.Parallel()
	setup := Setup{Title: "fenced rail-proxy only", Fenced: Guards{Rail: true}}
	held, corrupted := guardedScene(), guardedScene()
	corrupted.Step, corrupted.Guard, corrupted.OutcomeA, corrupted.Refusals = "post", "account", "posted", nil
	corrupted.Truth.Balance -= 2500
	judge := func(scenes ...Scene) error {
		return Judge(Result{Setup: setup, Scenes: scenes, Invariants: report("INV-03")})
	}
	require.NoError(t, judge(held, corrupted))
	sound := corrupted
	sound.Truth.Balance += 2500
	require.ErrorContains(t, judge(held, sound), "proves nothing")
	refused := corrupted
	refused.Refusals = []Refusal{{Guard: "account", Owner: "a", Presented: 3, Highest: 5}}
	require.ErrorContains(t, judge(held, refused), "nobody can have refused")
	broken := held
	broken.Truth.Transfers = append(broken.Truth.Transfers, Transfer{Amount: 2500})
	require.ErrorContains(t, judge(broken, corrupted), "corrupted")
}

func TestMoneyShowsTwoDecimals(t *testing.T) {
	t.Parallel()
	require.Equal(t, "0.00", Money(0).String())
	require.Equal(t, "12.05", Money(1205).String())
	require.Equal(t, "-0.07", Money(-7).String())
}
