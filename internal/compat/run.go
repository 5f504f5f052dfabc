package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"fenceline/internal/pgserver"
)

// The results of tests, suites, gates and environments.
const (
	passed = "passed"
	failed = "failed"
	notRun = "not run"
)

// outcome is what became of a suite in an environment.
type outcome struct {
	result string
	count  int               // tests that passed or failed, without subtests
	tests  map[string]string // the result of each
	took   time.Duration
	said   string // what the failing tests wrote
}

// event is a line of go test -json.
type event struct{ Action, Test, Output string }

// read judges what go test reported. A suite in which nothing ran hasn't passed.
func read(in io.Reader) (outcome, error) {
	o := outcome{result: notRun, tests: map[string]string{}}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<24)
	said := map[string]*bytes.Buffer{} // by test; "" is the package itself
	var bad []string
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return o, fmt.Errorf("a line isn't of go test -json: %w", err)
		}
		if e.Action == "output" || e.Action == "build-output" {
			if said[e.Test] == nil {
				said[e.Test] = &bytes.Buffer{}
			}
			_, _ = said[e.Test].WriteString(e.Output) // a buffer takes everything
		}
		if e.Action == "fail" || e.Action == "build-fail" {
			bad = append(bad, e.Test)
		}
		if e.Test == "" || strings.Contains(e.Test, "/") {
			if e.Action == "fail" || e.Action == "build-fail" {
				o.result = failed
			}
			continue
		}
		switch e.Action {
		case "fail":
			o.tests[e.Test], o.result = failed, failed
		case "pass":
			o.tests[e.Test] = passed
		}
	}
	o.count = len(o.tests)
	if o.result == notRun && o.count > 0 {
		o.result = passed
	}
	for _, test := range bad {
		if out := said[test]; out != nil {
			o.said += string(out.Bytes()[max(0, out.Len()-2000):])
		}
	}
	return o, lines.Err()
}

// runSuite runs a suite on a server.
func runSuite(ctx context.Context, s suite, e environment, server *pgserver.Server) (outcome, error) {
	start := time.Now()
	arguments := []string{"test", "-json", "-count=1", "-timeout=20m"}
	if s.pattern != "" {
		arguments = append(arguments, "-run", s.pattern)
	}
	cmd := exec.CommandContext(ctx, "go", append(arguments, s.pkg)...) //nolint:gosec // the table's own suites
	cmd.Env = append(os.Environ(), "TEST_POSTGRES_URL="+server.URL("postgres"), fmt.Sprintf("PG_MAJOR=%d", e.major))
	if e.pooled {
		cmd.Env = append(cmd.Env, pooledVariable+"=1")
	}
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 30 * time.Second
	var out, problem bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problem
	err := cmd.Run()
	o, readErr := read(&out)
	o.took = time.Since(start)
	switch {
	case readErr != nil:
		return o, readErr
	case ctx.Err() != nil:
		return o, ctx.Err()
	case err != nil && o.result != failed: // it didn't come as far as a report
		o.result, o.said = failed, problem.String()
	}
	return o, nil
}

// ran is an environment with what ran in it.
type ran struct {
	environment
	version  string // of the server
	outcomes map[string]outcome
}

// runAll runs every suite in an environment, and says how far it is.
func runAll(ctx context.Context, e environment, progress io.Writer) (r ran, err error) {
	r = ran{environment: e, outcomes: map[string]outcome{}}
	server, err := pgserver.Start(ctx, pgserver.Options{Name: "compat", Major: e.major, Progress: progress})
	if err != nil {
		return r, fmt.Errorf("%s: %w", e.name, err)
	}
	defer func() {
		stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		err = errors.Join(err, server.Stop(stopCtx))
	}()
	r.version = server.Version()
	for _, s := range e.suites() {
		fmt.Fprintf(progress, "%-14s %-27s ", e.name, s.name)
		o, err := runSuite(ctx, s, e, server)
		if err != nil {
			fmt.Fprintln(progress)
			return r, fmt.Errorf("%s: %s: %w", e.name, s.name, err)
		}
		fmt.Fprintf(progress, "%-8s %3d tests  %4.0f s\n", o.result, o.count, o.took.Seconds())
		if o.result != passed {
			fmt.Fprintln(progress, o.said)
		}
		r.outcomes[s.name] = o
	}
	return r, nil
}

func (e environment) suites() []suite {
	if e.pooled {
		return pooledSuites()
	}
	return suites()
}
