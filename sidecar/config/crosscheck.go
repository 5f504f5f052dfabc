package config

import (
	"maps"
	"reflect"
	"slices"
	"strings"
)

// crossCheck looks at what no section can see alone.
func (s section) crossCheck(c *Config, guards, routes []section) {
	if len(routes) == 0 && (!s.has("routes") || s.n.get("routes").kind == listNode) {
		s.fault("routes", "missing: without a route everything is rejected")
	}
	for i, g := range c.Guards {
		if slices.ContainsFunc(c.Guards[:i], func(o Guard) bool { return o.Name == g.Name && g.Name != "" }) {
			guards[i].fault("name", "another guard has this name")
		}
		if g.Name != "" && !slices.ContainsFunc(c.Routes, func(r Route) bool { return r.Guard == g.Name }) {
			guards[i].fault("name", "no route uses this guard, so it guards nothing")
		}
	}
	checkEffects(c, guards)
	if c.Store.File.Path != "" {
		checkFileStore(c, guards, routes)
	}
	for i, r := range c.Routes {
		routes[i].checkRoute(c, i)
		routes[i].checkOverlaps(c.Routes[:i], r)
	}
}

// checkFileStore: a file has no tables and answers no queries.
func checkFileStore(c *Config, guards, routes []section) {
	for i, g := range c.Guards {
		if g.Ownership == OwnershipExclusive {
			guards[i].fault("ownership", "store.file has one sidecar anyway, and keeps what is in flight in the file; leave it out")
		}
		if !g.Mark.Own() {
			guards[i].sub("mark").fault("table", "marks in store.file have no table; leave out table, key, token and updated_at")
		}
	}
	for i, r := range c.Routes {
		if r.OnFenced != nil {
			routes[i].fault("on_fenced", "store.file runs no statements; leave it out, or use store.postgres")
		}
		if r.Key.Lookup != nil {
			routes[i].sub("key").fault("lookup", "store.file answers no queries; take the key from the request, or use store.postgres")
		}
	}
}

func (s section) checkRoute(c *Config, i int) {
	r := c.Routes[i]
	if slices.ContainsFunc(c.Routes[:i], func(o Route) bool { return o.Name == r.Name && r.Name != "" }) {
		s.fault("name", "another route has this name")
	}
	if r.Guard != "" && !slices.ContainsFunc(c.Guards, func(g Guard) bool { return g.Name == r.Guard }) {
		s.fault("guard", "there is no guard of this name")
	}
	sources := []Key{r.Key}
	if r.Key.Lookup != nil {
		sources = slices.AppendSeq(sources, maps.Values(r.Key.Lookup.Params))
	}
	if slices.ContainsFunc(sources, func(k Key) bool { return k.Header != "" && strings.EqualFold(k.Header, c.Token.Header) }) {
		s.fault("key", "the token's header can't be the key too")
	}
}

// checkOverlaps compares a route with those before it.
func (s section) checkOverlaps(earlier []Route, r Route) {
	for _, e := range earlier {
		if problem := r.shadowedBy(e); problem != "" {
			s.fault("match", problem)
		}
	}
	for _, name := range r.Overlaps {
		if !slices.ContainsFunc(earlier, func(e Route) bool { return e.Name == name && r.overlaps(e) }) {
			s.fault("overlaps", "no earlier route "+name+" takes any of this one's requests")
		}
	}
}

// overlaps says whether some request matches both routes.
func (r Route) overlaps(o Route) bool {
	if !slices.ContainsFunc(r.Methods, func(m string) bool { return slices.Contains(o.Methods, m) }) {
		return false
	}
	if r.Path == "" || o.Path == "" {
		return true
	}
	a, errA := ParseTemplate(o.Path)
	b, errB := ParseTemplate(r.Path)
	return errA == nil && errB == nil && a.overlaps(b)
}

// shadowedBy says in words why r may not stand behind an earlier route, "" when it may. The first route that matches decides, so
// a route behind another one that takes some of its requests and treats them differently is a mistake more often than not.
func (r Route) shadowedBy(earlier Route) string {
	if !r.overlaps(earlier) {
		return ""
	}
	everywhere := earlier.Path == ""
	if !everywhere && r.Path != "" {
		a, errA := ParseTemplate(earlier.Path)
		b, errB := ParseTemplate(r.Path)
		everywhere = errA == nil && errB == nil && a.covers(b)
	}
	allMethods := !slices.ContainsFunc(r.Methods, func(m string) bool { return !slices.Contains(earlier.Methods, m) })
	switch {
	case everywhere && allMethods:
		return "never reached: the earlier route " + earlier.Name + " takes all of its requests; put this one first"
	case !r.decidesLike(earlier) && !slices.Contains(r.Overlaps, earlier.Name):
		return "the earlier route " + earlier.Name + " takes some of its requests and decides differently; if that is meant, write overlaps: [" + earlier.Name + "]"
	}
	return ""
}

func (r Route) decidesLike(o Route) bool {
	return r.Pass == o.Pass && r.Guard == o.Guard && r.Admit == o.Admit && r.Mode == o.Mode && reflect.DeepEqual(r.Key, o.Key)
}

// Warnings are things that work and that somebody should know.
func (c *Config) Warnings() []string {
	var out []string
	if c.IDDefault {
		out = append(out, "id is the host name "+c.ID+" by default; give a stable id of its own to each sidecar")
	}
	if len(c.Guards) == 0 {
		out = append(out, "there is no guard: nothing is protected")
	}
	for _, r := range c.Routes {
		if r.Stream {
			out = append(out, "route "+r.Name+" streams: a request is admitted before its body has arrived, so a client that is slow or stops keeps it open, "+
				"and a body that breaks off leaves an unknown outcome")
		}
		if r.Mode == ModeShadow {
			out = append(out, "route "+r.Name+" is in shadow: it raises marks and records what would be refused, but refuses nothing, lets everything pass when "+
				"the store is down, and protects nothing; write mode: enforce to protect")
		}
		if r.Mode == ModeOff && !r.Pass {
			out = append(out, "route "+r.Name+" has mode off: it forwards without looking at tokens and protects nothing")
		}
	}
	for _, g := range c.Guards {
		if g.Advance == AdvanceResource {
			out = append(out, "guard "+g.Name+" has advance: resource: the sidecar only refuses what is stale already; the order is kept by the resource, or by nobody")
		}
	}
	if c.Unmatched == UnmatchedPass {
		out = append(out, "unmatched is pass: requests that no route matches are forwarded without looking at tokens")
	}
	if c.Upstream.AllowRemote {
		out = append(out, "upstream.allow_remote is true: whoever reaches the resource without the sidecar isn't fenced")
	}
	if c.Admin.BeyondThisMachine() {
		out = append(out, "admin.listen isn't loopback: /livez and /readyz answer whoever reaches it, and the bearer token crosses the network in plain HTTP")
	}
	return out
}
