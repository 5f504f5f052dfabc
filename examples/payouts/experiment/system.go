package experiment

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"

	"fenceline/internal/pgserver"
	"fenceline/internal/process"
)

// System is one running set-up: every part a process of its own.
type System struct {
	Setup     Setup
	bench     *Bench
	databases *databases
	dir       string
	railLog   string

	mu        sync.Mutex         // the scenes start their workers side by side
	processes []*process.Process // in the order of their start
	guards    []*process.Process // those that refuse stale tokens: sidecars and fenced processes
	lockdLog  string             // its log file, with the grants

	lockd, resource, railProxy string // base URLs as the workers see them
	addresses                  []Address
}

// printAddresses shows a person where to look and what to try.
func (s *System) printAddresses(w io.Writer) error {
	fmt.Fprintf(w, "\n%s is running; logs are in %s\n\n", s.Setup.Title, s.dir)
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	for _, a := range s.addresses {
		fmt.Fprintf(table, "  %s\t%s\n", a.Name, a.URL)
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("write addresses: %w", err)
	}
	_, err := fmt.Fprintf(w, "\ntry:  curl -s %s/v1/payouts\n      curl -s %s/v1/locks/payout:1\n\nCtrl-C stops it.\n", s.resource, s.lockd)
	return err
}

// Address is one listener of the running system.
type Address struct{ Name, URL string }

// anyPort lets the kernel choose, so that nothing collides; the real port is in the log.
const anyPort = "127.0.0.1:0"

// Start starts every part and waits until each is ready. What had been started before an error
// is there for Stop.
func (s *System) Start(ctx context.Context) error {
	if err := s.startServices(ctx); err != nil {
		return err
	}
	return s.startSidecars(ctx)
}

// startServices starts lockd and the payment system, each part in its mode.
func (s *System) startServices(ctx context.Context) error {
	lockdURL, err := s.login(ctx, s.databases.lock, s.databases.lockName, groupLockd)
	if err != nil {
		return err
	}
	s.bench.Progress("%s: starting lockd, payment-resource, rail-proxy, rail-stub", s.Setup.Title)
	var lockd *process.Process
	if s.lockd, lockd, err = s.start(ctx, daemonSpec{name: "lockd", program: "lockd", args: []string{"serve"}, env: []string{"LOCKD_DATABASE_URL=" + lockdURL}}); err != nil {
		return err
	}
	s.lockdLog = lockd.LogFile()
	rail, _, err := s.start(ctx, daemonSpec{name: "rail-stub", program: "paysvc", args: append([]string{"rail-stub", "--log", s.railLog}, s.Setup.RailFlags...), noAdmin: true})
	if err != nil {
		return err
	}
	resourceGroup := groupResource
	if s.Setup.Fenced.Account {
		resourceGroup = groupResourceFenced
	}
	if s.resource, err = s.startPayments(ctx, "payment-resource", resourceGroup, s.Setup.Fenced.Account, "resource"); err != nil {
		return err
	}
	s.railProxy, err = s.startPayments(ctx, "rail-proxy", groupRailProxy, s.Setup.Fenced.Rail, "rail-proxy", "--rail", rail)
	return err
}

// startPayments starts a process of the payment system that uses paydb, in fenced mode or not.
func (s *System) startPayments(ctx context.Context, name, group string, fenced bool, args ...string) (string, error) {
	databaseURL, err := s.login(ctx, s.databases.pay, s.databases.payName, group)
	if err != nil {
		return "", err
	}
	if fenced {
		args = append(args, "--fencing-enabled")
	}
	url, p, err := s.start(ctx, daemonSpec{name: name, program: "paysvc", args: args, env: []string{"PAYSVC_DATABASE_URL=" + databaseURL}})
	if err == nil && fenced {
		s.guards = append(s.guards, p)
	}
	return url, err
}

// startSidecars puts the set-up's sidecars before the payment-resource and the
// rail-proxy, and turns the workers to them.
func (s *System) startSidecars(ctx context.Context) error {
	for _, one := range []struct {
		guard, name, config, group string
		behind                     *string
	}{
		{guardAccount, "sidecar-account", "sidecar.account.yaml", groupSidecarAccount, &s.resource},
		{guardRail, "sidecar-rail", "sidecar.rail.yaml", groupSidecarRail, &s.railProxy},
	} {
		if !s.Setup.Sidecars.has(one.guard) {
			continue
		}
		s.bench.Progress("%s: starting %s", s.Setup.Title, one.name)
		databaseURL, err := s.login(ctx, s.databases.pay, s.databases.payName, one.group)
		if err != nil {
			return err
		}
		config, err := s.sidecarConfig(one.config)
		if err != nil {
			return err
		}
		address, p, err := s.startSidecar(ctx, one.name, config, databaseURL, *one.behind)
		if err != nil {
			return err
		}
		s.guards = append(s.guards, p)
		*one.behind = address
	}
	return nil
}

func (s *System) login(ctx context.Context, server *pgserver.Server, database, group string) (string, error) {
	return s.databases.login(ctx, server, database, group)
}

