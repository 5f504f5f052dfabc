package config

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// withRoutes is the minimal configuration with other routes.
func withRoutes(routes string) string {
	before, _, _ := strings.Cut(minimal, "routes:")
	return before + "routes:\n" + routes
}

// route is one line of YAML; rule is "pass" or how to admit under the account guard.
func route(name, methods, path, rule, more string) string {
	match := "methods: [" + methods + "]"
	if path != "" {
		match += `, path: "` + path + `"`
	}
	decides := "pass: true"
	if rule != "pass" {
		decides = "guard: account, admit: " + rule + ", key: { header: X-Account }"
	}
	return "  - { name: " + name + ", match: { " + match + " }, " + decides + more + " }\n"
}

func TestRoutesThatCouldDecideDifferentlyAreOrderedExplicitly(t *testing.T) {
	t.Parallel()
	guarded := route("claim", "POST", "/v1/{id}/claim", "newer", "")
	for name, c := range map[string]struct{ routes, says string }{
		"reads behind guarded writes":    {guarded + route("reads", "GET, HEAD", "", "pass", ""), ""},
		"other paths":                    {guarded + route("post", "POST", "/v1/{id}/post", "newer_or_same", ""), ""},
		"other length":                   {guarded + route("create", "POST", "/v1/payouts", "pass", ""), ""},
		"same decision":                  {guarded + route("more", "POST, PUT", "/v1/{id}/{verb}", "newer", ""), ""},
		"other decision":                 {guarded + route("more", "POST, PUT", "/v1/{id}/{verb}", "newer_or_same", ""), "the earlier route claim takes some"},
		"other decision, said":           {guarded + route("more", "POST, PUT", "/v1/{id}/{verb}", "newer_or_same", ", overlaps: [claim]"), ""},
		"catch-all behind":               {guarded + route("rest", "GET, POST", "", "pass", ""), "overlaps: [claim]"},
		"catch-all behind, said":         {guarded + route("rest", "GET, POST", "", "pass", ", overlaps: [claim]"), ""},
		"crossing":                       {route("a", "POST", "/{x}/b", "pass", "") + route("b", "POST", "/a/{y}", "newer", ""), "the earlier route a takes some"},
		"other mode":                     {guarded + route("more", "POST, PUT", "/v1/{id}/claim", "newer", ", mode: off"), "the earlier route claim takes some"},
		"never reached":                  {route("rest", "POST, GET", "", "pass", "") + guarded, "never reached: the earlier route rest takes all"},
		"never reached, said in vain":    {route("rest", "POST", "/v1/{a}/{b}", "pass", "") + strings.Replace(guarded, " }\n", ", overlaps: [rest] }\n", 1), "never reached"},
		"never reached, same decision":   {guarded + route("again", "POST", "/v1/{id}/claim", "newer", ""), "never reached"},
		"overlaps a route that it can't": {guarded + route("reads", "GET", "", "pass", ", overlaps: [claim]"), "no earlier route claim takes any"},
		"overlaps a later route":         {strings.Replace(guarded, " }\n", ", overlaps: [reads] }\n", 1) + route("reads", "GET", "", "pass", ""), "no earlier route reads"},
		"two of one name":                {guarded + route("claim", "GET", "", "pass", ""), "another route has this name"},
		"no route":                       {"  []\n", "without a route everything is rejected"},
		"unknown guard":                  {strings.Replace(guarded, "guard: account", "guard: acount", 1), "there is no guard of this name"},
		"guard that nobody uses":         {route("reads", "GET", "", "pass", ""), "no route uses this guard"},
		"key on a passed route":          {guarded + route("reads", "GET", "", "pass", ", key: { header: X-A }"), "means nothing on a passed route"},
		"not a mapping":                  {"  - claim\n", "want a mapping"},
	} {
		_, err := load(withRoutes(c.routes))
		if c.says == "" {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorContains(t, err, c.says, name)
	}
}

func TestTemplatesMatchWholeSegmentsByteForByte(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		template, path string
		want           map[string]string // nil: no match
	}{
		{"/a/{id}/b", "/a/7/b", map[string]string{"id": "7"}},
		{"/a/{id}/{x}", "/a/7/%C3%A9", map[string]string{"id": "7", "x": "%C3%A9"}},
		{"/a:b/{id}", "/a:b/c:d", map[string]string{"id": "c:d"}},
		{"/", "/", map[string]string{}},
		{"/a", "/a", map[string]string{}},
		{"/a", "/a/", nil},
		{"/a", "/A", nil},
		{"/a", "a", nil},
		{"/a", "/", nil},
		{"/a", "", nil},
		{"/", "/a", nil},
		{"/a/{id}", "/a/", nil},
		{"/a/{id}", "/a", nil},
		{"/a/{id}", "/a/7/", nil},
		{"/a/{id}", "/a/7/8", nil},
		{"/{id}", "/", nil},
		{"/a/{id}/b", "/a//b", nil},
	} {
		template, err := ParseTemplate(c.template)
		require.NoError(t, err)
		params, ok := template.Match(c.path)
		require.Equal(t, c.want != nil, ok, "%s %s", c.template, c.path)
		require.Len(t, params, len(c.want))
		for name, value := range c.want {
			require.Equal(t, value, params[name])
		}
	}
}

