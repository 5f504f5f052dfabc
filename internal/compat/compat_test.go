package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func report(lines ...string) string { return strings.Join(lines, "\n") + "\n" }

const (
	aPasses = `{"Action":"pass","Package":"p","Test":"TestA"}`
	bFails  = `{"Action":"fail","Package":"p","Test":"TestB"}`
)

func TestSuiteHasPassedOnlyWhenTestsRanAndNoneFailed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		report string
		want   string
		count  int
	}{
		"all pass":         {report(aPasses, `{"Action":"pass","Package":"p"}`), passed, 1},
		"one fails":        {report(aPasses, bFails), failed, 2},
		"nothing matches":  {report(`{"Action":"pass","Package":"p"}`), notRun, 0},
		"nothing at all":   {"", notRun, 0},
		"it doesn't build": {report(`{"Action":"build-fail","ImportPath":"p"}`), failed, 0},
		"it dies at once":  {report(aPasses, `{"Action":"fail","Package":"p"}`), failed, 1},
		"a subtest alone":  {report(`{"Action":"pass","Package":"p","Test":"TestA/x"}`), notRun, 0},
	} {
		got, err := read(strings.NewReader(c.report))
		require.NoError(t, err, name)
		require.Equal(t, c.want, got.result, name)
		require.Equal(t, c.count, got.count, name)
	}
	_, err := read(strings.NewReader("ok p 1s\n"))
	require.Error(t, err, "what isn't a report isn't a success")
}

// allPassed is an environment in which every test of every gate passed.
func allPassed(e environment) ran {
	r := ran{environment: e, version: "16.1", outcomes: map[string]outcome{}}
	for _, s := range e.suites() {
		r.outcomes[s.name] = outcome{result: passed, count: 1, tests: map[string]string{}}
	}
	wanted := gates()
	if e.pooled {
		wanted = pooledGates()
	}
	for _, g := range wanted {
		for _, p := range g.tests {
			r.outcomes[p.suite].tests[p.test] = passed
		}
	}
	return r
}

func everywhere() (all []ran) {
	for _, e := range environments(majors()) {
		all = append(all, allPassed(e))
	}
	return all
}

func TestWhatDidNotRunIsABlockerAndNeverASuccess(t *testing.T) {
	t.Parallel()
	whole := collect(everywhere(), "2026-12-01", "c", "m")
	require.Len(t, whole.Blockers, len(neverRun()), "those that nothing here sets up: %v", whole.Blockers)
	require.Equal(t, candidate, whole.Status)
	var out strings.Builder
	require.True(t, table(&out, everywhere()))

	for name, breakIt := range map[string]func(all []ran) []ran{
		"an environment is missing": func(all []ran) []ran { return all[1:] },
		"a suite didn't run":        func(all []ran) []ran { delete(all[0].outcomes, locking); return all },
		"a suite failed": func(all []ran) []ran {
			all[0].outcomes[locking] = outcome{result: failed, tests: all[0].outcomes[locking].tests}
			return all
		},
		"a gate's test failed": func(all []ran) []ran {
			all[0].outcomes[migrating].tests["TestSchemaIsTheDescribedOne"] = failed
			return all
		},
		"a gate's test didn't run": func(all []ran) []ran {
			delete(all[0].outcomes[migrating].tests, "TestSchemaIsTheDescribedOne")
			return all
		},
		"it ran in another suite only": func(all []ran) []ran {
			delete(all[0].outcomes[marking].tests, "TestVersionsOutsideOfTheWindowAreNotReady")
			return all
		},
		"the server couldn't be had": func(all []ran) []ran { all[0].outcomes = map[string]outcome{}; return all },
	} {
		got := collect(breakIt(everywhere()), "2026-12-01", "c", "m")
		require.NotEqual(t, passed, got.Environments[0].Result, name)
		require.Greater(t, len(got.Blockers), 0, name)
		require.Contains(t, strings.Join(got.Blockers, "\n"), "PostgreSQL 14", name)
		require.Equal(t, candidate, got.Status, name)
	}
	all := everywhere()
	all[2].outcomes[marking] = outcome{result: failed}
	require.False(t, table(&out, all))
	delete(all[2].outcomes, marking)
	require.False(t, table(&out, all))
}

// The file in the documents says nothing that doesn't follow from it.
func TestEvidenceInTheDocumentsIsConsistent(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../../docs/evidence.json")
	require.NoError(t, err)
	var e evidence
	require.NoError(t, json.Unmarshal(data, &e))
	names := map[string]environmentResult{}
	for _, one := range e.Environments {
		names[one.Name] = one
	}
	for _, wanted := range environments(majors()) {
		one, there := names[wanted.name]
		require.True(t, there, wanted.name)
		if len(one.Suites) == 0 {
			require.Equal(t, notRun, one.Result, wanted.name)
			continue
		}
		require.NotEmpty(t, one.Server, wanted.name)
		today := judge(allPassed(wanted))
		require.Len(t, one.Gates, len(today.Gates), "%s: the gates of today", wanted.name)
		require.Len(t, one.Suites, len(today.Suites), wanted.name)
		result := passed
		for i, g := range one.Gates {
			require.Equal(t, []any{today.Gates[i].Gate, today.Gates[i].Tests}, []any{g.Gate, g.Tests}, wanted.name)
			result = worse(result, g.Result)
		}
		for i, s := range one.Suites {
			require.Equal(t, today.Suites[i].Suite, s.Suite, wanted.name)
			result = worse(result, s.Result)
		}
		require.Equal(t, result, one.Result, "%s: the worst of its gates and suites", wanted.name)
	}
	blockers := strings.Join(e.Blockers, "\n")
	for _, name := range neverRun() {
		require.Equal(t, notRun, names[name].Result, name)
	}
	for _, one := range e.Environments {
		if one.Result != passed {
			require.Contains(t, blockers, one.Name)
		}
		for _, g := range one.Gates {
			if g.Result != passed {
				require.NotEqual(t, passed, one.Result, "%s: %s", one.Name, g.Gate)
				require.Contains(t, blockers, g.Gate)
			}
		}
	}
	require.Equal(t, len(e.Blockers) > 0, e.Status == candidate)
	require.Regexp(t, `^[0-9a-f]{7,}$`, e.Commit, "a commit without changes beside it")
}

func TestVersionsOnTheCommandLineAreChecked(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"", "13", "16,x", "16,"} {
		_, err := parse(bad)
		require.Error(t, err, bad)
	}
	got, err := parse("14, 18")
	require.NoError(t, err)
	require.Equal(t, []int{14, 18}, got)
}
