package config

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// environment is a lookup in a fixed set of variables.
func environment(pairs ...string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1], true
			}
		}
		return "", false
	}
}

// minimal is a whole configuration with as few keys as possible.
const minimal = `version: 1
id: s1
upstream:
  url: http://127.0.0.1:8080
store:
  postgres:
    url: postgres://u:hunter2@127.0.0.1/paydb
guards:
  - name: account
    order: admissions
    mark: { table: account, key: account_id, key_type: uuid, token: fence }
routes:
  - name: claim
    match: { methods: [POST], path: "/v1/accounts/{account_id}" }
    guard: account
    admit: newer
    key: { path: account_id }
`

func load(text string, env ...string) (*Config, error) {
	return Load([]byte(text), "sidecar.yaml", environment(env...))
}

// faultsOf loads a text that is wrong.
func faultsOf(t *testing.T, text string, env ...string) []Fault {
	t.Helper()
	cfg, err := load(text, env...)
	require.Nil(t, cfg)
	var faults *Faults
	require.ErrorAs(t, err, &faults)
	return faults.List()
}

// oneFault replaces a part of the minimal configuration, and wants exactly one fault, at that key.
func oneFault(t *testing.T, old, replacement, key string) Fault {
	t.Helper()
	require.Contains(t, minimal, old)
	faults := faultsOf(t, strings.Replace(minimal, old, replacement, 1))
	require.Len(t, faults, 1, "%s\n%v", replacement, faults)
	require.Equal(t, key, faults[0].Key, faults[0].Error())
	return faults[0]
}

func TestEveryDefaultIsFilledIn(t *testing.T) {
	t.Parallel()
	cfg, err := load(minimal)
	require.NoError(t, err)
	require.Equal(t, &Config{
		ID: "s1", Listen: "127.0.0.1:8081", Admin: Admin{Listen: "127.0.0.1:9081"},
		Upstream: Upstream{URL: &url.URL{Scheme: "http", Host: "127.0.0.1:8080"}, ConnectTimeout: time.Second, ResponseTimeout: 10 * time.Second, IdleTimeout: time.Minute, Readiness: ReadinessNone},
		Store: Store{Postgres: Postgres{
			URL: "postgres://u:hunter2@127.0.0.1/paydb", ListenURL: "postgres://u:hunter2@127.0.0.1/paydb", MaxConns: 8, Timeout: 500 * time.Millisecond, QueryMode: "cache_describe",
		}},
		Token: Token{Header: "X-Fencing-Token", OwnerHeader: "X-Owner-Id", MaxJump: 1_000_000_000_000},
		Guards: []Guard{{
			Name: "account", LockKey: "{key}", Order: OrderAdmissions, Advance: AdvanceSidecar, Effects: Effects{Ownership: OwnershipShared},
			Mark: Mark{Table: []string{"account"}, Key: "account_id", KeyType: KeyUUID, Token: "fence", Missing: MissingReject},
		}},
		Routes: []Route{{
			Name: "claim", Methods: []string{"POST"}, Path: "/v1/accounts/{account_id}", Guard: "account", Admit: AdmitNewer,
			Key: Key{Path: "account_id"}, Mode: ModeEnforce,
		}},
		Unmatched: UnmatchedReject,
		Limits:    Limits{Body: 1 << 20, Response: 16 << 20, Head: 16 << 10, Connections: 4096, InFlight: 512, Wait: 5 * time.Second},
		Shutdown:  Shutdown{Delay: 2 * time.Second, Grace: 25 * time.Second},

		RejectionsKept: 720 * time.Hour,
	}, cfg)
	require.Empty(t, cfg.Warnings())
}

