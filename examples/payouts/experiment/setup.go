// Package experiment runs the main claim on real processes: two workers, one payout,
// the first is stopped with SIGSTOP between its check and its write, loses its lease, and goes
// on after the second has finished. Then the truth is read from the tables and from the rail's own log.
package experiment

// Guards is a set of the two places where tokens can be compared.
type Guards struct {
	Account bool // before or in the payment-resource
	Rail    bool // before or in the rail-proxy
}

// Both is both guards.
func Both() Guards { return Guards{Account: true, Rail: true} }

// has says whether the guard of that name is in the set.
func (g Guards) has(name string) bool {
	return name == guardAccount && g.Account || name == guardRail && g.Rail
}

// Setup is one way of putting the system together.
type Setup struct {
	// Name is short, for files and databases; Title is for people.
	Name, Title string
	// Sidecars says behind which sidecars the workers reach the resource and the rail-proxy.
	Sidecars Guards
	// Fenced says which of the two processes compares tokens itself.
	Fenced Guards
	// CheckOnly lets the sidecars only refuse what is stale already; the fenced processes advance the marks.
	CheckOnly bool
	// Unenforced turns the sidecars' guarded routes to mode "off". It is the negative
	// control: the sidecars are in the path, yet nothing is fenced, so the experiment must fail.
	Unenforced bool
	// RailFlags are further flags of the rail-stub, such as its faults.
	RailFlags []string
}

// guarded says whether anything stands at the guard's place.
func (s Setup) guarded(guard string) bool { return s.Sidecars.has(guard) || s.Fenced.has(guard) }

// whole says whether something stands at both places.
func (s Setup) whole() bool { return s.guarded(guardAccount) && s.guarded(guardRail) }

// Plain are the set-ups of the plain payment system: as it is, and behind sidecars.
func Plain() []Setup {
	return []Setup{
		{Name: "bare", Title: "plain without sidecar"},
		{Name: "guarded", Title: "plain with sidecars", Sidecars: Both()},
	}
}

// All are the four set-ups and, after them, each guard alone, as a sidecar and in the process itself.
func All() []Setup {
	return append(Plain(), []Setup{
		{Name: "fenced", Title: "fenced without sidecar", Fenced: Both()},
		{Name: "fenced_checked", Title: "fenced, sidecars check only", Fenced: Both(), Sidecars: Both(), CheckOnly: true},
		{Name: "sidecar_account", Title: "plain, account sidecar only", Sidecars: Guards{Account: true}},
		{Name: "sidecar_rail", Title: "plain, rail sidecar only", Sidecars: Guards{Rail: true}},
		{Name: "fenced_account", Title: "fenced resource only", Fenced: Guards{Account: true}},
		{Name: "fenced_rail", Title: "fenced rail-proxy only", Fenced: Guards{Rail: true}},
	}...)
}

// The guards' names, as they stand in the events of those who refuse.
const (
	guardAccount = "account"
	guardRail    = "rail"
)

// scenePlan is what is played in each set-up: where A stops, and which guard stands there.
type scenePlan struct {
	step, guard string
}

func scenePlans() []scenePlan {
	return []scenePlan{{step: "submit", guard: guardRail}, {step: "post", guard: guardAccount}}
}
