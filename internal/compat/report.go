package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// table writes suites against environments; it says whether everything that was to run has passed.
func table(w io.Writer, all []ran) bool {
	whole := true
	line := func(first string, cells []string) {
		fmt.Fprintf(w, "%-28s", first)
		for _, c := range cells {
			fmt.Fprintf(w, "  %-14s", c)
		}
		fmt.Fprintln(w)
	}
	var heads, versions []string
	for _, r := range all {
		heads = append(heads, r.name)
		versions = append(versions, strings.Fields(r.version + " -")[0])
	}
	line("suite", heads)
	line("", versions)
	for _, s := range suites() {
		var cells []string
		for _, r := range all {
			o, there := r.outcomes[s.name]
			switch {
			case !there && r.wants(s.name):
				cells, whole = append(cells, notRun), false
			case !there:
				cells = append(cells, "-")
			case o.result == passed:
				cells = append(cells, fmt.Sprintf("ok (%d)", o.count))
			default:
				cells, whole = append(cells, strings.ToUpper(o.result)), false
			}
		}
		line(s.name, cells)
	}
	fmt.Fprintln(w, "\nok (N): N tests passed. -: nothing of it depends on a pooler.")
	return whole
}

func (e environment) wants(name string) bool {
	for _, s := range e.suites() {
		if s.name == name {
			return true
		}
	}
	return false
}

// evidence is the file. Only what ran and passed is called passed.
type evidence struct {
	Date         string              `json:"date"`
	Commit       string              `json:"commit"`
	Machine      string              `json:"machine"`
	Environments []environmentResult `json:"environments"`
	// Blockers are what keeps this from being called fit for production.
	Blockers []string `json:"blockers"`
	Status   string   `json:"status"`
}

type environmentResult struct {
	Name   string        `json:"environment"`
	Server string        `json:"server,omitempty"`
	Result string        `json:"result"`
	Suites []suiteResult `json:"suites,omitempty"`
	Gates  []gateResult  `json:"gates,omitempty"`
}

type suiteResult struct {
	Suite  string `json:"suite"`
	Result string `json:"result"`
	Tests  int    `json:"tests"`
}

type gateResult struct {
	Gate   string   `json:"gate"`
	Result string   `json:"result"`
	Tests  []string `json:"tests"`
}

// The two things that the status may say.
const (
	candidate = "release candidate"
	fit       = "fit for production"
)

// judge gives each gate of an environment its result: the worst of its tests'. A test that nobody reported didn't run.
func judge(r ran) environmentResult {
	out := environmentResult{Name: r.name, Server: r.version, Result: passed}
	wanted := gates()
	if r.pooled {
		wanted = pooledGates()
	}
	for _, g := range wanted {
		one := gateResult{Gate: g.name, Result: passed}
		for _, p := range g.tests {
			one.Tests = append(one.Tests, p.String())
			one.Result = worse(one.Result, r.proves(p))
		}
		out.Gates = append(out.Gates, one)
		out.Result = worse(out.Result, one.Result)
	}
	for _, s := range r.suites() {
		o, there := r.outcomes[s.name]
		if !there {
			o.result = notRun
		}
		out.Suites = append(out.Suites, suiteResult{s.name, o.result, o.count})
		out.Result = worse(out.Result, o.result)
	}
	return out
}

// proves is what became of a test. One that nobody reported didn't run.
func (r ran) proves(p proof) string {
	if result := r.outcomes[p.suite].tests[p.test]; result != "" {
		return result
	}
	return notRun
}

func worse(a, b string) string {
	rank := map[string]int{passed: 1, notRun: 2, failed: 3}
	if rank[b] > rank[a] {
		return b
	}
	return a
}

// collect puts what ran beside everything that should have run.
func collect(all []ran, date, commit, machine string) evidence {
	e := evidence{Date: date, Commit: commit, Machine: machine, Status: fit}
	for _, wanted := range environments(majors()) {
		result := environmentResult{Name: wanted.name, Result: notRun}
		for _, r := range all {
			if r.name == wanted.name {
				result = judge(r)
			}
		}
		e.Environments = append(e.Environments, result)
		if len(result.Suites) == 0 {
			e.Blockers = append(e.Blockers, result.Name+": "+notRun)
		}
		for _, g := range result.Gates {
			if g.Result != passed {
				e.Blockers = append(e.Blockers, result.Name+": "+g.Gate+": "+g.Result)
			}
		}
		for _, s := range result.Suites {
			if s.Result != passed {
				e.Blockers = append(e.Blockers, result.Name+": "+s.Suite+": "+s.Result)
			}
		}
	}
	for _, name := range neverRun() {
		e.Environments = append(e.Environments, environmentResult{Name: name, Result: notRun})
		e.Blockers = append(e.Blockers, name+": "+notRun)
	}
	if len(e.Blockers) > 0 {
		e.Status = candidate
	}
	return e
}

func (e evidence) write(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(e)
}

// environments are the columns for these versions.
func environments(versions []int) []environment {
	var out []environment
	for _, major := range versions {
		out = append(out, environment{name: fmt.Sprintf("PostgreSQL %d", major), major: major})
	}
	return append(out, environment{name: "PgBouncer", major: poolerMajor, pooled: true})
}