func TestEveryFaultIsNamedAtOnceWithItsPlace(t *testing.T) {
	t.Parallel()
	faults := faultsOf(t, `version: 2
listne: 127.0.0.1:1
upstream:
  url: http://127.0.0.1:8080
  connect_timeout: 1
store:
  postgres: { url: "${PAYDB_URL}", max_conns: "8" }
guards:
  - naem: account
    order: admissions
    mark: { table: account, key: account_id, key_type: uid, token: fence }
routes:
  - name: reads
    match: { methods: get }
    pass: yes
`)
	var got []string
	for _, f := range faults {
		got = append(got, f.Error())
	}
	require.Equal(t, []string{
		"sidecar.yaml:1:10: version: want version: 1",
		"sidecar.yaml:2:1: listne: unknown key; did you mean listen?",
		"sidecar.yaml:5:20: upstream.connect_timeout: want a time such as 500ms, 10s or 1m",
		"sidecar.yaml:7:20: store.postgres.url: the environment variable PAYDB_URL isn't set, or empty",
		"sidecar.yaml:7:47: store.postgres.max_conns: want a whole number",
		"sidecar.yaml:9:5: guards[0].naem: unknown key; did you mean name?",
		"sidecar.yaml:9:5: guards[0].name: missing",
		"sidecar.yaml:11:56: guards[0].mark.key_type: want one of uuid, int, text",
		"sidecar.yaml:14:23: routes[0].match.methods: want a list, not a single value",
		"sidecar.yaml:15:11: routes[0].pass: want true or false",
	}, got)
}

