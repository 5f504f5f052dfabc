package process

import (
	"context"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"sync"
	"time"
)

// testingT is what StartForTest needs of a *testing.T; this package stays free of package testing.
type testingT interface {
	Helper()
	Fatalf(format string, args ...any)
	Cleanup(f func())
	TempDir() string
	Context() context.Context
}

// built are the programs that this test binary has built, by package.
var built struct { //nolint:gochecknoglobals // a program is built once for all tests of a binary
	mu    sync.Mutex
	paths map[string]string
}

// StartForTest builds one of this module's programs, once for each test binary, and runs it until the test ends.
func StartForTest(t testingT, pkg string, args []string, env ...string) *Process {
	t.Helper()
	p, err := Start(t.Context(), Spec{Name: path.Base(pkg), Path: Build(t, pkg), Args: args, Env: env, LogDir: t.TempDir()})
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = p.Kill(ctx)
	})
	return p
}

// Build builds one of this module's programs and returns its path.
func Build(t testingT, pkg string) string {
	t.Helper()
	built.mu.Lock()
	defer built.mu.Unlock()
	if done := built.paths[pkg]; done != "" {
		return done
	}
	dir, err := os.MkdirTemp("", "fenceline-build-") // outlives the test that builds first; the system clears it
	if err != nil {
		t.Fatalf("make a folder for %s: %v", pkg, err)
	}
	program := BuildInto(t, pkg, dir)
	if built.paths == nil {
		built.paths = map[string]string{}
	}
	built.paths[pkg] = program
	return program
}

// BuildInto builds one of this module's programs into a folder and returns its path.
func BuildInto(t testingT, pkg, dir string) string {
	t.Helper()
	program := filepath.Join(dir, path.Base(pkg))
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, pkg).CombinedOutput(); err != nil { //nolint:gosec // a package of this module
		t.Fatalf("build %s: %v\n%s", pkg, err, out)
	}
	return program
}