// daemonSpec is one daemon to start.
type daemonSpec struct {
	name, program string
	args, env     []string
	bare          bool // takes its listeners from a file, not from flags
	noAdmin       bool // has no admin listener
}

// start runs the daemon, waits until its own readiness says yes, and returns its base URL.
func (s *System) start(ctx context.Context, d daemonSpec) (string, *process.Process, error) {
	args := d.args
	if !d.bare {
		args = append(args, "--listen", anyPort)
		if !d.noAdmin {
			args = append(args, "--admin-listen", anyPort)
		}
	}
	p, err := process.Start(ctx, process.Spec{Name: d.name, Path: s.bench.program(d.program), Args: args, Env: d.env, LogDir: s.dir})
	if err != nil {
		return "", nil, err
	}
	s.track(p)
	address, err := p.Address(ctx, "api")
	if err != nil {
		return "", nil, err
	}
	url := "http://" + address
	s.addresses = append(s.addresses, Address{Name: d.name, URL: url})
	if d.noAdmin {
		return url, p, nil
	}
	admin, err := p.Address(ctx, "admin")
	if err != nil {
		return "", nil, err
	}
	s.addresses = append(s.addresses, Address{Name: d.name + " admin", URL: "http://" + admin})
	if err := waitReady(ctx, p, "http://"+admin+"/readyz"); err != nil {
		return "", nil, fmt.Errorf("%s doesn't get ready: %w", d.name, err)
	}
	return url, p, nil
}

// track remembers a process, for Stop.
func (s *System) track(p *process.Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.processes = append(s.processes, p)
}

// program is the path of one of the built programs.
func (b *Bench) program(name string) string { return filepath.Join(b.opts.Bin, name) }

// Stop ends every process, in the reverse order of their start.
func (s *System) Stop(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, p := range slices.Backward(s.processes) {
		errs = append(errs, p.Stop(ctx))
	}
	return errors.Join(errs...)
}

// barriers are the flags with which workers pass the barriers of the set-up's sidecars.
func (s *System) barriers() []string {
	if s.Setup.Unenforced || s.Setup.CheckOnly {
		return nil
	}
	var flags []string
	for _, one := range []struct{ guard, url string }{{guardAccount, s.resource}, {guardRail, s.railProxy}} {
		if s.Setup.Sidecars.has(one.guard) {
			flags = append(flags, "--barrier", one.guard+"="+one.url)
		}
	}
	return flags
}

// startSidecar starts a sidecar of that id with one of the project's configurations, or a copy of one.
func (s *System) startSidecar(ctx context.Context, id, config, databaseURL, behind string) (string, *process.Process, error) {
	return s.start(ctx, daemonSpec{
		name: id, program: "sidecar", args: []string{"run", "--config", config}, bare: true,
		env: []string{"PAYDB_URL=" + databaseURL, "SIDECAR_ID=" + id, "SIDECAR_LISTEN=" + anyPort, "SIDECAR_ADMIN=" + anyPort, "SIDECAR_UPSTREAM=" + behind},
	})
}

// sidecarConfig is the path of a sidecar's configuration: the project's own file, or a
// copy with what the set-up changes in it.
func (s *System) sidecarConfig(name string) (string, error) {
	if !s.Setup.Unenforced && !s.Setup.CheckOnly {
		return filepath.Join(s.bench.opts.Configs, name), nil
	}
	return s.changedConfig(name, name, []change{
		{s.Setup.Unenforced, "mode: enforce", "mode: off"},
		// The resource keeps the order then, so what belongs to the sidecar's goes.
		{s.Setup.CheckOnly, "    order: effects\n", "    advance: resource\n"},
		{s.Setup.CheckOnly, heldUnsettled, ""},
		{s.Setup.CheckOnly, everyAnswerSettles, ""},
	}, "")
}

// What the project's configurations say of their guards.
const (
	heldUnsettled      = "    unsettled: { then: hold }\n"
	everyAnswerSettles = "    unsettled_status: []\n"
)

// change is a text in a configuration, and what a set-up puts there.
type change struct {
	wanted   bool
	old, new string
}

// changedConfig writes a copy of one of the project's configurations with changes in it, and more at its end. A text that isn't there is an error: the
// experiment would play with another configuration than it says.
func (s *System) changedConfig(name, as string, changes []change, more string) (string, error) {
	data, err := os.ReadFile(filepath.Join(s.bench.opts.Configs, name)) //nolint:gosec // the folder that the caller named
	if err != nil {
		return "", fmt.Errorf("read configuration: %w", err)
	}
	text := string(data)
	for _, one := range changes {
		if !one.wanted {
			continue
		}
		if !strings.Contains(text, one.old) {
			return "", fmt.Errorf("%s has no line with %q to change", name, one.old)
		}
		text = strings.ReplaceAll(text, one.old, one.new)
	}
	path := filepath.Join(s.dir, as)
	if err := os.WriteFile(path, []byte(text+more), 0o600); err != nil {
		return "", fmt.Errorf("write configuration: %w", err)
	}
	return path, nil
}
