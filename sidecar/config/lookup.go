package config

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

var parameter = regexp.MustCompile(`@([a-z][a-z0-9_]*)`)

// lookup reads a query that finds the key.
func (s section) lookup(r Route) Lookup {
	l := Lookup{
		SQL:    strings.TrimSpace(s.required("sql")),
		Cache:  choice(s, "cache", CacheNone, []Cache{CacheNone, CacheImmutable}, nil),
		Params: map[string]Key{},
	}
	params := s.sub("params")
	if params.n != nil {
		for _, f := range params.n.fields {
			l.Params[f.name] = params.sub(f.name).source(r)
		}
	}
	if l.SQL == "" {
		return l
	}
	if err := l.checkSQL(); err != nil {
		s.fault("sql", err.Error())
	}
	// A parameter that isn't listed is the path's parameter of that name.
	template, _ := ParseTemplate(r.Path)
	used := l.ParamNames()
	for _, name := range used {
		if _, listed := l.Params[name]; listed {
			continue
		}
		if r.Path == "" || !slices.Contains(template.Params(), name) {
			s.fault("sql", "where does @"+name+" come from? list it under params, or name a parameter of the route's path so")
		}
		l.Params[name] = Key{Path: name}
	}
	for _, name := range slices.Sorted(maps.Keys(l.Params)) {
		if !slices.Contains(used, name) {
			s.fault("params", "the query doesn't use @"+name)
		}
		if l.Params[name] == (Key{}) {
			s.fault("params", name+": missing: path, header, query or json")
		}
	}
	return l
}

// checkSQL keeps a lookup to what can be rewritten safely: one SELECT without quotes, comments or statement separators, in which
// every @ begins a parameter.
func (l Lookup) checkSQL() error {
	if !strings.HasPrefix(strings.ToUpper(l.SQL), "SELECT ") {
		return fmt.Errorf("want one SELECT")
	}
	for _, refused := range []string{";", "'", `"`, "--", "/*", "$"} {
		if strings.Contains(l.SQL, refused) {
			return fmt.Errorf("%s isn't allowed in a lookup; make a view if the query needs it", refused)
		}
	}
	if strings.Count(l.SQL, "@") != len(parameter.FindAllString(l.SQL, -1)) {
		return fmt.Errorf("every @ must begin a parameter such as @payout_id")
	}
	return nil
}

// ParamNames are the query's parameters in the order of their first use.
func (l Lookup) ParamNames() []string {
	var names []string
	for _, m := range parameter.FindAllStringSubmatch(l.SQL, -1) {
		if !slices.Contains(names, m[1]) {
			names = append(names, m[1])
		}
	}
	return names
}

// Positional is the query with $1, $2, … in the order of ParamNames.
func (l Lookup) Positional() string {
	names := l.ParamNames()
	return parameter.ReplaceAllStringFunc(l.SQL, func(match string) string {
		return "$" + itoa(slices.Index(names, match[1:])+1)
	})
}
