package config

import (
	"reflect"
	"slices"
)

// crossCheck looks at what no section can see alone.
func (s section) crossCheck(c *Config, guards, routes []section) {
	if len(c.Routes) == 0 {
		s.fault("routes", "missing: without a route everything is rejected")
	}
	if len(guards) != len(c.Guards) || len(routes) != len(c.Routes) {
		return
	}
	for i, g := range c.Guards {
		if slices.ContainsFunc(c.Guards[:i], func(o Guard) bool { return o.Name == g.Name }) {
			guards[i].fault("name", "another guard has this name")
		}
		if !slices.ContainsFunc(c.Routes, func(r Route) bool { return r.Guard == g.Name }) {
			guards[i].fault("name", "no route uses this guard, so it guards nothing")
		}
	}
	for i, r := range c.Routes {
		if slices.ContainsFunc(c.Routes[:i], func(o Route) bool { return o.Name == r.Name }) {
			routes[i].fault("name", "another route has this name")
		}
		if r.Guard != "" && !slices.ContainsFunc(c.Guards, func(g Guard) bool { return g.Name == r.Guard }) {
			routes[i].fault("guard", "there is no guard "+r.Guard)
		}
		for _, earlier := range c.Routes[:i] {
			if problem := r.shadowedBy(earlier); problem != "" {
				routes[i].fault("match", problem)
			}
		}
	}
}

// shadowedBy says in words why r may not stand behind an earlier route, "" when it may. The first route that matches decides, so
// a route behind another one that takes some of its requests and treats them differently is a mistake more often than not.
func (r Route) shadowedBy(earlier Route) string {
	if !slices.ContainsFunc(r.Methods, func(m string) bool { return slices.Contains(earlier.Methods, m) }) {
		return ""
	}
	a, errA := ParseTemplate(earlier.Path)
	b, errB := ParseTemplate(r.Path)
	if errA != nil && earlier.Path != "" || errB != nil && r.Path != "" {
		return "" // noted already
	}
	everywhere, overlap := earlier.Path == "", earlier.Path == "" || r.Path == "" || a.overlaps(b)
	if r.Path != "" && earlier.Path != "" {
		everywhere = a.covers(b)
	}
	allMethods := !slices.ContainsFunc(r.Methods, func(m string) bool { return !slices.Contains(earlier.Methods, m) })
	switch {
	case everywhere && allMethods:
		return "never reached: the earlier route " + earlier.Name + " takes all of its requests; put this one first"
	case overlap && !r.decidesLike(earlier) && !slices.Contains(r.Overlaps, earlier.Name):
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
	for _, r := range c.Routes {
		if r.Mode == ModeOff && !r.Pass {
			out = append(out, "route "+r.Name+" has mode off: it forwards without looking at tokens and protects nothing")
		}
	}
	if c.Unmatched == UnmatchedPass {
		out = append(out, "unmatched is pass: requests that no route matches are forwarded without looking at tokens")
	}
	return out
}
