package config

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	configs       = "../../configs"
	referenceFile = configs + "/sidecar.reference.yaml"
)

func TestConfigurationsOfThePaymentSystemLoad(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]struct{ id, listen, admin, upstream, guard string }{
		"sidecar.account.yaml": {"sidecar-account", "127.0.0.1:8081", "127.0.0.1:9081", "127.0.0.1:8080", "account"},
		"sidecar.rail.yaml":    {"sidecar-rail", "127.0.0.1:8083", "127.0.0.1:9083", "127.0.0.1:8082", "rail"},
	} {
		data, err := os.ReadFile(filepath.Join(configs, file))
		require.NoError(t, err)
		cfg, err := Load(data, file, environment("PAYDB_URL", "postgres://h/paydb"))
		require.NoError(t, err)
		require.Equal(t, want, struct{ id, listen, admin, upstream, guard string }{
			cfg.ID, cfg.Listen, cfg.Admin.Listen, cfg.Upstream.URL.Host, cfg.Guards[0].Name,
		})
		require.Empty(t, cfg.Warnings())

		cfg, err = Load(data, file, environment(
			"PAYDB_URL", "postgres://h/paydb", "SIDECAR_ID", "s9", "SIDECAR_LISTEN", "127.0.0.1:0", "SIDECAR_ADMIN", "127.0.0.1:0", "SIDECAR_UPSTREAM", "http://127.0.0.1:7"))
		require.NoError(t, err, "each address can be given by the environment")
		require.Equal(t, "s9 127.0.0.1:0 127.0.0.1:0 127.0.0.1:7", strings.Join([]string{cfg.ID, cfg.Listen, cfg.Admin.Listen, cfg.Upstream.URL.Host}, " "))

		_, err = Load(data, file, environment())
		require.ErrorContains(t, err, "PAYDB_URL", "the secret has no default")
	}
}

// leaves lists the keys of a file in the schema's spelling.
func leaves(s *keySchema, n *node, path string, into map[string]bool) {
	if len(s.children) == 0 {
		into[path] = true
		return
	}
	for _, item := range n.items {
		leaves(s.children["[]"], item, path+"[]", into)
	}
	for _, f := range n.fields {
		name := f.name
		if s.children[name] == nil {
			name = "*"
		}
		leaves(s.children[name], f.value, join(path, name), into)
	}
}

func parseReference(t *testing.T) (text string, root *node) {
	t.Helper()
	data, err := os.ReadFile(referenceFile)
	require.NoError(t, err)
	faults := &Faults{file: referenceFile}
	root = parse(data, faults)
	require.NoError(t, faults.err())
	return string(data), root
}

func TestReferenceHoldsEveryKeyAndNoOther(t *testing.T) {
	t.Parallel()
	text, root := parseReference(t)
	faults := &Faults{}
	newSchema().check(root, "", faults)
	for _, f := range faults.List() {
		require.True(t, f.Unsupported, "every key is known: %s", f.Message)
	}

	got := map[string]bool{}
	leaves(newSchema(), root, "", got)
	require.Contains(t, text, "\n    # url_file: ", "the other way of giving the store's url stands in a comment: both at once are refused")
	got["store.postgres.url_file"] = true
	require.Contains(t, text, "\n  # file:\n  #   path: ")
	require.Contains(t, text, "\n  #   timeout: ")
	got["store.file.path"], got["store.file.timeout"] = true, true
	var want []string
	for line := range strings.FieldsSeq(schema) {
		want = append(want, strings.TrimSuffix(line, "!"))
	}
	require.ElementsMatch(t, want, slices.Collect(maps.Keys(got)))
}