func TestBadTemplatesAreRefused(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "a", "//", "/a//b", "/a/", "/a/../b", "/.", "/a b", "/a%20b", "/{id}{x}", "/a{id}", "/{}", "/{1}", "/{id}/{id}", "/a;b", "/a?b", "/a#b", "/é", "/{id"} {
		_, err := ParseTemplate(text)
		require.Error(t, err, text)
	}
	for _, path := range []string{"/.fence", "/.fence/barrier", "/.FENCE/x"} {
		_, err := load(withRoutes(route("r", "POST", path, "newer", "")))
		require.ErrorContains(t, err, "the sidecar's own", path)
	}
}

// If one template covers another, whatever the other matches the one matches; if they don't overlap, nothing matches both.
func TestCoverAndOverlapAgreeWithMatching(t *testing.T) {
	t.Parallel()
	segment := rapid.SampledFrom([]string{"a", "b", "{x}", "{y}"})
	draw := func(t *rapid.T, label string) Template {
		parts := rapid.SliceOfN(segment, 1, 3).Draw(t, label)
		for i, p := range parts {
			if p[0] == '{' {
				parts[i] = "{p" + itoa(i) + "}"
			}
		}
		template, err := ParseTemplate("/" + strings.Join(parts, "/"))
		if err != nil {
			t.Fatal(err)
		}
		return template
	}
	rapid.Check(t, func(t *rapid.T) {
		one, other := draw(t, "one"), draw(t, "other")
		path := "/" + strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c"}), 1, 3).Draw(t, "path"), "/")
		_, matchesOne := one.Match(path)
		_, matchesOther := other.Match(path)
		switch {
		case one.covers(other) && matchesOther && !matchesOne:
			t.Fatalf("covers, and %s matches the other only", path)
		case matchesOne && matchesOther && !one.overlaps(other):
			t.Fatalf("no overlap, and %s matches both", path)
		case matchesOne && !one.Resembles(path):
			t.Fatalf("%s matches without resembling", path)
		}
	})
}

func withLookup(lookup string) string {
	return strings.Replace(minimal, "key: { path: account_id }", "key: { lookup: { "+lookup+" } }", 1)
}

func TestLookupParametersComeFromSomewhere(t *testing.T) {
	t.Parallel()
	for lookup, says := range map[string]string{
		`sql: "SELECT a FROM t WHERE b = @account_id"`:                                                  "",
		`sql: "select\n a FROM t WHERE b=@account_id::uuid AND c = @c", params: { c: { header: X-C } }`: "",
		`sql: "SELECT a FROM t WHERE b = @id", params: { id: { path: account_id } }`:                    "",
		`sql: "SELECT a FROM t WHERE b = @Id", params: { Id: { json: /x } }, cache: immutable`:          "",
		`sql: "SELECT a FROM t WHERE b = @payout_id"`:                                                   "nothing gives @payout_id",
		`sql: "SELECT a FROM t WHERE b = @account_idX"`:                                                 "nothing gives @account_idX",
		`sql: "SELECT a FROM t WHERE b = @account_id", params: { c: { header: X-C } }`:                  "the query doesn't use @c",
		`sql: "SELECT a FROM t WHERE b = @c AND d = @account_id", params: { c: {} }`:                    "exactly one of",
		`sql: "SELECT a FROM t WHERE b = @c AND d = @account_id", params: { c: { path: nope } }`:        "no parameter {nope}",
		`sql: "SELECT a FROM t WHERE b = @c", params: { c: { lookup: { sql: x } } }`:                    "unknown key",
		`sql: "SELECT a FROM t"`:                                     "no parameter",
		`sql: "DELETE FROM t WHERE b = @account_id"`:                 "want one SELECT",
		`sql: "SELECTa FROM t WHERE b = @account_id"`:                "want one SELECT",
		`sql: "SELECT a FROM t WHERE b = @account_id; DROP TABLE t"`: "; isn't allowed",
		`sql: "SELECT a FROM t WHERE b = '@account_id'"`:             "' isn't allowed",
		`sql: 'SELECT "a" FROM t WHERE b = @account_id'`:             `" isn't allowed`,
		`sql: "SELECT a FROM t -- @account_id"`:                      "-- isn't allowed",
		`sql: "SELECT a FROM t /* @account_id */"`:                   "/* isn't allowed",
		`sql: "SELECT $$@account_id$$"`:                              "$ isn't allowed",
		`sql: "SELECT a FROM t WHERE b = $1"`:                        "$ isn't allowed",
		`sql: "SELECT a FROM t WHERE b @> @account_id"`:              "operators with @",
		`sql: "SELECT a FROM t WHERE b = @ account_id"`:              "operators with @",
		`sql: "SELECT a FROM t WHERE b <@account_id"`:                "needs a space before it",
		`sql: "SELECT a FROM t WHERE b @@account_id"`:                "operators with @",
		`sql: "SELECT a FROM t WHERE b@account_id"`:                  "needs a space before it",
		`sql: "SELECT a FROM t WHERE é = @account_id"`:               "only ASCII",
		`sql: ""`:     "must not be empty",
		`cache: none`: "missing",
		`sql: "SELECT a FROM t WHERE b = @account_id", cache: ever`: "want one of none, immutable",
	} {
		_, err := load(withLookup(lookup))
		if says == "" {
			require.NoError(t, err, lookup)
			continue
		}
		require.ErrorContains(t, err, says, lookup)
	}
	_, err := load(strings.Replace(withLookup(`sql: "SELECT a FROM t WHERE b = @account_id"`), "key: {", "key: { path: account_id,", 1))
	require.ErrorContains(t, err, "one source")
}

