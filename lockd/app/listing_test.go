package app_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"fenceline/lockd/lockapi"
)

// Listing over the real store, on both listeners.
func TestHeldLocksAndRevocationsAreListedFromTheDatabase(t *testing.T) {
	t.Parallel()
	base, adminBase := onDatabase(t)
	c := client(t, base, "worker")
	for _, key := range []string{"a:1", "a:2", "a:3", "b"} {
		hold(t, c, key)
	}
	_, err := c.Revoke(t.Context(), "b", lockapi.RevokeRequest{Operator: "op", Reason: "it is stuck"})
	require.NoError(t, err)
	for _, listener := range []string{base, adminBase} {
		var keys []string
		for cursor := ""; ; {
			status, body := get(t, listener+"/v1/locks?prefix=a:&limit=2&cursor="+cursor)
			require.Equal(t, 200, status, body)
			var page lockapi.LockPage
			require.NoError(t, json.Unmarshal([]byte(body), &page))
			for _, row := range page.Locks {
				require.Equal(t, "worker", row.OwnerID)
				require.Positive(t, row.FencingToken)
				keys = append(keys, row.Key)
			}
			if cursor = page.NextCursor; cursor == "" {
				break
			}
		}
		require.Equal(t, []string{"a:1", "a:2", "a:3"}, keys)
		status, body := get(t, listener+"/v1/revocations")
		require.Equal(t, 200, status, body)
		var page lockapi.RevocationPage
		require.NoError(t, json.Unmarshal([]byte(body), &page))
		require.Len(t, page.Revocations, 1)
		require.Equal(t, []string{"b", "worker", "op", "it is stuck"}, []string{page.Revocations[0].Key, page.Revocations[0].PreviousOwner, page.Revocations[0].Operator, page.Revocations[0].Reason})
		require.Empty(t, page.NextCursor)
	}
}
