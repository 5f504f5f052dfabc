package policy

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"fenceline/sidecar/config"
)

// FuzzMatchedPathIsItsTemplate: a path that a guarded route takes is, byte for byte, the route's template with the parameters filled in,
// and no other spelling of it passes without a guard.
func FuzzMatchedPathIsItsTemplate(f *testing.F) {
	for _, path := range []string{"/v1/payouts/7/claim", "/v1/payouts/7/claim/", "/V1/payouts/7/claim", "/v1//payouts/7/claim", "/v1/payouts/%37/claim", "/", "", "*", "/.fence/barrier", "/v1/payouts/7/claim;x", "/V1/payouts/%/claim"} {
		f.Add("POST", path)
	}
	rules, err := New(&config.Config{
		Unmatched: config.UnmatchedPass,
		Guards:    []config.Guard{{Name: "account", Mark: config.Mark{KeyType: config.KeyText}}},
		Routes: []config.Route{
			{Name: "claim", Methods: []string{"POST"}, Path: "/v1/payouts/{id}/claim", Guard: "account", Key: config.Key{Path: "id"}, Mode: config.ModeEnforce},
			{Name: "reads", Methods: []string{"GET"}, Pass: true},
		},
	})
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, method, path string) {
		m := rules.Match(method, path)
		if m.Outcome == Matched && m.Route.Name == "claim" {
			require.Equal(t, "POST", method)
			require.Equal(t, "/v1/payouts/"+m.Params["id"]+"/claim", path)
			require.NotContains(t, m.Params["id"], "/")
		}
		careless := strings.ToLower(strings.TrimRight(path, "/"))
		if m.Outcome == PassUnmatched && strings.HasPrefix(careless, "/v1/payouts/") && strings.HasSuffix(careless, "/claim") &&
			strings.Count(careless, "/") == 4 && strings.EqualFold(method, "POST") {
			require.Empty(t, strings.Split(careless, "/")[3], "another spelling of a guarded request passes: %q", path)
		}
	})
}

// FuzzKeyOfABodyIsTheOneThatTheResourceReads: where a key was read from a JSON body, Go's own lenient decoder finds the same one.
func FuzzKeyOfABodyIsTheOneThatTheResourceReads(f *testing.F) {
	for _, body := range []string{
		`{"id":"k"}`, `{"id":7}`, `{"id":"a","id":"b"}`, `{"ID":"a","id":"b"}`, `{"id":"\u0061"}`, `{"id":null}`, `{"x":{"id":"b"},"id":"a"}`,
		`{"id":1e3}`, `{"id":"a"}{"id":"b"}`, "\xef\xbb\xbf{\"id\":\"a\"}", `{"\u0069d":"a"}`, `{"id":"\ud800"}`,
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		ours, err := fromJSON("/id", body)
		if err != nil {
			return
		}
		var member struct {
			ID json.RawMessage `json:"id"`
		}
		require.NoError(t, json.Unmarshal(body, &member), "accepted here and malformed there")
		var text string
		if json.Unmarshal(member.ID, &text) != nil {
			text = string(member.ID) // a number, as written
		}
		require.Equal(t, text, ours)
	})
}

// FuzzCanonicalKeyIsItsOwnSpelling: a key's canonical spelling is canonical, for every type.
func FuzzCanonicalKeyIsItsOwnSpelling(f *testing.F) {
	for _, text := range []string{"7", "007", "-0", "9223372036854775808", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}", "a\x00", "ä"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, keyType := range []config.KeyType{config.KeyUUID, config.KeyInt, config.KeyText} {
			r := &Route{Guard: &config.Guard{Mark: config.Mark{KeyType: keyType}}}
			once, err := r.Canonical(text)
			if err != nil {
				continue
			}
			twice, err := r.Canonical(once)
			require.NoError(t, err)
			require.Equal(t, once, twice)
		}
	})
}
