package payapi_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fenceline/paysvc/payapi"
)

func TestTimesAreWrittenInUTCWithMilliseconds(t *testing.T) {
	t.Parallel()
	zone := time.FixedZone("east", 2*60*60)
	for want, at := range map[string]time.Time{
		`"2030-01-01T10:00:00.123Z"`: time.Date(2030, 1, 1, 12, 0, 0, 123_999_999, zone),
		`"2030-01-01T10:00:00.000Z"`: time.Date(2030, 1, 1, 10, 0, 0, 0, time.UTC),
	} {
		got, err := json.Marshal(payapi.Time{Time: at})
		require.NoError(t, err)
		require.Equal(t, want, string(got))
		inside, err := json.Marshal(&payapi.Payout{CreatedAt: payapi.Time{Time: at}})
		require.NoError(t, err)
		require.Contains(t, string(inside), `"createdAt":`+want)
	}
	var read payapi.Time
	require.NoError(t, json.Unmarshal([]byte(`"2030-01-01T12:00:00.123+02:00"`), &read))
	require.True(t, read.Equal(time.Date(2030, 1, 1, 10, 0, 0, 123_000_000, time.UTC)))
	require.Error(t, json.Unmarshal([]byte(`"yesterday"`), &read))
}
