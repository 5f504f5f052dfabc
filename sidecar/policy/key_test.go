package policy

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"fenceline/sidecar/config"
)

func guarded(t *testing.T, keyType config.KeyType, key config.Key) *Route {
	t.Helper()
	p := build(t, keyType, config.UnmatchedReject, config.Route{
		Name: "r", Methods: []string{"POST"}, Path: "/a/{id}", Guard: "account", Mode: config.ModeEnforce, Key: key,
	})
	return p.Routes()[0]
}

func headers(pairs ...string) func(string) []string {
	return func(name string) []string {
		var out []string
		for i := 0; i < len(pairs); i += 2 {
			if strings.EqualFold(pairs[i], name) {
				out = append(out, pairs[i+1])
			}
		}
		return out
	}
}

func TestKeyHasOneSpelling(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		keyType    config.KeyType
		text, want string // no want: refused
	}{
		{config.KeyUUID, payout, payout},
		{config.KeyUUID, strings.ToUpper(payout), payout},
		{config.KeyUUID, strings.ReplaceAll(payout, "-", ""), ""},
		{config.KeyUUID, "{" + payout + "}", ""},
		{config.KeyUUID, "urn:uuid:" + payout, ""},
		{config.KeyUUID, payout[:35], ""},
		{config.KeyUUID, payout + "0", ""},
		{config.KeyUUID, "7f9c2ba4e-88f-427d-8c4a-1d2e3f405162", ""},
		{config.KeyUUID, "gf9c2ba4-e88f-427d-8c4a-1d2e3f405162", ""},
		{config.KeyInt, "0", "0"},
		{config.KeyInt, "-7", "-7"},
		{config.KeyInt, "9223372036854775807", "9223372036854775807"},
		{config.KeyInt, "9223372036854775808", ""},
		{config.KeyInt, "07", ""},
		{config.KeyInt, "+7", ""},
		{config.KeyInt, "-0", ""},
		{config.KeyInt, "7.0", ""},
		{config.KeyInt, "1e3", ""},
		{config.KeyInt, "0x7", ""},
		{config.KeyInt, "1_0", ""},
		{config.KeyInt, "٧", ""},
		{config.KeyText, "Ünïcode ☃", "Ünïcode ☃"},
		{config.KeyText, strings.Repeat("x", 512), strings.Repeat("x", 512)},
		{config.KeyText, strings.Repeat("x", 513), ""},
		{config.KeyText, "", ""},
		{config.KeyText, "a\x00", ""},
		{config.KeyText, "a\nb", ""},
		{config.KeyText, "a\u0085b", ""},
		{config.KeyText, "a\x7f", ""},
		{config.KeyText, "\xff", ""},
		{config.KeyText, " a", ""},
		{config.KeyText, "a\u00a0", ""},
	} {
		got, err := guarded(t, c.keyType, config.Key{Path: "id"}).Canonical(c.text)
		if c.want == "" {
			require.ErrorIs(t, err, ErrKeyInvalid, "%s %q", c.keyType, c.text)
			continue
		}
		require.NoError(t, err, "%s %q", c.keyType, c.text)
		require.Equal(t, c.want, got)
	}
}

