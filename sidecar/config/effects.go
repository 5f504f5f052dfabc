package config

import (
	"slices"
	"strconv"
	"time"
)

// Effects is what a guard that orders effects needs beyond its marks.
type Effects struct {
	Ownership Ownership
	Unsettled Unsettled
	// UnsettledStatus are the statuses after which the resource may still be at work, ascending.
	UnsettledStatus []int
	// DiesWithUs means that the resource is certain to end when this sidecar does (restarts_with: resource).
	DiesWithUs bool
}

// Unsettled says what becomes of a request whose outcome stays unknown.
type Unsettled struct {
	// After is counted from the moment in which the outcome became unknown. With Hold it means nothing.
	After time.Duration
	Then  Then
}

// Releases says whether such a request stops blocking by time.
func (u Unsettled) Releases() bool { return u.Then == Release }

type (
	// Ownership says whether several sidecars serve a guard at once.
	Ownership string
	// Then says whether time alone settles an unsettled request.
	Then string
)

// Values as they are written in the file.
const (
	OwnershipShared    Ownership = "shared"
	OwnershipExclusive Ownership = "exclusive"

	Hold    Then = "hold"
	Release Then = "release"
)

// spare is what a request may take beside the time limits that are configured: from its admission to the clock check before its first byte, limits.wait
// and this.
const spare = time.Second

// GracePeriod is the longest that may pass between a request's admission and its first byte without a look at the store.
func (l Limits) GracePeriod() time.Duration { return l.Wait + spare }

// OrdersEffects says whether requests of this guard are registered and wait for older ones.
func (g Guard) OrdersEffects() bool { return g.Order == OrderEffects && g.Advance == AdvanceSidecar }

// Exclusive says whether one sidecar at a time serves this guard, on a store that several could use.
func (g Guard) Exclusive() bool { return g.OrdersEffects() && g.Ownership == OwnershipExclusive }

func (s section) order(g *Guard) {
	otherwise := OrderEffects
	if g.Advance == AdvanceResource {
		otherwise = OrderAdmissions // the order is the resource's to keep
	}
	g.Order = choice(s, "order", otherwise, []Order{OrderEffects, OrderAdmissions}, nil)
	g.Ownership = choice(s, "ownership", OwnershipShared, []Ownership{OwnershipShared, OwnershipExclusive}, nil)
	if g.Advance == AdvanceResource && g.Order == OrderEffects {
		s.fault("order", "with advance: resource the order is the resource's to keep; leave order out")
	}
	if !g.OrdersEffects() {
		if g.Ownership == OwnershipExclusive {
			s.fault("ownership", "exclusive means something only with order: effects; remove it")
		}
		for _, name := range []string{"unsettled", "unsettled_status", "restarts_with"} {
			if s.has(name) {
				s.fault(name, "means something only with order: effects; remove it")
			}
		}
		return
	}
	g.Unsettled = s.unsettled()
	if g.Ownership == OwnershipExclusive && g.Unsettled.Then == Hold {
		s.fault("ownership", "exclusive can't hold: what was in flight when its sidecar died is known to nobody, so time alone can settle it; write unsettled.then: release, or ownership: shared")
	}
	g.UnsettledStatus = s.statuses("unsettled_status", []int{202, 408, 502, 503, 504})
	g.DiesWithUs = s.has("restarts_with") && choice(s, "restarts_with", "resource", []string{"resource"}, nil) == "resource"
}

func (s section) unsettled() Unsettled {
	u := s.sub("unsettled")
	out := Unsettled{After: u.duration("after", 0, time.Second, 365*24*time.Hour), Then: choice(u, "then", "", []Then{Hold, Release}, nil)}
	const explain = "; hold: a request whose outcome stays unknown blocks newer tokens until an operator settles it (where money moves). " +
		"release: it blocks for unsettled.after (where the resource's longest request is known)"
	switch {
	case out.Then == "" && !u.has("then"):
		s.faults.add(s.where("unsettled"), s.key("unsettled.then"), "missing: hold or release. There is no default"+explain)
	case out.Then == Release && !u.has("after"):
		u.fault("after", "missing: how long a request blocks whose outcome stays unknown, such as 30s")
	}
	return out
}

// statuses reads a list of final status codes.
func (s section) statuses(name string, otherwise []int) []int {
	if !s.has(name) {
		return otherwise
	}
	var out []int
	for _, text := range s.texts(name) {
		status, err := strconv.Atoi(text)
		if err != nil || strconv.Itoa(status) != text || status < 200 || status > 599 {
			s.fault(name, "want status codes from 200 to 599")
			return otherwise
		}
		out = append(out, status)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// checkEffects looks at what an ordering of effects needs from the rest of the configuration.
func checkEffects(c *Config, guards []section) {
	least := c.Limits.GracePeriod() + c.Upstream.ConnectTimeout + c.Upstream.ResponseTimeout
	for i, g := range c.Guards {
		if slices.ContainsFunc(c.Guards[:i], func(o Guard) bool { return o.sharesMarks(g) && (o.OrdersEffects() || g.OrdersEffects()) }) {
			guards[i].fault("mark", "another guard has its marks in this column; requests in flight are known by their guard's name, so these two would look past each other: use one guard for both")
		}
		if g.Unsettled.Releases() && g.Unsettled.After > 0 && g.Unsettled.After <= least {
			guards[i].sub("unsettled").fault("after", "want more than "+least.String()+
				": limits.wait + 1s + upstream.connect_timeout + upstream.response_timeout, since a request may be under way for so long")
		}
	}
}

// sharesMarks says whether two guards have their marks in the same column of a table of the resource.
func (g Guard) sharesMarks(o Guard) bool {
	return !g.Mark.Own() && !o.Mark.Own() && g.Mark.Token == o.Mark.Token && slices.Equal(unqualified(g.Mark.Table), unqualified(o.Mark.Table))
}

// unqualified leaves the default schema out.
func unqualified(table []string) []string {
	if len(table) == 2 && table[0] == "public" {
		return table[1:]
	}
	return table
}
