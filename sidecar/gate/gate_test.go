package gate

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOnlyAWholeAnswerThatSaysFinishedSettlesARequest(t *testing.T) {
	t.Parallel()
	for _, status := range []int{200, 201, 204, 301, 400, 404, 409, 422, 429, 500, 501} {
		require.Equal(t, OutcomeSettled, Settle(End{Sent: WhollySent, Answered: true, Status: status}, UnfinishedStatus()), status)
		require.Equal(t, OutcomeUnknown, Settle(End{Sent: WhollySent, Status: status}, UnfinishedStatus()), "cut off: %d", status)
		require.Equal(t, OutcomeUnknown, Settle(End{Sent: PartlySent, Answered: true, Status: status}, UnfinishedStatus()), "early: %d", status)
	}
	for _, status := range []int{202, 408, 502, 503, 504} {
		require.Equal(t, OutcomeUnknown, Settle(End{Sent: WhollySent, Answered: true, Status: status}, UnfinishedStatus()), status)
	}
	require.Equal(t, OutcomeNotSent, Settle(End{Sent: NotSent}, UnfinishedStatus()))
}
