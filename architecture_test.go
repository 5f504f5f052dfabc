// Package fenceline_test checks the rules that the layout promises
// (docs/architecture.md): who may depend on whom.
package fenceline_test

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// listedPackage is what `go list -json` says of one package.
type listedPackage struct {
	ImportPath string
	Imports    []string
	Deps       []string
}

func listPackages(t *testing.T) []listedPackage {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Imports,Deps", "./...").Output()
	require.NoError(t, err)
	decoder := json.NewDecoder(strings.NewReader(string(out)))
	var packages []listedPackage
	for {
		var p listedPackage
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			return packages
		}
		require.NoError(t, err)
		packages = append(packages, p)
	}
}

// within says whether an import path is the package root or below it.
func within(importPath, root string) bool {
	return importPath == root || strings.HasPrefix(importPath, root+"/")
}

// violations returns every broken rule in words.
func violations(packages []listedPackage) []string {
	var found []string
	for _, p := range packages {
		found = append(found, impure(p)...)
		found = append(found, wiring(p)...)
		found = append(found, acrossDaemons(p)...)
		found = append(found, clientOfEverybody(p)...)
	}
	return found
}

// impure: the pure core reaches no technology, not even through others.
func impure(p listedPackage) []string {
	pure := []string{
		"fenceline/lockd/lock", "fenceline/lockd/lockapi", "fenceline/sidecar/policy", "fenceline/sidecar/httpcheck",
		"fenceline/sidecar/gate", "fenceline/sidecar/mark", "fenceline/paysvc/payout",
	}
	technology := []string{"github.com/jackc/pgx", "go.etcd.io", "github.com/valyala/fasthttp", "github.com/prometheus"}
	if !slices.Contains(pure, p.ImportPath) {
		return nil
	}
	var found []string
	for _, dep := range p.Deps {
		for _, tech := range technology {
			if within(dep, tech) {
				found = append(found, p.ImportPath+" is pure, yet reaches "+dep)
			}
		}
	}
	return found
}

// wiring: only app packages import concrete stores, and adapters never import each other.
func wiring(p listedPackage) []string {
	adapters := []string{
		"fenceline/lockd/pgstore", "fenceline/lockd/etcdstore", "fenceline/lockd/httpapi",
		"fenceline/sidecar/mark/pgmark", "fenceline/sidecar/mark/filemark", "fenceline/sidecar/proxy", "fenceline/sidecar/admin",
	}
	if path.Base(p.ImportPath) == "app" {
		return nil
	}
	var found []string
	for _, imported := range p.Imports {
		if slices.Contains(adapters, imported) {
			found = append(found, p.ImportPath+" imports the adapter "+imported+"; only app may")
		}
	}
	return found
}

// acrossDaemons: internal packages import no daemon, and one daemon sees of
// another only what lockd offers to everybody.
func acrossDaemons(p listedPackage) []string {
	daemons := []string{"fenceline/lockd", "fenceline/sidecar", "fenceline/paysvc"}
	offered := []string{"fenceline/lockd/lock", "fenceline/lockd/lockapi", "fenceline/lockd/lockclient"}
	var found []string
	for _, imported := range p.Imports {
		for _, daemon := range daemons {
			if !within(imported, daemon) {
				continue
			}
			switch {
			case within(p.ImportPath, "fenceline/internal"):
				found = append(found, p.ImportPath+" is internal, yet imports "+imported)
			case slices.ContainsFunc(daemons, func(d string) bool { return d != daemon && within(p.ImportPath, d) }) && !slices.Contains(offered, imported):
				found = append(found, p.ImportPath+" imports "+imported+" of another daemon")
			}
		}
	}
	return found
}

// clientOfEverybody: the Go client imports the standard library and the contract only, since others build it into their programs.
func clientOfEverybody(p listedPackage) []string {
	if p.ImportPath != "fenceline/lockd/lockclient" {
		return nil
	}
	var found []string
	for _, imported := range p.Imports {
		first, _, _ := strings.Cut(imported, "/")
		standard := first != "fenceline" && !strings.Contains(first, ".")
		if !standard && imported != "fenceline/lockd/lock" && imported != "fenceline/lockd/lockapi" {
			found = append(found, p.ImportPath+" is built into other programs, yet imports "+imported)
		}
	}
	return found
}

func TestPackagesDependOnlyOnWhatTheLayoutAllows(t *testing.T) {
	t.Parallel()
	packages := listPackages(t)
	require.Greater(t, len(packages), 20, "the list is there")
	require.Empty(t, violations(packages))
}

// The rules themselves can fail: each broken on purpose is found.
func TestBrokenLayoutIsFound(t *testing.T) {
	t.Parallel()
	for _, broken := range []listedPackage{
		{ImportPath: "fenceline/sidecar/gate", Deps: []string{"github.com/jackc/pgx/v5"}},
		{ImportPath: "fenceline/lockd/httpapi", Imports: []string{"fenceline/lockd/pgstore"}},
		{ImportPath: "fenceline/internal/daemon", Imports: []string{"fenceline/lockd/lock"}},
		{ImportPath: "fenceline/sidecar/proxy", Imports: []string{"fenceline/lockd/app"}},
		{ImportPath: "fenceline/lockd/lockclient", Imports: []string{"github.com/prometheus/client_golang/prometheus"}},
		{ImportPath: "fenceline/lockd/lockclient", Imports: []string{"fenceline/internal/process"}},
	} {
		require.Len(t, violations([]listedPackage{broken}), 1, broken.ImportPath)
	}
	require.Empty(t, violations([]listedPackage{
		{ImportPath: "fenceline/lockd/app", Imports: []string{"fenceline/lockd/pgstore"}},
		{ImportPath: "fenceline/paysvc/executor", Imports: []string{"fenceline/lockd/lockclient"}},
	}))
}
