package config

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func effects(lines string) string {
	return strings.Replace(minimal, "    order: admissions\n", lines, 1)
}

func TestEffectsAreOrderedByDefaultAndTheOperatorChoosesWhatAnUnknownOutcomeMeans(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Unsettled{
		"    unsettled: { then: hold }\n":                                    {Then: Hold},
		"    unsettled: { after: 30s, then: hold }\n":                        {Then: Hold, After: 30 * time.Second},
		"    order: effects\n    unsettled: { after: 18s, then: release }\n": {Then: Release, After: 18 * time.Second},
	} {
		cfg, err := load(effects(text))
		require.NoError(t, err, text)
		g := cfg.Guards[0]
		require.True(t, g.OrdersEffects())
		require.Equal(t, want, g.Unsettled)
		require.Equal(t, []int{202, 408, 502, 503, 504}, g.UnsettledStatus)
		require.False(t, g.DiesWithUs)
	}
	cfg, err := load(effects("    unsettled: { then: hold }\n    unsettled_status: [504, 202, 202]\n    restarts_with: resource\n"))
	require.NoError(t, err)
	require.Equal(t, []int{202, 504}, cfg.Guards[0].UnsettledStatus)
	require.True(t, cfg.Guards[0].DiesWithUs)
}

func TestWhatAnOrderOfEffectsNeedsIsSaid(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, key, says string }{
		{"", "guards[0].unsettled.then", "missing: hold or release"},
		{"    order: effects\n", "guards[0].unsettled.then", "missing: hold or release"},
		{"    unsettled: { after: 30s }\n", "guards[0].unsettled.then", "missing: hold or release"},
		{"    unsettled: { then: release }\n", "guards[0].unsettled.after", "missing: how long"},
		{"    unsettled: { then: maybe }\n", "guards[0].unsettled.then", "want one of hold, release"},
		// limits.wait 5s + 1s + connect_timeout 1s + response_timeout 10s
		{"    unsettled: { after: 17s, then: release }\n", "guards[0].unsettled.after", "want more than 17s"},
		{"    unsettled: { then: hold }\n    unsettled_status: [99]\n", "guards[0].unsettled_status", "status codes"},
		{"    unsettled: { then: hold }\n    unsettled_status: [0504]\n", "guards[0].unsettled_status", ""},
		{"    unsettled: { then: hold }\n    restarts_with: pod\n", "guards[0].restarts_with", "want one of resource"},
		{"    unsettled: { then: hold }\n    ownership: alone\n", "guards[0].ownership", "want one of shared"},
		{"    order: admissions\n    unsettled: { then: hold }\n", "guards[0].unsettled", "only with order: effects"},
		{"    order: admissions\n    unsettled_status: [504]\n", "guards[0].unsettled_status", "only with order: effects"},
		{"    order: admissions\n    restarts_with: resource\n", "guards[0].restarts_with", "only with order: effects"},
		{"    order: effects\n    advance: resource\n", "guards[0].order", "the resource's to keep"},
	} {
		faults := faultsOf(t, effects(c.text))
		require.Equal(t, c.key, faults[0].Key, c.text)
		require.Contains(t, faults[0].Message, c.says)
	}
	cfg, err := load(effects("    advance: resource\n"))
	require.NoError(t, err)
	require.False(t, cfg.Guards[0].OrdersEffects())
}

func TestTwoGuardsOnOneColumnWouldLookPastEachOther(t *testing.T) {
	t.Parallel()
	second := `  - name: other
    mark: { table: public.account, key: account_id, key_type: uuid, token: fence }
    unsettled: { then: hold }
routes:
  - { name: other, match: { methods: [PUT], path: "/v1/accounts/{account_id}" }, guard: other, admit: newer, key: { path: account_id } }
`
	text := strings.Replace(effects("    unsettled: { then: hold }\n"), "routes:\n", second, 1)
	faults := faultsOf(t, text)
	require.Len(t, faults, 1)
	require.Equal(t, "guards[1].mark", faults[0].Key)
	require.Contains(t, faults[0].Message, "look past each other")
	_, err := load(strings.Replace(text, "public.account", "ledger.account", 1))
	require.NoError(t, err)
	_, err = load(strings.ReplaceAll(text, "    unsettled: { then: hold }\n", "    order: admissions\n"))
	require.NoError(t, err, "marks alone are in order under two names")
}
