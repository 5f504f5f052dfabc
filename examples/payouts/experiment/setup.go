// Package experiment runs the main claim on real processes: two workers, one payout,
// the first is stopped with SIGSTOP between its check and its write, loses its lease, and goes
// on after the second has finished. Then the truth is read from the tables and from the rail's own log.
package experiment

// Setup is one way of putting the system together.
type Setup struct {
	// Name is short, for files and databases; Title is for people.
	Name, Title string
	// Sidecars says whether the workers reach the resource and the rail-proxy through
	// sidecars.
	Sidecars bool
	// Unenforced turns the sidecars' guarded routes to mode "off". It is the negative
	// control: the sidecars are in the path, yet nothing is fenced, so the experiment must fail.
	Unenforced bool
}

// Plain are the set-ups of the plain payment system: as it is, and behind sidecars.
func Plain() []Setup {
	return []Setup{
		{Name: "bare", Title: "plain without sidecar"},
		{Name: "guarded", Title: "plain with sidecars", Sidecars: true},
	}
}

// scenePlan is what is played in each set-up: where A stops, and which guard stands there.
type scenePlan struct {
	step, guard string
}

func scenePlans() []scenePlan {
	return []scenePlan{{step: "submit", guard: "rail"}, {step: "post", guard: "account"}}
}