func TestWrongTypesAndValuesAreRefused(t *testing.T) {
	t.Parallel()
	const postgres = "    url: postgres://u:hunter2@127.0.0.1/paydb\n"
	for _, c := range []struct{ old, replacement, key, says string }{
		{"version: 1", "version: \"1\"", "version", "want version: 1"},
		{"version: 1", "version: 01", "version", "want version: 1"},
		{"version: 1", "vresion: 1\nversion: 1", "vresion", "did you mean version?"},
		{"id: s1", "id: 010", "id", "in quotes"},
		{"id: s1", "id: yes", "id", "in quotes"},
		{"id: s1", "id: [a]", "id", "want a single value, not a list"},
		{"id: s1", "id: {a: b}", "id", "want a single value, not a mapping"},
		{"id: s1", "id: \"a b\"", "id", "letters, digits"},
		{"id: s1", "id:", "id", "not nothing"},
		{"id: s1", "listen: 127.0.0.1", "listen", "host:port"},
		{"id: s1", "listen: 127.0.0.1:70000", "listen", "host:port"},
		{"id: s1", "listen: 127.0.0.1:http", "listen", "host:port"},
		{"order: admissions", "order: admissions\n    ownership: exclusive", "guards[0].ownership", "only with order: effects"},
		{"order: admissions", "order: effects\n    ownership: exclusive\n    unsettled: { then: hold }", "guards[0].ownership", "exclusive can't hold"},
		{"id: s1", "admin: { listen: \":9081\" }", "admin.listen", "others can reach this address"},
		{"id: s1", "admin: { listen: 10.0.0.1:9081 }", "admin.listen", "or give token_file"},
		{"id: s1", "tracing: { endpoint: 127.0.0.1:4318 }", "tracing.endpoint", "want http://host:port"},
		{"id: s1", "tracing: { endpoint: \"http://u:hunter2@h:4318\" }", "tracing.endpoint", "want http://host:port"},
		{"id: s1", "listen: 127.0.0.1:9081", "admin.listen", "an address of its own"},
		{"id: s1", "unmatched: maybe", "unmatched", "want one of reject, pass"},
		{"id: s1", "limits: { body: 1MB }", "limits.body", "a size such as"},
		{"id: s1", "limits: { body: 010 }", "limits.body", "a size such as"},
		{"id: s1", "limits: { body: 0 }", "limits.body", "a size such as"},
		{"id: s1", "limits: { body: 1GiB }", "limits.body", "want 1 to 268435456 bytes"},
		{"id: s1", "limits: { body: 1.5MiB }", "limits.body", "a size such as"},
		{"id: s1", "limits: { head: 9999999999GiB }", "limits.head", "bytes"},
		{"id: s1", "limits: { connections: 0 }", "limits.connections", "want 1 to"},
		{"id: s1", "limits: { in_flight: 1_000 }", "limits.in_flight", "whole number"},
		{"id: s1", "limits: { in_flight: 0x10 }", "limits.in_flight", "whole number"},
		{"id: s1", "limits: { in_flight: 1.0 }", "limits.in_flight", "whole number"},
		{"id: s1", "limits: { in_flight: 1e2 }", "limits.in_flight", "whole number"},
		{"id: s1", "limits: { in_flight: 99999999999999999999 }", "limits.in_flight", "whole number"},
		{"id: s1", "limits: { wait: 5 }", "limits.wait", "a time such as"},
		{"id: s1", "limits: { wait: -5s }", "limits.wait", "want 1ms to"},
		{"id: s1", "limits: [1]", "limits", "want a mapping, not a list"},
		{"id: s1", "token: { max_jump: 0 }", "token.max_jump", "want 1 to"},
		{"id: s1", "token: { max_jump: -1 }", "token.max_jump", "whole number"},
		{"id: s1", "token: { header: \"X Token\" }", "token.header", "header name"},
		{"id: s1", "token: { header: X_Token }", "token.header", "header name"},
		{"id: s1", "token: { header: Host }", "token.header", "doesn't reach"},
		{"id: s1", "token: { header: X-Owner-Id }", "token.owner_header", "a header each"},
		{"id: s1", "headers: { allow: [\"a b\"] }", "headers.allow", "names of headers"},
		{"url: http://127.0.0.1:8080", "url: http://10.0.0.1:8080", "upstream.url", "allow_remote: true"},
		{"url: http://127.0.0.1:8080", "url: http://example.com", "upstream.url", "allow_remote: true"},
		{"url: http://127.0.0.1:8080", "url: http://127.0.0.1:8080/base", "upstream.url", "without a path"},
		{"url: http://127.0.0.1:8080", "url: 127.0.0.1:8080", "upstream.url", "http://host:port"},
		{"url: http://127.0.0.1:8080", "url: http://127.0.0.1:0", "upstream.url", "port from 1"},
		{"url: http://127.0.0.1:8080", "url: http://127.0.0.1:99999", "upstream.url", "port from 1"},
		{"url: http://127.0.0.1:8080", "url: \"\"", "upstream.url", "must not be empty"},
		{"  url: http://127.0.0.1:8080", "  connect_timeout: 1s", "upstream.url", "missing"},
		{"  postgres:\n" + postgres, "  {}\n", "store.postgres", "missing"},
		{postgres, "    timeout: 1s\n", "store.postgres.url", "missing; give it, best as ${VARIABLE}, or url_file"},
		{postgres, "    url: \"\"\n", "store.postgres.url", "must not be empty"},
		{postgres, "    url: ${PAYDB_URL}\n", "store.postgres.url", "PAYDB_URL isn't set"},
		{postgres, "    url: ${PAYDB_URL\n", "store.postgres.url", "want ${NAME}"},
		{postgres, "    url: mysql://u:hunter2@h/d\n", "store.postgres.url", "want postgres://"},
		{postgres, "    url: [hunter2]\n", "store.postgres.url", "want a single value"},
		{postgres, "    url_file: /does/not/exist\n", "store.postgres.url_file", "can't be read"},
		{postgres, postgres + "    url_file: /x\n", "store.postgres.url_file", "not both"},
		{postgres, postgres + "    max_conns: 0\n", "store.postgres.max_conns", "want 1 to 1000"},
		{postgres, postgres + "    query_mode: fast\n", "store.postgres.query_mode", "want one of"},
		{"name: account\n", "name: Account\n", "guards[0].name", "lower-case"},
		{"order: admissions", "order: none", "guards[0].order", "want one of effects, admissions"},
		{"order: admissions", "order: admissions\n    lock_key: \"payout:{id}\"", "guards[0].lock_key", "{key}"},
		{"table: account", "table: a.b.c", "guards[0].mark.table", "table's name"},
		{"table: account", "table: \"account.\"", "guards[0].mark.table", "table's name"},
		{"table: account", "table: \"account; DROP\"", "guards[0].mark.table", "table's name"},
		{"table: account", "table: \"\"", "guards[0].mark.table", "table's name"},
		{"table: account", "table: fence.mark", "guards[0].mark.key", "means nothing for the sidecar's own marks"},
		{"table: account, ", "", "guards[0].mark.token", "means nothing for the sidecar's own marks"},
		{"token: fence }", "token: fence, missing: maybe }", "guards[0].mark.missing", "want one of reject, insert"},
		{"    mark: { table: account, key: account_id, key_type: uuid, token: fence }\n", "", "guards[0].mark", "missing: mark: { key_type: text }"},
		{"token: fence", "token: account_id", "guards[0].mark.token", "this column is the key already"},
		{"token: fence", "token: fen-ce", "guards[0].mark.token", "column's name"},
		{"key_type: uuid, ", "", "guards[0].mark.key_type", "missing: uuid, int or text"},
		{"methods: [POST]", "methods: [post]", "routes[0].match.methods", "upper case"},
		{"methods: [POST]", "methods: [TRACE]", "routes[0].match.methods", "TRACE"},
		{"methods: [POST]", "methods: [POST, POST]", "routes[0].match.methods", "twice"},
		{"methods: [POST]", "methods: []", "routes[0].match.methods", "empty"},
		{"methods: [POST], ", "", "routes[0].match.methods", "missing"},
		{"admit: newer", "admit: always", "routes[0].admit", "want one of newer, newer_or_same"},
		{"    admit: newer\n", "", "routes[0].admit", "missing"},
		{"    key: { path: account_id }\n", "", "routes[0].key", "missing"},
		{"key: { path: account_id }", "key: {}", "routes[0].key", "exactly one of"},
		{"key: { path: account_id }", "key: { path: account_id, header: X-A }", "routes[0].key", "exactly one of"},
		{"key: { path: account_id }", "key: { path: payout_id }", "routes[0].key.path", "no parameter {payout_id}"},
		{"key: { path: account_id }", "key: { header: X-Forwarded-For }", "routes[0].key.header", "doesn't reach"},
		{"key: { path: account_id }", "key: { header: X-Fencing-Token }", "routes[0].key", "the token's header"},
		{"key: { path: account_id }", "key: { json: accountId }", "routes[0].key.json", "JSON pointer"},
		{"key: { path: account_id }", "key: { json: /a~2b }", "routes[0].key.json", "JSON pointer"},
		{"key: { path: account_id }", "key: { json: / }", "routes[0].key.json", "JSON pointer"},
		{"guard: account", "guard: [account, rail]", "routes[0].guard", "two guards on one route aren't possible"},
		{"    guard: account\n    admit: newer\n    key: { path: account_id }\n", "    pass: false\n", "routes[0].guard", "missing: name a guard"},
		{"guard: account", "guard: account\n    pass: true", "routes[0].pass", "not both"},
		{"guard: account", "guard: account\n    overlaps: [none]", "routes[0].overlaps", "no earlier route none"},
	} {
		require.Contains(t, minimal, c.old)
		faults := faultsOf(t, strings.Replace(minimal, c.old, c.replacement, 1))
		var found bool
		for _, f := range faults {
			found = found || f.Key == c.key && strings.Contains(f.Message, c.says)
			require.NotContains(t, f.Error(), "hunter2")
		}
		require.True(t, found, "%s: want %s: %s, got %v", c.replacement, c.key, c.says, errors.Join(errorsOf(faults)...))
	}
}

