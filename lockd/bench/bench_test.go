package main

import (
	"bytes"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fenceline/internal/process"
)

// A short run, on real servers: the numbers are worthless, but every contestant works, and the ratios are the last lines.
func TestBenchEndsWithItsRatios(t *testing.T) {
	t.Parallel()
	profile := t.TempDir() + "/cpu.pprof"
	cmd := exec.CommandContext(t.Context(), process.Build(t, "fenceline/lockd/bench"), "--lockd", process.Build(t, "fenceline/lockd"), "--profile", profile,
		"--rounds", "1", "--round", "200ms", "--single", "200ms", "--clients", "4", "--waiters", "10", "--hand-over", "300ms")
	var progress bytes.Buffer
	cmd.Stderr = &progress
	out, err := cmd.Output()
	require.NoError(t, err, "%s", progress.String())

	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	var names []string
	for _, line := range lines[len(lines)-5:] {
		match := regexp.MustCompile(`^ratio (\w+) \d+\.\d\d$`).FindStringSubmatch(line)
		require.NotNil(t, match, line)
		names = append(names, match[1])
	}
	require.Equal(t, []string{"lockd_vs_etcd_64", "lockd_vs_statements_64", "lockd_p50_vs_etcd_1", "handover_p50_ms", "handover_statements"}, names)
	require.Equal(t, 5, strings.Count(string(out), "target "), "each target is judged")
	require.FileExists(t, profile)
	require.Contains(t, progress.String(), "round 1 of 1")
}

func TestResultIsTheMedianOfItsTurns(t *testing.T) {
	t.Parallel()
	r := result{turns: []turn{{rate: 5, p50: 2}, {rate: 1, p50: 9}, {rate: 3, p50: 1}}}
	require.InDelta(t, 3, r.rate(), 0)
	require.Equal(t, time.Duration(2), r.p50())
}

// A missed target is said in words, whatever the side on which it is missed.
func TestTargetsAreJudged(t *testing.T) {
	t.Parallel()
	of := func(rate float64, p50 time.Duration) result { return result{turns: []turn{{rate: rate, p50: p50}}} }
	good := report{
		many: []result{of(500, 1), of(200, 1), of(250, 1)}, single: []result{of(1, 10), of(1, 10), of(1, 10)},
		handover: handover{p50: 5 * time.Millisecond, calls: 3},
	}
	bad := report{
		many: []result{of(499, 1), of(200, 1), of(250, 1)}, single: []result{of(1, 11), of(1, 10), of(1, 10)},
		handover: handover{p50: 5*time.Millisecond + 1, calls: 3.01},
	}
	for i := range good.ratios() {
		require.True(t, good.ratios()[i].reached, good.ratios()[i].name)
		require.False(t, bad.ratios()[i].reached, bad.ratios()[i].name)
	}
}
