package config

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// parameter is an @ with the longest identifier behind it. In SQL that was checked, every @ begins one.
var parameter = regexp.MustCompile(`@([A-Za-z_][A-Za-z0-9_]*)`)

var selectGrammar = regexp.MustCompile(`(?i)^SELECT\s`)

// maxSQL bounds a lookup's text, in bytes.
const maxSQL = 4096

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
			if !paramGrammar.MatchString(f.name) {
				params.fault(f.name, "want a name of letters, digits and _")
			}
			l.Params[f.name] = params.sub(f.name).source(r)
		}
	}
	if l.SQL == "" {
		return l
	}
	if err := l.checkSQL(); err != nil {
		s.fault("sql", err.Error())
		return l
	}
	// A parameter that isn't listed is the path's parameter of that name.
	template, _ := ParseTemplate(r.Path)
	used := l.ParamNames()
	for _, name := range used {
		if _, listed := l.Params[name]; listed {
			continue
		}
		if r.Path == "" || !slices.Contains(template.Params(), name) {
			s.fault("sql", "nothing gives @"+name+": list it under params, or name a parameter of the route's path so")
		}
		l.Params[name] = Key{Path: name}
	}
	if len(used) == 0 {
		s.fault("sql", "the query has no parameter, so it finds the same key for every request")
	}
	for _, name := range slices.Sorted(maps.Keys(l.Params)) {
		if !slices.Contains(used, name) {
			params.fault(name, "the query doesn't use @"+name)
		}
	}
	return l
}

// checkSQL keeps a lookup to what can be rewritten safely: one SELECT without quotes, comments or statement separators, in which
// every @ begins a parameter. So no @ can be part of a text, a comment or an operator.
func (l Lookup) checkSQL() error {
	if !selectGrammar.MatchString(l.SQL) || len(l.SQL) > maxSQL {
		return fmt.Errorf("want one SELECT, at most %d bytes", maxSQL)
	}
	for _, refused := range []string{";", "'", `"`, "--", "/*", "$", `\`} {
		if strings.Contains(l.SQL, refused) {
			return fmt.Errorf("%s isn't allowed in a lookup; make a view if the query needs it", refused)
		}
	}
	if strings.ContainsFunc(l.SQL, func(c rune) bool { return c > unicode.MaxASCII || c < ' ' && c != '\n' && c != '\t' && c != '\r' }) {
		return errors.New("only ASCII is allowed in a lookup; make a view if the query needs more")
	}
	starts := parameter.FindAllStringIndex(l.SQL, -1)
	if strings.Count(l.SQL, "@") != len(starts) {
		return errors.New("every @ must begin a parameter such as @payout_id; operators with @ aren't allowed")
	}
	for _, start := range starts {
		// PostgreSQL's operator characters (Lexical Structure, 4.1.3) and those of identifiers; "=" may stand directly before a parameter, other
		// operators that end in @ don't end in "=@" and need a space.
		if before := l.SQL[start[0]-1]; strings.IndexByte("+-*/<>~!@#%^&|`?", before) >= 0 || isWord(before) {
			return errors.New("a parameter needs a space before it")
		}
	}
	return nil
}

func isWord(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_'
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