func errorsOf(faults []Fault) []error {
	out := make([]error, 0, len(faults))
	for _, f := range faults {
		out = append(out, f)
	}
	return out
}

// What isn't built is refused by name, and what would be right in this version is said.
func TestPartsThatAreNotBuiltAreRefusedByName(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ old, replacement, key, message string }{
		{"id: s1", "token: { grant_keys_file: /x }", "token.grant_keys_file", "unsupported in this version: token.grant_keys_file; remove the key"},
	} {
		fault := oneFault(t, c.old, c.replacement, c.key)
		require.Equal(t, c.message, fault.Message)
		require.True(t, fault.Unsupported)
		require.Equal(t, fmt.Sprintf("sidecar.yaml:%d:%d: %s", fault.Line, fault.Column, c.message), fault.Error(), "the key stands in it once")
	}
}

func TestYAMLThatReadersDisagreeAboutIsRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ text, says string }{
		"second document":    {minimal + "---\nversion: 1\n", "second document"},
		"anchor":             {strings.Replace(minimal, "id: s1", "id: &a s1", 1), "anchors"},
		"alias":              {"a: &x 1\nb: *x\n", "anchors"},
		"merge key":          {"version: 1\n<<: { id: s1 }\n", "plain text"},
		"tag":                {strings.Replace(minimal, "id: s1", "id: !!str s1", 1), "tags"},
		"duplicate key":      {minimal + "version: 1\n", "a second time"},
		"duplicate in flow":  {strings.Replace(minimal, "token: fence }", "token: fence, token: balance }", 1), "a second time"},
		"number as key":      {minimal + "1: a\n", "plain text"},
		"complex key":        {minimal + "? [a]\n: b\n", ""},
		"empty":              {"", "empty"},
		"only comments":      {"# nothing\n", "empty"},
		"a list":             {"- a\n", "want a mapping at the top"},
		"a text":             {"hunter2\n", "want a mapping at the top"},
		"not YAML":           {"version: [1\n", "not valid YAML"},
		"tab":                {"version:\n\t- 1\n", "not valid YAML"},
		"unclosed quote":     {"id: \"hunter2\n", "not valid YAML"},
		"bad tag of secret":  {"id: !hunter2 x\n", ""},
		"tag without value":  {"id: !!hunter2\n", ""},
		"directive":          {"%YAML hunter2\n---\nversion: 1\n", "not valid YAML"},
		"two values":         {"id: a: hunter2\n", "not valid YAML"},
		"reserved character": {"id: @hunter2\n", "not valid YAML"},
	} {
		faults := faultsOf(t, c.text)
		text := errors.Join(errorsOf(faults)...).Error()
		require.Contains(t, text, c.says, name)
		require.NotContains(t, text, "hunter2", name)
		require.NotZero(t, faults[0].Line, name)
	}
}

