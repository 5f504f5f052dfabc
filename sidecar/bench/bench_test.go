package main

import (
	"bytes"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fenceline/internal/measure"
	"fenceline/internal/process"
)

// A short run, on real servers: the numbers are worthless, but every contestant works, and the ratios are the last lines.
func TestBenchEndsWithItsRatios(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), process.Build(t, "fenceline/sidecar/bench"), "--sidecar", process.Build(t, "fenceline/sidecar"),
		"--rounds", "1", "--round", "150ms", "--clients", "4", "--keys", "500", "--many", "50", "--marks", "1000")
	var progress bytes.Buffer
	cmd.Stderr = &progress
	out, err := cmd.Output()
	require.NoError(t, err, "%s", progress.String())

	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	var names []string
	for _, line := range lines[len(lines)-9:] {
		match := regexp.MustCompile(`^ratio (\w+) \d+\.\d\d$`).FindStringSubmatch(line)
		require.NotNil(t, match, line)
		names = append(names, match[1])
	}
	require.Equal(t, []string{
		"pass_vs_bare", "admissions_vs_authrequest", "admissions_p99_vs_authrequest", "effects_vs_authrequest", "equal_exclusive_vs_bare", "stale_vs_bare",
		"rss_million_keys_mib", "marks_10m_vs_10k", "cpu_vs_authrequest",
	}, names)
	require.Equal(t, 9, strings.Count(string(out), "\ntarget "), "each target is judged")
}

// A missed target is said in words, on both sides of it.
func TestTargetsAreJudged(t *testing.T) {
	t.Parallel()
	of := func(name string, rate float64, p99 time.Duration, service time.Duration) result {
		return result{name: name, turns: []turn{{rate: rate, p99: p99, spent: measure.Spent{Service: service}}}}
	}
	with := func(scale float64, p99 time.Duration, resident int64) report {
		return report{
			resident: resident,
			closed: []result{
				of(bareGet, 100, 0, 1), of(barePut, 100, 0, 1), of(checked, 100, 0, 10), of(smallTable, 100, 0, 1),
				of(passed, 90*scale, 0, 1), of(byAdmissions, 350*scale, 0, 20), of(byEffects, 250*scale, 0, 1), of(sameExclusive, 80*scale, 0, 1),
				of(staleTokens, 150*scale, 0, 1), of(largeTable, 80*scale, 0, 1),
			},
			open: []result{of(checked, 1, 100, 1), of(byAdmissions, 1, p99, 1)},
		}
	}
	good, bad := with(1, 50, 128<<20), with(0.99, 51, 128<<20+1)
	for i, one := range good.ratios() {
		require.True(t, one.reached, one.name)
		if one.name != "cpu_vs_authrequest" {
			require.False(t, bad.ratios()[i].reached, one.name)
		} else {
			require.InDelta(t, 2, one.value, 0)
		}
	}
}

// The client reads what servers write, in any spelling of the header's name, and takes nothing else for an answer.
func TestClientReadsOneAnswerAfterTheOther(t *testing.T) {
	t.Parallel()
	one := "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nX: y\r\n\r\nabc"
	two := "HTTP/1.1 409 Conflict\r\ncontent-length: 0\r\n\r\n"
	c := reading(one + two + "HTTP/1.1 200 OK\r\n\r\n")
	for _, want := range []int{200, 409} {
		status, err := c.read()
		require.NoError(t, err)
		require.Equal(t, want, status)
	}
	_, err := c.read()
	require.ErrorContains(t, err, "without a length")
	_, err = reading("nonsense that is long enough\r\n").read()
	require.Error(t, err)
}