func TestLookupIsRewrittenInAFixedOrder(t *testing.T) {
	t.Parallel()
	l := Lookup{SQL: "SELECT a FROM t WHERE b = @b::uuid AND c=@c AND d IN (@b, @d)"}
	require.NoError(t, checkSQL(l.SQL))
	require.Equal(t, []string{"b", "c", "d"}, l.ParamNames())
	require.Equal(t, "SELECT a FROM t WHERE b = $1::uuid AND c=$2 AND d IN ($1, $3)", l.Positional())
}

func TestStatementsOnFencedAreOneThingWithKnownParameters(t *testing.T) {
	t.Parallel()
	with := func(text string) string {
		return strings.Replace(minimal, "    admit: newer\n", "    admit: newer\n    on_fenced: { "+text+" }\n", 1)
	}
	for text, says := range map[string]string{
		`sql: "INSERT INTO r (a, t, h, k, o, x) VALUES (@account_id::uuid, @token, @highest, @key, @owner, 'FENCED')"`: "",
		`sql: "UPDATE r SET n = @note", params: { note: { header: X-Note } }`:                                          "",
		`sql: "SELECT note_refusal(@key, @token)"`:                                                                     "",
		`sql: "INSERT INTO r (a) VALUES (1)"`:                                                                          "", // no parameter is needed
		`sql: "DELETE FROM r WHERE a = @key"`:                                                                          "want one INSERT or UPDATE",
		`sql: "INSERT INTO r (a) VALUES (@nobody)"`:                                                                    "nothing gives @nobody",
		`sql: "INSERT INTO r (a) VALUES (@key); DROP TABLE r"`:                                                         "; isn't allowed",
		`sql: "INSERT INTO r (a) VALUES ('@key')"`:                                                                     "' isn't allowed",
		`sql: "INSERT INTO r (a) VALUES ('it''s')"`:                                                                    "",
		`sql: "INSERT INTO r (a) VALUES (@key) -- note"`:                                                               "-- isn't allowed",
		`sql: "INSERT INTO r (a) VALUES (@key)", params: { note: { header: X-Note } }`:                                 "doesn't use @note",
		`sql: "INSERT INTO r (a) VALUES (@token)", params: { token: { header: X-Note } }`:                              "is given already",
		`params: { note: { header: X-Note } }`:                                                                         "missing",
	} {
		_, err := load(with(text))
		if says == "" {
			require.NoError(t, err, text)
			continue
		}
		require.ErrorContains(t, err, says, text)
	}
	cfg, err := load(with(`sql: "INSERT INTO r VALUES (@token, @account_id, @token, 'A B')"`))
	require.NoError(t, err)
	require.Equal(t, "INSERT INTO r VALUES ($1, $2, $1, 'A B')", cfg.Routes[0].OnFenced.Positional())
	require.Equal(t, map[string]Key{"account_id": {Path: "account_id"}}, cfg.Routes[0].OnFenced.Params)
}

func TestWhatProtectsNothingIsSaid(t *testing.T) {
	t.Parallel()
	cfg, err := load(strings.Replace(minimal, "guard: account", "guard: account\n    mode: shadow", 1))
	require.NoError(t, err)
	require.Len(t, cfg.Warnings(), 1)
	require.Contains(t, cfg.Warnings()[0], "route claim is in shadow")
	cfg, err = load(strings.Replace(minimal, "order: admissions", "order: admissions\n    advance: resource", 1))
	require.NoError(t, err)
	require.Contains(t, cfg.Warnings()[0], "the order is kept by the resource, or by nobody")
	_, err = load(strings.NewReplacer("order: admissions", "order: admissions\n    advance: resource", "{ table: account, key: account_id, key_type: uuid, token: fence }", "{ key_type: uuid }").Replace(minimal))
	require.ErrorContains(t, err, "nobody but the sidecar raises its own marks")
}