func TestVariablesFillValuesAndNothingElse(t *testing.T) {
	t.Parallel()
	text := strings.NewReplacer(
		"id: s1", "id: ${ID:-fallback}",
		"url: http://127.0.0.1:8080", "url: \"http://${HOST}:${PORT:-8080}\"",
		"url: postgres://u:hunter2@127.0.0.1/paydb", "url: ${PAYDB_URL}\n    max_conns: ${CONNS}",
	).Replace(minimal)
	cfg, err := load(text, "ID", "", "HOST", "127.0.0.1", "PAYDB_URL", "postgres://h/d?x=${ID}", "CONNS", "9")
	require.NoError(t, err)
	require.Equal(t, "fallback", cfg.ID)
	require.Equal(t, "127.0.0.1:8080", cfg.Upstream.URL.Host)
	require.Equal(t, "postgres://h/d?x=${ID}", cfg.Store.Postgres.URL.Reveal(), "what a variable brings in isn't expanded again")
	require.EqualValues(t, 9, cfg.Store.Postgres.MaxConns)

	_, err = load(strings.Replace(minimal, "id: s1", "id: ${ID}", 1), "ID", "s1\nlimits: { body: 1 }")
	require.ErrorContains(t, err, "id: want letters", "a variable can't add keys")
	_, err = load(strings.Replace(minimal, "id: s1", "${KEY}: s1", 1), "KEY", "id")
	require.ErrorContains(t, err, "unknown key", "keys aren't expanded")
	for _, empty := range [][]string{nil, {"PAYDB_URL", ""}} {
		_, err = load(strings.Replace(minimal, "url: postgres://u:hunter2@127.0.0.1/paydb", "url: ${PAYDB_URL}", 1), empty...)
		require.ErrorContains(t, err, "sidecar.yaml:7:10: store.postgres.url: the environment variable PAYDB_URL isn't set, or empty")
	}
}

