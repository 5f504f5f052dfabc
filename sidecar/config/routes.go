package config

import (
	"regexp"
	"slices"
	"strings"
)

var methodGrammar = regexp.MustCompile(`^[A-Z]{1,20}$`)

func (s section) route() Route {
	match := s.sub("match")
	r := Route{
		Name: s.name(), Methods: match.methods(), Path: match.text("path", ""), Pass: s.boolean("pass", false),
		Guard: s.guardName(), Overlaps: s.texts("overlaps"), Stream: s.boolean("stream", false),
		Mode: choice(s, "mode", ModeEnforce, []Mode{ModeEnforce, ModeShadow, ModeOff}, nil),
	}
	if match.has("path") {
		match.template(r.Path)
	}
	switch {
	case r.Pass && s.has("guard"):
		s.fault("pass", "a route is guarded or passed, not both")
	case r.Pass:
		for _, key := range []string{"key", "admit", "mode", "stream", "on_fenced"} {
			if s.has(key) {
				s.fault(key, "means nothing on a passed route; remove it")
			}
		}
	case !s.has("guard"):
		if pass := s.n.get("pass"); pass == nil || pass.text == "false" { // any other pass is noted already
			s.fault("guard", "missing: name a guard, or write pass: true")
		}
	default:
		r.Admit = choice(s, "admit", "", []Admit{AdmitNewer, AdmitNewerOrSame}, nil)
		if !s.has("admit") {
			s.fault("admit", "missing: newer (each token once) or newer_or_same")
		}
		if !s.has("key") {
			s.fault("key", "missing: where the key comes from, such as key: { path: payout_id }")
			break
		}
		r.Key = s.sub("key").routeKey(r)
		if s.has("on_fenced") {
			r.OnFenced = s.sub("on_fenced").statement(r)
		}
		if r.Stream && r.Key.FromBody() {
			s.fault("stream", "the key comes from the body, which isn't there yet when a streamed request is admitted")
		}
	}
	return r
}

// FromBody says whether the key, or a parameter of its lookup, is read from the request's body.
func (k Key) FromBody() bool {
	if k.Lookup != nil {
		for _, param := range k.Lookup.Params {
			if param.FromBody() {
				return true
			}
		}
	}
	return k.JSON != ""
}

// guardName is the route's one guard: a request that touches two keys would need both marks raised as one.
func (s section) guardName() string {
	if v := s.n.get("guard"); v != nil && v.kind == listNode {
		s.fault("guard", "two guards on one route aren't possible: a request has one key; split the route")
		return ""
	}
	return s.text("guard", "")
}

func (s section) methods() []string {
	if !s.has("methods") {
		s.fault("methods", "missing: which methods, such as [POST]")
		return nil
	}
	before := len(s.faults.list)
	methods := s.texts("methods")
	if len(methods) == 0 && len(s.faults.list) == before {
		s.fault("methods", "the list is empty: which methods, such as [POST]")
	}
	for i, method := range methods {
		switch {
		case !methodGrammar.MatchString(method) || method == "CONNECT" || method == "TRACE":
			s.fault("methods", "want methods in upper case, and neither CONNECT nor TRACE")
		case slices.Contains(methods[:i], method):
			s.fault("methods", "a method stands twice")
		}
	}
	return methods
}

func (s section) template(text string) {
	if _, err := ParseTemplate(text); err != nil {
		s.fault("path", err.Error())
	}
	if first, _, _ := strings.Cut(strings.TrimPrefix(text, "/"), "/"); strings.EqualFold(first, ".fence") {
		s.fault("path", "paths below /.fence/ are the sidecar's own")
	}
}

// routeKey reads where the key comes from.
func (s section) routeKey(r Route) Key {
	if !s.has("lookup") {
		return s.source(r)
	}
	if s.has(s.given("path", "header", "query", "json")) {
		s.fault("lookup", "a key has one source; put the others into the lookup's params")
	}
	lookup := s.sub("lookup").lookup(r)
	return Key{Lookup: &lookup}
}

// source reads a key's one source other than a lookup.
func (s section) source(r Route) Key {
	var k Key
	given := 0
	for _, from := range []struct {
		name string
		into *string
	}{{"path", &k.Path}, {"header", &k.Header}, {"query", &k.Query}, {"json", &k.JSON}} {
		if s.has(from.name) {
			given++
			*from.into = s.required(from.name)
		}
	}
	if given != 1 && s.n != nil {
		s.faults.add(s.position(), s.path, "want exactly one of path, header, query, json or lookup")
	}
	if t, err := ParseTemplate(r.Path); k.Path != "" && (r.Path == "" || err == nil && !slices.Contains(t.Params(), k.Path)) {
		s.fault("path", "the route's path has no parameter {"+k.Path+"}")
	}
	if k.Header != "" {
		k.Header = s.headerName("header", k.Header)
	}
	if k.JSON != "" && !pointerGrammar.MatchString(k.JSON) {
		s.fault("json", "want a JSON pointer that leads through objects by their members' names, such as /payoutId")
	}
	return k
}

// pointerGrammar: RFC 6901, with at least one name and none that is empty.
var pointerGrammar = regexp.MustCompile(`^(/([^/~]|~[01])+){1,16}$`)
