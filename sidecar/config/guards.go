package config

import (
	"regexp"
	"slices"
	"strings"
)

var nameGrammar = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,63}$`)

// name is a short name that appears in metrics and logs.
func (s section) name() string {
	text := s.required("name")
	if text != "" && !nameGrammar.MatchString(text) {
		s.fault("name", "want lower-case letters, digits, _ and -, at most 64")
	}
	return text
}

func (s section) guard() Guard {
	g := Guard{Name: s.name(), LockKey: s.text("lock_key", defaultLockKey), Mark: s.sub("mark").mark()}
	if strings.ContainsAny(strings.ReplaceAll(g.LockKey, "{key}", ""), "{}") || g.LockKey == "" {
		s.fault("lock_key", "want a text in which {key} is the only placeholder, such as payout:{key}")
	}
	if !s.has("mark") {
		s.faults.add(s.position(), s.key("mark"), "missing: mark: { key_type: text } for the sidecar's own marks, or table, key, key_type and token for a column of yours")
	}
	g.Advance = choice(s, "advance", AdvanceSidecar, []Advance{AdvanceSidecar, AdvanceResource}, nil)
	s.order(&g)
	if g.Advance == AdvanceResource && s.has("mark") && g.Mark.Own() {
		s.fault("advance", "nobody but the sidecar raises its own marks; name the resource's table, or write advance: sidecar")
	}
	return g
}

var identifierGrammar = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_$]{0,62}$`)

func notIdentifier(text string) bool { return !identifierGrammar.MatchString(text) }

// ownTable is another way of writing that the marks are the sidecar's own.
const ownTable = "fence.mark"

func (s section) mark() Mark {
	if s.n == nil {
		return Mark{}
	}
	m := Mark{KeyType: choice(s, "key_type", "", []KeyType{KeyUUID, KeyInt, KeyText}, nil)}
	if !s.has("key_type") {
		s.fault("key_type", "missing: uuid, int or text")
	}
	otherwise := MissingReject
	if table := s.text("table", ownTable); table == ownTable {
		// The first request of a key can't find a mark where nobody but the sidecar makes any.
		otherwise = MissingInsert
		for _, name := range []string{"key", "token", "updated_at"} {
			if s.has(name) {
				s.fault(name, "means nothing for the sidecar's own marks; remove it, or name your table")
			}
		}
	} else {
		s.columns(&m, table)
	}
	m.Missing = choice(s, "missing", otherwise, []Missing{MissingReject, MissingInsert}, nil)
	return m
}

// columns reads where in a table of the resource the marks are.
func (s section) columns(m *Mark, table string) {
	m.Key, m.Token = s.required("key"), s.required("token")
	if s.has("updated_at") {
		m.UpdatedAt = s.required("updated_at")
	}
	m.Table = strings.Split(table, ".")
	if len(m.Table) > 2 || slices.ContainsFunc(m.Table, notIdentifier) {
		s.fault("table", "want a table's name, such as account or public.account")
	}
	columns := map[string]string{}
	for _, name := range []string{"key", "token", "updated_at"} {
		column := map[string]string{"key": m.Key, "token": m.Token, "updated_at": m.UpdatedAt}[name]
		switch {
		case column == "":
		case notIdentifier(column):
			s.fault(name, "want a column's name, such as account_id")
		case columns[column] != "":
			s.fault(name, "this column is the "+columns[column]+" already")
		}
		columns[column] = name
	}
}
