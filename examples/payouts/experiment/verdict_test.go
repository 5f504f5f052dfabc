package experiment

import (
	"testing"

	"github.com/stretchr/testify/require"
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
	setup := Setup{Title: "plain with sidecars", Sidecars: true}
	require.NoError(t, Judge(Result{Setup: setup, Scenes: []Scene{guardedScene()}}))
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
		require.Error(t, Judge(Result{Setup: setup, Scenes: []Scene{guardedScene(), scene}}), name)
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
	require.NoError(t, Judge(Result{Setup: setup, Scenes: []Scene{corrupted}}))
	require.ErrorContains(t, Judge(Result{Setup: setup, Scenes: []Scene{corrupted, scene}}), "proves nothing", "each scene by itself")
}

func TestMoneyShowsTwoDecimals(t *testing.T) {
	t.Parallel()
	require.Equal(t, "0.00", Money(0).String())
	require.Equal(t, "12.05", Money(1205).String())
	require.Equal(t, "-0.07", Money(-7).String())
}
