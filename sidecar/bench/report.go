package main

import (
	"fmt"
	"io"
	"slices"
	"time"

	"fenceline/internal/measure"
)

// report is everything that a run has measured.
type report struct {
	machine                measure.Machine
	postgres               string
	loadAfter              string
	keys, many, marks      int
	closed, open           []result
	openRate               float64
	resident, residentHalf int64
}

func (r report) of(name string) result {
	i := slices.IndexFunc(r.closed, func(one result) bool { return one.name == name })
	return r.closed[i]
}

func (r report) atRate(name string) result {
	i := slices.IndexFunc(r.open, func(one result) bool { return one.name == name })
	return r.open[i]
}

// ratio is one number with its target.
type ratio struct {
	name    string
	value   float64
	target  string
	reached bool
}

func (r report) ratios() []ratio {
	least := func(name string, value, target float64) ratio {
		return ratio{name, value, fmt.Sprintf("at least %.2f", target), value >= target}
	}
	most := func(name string, value, target float64) ratio {
		return ratio{name, value, fmt.Sprintf("at most %.2f", target), value <= target}
	}
	over := func(a, b string) float64 { return r.of(a).rate() / r.of(b).rate() }
	processor := float64(r.of(byAdmissions).spent().Service) / float64(max(r.of(checked).spent().Service, 1))
	return []ratio{
		least("pass_vs_bare", over(passed, bareGet), 0.9),
		least("admissions_vs_authrequest", over(byAdmissions, checked), 3.5),
		most("admissions_p99_vs_authrequest", float64(r.atRate(byAdmissions).p99())/float64(r.atRate(checked).p99()), 0.5),
		least("effects_vs_authrequest", over(byEffects, checked), 2.5),
		least("equal_exclusive_vs_bare", over(sameExclusive, barePut), 0.8),
		least("stale_vs_bare", over(staleTokens, barePut), 1.5),
		most("rss_million_keys_mib", float64(r.resident)/(1<<20), 128),
		least("marks_10m_vs_10k", over(largeTable, smallTable), 0.8),
		{name: "cpu_vs_authrequest", value: processor, target: "none", reached: true},
	}
}

func inMillis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func (r report) print(out io.Writer) {
	fmt.Fprintf(out, "\n%s\nPostgreSQL %s (fsync, full_page_writes and synchronous_commit on). Load average before %s, after %s.", r.machine, r.postgres, r.machine.Load, r.loadAfter)
	if r.machine.Busy {
		fmt.Fprint(out, " The machine was busy with something else: these numbers are noise.")
	}
	fmt.Fprintf(out, "\n\nEvery client sends when it has its answer (closed loop). Processor seconds for 1000 requests:\n\n")
	fmt.Fprintf(out, "%-34s %12s %9s %9s %9s %9s %9s %10s\n", "", "requests/s", "p50 ms", "p99 ms", "service", "database", "clients", "overtaken")
	for _, one := range r.closed {
		s := one.spent()
		fmt.Fprintf(out, "%-34s %12.0f %9.2f %9.2f %9.3f %9.3f %9.3f %9.2f%%\n", one.name, one.rate(), inMillis(one.p50()), inMillis(one.p99()),
			1000*s.Service.Seconds(), 1000*s.Database.Seconds(), 1000*s.Clients.Seconds(),
			100*measure.Median(one.turns, func(t turn) float64 { return t.overtaken }))
	}
	fmt.Fprintf(out, "\nAt %.0f requests/s, half of what auth_request did; times run from when a request was due (open loop):\n\n", r.openRate)
	fmt.Fprintf(out, "%-34s %12s %9s %9s\n", "", "requests/s", "p50 ms", "p99 ms")
	for _, one := range r.open {
		fmt.Fprintf(out, "%-34s %12.0f %9.2f %9.2f\n", one.name, one.rate(), inMillis(one.p50()), inMillis(one.p99()))
	}
	fmt.Fprintf(out, "\nNew tokens over %d keys. A sidecar after %d distinct keys: %d MiB resident, %d MiB half-way. Tables of %d marks and of %d.\n\n",
		r.keys, r.many, r.resident>>20, r.residentHalf>>20, r.marks, max(r.marks/1000, 100))
	for _, one := range r.ratios() {
		verdict := "reached"
		if !one.reached {
			verdict = "MISSED"
		}
		fmt.Fprintf(out, "target %-8s %-31s %6.2f, %s\n", verdict+":", one.name, one.value, one.target)
	}
	fmt.Fprintln(out)
	for _, one := range r.ratios() {
		fmt.Fprintf(out, "ratio %s %.2f\n", one.name, one.value)
	}
}
