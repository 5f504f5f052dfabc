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
	s.params(r, l.Params)
	if l.SQL == "" {
		return l
	}
	if !selectGrammar.MatchString(l.SQL) {
		s.fault("sql", "want one SELECT")
		return l
	}
	if err := checkSQL(l.SQL); err != nil {
		s.fault("sql", err.Error())
		return l
	}
	used := l.ParamNames()
	s.bind(r, used, l.Params, nil)
	if len(used) == 0 {
		s.fault("sql", "the query has no parameter, so it finds the same key for every request")
	}
	return l
}

// params reads the sources of a statement's parameters.
func (s section) params(r Route, into map[string]Key) {
	params := s.sub("params")
	if params.n == nil {
		return
	}
	for _, f := range params.n.fields {
		if !paramGrammar.MatchString(f.name) {
			params.fault(f.name, "want a name of letters, digits and _")
		}
		into[f.name] = params.sub(f.name).source(r)
	}
}

// bind gives each parameter that a statement uses its source: one that isn't listed, and isn't given anyway, is the path's parameter of that name.
func (s section) bind(r Route, used []string, params map[string]Key, given []string) {
	template, _ := ParseTemplate(r.Path)
	for _, name := range used {
		if _, listed := params[name]; listed || slices.Contains(given, name) {
			continue
		}
		if r.Path == "" || !slices.Contains(template.Params(), name) {
			s.fault("sql", "nothing gives @"+name+": list it under params, or name a parameter of the route's path so")
		}
		params[name] = Key{Path: name}
	}
	for _, name := range slices.Sorted(maps.Keys(params)) {
		switch {
		case slices.Contains(given, name):
			s.sub("params").fault(name, "@"+name+" is given already")
		case !slices.Contains(used, name):
			s.sub("params").fault(name, "the query doesn't use @"+name)
		}
	}
}

// Parameters that every statement on_fenced has.
const (
	ParamToken   = "token"   // the request's
	ParamHighest = "highest" // the key's mark
	ParamKey     = "key"
	ParamOwner   = "owner"
)

// verbGrammar: what a statement on_fenced may do. It runs with the rights of the sidecar's role.
var verbGrammar = regexp.MustCompile(`(?i)^(INSERT|UPDATE|SELECT)\s`)

// literal is a text within a statement that can hold no parameter.
var literal = regexp.MustCompile(`'[A-Za-z0-9_ .:-]*'`)

// statement reads on_fenced.
func (s section) statement(r Route) *Statement {
	out := &Statement{SQL: strings.TrimSpace(s.required("sql")), Params: map[string]Key{}}
	s.params(r, out.Params)
	switch {
	case out.SQL == "":
		return out
	case !verbGrammar.MatchString(out.SQL):
		s.fault("sql", "want one INSERT or UPDATE, or a SELECT that calls a function")
		return out
	}
	if err := checkSQL(literal.ReplaceAllString(out.SQL, "0")); err != nil {
		s.fault("sql", err.Error())
		return out
	}
	s.bind(r, out.ParamNames(), out.Params, []string{ParamToken, ParamHighest, ParamKey, ParamOwner})
	return out
}

// ParamNames are the statement's parameters in the order of their first use.
func (s Statement) ParamNames() []string { return Lookup{SQL: s.SQL}.ParamNames() }

// Positional is the statement with $1, $2, … in the order of ParamNames.
func (s Statement) Positional() string { return Lookup{SQL: s.SQL}.Positional() }

// checkSQL keeps a statement to what can be rewritten safely: one without quotes, comments or statement separators, in which
// every @ begins a parameter. So no @ can be part of a text, a comment or an operator.
func checkSQL(text string) error {
	if len(text) > maxSQL {
		return fmt.Errorf("want at most %d bytes", maxSQL)
	}
	for _, refused := range []string{";", "'", `"`, "--", "/*", "$", `\`} {
		if strings.Contains(text, refused) {
			return fmt.Errorf("%s isn't allowed here; make a view or a function if the statement needs it", refused)
		}
	}
	if strings.ContainsFunc(text, func(c rune) bool { return c > unicode.MaxASCII || c < ' ' && c != '\n' && c != '\t' && c != '\r' }) {
		return errors.New("only ASCII is allowed here; make a view or a function if the statement needs more")
	}
	starts := parameter.FindAllStringIndex(text, -1)
	if strings.Count(text, "@") != len(starts) {
		return errors.New("every @ must begin a parameter such as @payout_id; operators with @ aren't allowed")
	}
	for _, start := range starts {
		// PostgreSQL's operator characters (Lexical Structure, 4.1.3) and those of identifiers; "=" may stand directly before a parameter, other
		// operators that end in @ don't end in "=@" and need a space.
		if before := text[start[0]-1]; strings.IndexByte("+-*/<>~!@#%^&|`?", before) >= 0 || isWord(before) {
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