func TestSecretComesFromAFile(t *testing.T) {
	t.Parallel()
	write := func(text string) string {
		path := filepath.Join(t.TempDir(), "url")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return strings.Replace(minimal, "url: postgres://u:hunter2@127.0.0.1/paydb", "url_file: "+path, 1)
	}
	for _, end := range []string{"", "\n", "\r\n"} {
		cfg, err := load(write("postgres://u:hunter2@h/d" + end))
		require.NoError(t, err)
		require.Equal(t, "postgres://u:hunter2@h/d", cfg.Store.Postgres.URL.Reveal())
	}
	for text, says := range map[string]string{
		"": "the file is empty", "\n": "the file is empty", "hunter2": "want postgres://", "postgres://u:hunter2@h/d\n\n": "want postgres://",
		strings.Repeat("x", 70<<10): "too long",
	} {
		_, err := load(write(text))
		require.ErrorContains(t, err, says)
		require.ErrorContains(t, err, "store.postgres.url_file")
		require.NotContains(t, err.Error(), "hunter2")
	}
}

func TestSecretIsNeverPrinted(t *testing.T) {
	t.Parallel()
	cfg, err := load(minimal)
	require.NoError(t, err)
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		require.NotContains(t, fmt.Sprintf(format, *cfg), "hunter2", format)
	}
}

func TestWarningsNameWhatIsNotProtected(t *testing.T) {
	t.Parallel()
	cfg, err := load(strings.NewReplacer(
		"id: s1\n", "unmatched: pass\nadmin: { listen: \":9081\", token_file: /admin }\n", "url: http://127.0.0.1:8080", "url: http://10.0.0.1:8080\n  allow_remote: true", "guard: account", "guard: account\n    mode: off",
	).Replace(minimal))
	require.NoError(t, err)
	require.True(t, cfg.IDDefault)
	require.Len(t, cfg.Warnings(), 5)
	all := strings.Join(cfg.Warnings(), "\n")
	for _, want := range []string{"host name", "mode off", "unmatched is pass", "allow_remote", "admin.listen"} {
		require.Contains(t, all, want)
	}

	cfg, err = load("version: 1\nid: s1\nupstream: { url: \"http://localhost\" }\nstore: { postgres: { url: \"postgres://h/d\" } }\nroutes: [{ name: all, match: { methods: [GET] }, pass: true }]\n")
	require.NoError(t, err)
	require.Equal(t, "localhost:80", cfg.Upstream.URL.Host)
	require.Contains(t, cfg.Warnings()[0], "no guard")
}

func TestMissingFileIsNamed(t *testing.T) {
	t.Parallel()
	_, err := LoadFile(filepath.Join(t.TempDir(), "none.yaml"))
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "none.yaml")

	long := filepath.Join(t.TempDir(), "long.yaml")
	require.NoError(t, os.WriteFile(long, []byte(strings.Repeat("#", maxFile+1)), 0o600))
	_, err = LoadFile(long)
	require.ErrorContains(t, err, "longer than")
}

func FuzzAnyTextLoadsOrHasFaultsWithPlaces(f *testing.F) {
	f.Add([]byte(minimal))
	f.Add([]byte("a: &x [*x]\n? b\n: !!c d\n--- \n<<: *x"))
	f.Add([]byte("routes: [{}, [], a, {match: {methods: [null]}, key: {lookup: {params: {a: {}}}}}]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		cfg, err := Load(data, "f", environment())
		var faults *Faults
		switch {
		case err == nil && cfg == nil, err != nil && cfg != nil:
			t.Fatal("want a configuration or faults")
		case err != nil && (!errors.As(err, &faults) || len(faults.List()) == 0):
			t.Fatalf("%T", err)
		}
	})
}

