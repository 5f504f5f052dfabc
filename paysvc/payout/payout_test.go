package payout_test

import (
	"math"
	"math/big"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"fenceline/paysvc/payout"
)

// arrows is the machine a second time, written down from its description and not from the code. An arrow that is added, lost or
// bent in the table shows up as a difference.
func arrows() map[payout.State]map[payout.Event]payout.State {
	return map[payout.State]map[payout.Event]payout.State{
		payout.Pending:       {payout.Claim: payout.Claimed, payout.RefuseFunds: payout.Failed, payout.Abandon: payout.Abandoned},
		payout.Claimed:       {payout.Claim: payout.Claimed, payout.Submit: payout.RailSubmitted},
		payout.RailSubmitted: {payout.Acknowledge: payout.RailAcked, payout.Reject: payout.Failed, payout.LoseOutcome: payout.RailAmbiguous},
		payout.RailAcked:     {payout.Post: payout.Posted},
		payout.RailAmbiguous: {payout.Acknowledge: payout.RailAcked, payout.Reject: payout.Failed, payout.Abandon: payout.Abandoned},
	}
}

func TestEveryPairOfStateAndEventIsEitherAnArrowOrRefused(t *testing.T) {
	t.Parallel()
	pairs := 0
	for _, state := range payout.States() {
		for _, event := range payout.Events() {
			pairs++
			want, allowed := arrows()[state][event]
			got, err := payout.Next(state, event)
			if !allowed {
				require.ErrorIs(t, err, payout.ErrTransition, "%s in %s", event, state)
				require.Empty(t, got)
				require.NotContains(t, payout.From(event), state)
				continue
			}
			require.NoError(t, err, "%s in %s", event, state)
			require.Equal(t, want, got, "%s in %s", event, state)
			require.Contains(t, payout.From(event), state)
		}
	}
	require.Equal(t, 8*8, pairs)
}

func TestTerminalStatesAreTerminal(t *testing.T) {
	t.Parallel()
	terminal := slices.DeleteFunc(payout.States(), func(s payout.State) bool { return !s.Terminal() })
	require.Equal(t, []payout.State{payout.Posted, payout.Failed, payout.Abandoned}, terminal)
}

func TestEveryStateCanBeReachedFromPending(t *testing.T) {
	t.Parallel()
	reached := []payout.State{payout.Pending}
	for i := 0; i < len(reached); i++ {
		for _, event := range payout.Events() {
			if next, err := payout.Next(reached[i], event); err == nil && !slices.Contains(reached, next) {
				reached = append(reached, next)
			}
		}
	}
	require.ElementsMatch(t, payout.States(), reached)
}

func TestUnknownStateAndEventAreRefused(t *testing.T) {
	t.Parallel()
	_, err := payout.Next("LOST", payout.Claim)
	require.ErrorIs(t, err, payout.ErrTransition)
	_, err = payout.Next(payout.Pending, "explode")
	require.ErrorIs(t, err, payout.ErrTransition)
	for _, text := range []string{"", "pending", "PENDING ", "LOST"} {
		_, err := payout.ParseState(text)
		require.ErrorIs(t, err, payout.ErrInvalid, "%q", text)
	}
	for _, state := range payout.States() {
		got, err := payout.ParseState(string(state))
		require.NoError(t, err)
		require.Equal(t, state, got)
	}
}

// Adding and subtracting agree with arithmetic that has no bounds, and say so where 64 bits don't hold the result.
func TestAmountsNeverOverflowSilently(t *testing.T) {
	t.Parallel()
	check := func(t require.TestingT, a, b int64) {
		exactSum := new(big.Int).Add(big.NewInt(a), big.NewInt(b))
		exactDifference := new(big.Int).Sub(big.NewInt(a), big.NewInt(b))
		for exact, compute := range map[*big.Int]func(payout.Minor) (payout.Minor, error){
			exactSum: payout.Minor(a).Add, exactDifference: payout.Minor(a).Sub,
		} {
			got, err := compute(payout.Minor(b))
			if exact.IsInt64() {
				require.NoError(t, err, "%d and %d", a, b)
				require.Equal(t, exact.Int64(), int64(got), "%d and %d", a, b)
			} else {
				require.ErrorIs(t, err, payout.ErrOverflow, "%d and %d", a, b)
			}
		}
	}
	edges := []int64{0, 1, -1, 2, -2, math.MaxInt64, math.MaxInt64 - 1, math.MinInt64, math.MinInt64 + 1}
	for _, a := range edges {
		for _, b := range edges {
			check(t, a, b)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		check(t, rapid.Int64().Draw(t, "a"), rapid.Int64().Draw(t, "b"))
	})
}

func TestMoneyOfTwoCurrenciesIsNotAdded(t *testing.T) {
	t.Parallel()
	euro, dollar := payout.Money{Minor: 5, Currency: "EUR"}, payout.Money{Minor: 7, Currency: "USD"}
	_, err := euro.Add(dollar)
	require.ErrorIs(t, err, payout.ErrCurrency)
	sum, err := euro.Add(euro)
	require.NoError(t, err)
	require.Equal(t, payout.Money{Minor: 10, Currency: "EUR"}, sum)
	_, err = payout.Money{Minor: math.MaxInt64, Currency: "EUR"}.Add(euro)
	require.ErrorIs(t, err, payout.ErrOverflow)
}

func TestOnlyMoreThanNothingCanBePaid(t *testing.T) {
	t.Parallel()
	for _, minor := range []payout.Minor{0, -1, math.MinInt64} {
		require.ErrorIs(t, payout.Money{Minor: minor}.Payable(), payout.ErrInvalid)
	}
	for _, minor := range []payout.Minor{1, math.MaxInt64} {
		require.NoError(t, payout.Money{Minor: minor}.Payable())
	}
}

func TestCurrencyIsThreeCapitalLetters(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "EU", "EURO", "eur", "E1R", "ÄÖ", "E R"} {
		_, err := payout.ParseCurrency(text)
		require.ErrorIs(t, err, payout.ErrInvalid, "%q", text)
	}
	got, err := payout.ParseCurrency("EUR")
	require.NoError(t, err)
	require.Equal(t, payout.Currency("EUR"), got)
}

func TestIDHasOneSpellingByItsForm(t *testing.T) {
	t.Parallel()
	const text = "7f3e2d1c-0000-4000-8000-00000000abcd"
	for _, same := range []string{text, strings.ToUpper(text)} {
		got, err := payout.ParseID("payoutId", same)
		require.NoError(t, err)
		require.Equal(t, uuid.MustParse(text), got)
	}
	for _, other := range []string{"", "{" + text + "}", "urn:uuid:" + text, strings.ReplaceAll(text, "-", ""), text + " ", strings.Repeat("x", 36)} {
		_, err := payout.ParseID("payoutId", other)
		require.ErrorIs(t, err, payout.ErrInvalid, "%q", other)
		require.ErrorContains(t, err, "payoutId")
	}
}

func TestTextIsBoundedAndPrintable(t *testing.T) {
	t.Parallel()
	require.NoError(t, payout.ValidOwner("owner", strings.Repeat("é", 64)))
	require.NoError(t, payout.ValidText("key", strings.Repeat("k", 128)))
	for _, text := range []string{"", strings.Repeat("é", 65), "a\nb", "a\x00b", "a\x7fb", "a\u0085b", "a\xffb"} {
		require.ErrorIs(t, payout.ValidOwner("owner", text), payout.ErrInvalid, "%q", text)
	}
	require.ErrorIs(t, payout.ValidText("key", strings.Repeat("k", 129)), payout.ErrInvalid)
}