func TestKeyComesFromWhereTheRouteSays(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		key  config.Key
		in   Input
		want string // no want: refused
	}{
		"path":                  {config.Key{Path: "id"}, Input{Params: map[string]string{"id": "a%C3%A9+b"}}, "aé+b"},
		"path, other hex case":  {config.Key{Path: "id"}, Input{Params: map[string]string{"id": "a%c3%a9+b"}}, "aé+b"},
		"path, decoded once":    {config.Key{Path: "id"}, Input{Params: map[string]string{"id": "%252F"}}, "%2F"},
		"path, bad encoding":    {config.Key{Path: "id"}, Input{Params: map[string]string{"id": "%zz"}}, ""},
		"path, bad UTF-8":       {config.Key{Path: "id"}, Input{Params: map[string]string{"id": "%ff"}}, ""},
		"path, missing":         {config.Key{Path: "id"}, Input{}, ""},
		"header":                {config.Key{Header: "X-Account"}, Input{Header: headers("x-account", "9")}, "9"},
		"header, none":          {config.Key{Header: "X-Account"}, Input{Header: headers("X-Other", "9")}, ""},
		"header, twice":         {config.Key{Header: "X-Account"}, Input{Header: headers("X-Account", "9", "x-account", "9")}, ""},
		"header, list":          {config.Key{Header: "X-Account"}, Input{Header: headers("X-Account", "9, 8")}, ""},
		"header, empty":         {config.Key{Header: "X-Account"}, Input{Header: headers("X-Account", "")}, ""},
		"query":                 {config.Key{Query: "id"}, Input{Query: "x=1&id=a+b%C3%A9&y"}, "a bé"},
		"query, encoded name":   {config.Key{Query: "id"}, Input{Query: "%69d=7"}, "7"},
		"query, both names":     {config.Key{Query: "id"}, Input{Query: "%69d=7&id=7"}, ""},
		"query, none":           {config.Key{Query: "id"}, Input{Query: "x=1"}, ""},
		"query, no query":       {config.Key{Query: "id"}, Input{}, ""},
		"query, twice":          {config.Key{Query: "id"}, Input{Query: "id=7&id=7"}, ""},
		"query, empty":          {config.Key{Query: "id"}, Input{Query: "id="}, ""},
		"query, no value":       {config.Key{Query: "id"}, Input{Query: "id"}, ""},
		"query, other case":     {config.Key{Query: "id"}, Input{Query: "id=7&ID=8"}, ""},
		"query, only in case":   {config.Key{Query: "id"}, Input{Query: "Id=7"}, ""},
		"query, brackets":       {config.Key{Query: "id"}, Input{Query: "id=7&id[]=8"}, ""},
		"query, dot":            {config.Key{Query: "account_id"}, Input{Query: "account_id=7&account.id=8"}, ""},
		"query, space":          {config.Key{Query: "account_id"}, Input{Query: "account_id=7&account+id=8"}, ""},
		"query, open bracket":   {config.Key{Query: "account_id"}, Input{Query: "account_id=7&account[id=8"}, ""},
		"query, semicolon":      {config.Key{Query: "id"}, Input{Query: "id=7;x=8"}, ""},
		"query, bad encoding":   {config.Key{Query: "id"}, Input{Query: "id=%zz"}, ""},
		"query, bad name":       {config.Key{Query: "id"}, Input{Query: "%zz=1&id=7"}, ""},
		"query, NUL":            {config.Key{Query: "id"}, Input{Query: "id=7%00"}, ""},
		"query, space in name":  {config.Key{Query: "id"}, Input{Query: "id=7&+id=8"}, ""},
		"no source":             {config.Key{}, Input{}, ""},
		"json, no content type": {config.Key{JSON: "/id"}, Input{Header: headers(), Body: []byte(`{"id":"7"}`)}, "7"},
	} {
		got, err := guarded(t, config.KeyText, c.key).Key(c.in)
		if c.want == "" {
			require.ErrorIs(t, err, ErrKeyInvalid, name)
			continue
		}
		require.NoError(t, err, name)
		require.Equal(t, Key{Value: c.want}, got, name)
	}
}

