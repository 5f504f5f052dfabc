package httpapi_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"fenceline/lockd/lock"
	"fenceline/lockd/lockapi"
)

func TestHeldLocksAreListedPageByPageEachOnce(t *testing.T) {
	t.Parallel()
	store := &fakeStore{}
	for i := range 250 {
		store.keys = append(store.keys, fmt.Sprintf("a:%03d", i))
	}
	store.keys = append(store.keys, "b")
	s := serve(t, store)
	for limit, pages := range map[string]int{"": 3, "&limit=1": 250, "&limit=125": 2, "&limit=249": 2, "&limit=250": 1, "&limit=500": 1} {
		var seen []string
		cursor, read := "", 0
		for {
			got := s.send(t, "GET", "/v1/locks?prefix=a:"+limit+"&cursor="+url.QueryEscape(cursor), "")
			require.Equal(t, 200, got.status, got.body)
			var page lockapi.LockPage
			require.NoError(t, json.Unmarshal([]byte(got.body), &page))
			for _, row := range page.Locks {
				seen = append(seen, row.Key)
			}
			read++
			if cursor = page.NextCursor; cursor == "" {
				break
			}
		}
		require.Equal(t, store.keys[:250], seen, limit)
		require.Equal(t, pages, read, "the last page has no cursor: %s", limit)
	}
	require.JSONEq(t, `{"locks":[]}`, s.send(t, "GET", "/v1/locks?prefix=nothing", "").body)
	got := s.send(t, "GET", "/v1/locks", "")
	require.Contains(t, got.body, `"fencingToken":7`)
	require.Contains(t, got.body, `"nextCursor":`)
}

func TestRevocationsAreListedPageByPage(t *testing.T) {
	t.Parallel()
	s := serve(t, &fakeStore{ended: 5})
	var seen []int64
	after := ""
	for range 3 {
		got := s.send(t, "GET", "/v1/revocations?limit=2&after="+after, "")
		require.Equal(t, 200, got.status, got.body)
		var page lockapi.RevocationPage
		require.NoError(t, json.Unmarshal([]byte(got.body), &page))
		for _, row := range page.Revocations {
			seen = append(seen, row.RevocationID)
		}
		after = page.NextCursor
	}
	require.Equal(t, []int64{1, 2, 3, 4, 5}, seen)
	require.Empty(t, after)
	require.JSONEq(t, `{"revocations":[]}`, s.send(t, "GET", "/v1/revocations?after=9223372036854775806", "").body)
}

func TestListingIsStrictAboutItsParameters(t *testing.T) {
	t.Parallel()
	s := serve(t, &fakeStore{keys: []string{"a"}, ended: 1})
	cursor := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	for query, says := range map[string]string{
		"/v1/locks?limit=0": "limit: want a whole number from 1 to 500", "/v1/locks?limit=501": "limit", "/v1/locks?limit=-1": "limit",
		"/v1/locks?limit=1.5": "limit", "/v1/locks?limit=+1": "limit", "/v1/locks?limit=01": "limit", "/v1/locks?limit=99999999999999999999": "limit",
		"/v1/locks?limit=1&limit=2": "limit stands 2 times", "/v1/locks?prefix=a&prefix=a": "prefix stands 2 times",
		"/v1/locks?Limit=1": `unknown parameter "Limit"; known are prefix, cursor, limit`, "/v1/locks?after=1": "unknown parameter", "/v1/locks?access_token=x": "unknown parameter",
		"/v1/locks?prefix=a/b": "prefix", "/v1/locks?prefix=%25": "prefix", "/v1/locks?prefix=a+b": "prefix", "/v1/locks?prefix=%zz": "well-formed", "/v1/locks?a=1;b=2": "well-formed",
		"/v1/locks?cursor=!": "cursor", "/v1/locks?cursor=" + cursor("a"): "cursor", "/v1/locks?cursor=" + cursor("k1:a/b"): "cursor", "/v1/locks?cursor=" + cursor("k1:"): "cursor",
		"/v1/locks?prefix=b&cursor=" + cursor("k1:a"): "cursor: want the nextCursor of an earlier page with the same prefix",
		"/v1/locks?cursor=" + cursor("k1:a") + "=":    "cursor",
		"/v1/revocations?after=-1":                    "after", "/v1/revocations?after=9223372036854775808": "after", "/v1/revocations?after=x": "after", "/v1/revocations?after=00": "after",
		"/v1/revocations?limit=501": "limit", "/v1/revocations?prefix=a": "unknown parameter",
		"/v1/locks/k?x=1": "this call has no query parameters",
	} {
		got := s.send(t, "GET", query, "")
		require.Equal(t, 400, got.status, query)
		require.Equal(t, lockapi.CodeValidationFailed, got.envelope.Code)
		require.Contains(t, got.envelope.Message, says, query)
	}
	for _, query := range []string{"/v1/locks?", "/v1/locks?limit=&prefix=&cursor=", "/v1/locks?limit=500&prefix=a", "/v1/locks?cursor=" + cursor("k1:a"), "/v1/revocations?after=0&limit=1"} {
		require.Equal(t, 200, s.send(t, "GET", query, "").status, query)
	}
}

// A store that can't list is a defect that is said, never an empty page.
func TestListingWithoutAListerIsNoEmptyPage(t *testing.T) {
	t.Parallel()
	s := serve(t, struct{ lock.Store }{&fakeStore{}})
	for _, path := range []string{"/v1/locks", "/v1/revocations"} {
		got := s.send(t, "GET", path, "")
		require.Equal(t, 500, got.status)
		require.Equal(t, lockapi.CodeInternal, got.envelope.Code)
	}
}
