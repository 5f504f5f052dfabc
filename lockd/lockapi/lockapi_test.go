package lockapi_test

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fenceline/internal/httperr"
	"fenceline/lockd/lockapi"
)

func TestTimesAreUTCWithMilliseconds(t *testing.T) {
	t.Parallel()
	zone := time.FixedZone("east", 2*60*60)
	grant := lockapi.LockGrant{AcquiredAt: lockapi.Time{Time: time.Date(2026, 3, 4, 5, 6, 7, 89_123_456, zone)}}
	encoded, err := json.Marshal(grant)
	require.NoError(t, err)
	require.Contains(t, string(encoded), `"acquiredAt":"2026-03-04T03:06:07.089Z"`)
	var read lockapi.LockGrant
	require.NoError(t, json.Unmarshal(encoded, &read))
	require.True(t, read.AcquiredAt.Equal(time.Date(2026, 3, 4, 3, 6, 7, 89_000_000, time.UTC)))
}

// The client decodes what the server's envelope writes: the same members in the same form.
func TestErrorIsTheEnvelopeThatServersWrite(t *testing.T) {
	t.Parallel()
	members := func(v any) map[string]string {
		out := map[string]string{}
		for i := range reflect.TypeOf(v).NumField() {
			f := reflect.TypeOf(v).Field(i)
			if tag := f.Tag.Get("json"); tag != "-" {
				out[tag] = f.Type.String()
			}
		}
		return out
	}
	require.Equal(t, members(httperr.Error{}), members(lockapi.Error{}))
}
