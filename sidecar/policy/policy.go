// Package policy decides which route a request takes and which key it concerns. It is built once from the configuration and
// never changes; it sees exactly the bytes that will be forwarded.
package policy

import (
	"fmt"
	"slices"
	"strings"

	"fenceline/sidecar/config"
)

// Policy is an immutable matcher.
type Policy struct {
	routes    []*Route
	unmatched config.Unmatched
}

// Route is one rule with what it needs at run time.
type Route struct {
	config.Route
	// Guard is nil on a passed route.
	Guard    *config.Guard
	template config.Template
	anyPath  bool
	keySQL   string
	keyArgs  []string

	fencedSQL  string
	fencedArgs []string
}

// Guarded says whether requests need an admission: the route has a guard and enforces it.
func (r *Route) Guarded() bool { return r.Guard != nil && r.Mode == config.ModeEnforce }

// Shadowed says whether requests are only judged: whatever comes of it, they are forwarded.
func (r *Route) Shadowed() bool { return r.Guard != nil && r.Mode == config.ModeShadow }

// New builds the matcher of a valid configuration.
func New(cfg *config.Config) (*Policy, error) {
	p := &Policy{unmatched: cfg.Unmatched}
	for _, rc := range cfg.Routes {
		r := &Route{Route: rc, anyPath: rc.Path == ""}
		if !r.anyPath {
			template, err := config.ParseTemplate(rc.Path)
			if err != nil {
				return nil, fmt.Errorf("route %s: %w", rc.Name, err)
			}
			r.template = template
		}
		if rc.Guard != "" && !rc.Pass {
			i := slices.IndexFunc(cfg.Guards, func(g config.Guard) bool { return g.Name == rc.Guard })
			if i < 0 {
				return nil, fmt.Errorf("route %s: no guard %s", rc.Name, rc.Guard)
			}
			r.Guard = &cfg.Guards[i]
		}
		if lookup := rc.Key.Lookup; lookup != nil {
			r.keySQL, r.keyArgs = lookup.Positional(), lookup.ParamNames()
		}
		if rc.OnFenced != nil {
			r.fencedSQL, r.fencedArgs = rc.OnFenced.Positional(), rc.OnFenced.ParamNames()
		}
		p.routes = append(p.routes, r)
	}
	return p, nil
}

// Routes are the rules in the order in which they are tried.
func (p *Policy) Routes() []*Route { return slices.Clone(p.routes) }

// Outcome says what a request's method and path come to.
type Outcome int

// The outcomes of Match.
const (
	// Matched means that a route takes the request.
	Matched Outcome = iota
	// NoRoute means that no route takes the request and that it is rejected.
	NoRoute
	// WrongMethod means that routes know the path, but none with this method.
	WrongMethod
	// PassUnmatched means that no route takes it and that the configuration lets such requests pass.
	PassUnmatched
)

// Match is the result of matching.
type Match struct {
	Outcome Outcome
	Route   *Route            // when Matched
	Params  map[string]string // values of the template's parameters, as they stand in the path
	Allowed []string          // when WrongMethod: the methods that the path has
}

// Match finds the first route for the method and path, byte for byte. The path is the one that will be forwarded,
// without its query.
//
// A request that would pass unguarded, and that a careless resource could take for a guarded one (another case, a slash
// at the end, a needless percent-encoding), is rejected: matching it to the guarded route instead would let one key have two spellings.
func (p *Policy) Match(method, path string) Match {
	if isReserved(path) {
		return Match{Outcome: NoRoute}
	}
	m := p.first(method, path)
	switch m.Outcome {
	case Matched:
		if !m.Route.Guarded() && p.resemblesGuarded(method, path) {
			return Match{Outcome: NoRoute}
		}
	case PassUnmatched:
		if p.resemblesGuarded("", path) || p.resemblesGuarded(method, path) {
			return Match{Outcome: NoRoute}
		}
	case NoRoute, WrongMethod:
	}
	return m
}

// isReserved: paths below /.fence/ are the sidecar's own and never reach the resource.
func isReserved(path string) bool {
	const own = "/.fence"
	return len(path) >= len(own) && strings.EqualFold(path[:len(own)], own) && (len(path) == len(own) || path[len(own)] == '/')
}

func (p *Policy) first(method, path string) Match {
	var allowed []string
	for _, r := range p.routes {
		var params map[string]string
		if !r.anyPath {
			var ok bool
			if params, ok = r.template.Match(path); !ok {
				continue
			}
		}
		if slices.Contains(r.Methods, method) {
			return Match{Outcome: Matched, Route: r, Params: params}
		}
		if !r.anyPath {
			allowed = append(allowed, r.Methods...)
		}
	}
	switch {
	case len(allowed) > 0: // also with unmatched: pass, since a path that routes know may be a guarded one
		slices.Sort(allowed)
		return Match{Outcome: WrongMethod, Allowed: slices.Compact(allowed)}
	case p.unmatched == config.UnmatchedPass:
		return Match{Outcome: PassUnmatched}
	}
	return Match{Outcome: NoRoute}
}

// resemblesGuarded says whether method and path are a guarded route's in another spelling, but not exactly. An exact match that an earlier
// route took is what the configuration asked for. An empty method resembles every method.
func (p *Policy) resemblesGuarded(method, path string) bool {
	return slices.ContainsFunc(p.routes, func(r *Route) bool {
		if !r.Guarded() || !r.anyPath && !r.template.Resembles(path) {
			return false
		}
		if method == "" {
			return !r.anyPath
		}
		if !slices.ContainsFunc(r.Methods, func(m string) bool { return strings.EqualFold(m, method) }) {
			return false
		}
		exactPath := r.anyPath
		if !exactPath {
			_, exactPath = r.template.Match(path)
		}
		return !exactPath || !slices.Contains(r.Methods, method)
	})
}