func TestReferenceIsRefusedForUnbuiltPartsOnly(t *testing.T) {
	t.Parallel()
	text, _ := parseReference(t)
	_, err := Load([]byte(text), referenceFile, environment())
	var faults *Faults
	require.ErrorAs(t, err, &faults)
	got := map[string]bool{}
	for _, f := range faults.List() {
		require.True(t, f.Unsupported, "%s", f)
		got[f.Key] = true
		line := strings.Split(text, "\n")[f.Line-1]
		require.Contains(t, line, "(refused in this version)", "%s is marked", f.Key)
	}
	want := []string{}
	for line := range strings.FieldsSeq(schema) {
		if key, unbuilt := strings.CutSuffix(line, "!"); unbuilt {
			want = append(want, strings.ReplaceAll(key, "[]", "[0]"))
		}
	}
	require.ElementsMatch(t, want, slices.Collect(maps.Keys(got)))
	marked := 0
	for line := range strings.SplitSeq(text, "\n") {
		if value, comment, _ := strings.Cut(line, "#"); strings.TrimSpace(value) != "" && strings.Contains(comment, "(refused in this version)") {
			marked++
		}
	}
	require.Equal(t, len(want), marked, "and nothing else is")
}

// prune takes out what isn't in this version.
func prune(s *keySchema, n *node) {
	for _, item := range n.items {
		prune(s.children["[]"], item)
	}
	n.fields = slices.DeleteFunc(n.fields, func(f field) bool {
		child := s.children[f.name]
		if child == nil {
			return false
		}
		if child.unsupported {
			return true
		}
		had := len(f.value.fields)
		prune(child, f.value)
		return had > 0 && len(f.value.fields) == 0
	})
}

// The values in the reference are the defaults, where there are any.
func TestReferenceShowsTheDefaults(t *testing.T) {
	t.Parallel()
	_, root := parseReference(t)
	prune(newSchema(), root)
	faults := &Faults{file: referenceFile}
	got := decode(root, faults, environment())
	require.NoError(t, faults.err())

	want, err := load(minimal)
	require.NoError(t, err)
	require.Equal(t, want.Listen, got.Listen)
	require.Equal(t, want.Admin.Listen, got.Admin.Listen)
	require.Equal(t, "https", got.Upstream.URL.Scheme, "its TLS is shown")
	want.Upstream.URL.Scheme, want.Upstream.TLS = "https", got.Upstream.TLS
	require.Equal(t, want.Upstream, got.Upstream)
	want.Store.Postgres.URL, want.Store.Postgres.ListenURL = got.Store.Postgres.URL, got.Store.Postgres.ListenURL
	require.Equal(t, want.Store, got.Store)
	require.Equal(t, want.Token, got.Token)
	require.Empty(t, got.Headers.Allow)
	require.Equal(t, want.Limits, got.Limits)
	require.Equal(t, want.Shutdown, got.Shutdown)
	require.Equal(t, want.RejectionsKept, got.RejectionsKept)
	effects, err := load(strings.Replace(minimal, "    order: admissions\n", "    unsettled: { then: release, after: 30s }\n", 1))
	require.NoError(t, err)
	require.Equal(t, effects.Guards[0].Order, got.Guards[0].Order)
	require.Equal(t, effects.Guards[0].Ownership, got.Guards[0].Ownership)
	require.Equal(t, effects.Guards[0].UnsettledStatus, got.Guards[0].UnsettledStatus)
	require.Equal(t, want.Guards[0].Advance, got.Guards[0].Advance)
	require.Equal(t, want.Unmatched, got.Unmatched)
	require.Equal(t, want.Guards[0].LockKey, got.Guards[0].LockKey)
	require.Equal(t, want.Guards[0].Mark.Missing, got.Guards[0].Mark.Missing)
	require.Equal(t, want.Routes[0].Mode, got.Routes[0].Mode)
	require.Equal(t, CacheNone, got.Routes[0].Key.Lookup.Cache)
}

func TestUnknownKeysAreNamedWithTheNearestKnownOne(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]string{
		"upstrem": "upstream", "Listen": "listen", "route": "routes", "guard": "guards", "xyzzy": "", "limit": "limits", "ids": "id", "q": "",
	} {
		_, err := load(minimal + key + ": 1\n")
		var faults *Faults
		require.True(t, errors.As(err, &faults), key)
		if want == "" {
			require.True(t, strings.HasSuffix(faults.List()[0].Message, "unknown key"), faults.Error())
			continue
		}
		require.Equal(t, "unknown key; did you mean "+want+"?", faults.List()[0].Message, key)
	}
}