func TestJSONMemberIsReadInOneWayOnly(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`{"id":"7"}`: "7",
		"\n { \"x\" : [ {\"ID\":1} ], \"id\" : 7 } ": "7",
		`{"\u0069d":"7"}`:                        "7",
		`{"id":"\u0037"}`:                        "7",
		`{"id":-7}`:                              "-7",
		`{"id":"a/b~c"}`:                         "a/b~c",
		`{"id":"7","id":"8"}`:                    "",
		`{"id":"7","\u0069d":"8"}`:               "",
		`{"id":"7","x":{"y":1,"y":2}}`:           "",
		`{"id":"7","ID":"8"}`:                    "",
		`{"Id":"8"}`:                             "",
		`{"ID":"8","id":"7"}`:                    "",
		`{"\u0130d":"8","\u0049d":"8","id":"7"}`: "",
		`{"id":7.0}`:                             "",
		`{"id":7e0}`:                             "",
		`{"id":-0}`:                              "",
		`{"id":9223372036854775808}`:             "",
		`{"id":null}`:                            "",
		`{"id":true}`:                            "",
		`{"id":{}}`:                              "",
		`{"id":["7"]}`:                           "",
		`{"id":""}`:                              "",
		`{"id":"7"} `:                            "7",
		`{"id":"7"}x`:                            "",
		`{"id":"7"}{}`:                           "",
		`{"id":"7",}`:                            "",
		`{"id":"7"`:                              "",
		`{'id':'7'}`:                             "",
		`{id:7}`:                                 "",
		`{"id":07}`:                              "",
		`{"id":"` + "\xff" + `"}`:                "",
		`{"id":"\ud800"}`:                        "",
		`{"id":"7" /* c */}`:                     "",
		"\ufeff" + `{"id":"7"}`:                  "",
		`[{"id":"7"}]`:                           "",
		`"id"`:                                   "",
		`7`:                                      "",
		``:                                       "",
		` `:                                      "",
		`id=7`:                                   "",
		`{}`:                                     "",
		`{"x":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `,"id":"7"}`: "",
		`{"x":` + strings.Repeat("[", 90) + strings.Repeat("]", 90) + `,"id":"7"}`:   "7",
	} {
		got, err := guarded(t, config.KeyText, config.Key{JSON: "/id"}).Key(Input{Header: headers("Content-Type", "application/json"), Body: []byte(body)})
		if want == "" {
			require.ErrorIs(t, err, ErrKeyInvalid, body)
			continue
		}
		require.NoError(t, err, body)
		require.Equal(t, want, got.Value, body)
	}
}

func TestJSONPointerLeadsThroughObjects(t *testing.T) {
	t.Parallel()
	for pointer, want := range map[string]string{"/a/b": "1", "/a~1b/~0c": "2", "/a/x": "", "/a": "", "/a/b/c": ""} {
		got, err := guarded(t, config.KeyText, config.Key{JSON: pointer}).Key(Input{Header: headers(), Body: []byte(`{"a":{"b":1},"a/b":{"~c":"2"}}`)})
		if want == "" {
			require.ErrorIs(t, err, ErrKeyInvalid, pointer)
			continue
		}
		require.NoError(t, err, pointer)
		require.Equal(t, want, got.Value, pointer)
	}
	_, err := guarded(t, config.KeyText, config.Key{JSON: "/a/b"}).Key(Input{Header: headers(), Body: []byte(`{"a":{"b":1},"A":{"b":2}}`)})
	require.ErrorIs(t, err, ErrKeyInvalid, "case is looked at on every level")
}

// A form whose text is JSON too would be read as a form by the resource, with another value.
func TestBodyThatIsReadAsSomethingElseIsRefused(t *testing.T) {
	t.Parallel()
	for contentType, fine := range map[string]bool{
		"application/json": true, "Application/JSON; charset=UTF-8": true, "application/problem+json": true, `application/json; charset="utf-8"`: true,
		"application/x-www-form-urlencoded": false, "text/plain": false, "application/json; charset=utf-16": false, "multipart/form-data; boundary=x": false,
		"": false, "application/json;;": false, "application/jsonx": false, "application/json, text/plain": false,
	} {
		_, err := guarded(t, config.KeyText, config.Key{JSON: "/id"}).Key(Input{Header: headers("Content-Type", contentType), Body: []byte(`{"id":"7","x":"&id=8&"}`)})
		require.Equal(t, fine, err == nil, "%q: %v", contentType, err)
	}
	_, err := guarded(t, config.KeyText, config.Key{JSON: "/id"}).Key(Input{
		Header: headers("Content-Type", "application/json", "Content-Type", "text/plain"), Body: []byte(`{"id":"7"}`),
	})
	require.ErrorIs(t, err, ErrKeyInvalid)
}

func TestLookupGivesTheQueryAndItsArgumentsInOrder(t *testing.T) {
	t.Parallel()
	route := guarded(t, config.KeyUUID, config.Key{Lookup: &config.Lookup{
		SQL:    "SELECT account_id FROM payout WHERE payout_id = @id::uuid AND region = @region AND payout_id <> @id",
		Params: map[string]config.Key{"id": {Path: "id"}, "region": {JSON: "/region"}},
		Cache:  config.CacheImmutable,
	}})
	key, err := route.Key(Input{Params: map[string]string{"id": another}, Header: headers(), Body: []byte(`{"region":"eu"}`)})
	require.NoError(t, err)
	require.Empty(t, key.Value)
	require.Equal(t, &Lookup{
		SQL:  "SELECT account_id FROM payout WHERE payout_id = $1::uuid AND region = $2 AND payout_id <> $1",
		Args: []string{another, "eu"}, Immutable: true,
	}, key.Lookup)

	for _, body := range []string{`{"region":"a\u0000"}`, `{"region":""}`, `{}`, `{"region":"` + strings.Repeat("x", 600) + `"}`} {
		_, err := route.Key(Input{Params: map[string]string{"id": another}, Header: headers(), Body: []byte(body)})
		require.ErrorIs(t, err, ErrKeyInvalid, body)
	}
}

func TestErrorsQuoteNoValue(t *testing.T) {
	t.Parallel()
	const secret = "hunter2"
	for _, key := range []config.Key{{Path: "id"}, {Header: "X-Account"}, {Query: "id"}, {JSON: "/id"}} {
		_, err := guarded(t, config.KeyInt, key).Key(Input{
			Params: map[string]string{"id": secret}, Header: headers("X-Account", secret, "Content-Type", "application/json"),
			Query: "id=" + secret, Body: []byte(`{"id":"` + secret + `"}`),
		})
		require.ErrorIs(t, err, ErrKeyInvalid)
		require.NotContains(t, err.Error(), secret)
	}
}

// Two accepted texts with one key differ in nothing that the key type counts, and the canonical spelling is its own.
func TestCanonicalIsItsOwnSpelling(t *testing.T) {
	t.Parallel()
	for _, keyType := range []config.KeyType{config.KeyUUID, config.KeyInt, config.KeyText} {
		route := guarded(t, keyType, config.Key{Path: "id"})
		rapid.Check(t, func(t *rapid.T) {
			text := rapid.OneOf(rapid.String(), rapid.StringMatching(`[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}`), rapid.StringMatching(`-?[0-9]{1,19}`)).Draw(t, "text")
			key, err := route.Canonical(text)
			if err != nil {
				return
			}
			if again, err := route.Canonical(key); err != nil || again != key || !strings.EqualFold(key, text) {
				t.Fatalf("%q gives %q, which gives %q, %v", text, key, again, err)
			}
		})
	}
}

func FuzzJSONKeyIsReadWithoutPanic(f *testing.F) {
	for _, body := range []string{`{"id":"7"}`, `{"id":7,"x":[{}]}`, `{"ID":1}`, `[`, `{"a":{"id":1}}`, "\xff"} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		text, err := fromJSON("/id", body)
		require.True(t, err == nil || text == "", "no key with an error")
		if err != nil {
			require.ErrorIs(t, err, ErrKeyInvalid)
		}
	})
}