func TestTLSIsWholeOrNotThere(t *testing.T) {
	t.Parallel()
	cfg, err := load(strings.Replace(minimal, "url: http://127.0.0.1:8080", "url: https://localhost\n  tls: { ca_file: /ca, certificate_file: /c, key_file: /k }", 1) +
		"listen_tls: { certificate_file: /lc, key_file: /lk, client_ca_file: /lca }\n")
	require.NoError(t, err)
	require.Equal(t, "localhost:443", cfg.Upstream.URL.Host)
	require.Equal(t, UpstreamTLS{CAFile: "/ca", CertificateFile: "/c", KeyFile: "/k", ServerName: "localhost"}, cfg.Upstream.TLS)
	require.Equal(t, ListenTLS{CertificateFile: "/lc", KeyFile: "/lk", ClientCAFile: "/lca"}, cfg.ListenTLS)
	require.Subset(t, cfg.SecretFiles, []string{"/ca", "/c", "/k", "/lc", "/lk", "/lca"}, "a change of any of them is followed")
	_ = oneFault(t, "url: http://127.0.0.1:8080", "url: http://127.0.0.1:8080\n  tls: { ca_file: /x }", "upstream.tls")
	_ = oneFault(t, "url: http://127.0.0.1:8080", "url: https://127.0.0.1:8080\n  tls: { key_file: /x }", "upstream.tls.key_file")
	_ = oneFault(t, "id: s1", "id: s1\nlisten_tls: { certificate_file: /x }", "listen_tls.certificate_file")
	_ = oneFault(t, "id: s1", "id: s1\nlisten_tls: { client_ca_file: /x }", "listen_tls.client_ca_file")
}

func TestStreamingNeedsAKeyFromTheHead(t *testing.T) {
	t.Parallel()
	cfg, err := load(strings.Replace(minimal, "guard: account", "guard: account\n    stream: true", 1))
	require.NoError(t, err)
	require.True(t, cfg.Routes[0].Stream)
	require.Contains(t, strings.Join(cfg.Warnings(), "\n"), "before its body has arrived", "its consequence is named")
	fault := oneFault(t, "key: { path: account_id }", "stream: true\n    key: { json: /id }", "routes[0].stream")
	require.Contains(t, fault.Message, "body")
	faults := faultsOf(t, minimal+"  - { name: p, match: { methods: [GET] }, pass: true, stream: true }\n")
	require.Len(t, faults, 1)
	require.Equal(t, "routes[1].stream", faults[0].Key)
}

func TestTrustedPeersAreNetworks(t *testing.T) {
	t.Parallel()
	cfg, err := load(minimal + "forwarded: { trusted_peers: [10.1.0.0/16, \"::1\", 192.168.0.7] }\n")
	require.NoError(t, err)
	for peer, want := range map[string]bool{"10.1.9.9:1": true, "10.2.0.1:1": false, "[::1]:1": true, "[::ffff:10.1.2.3]:1": true, "192.168.0.7:9": true, "192.168.0.8:9": false} {
		address, err := net.ResolveTCPAddr("tcp", peer)
		require.NoError(t, err)
		require.Equal(t, want, cfg.Forwarded.Trusts(address), peer)
	}
	require.False(t, cfg.Forwarded.Trusts(&net.UnixAddr{Name: "@"}))
	for _, bad := range []string{"10.1.2.3/16", "localhost", "10.1.0.0/33", "fe80::1%eth0", ""} {
		faults := faultsOf(t, minimal+"forwarded: { trusted_peers: [\""+bad+"\"] }\n")
		require.Equal(t, "forwarded.trusted_peers", faults[0].Key, bad)
	}
}
