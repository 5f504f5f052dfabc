package main

import (
	"fmt"
	"io"

	"fenceline/internal/measure"
)

// report is everything that a run has measured.
type report struct {
	machine      measure.Machine
	postgres     string
	many, single []result // lockd, etcd, statements
	handover     handover
	loadAfter    string
}

// The places of the contestants in a list of results.
const (
	atLockd = iota
	atEtcd
	atStatements
)

// ratio is one number with its target.
type ratio struct {
	name    string
	value   float64
	target  string
	reached bool
}

func (r report) ratios() []ratio {
	many, single := r.many, r.single
	toEtcd := many[atLockd].rate() / many[atEtcd].rate()
	toStatements := many[atLockd].rate() / many[atStatements].rate()
	p50 := float64(single[atLockd].p50()) / float64(single[atEtcd].p50())
	handed := inMillis(r.handover.p50)
	return []ratio{
		{"lockd_vs_etcd_64", toEtcd, "at least 2.5", toEtcd >= 2.5},
		{"lockd_vs_statements_64", toStatements, "at least 2", toStatements >= 2},
		{"lockd_p50_vs_etcd_1", p50, "at most 1", p50 <= 1},
		{"handover_p50_ms", handed, "at most 5", handed <= 5},
		{"handover_statements", r.handover.calls, "at most 3", r.handover.calls <= 3},
	}
}

func (r report) print(out io.Writer) {
	fmt.Fprintf(out, "\n%s\nPostgreSQL %s (fsync, full_page_writes and synchronous_commit on), etcd %s (one member, its own defaults)\n", r.machine, r.postgres, etcdVersion())
	fmt.Fprintf(out, "Load average before %s, after %s.", r.machine.Load, r.loadAfter)
	if r.machine.Busy {
		fmt.Fprint(out, " The machine was busy with something else: these numbers are noise.")
	}
	fmt.Fprint(out, "\n\nA pair is one acquire and its release, each client on a key of its own. Medians of the turns:\n\n")
	fmt.Fprintf(out, "%-28s %8s %10s %17s %10s %10s\n", "", "clients", "pairs/s", "(least … most)", "p50 ms", "p99 ms")
	for _, group := range [][]result{r.many, r.single} {
		for _, one := range group {
			least, most := one.spread()
			fmt.Fprintf(out, "%-28s %8d %10.0f %17s %10.2f %10.2f\n", one.name, one.clients, one.rate(),
				fmt.Sprintf("(%.0f … %.0f)", least, most), inMillis(one.p50()), inMillis(one.p99()))
		}
	}
	fmt.Fprintf(out, "\nProcessor time of a pair in microseconds, which bounds the rate where all share the processors:\n\n")
	fmt.Fprintf(out, "%-28s %8s %10s %10s %10s %10s\n", "", "clients", "total", "clients'", "service's", "database's")
	for _, group := range [][]result{r.many, r.single} {
		for _, one := range group {
			s := one.spent()
			fmt.Fprintf(out, "%-28s %8d %10d %10d %10d %10d\n", one.name, one.clients, s.Total().Microseconds(), s.Clients.Microseconds(), s.Service.Microseconds(), s.Database.Microseconds())
		}
	}
	printHandover(out, r.handover)
	fmt.Fprintln(out)
	for _, one := range r.ratios() {
		verdict := "reached"
		if !one.reached {
			verdict = "MISSED"
		}
		fmt.Fprintf(out, "target %s: %-24s %s\n", verdict, one.name, one.target)
	}
	fmt.Fprintln(out)
	for _, one := range r.ratios() {
		fmt.Fprintf(out, "ratio %s %.2f\n", one.name, one.value)
	}
}
