package main

import (
	"context"
	"errors"
)

// field is everybody who takes part.
type field struct {
	all     []*contestant
	writers []*contestant // those that are measured at a fixed rate, too
	memory  *contestant   // whose memory is read
}

// field starts all processes.
func (b *bench) field(ctx context.Context) (*field, error) {
	upstream, address, err := b.self(ctx, "upstream", nil, "upstream")
	if err != nil {
		return nil, err
	}
	b.upstream = address
	bare, bareAddress, err := b.self(ctx, "proxy", nil, "proxy", "--upstream", address)
	if err != nil {
		return nil, err
	}
	url, err := b.makeDatabase(ctx, "bench")
	if err != nil {
		return nil, err
	}
	checker, checkerAddress, err := b.self(ctx, "checker", []string{"BENCH_DATABASE_URL=" + url}, "checker")
	if err != nil {
		return nil, err
	}
	nginx, nginxAddress, err := b.nginx(ctx, checkerAddress)
	if err != nil {
		return nil, err
	}
	f := &field{}
	add := func(name string, addresses []string, request maker, want, database int, service ...int) *contestant {
		c := &contestant{name: name, addresses: addresses, request: request, want: want, overtaken: 409, service: service, database: database}
		f.all = append(f.all, c)
		return c
	}
	add(direct, []string{address}, get, 200, 0, upstream.PID())
	add(bareGet, []string{bareAddress}, get, 200, 0, bare.PID())
	add(nginxGet, []string{nginxAddress}, get, 200, 0, nginx.PID())
	add(barePut, []string{bareAddress}, newTokens(b.opts.Keys), 200, 0, bare.PID())
	byChecker := add(checked, []string{nginxAddress}, newTokens(b.opts.Keys), 200, b.database, nginx.PID(), checker.PID())
	byChecker.overtaken = 403
	f.writers = append(f.writers, byChecker)
	return f, b.sidecars(ctx, f, url, add)
}

// sidecars start on the checker's database, each under a guard of its own.
func (b *bench) sidecars(ctx context.Context, f *field, url string, add func(string, []string, maker, int, int, ...int) *contestant) error {
	type running struct {
		pid     int
		address string
	}
	var problems error
	start := func(id, guard, order, url string) running {
		if problems != nil {
			return running{}
		}
		p, address, err := b.sidecar(ctx, id, guard, order, url)
		if problems = err; err != nil {
			return running{}
		}
		return running{p.PID(), address}
	}
	byAdmission := start("admissions", "admissions", admissions, url)
	one, two := start("effects-1", "effects", effects, url), start("effects-2", "effects", effects, url)
	owner, file := start("exclusive", "exclusive", exclusive, url), start("file", "file", effects, "")
	if problems != nil {
		return errors.Join(problems)
	}
	fresh := newTokens(b.opts.Keys)
	add(passed, []string{byAdmission.address}, get, 200, 0, byAdmission.pid)
	f.writers = append(f.writers,
		add(byAdmissions, []string{byAdmission.address}, fresh, 200, b.database, byAdmission.pid),
		add(byEffects, []string{one.address, two.address}, fresh, 200, b.database, one.pid, two.pid),
		add(alone, []string{owner.address}, fresh, 200, b.database, owner.pid),
		add(inFile, []string{file.address}, fresh, 200, 0, file.pid))
	// Keys of these have marks from 0 to the number of clients; their token must be the mark, so they have guards of their own.
	sameOne, sameOwner := start("same-1", "same", effects, url), start("same-2", "same-alone", exclusive, url)
	if problems != nil {
		return problems
	}
	add(sameShared, []string{sameOne.address}, same, 200, b.database, sameOne.pid)
	add(sameExclusive, []string{sameOwner.address}, same, 200, b.database, sameOwner.pid)
	add(staleTokens, []string{sameOwner.address}, stale, 409, b.database, sameOwner.pid)
	f.memory = &contestant{name: "memory", addresses: []string{one.address}, want: 200, overtaken: 409, service: []int{one.pid}, database: b.database}
	return nil
}
