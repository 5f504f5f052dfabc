package railproxy_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fenceline/internal/daemon"
	"fenceline/paysvc/payout"
	"fenceline/paysvc/railproxy"
	"fenceline/paysvc/railproxy/submission"
)

// rawRail answers every request with the bytes, counts the requests and closes the connection unless it is to be kept.
func rawRail(t *testing.T, bytes string, keep bool) (base string, requests *atomic.Int64) {
	t.Helper()
	l, err := daemon.Listen(t.Context(), "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	requests = &atomic.Int64{}
	serve := func(c net.Conn) {
		defer func() { _ = c.Close() }()
		reader := bufio.NewReader(c)
		for {
			request, err := http.ReadRequest(reader)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, request.Body)
			requests.Add(1)
			if _, err := io.WriteString(c, bytes); err != nil || !keep {
				return
			}
		}
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go serve(c)
		}
	}()
	return "http://" + l.Addr().String(), requests
}

func response(status int, body string) string {
	return fmt.Sprintf("HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s", status, len(body), body)
}

func TestOnlyTheRailsOwnWordIsInformationAndNothingIsPresentedTwice(t *testing.T) {
	t.Parallel()
	id := uuid.New()
	acked := fmt.Sprintf(`{"railReference":"rail-1","clientReference":%q}`, id)
	for name, c := range map[string]struct {
		bytes string
		want  submission.Outcome
	}{
		"acknowledged":                        {response(200, acked), submission.Acked},
		"declined":                            {response(422, `{"code":"DECLINED"}`), submission.Rejected},
		"invalid for the rail":                {response(400, `{"code":"VALIDATION_FAILED"}`), submission.Rejected},
		"closed without an answer":            {"", submission.Timeout},
		"garbage":                             {"what?\r\n\r\n", submission.Timeout},
		"acknowledgement cut off":             {response(200, acked)[:70], submission.Timeout},
		"acknowledgement of another transfer": {response(200, strings.Replace(acked, id.String(), uuid.NewString(), 1)), submission.Timeout},
		"acknowledgement without reference":   {response(200, strings.Replace(acked, "rail-1", "", 1)), submission.Timeout},
		"acknowledgement that isn't JSON":     {response(200, "fine"), submission.Timeout},
		"accepted for later":                  {response(202, acked), submission.Timeout},
		"redirect":                            {"HTTP/1.1 307 X\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n", submission.Timeout},
		"422 of somebody else":                {response(422, `{"code":"OTHER"}`), submission.Timeout},
		"not found":                           {response(404, `{"code":"NOT_FOUND"}`), submission.Timeout},
		"internal error":                      {response(500, `{"code":"INTERNAL"}`), submission.Timeout},
		"an inner proxy's 503":                {response(503, "busy"), submission.Timeout},
	} {
		for _, keep := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, connection kept %t", name, keep), func(t *testing.T) {
				t.Parallel()
				if keep && c.bytes == "" {
					return // that is a rail that never answers, which has a test of its own
				}
				base, requests := rawRail(t, c.bytes, keep)
				client, err := railproxy.NewClient(base, time.Second, 500*time.Millisecond)
				require.NoError(t, err)
				in := railproxy.Instruction{
					PayoutID: id, AccountID: uuid.New(), Money: payout.Money{Minor: 2500, Currency: "EUR"},
					BeneficiaryRef: "ben-1", Holder: payout.Holder{Owner: "worker", Token: 7}, IdempotencyKey: "key",
				}
				for n := range 3 { // a client that kept connections would meet a used one from the second on
					verdict := client.Present(t.Context(), in)
					require.Equal(t, c.want, verdict.Outcome, "%v", verdict.Err)
					require.NotErrorIs(t, verdict.Err, railproxy.ErrRailUnavailable)
					require.EqualValues(t, n+1, requests.Load(), "one send for each submission")
				}
			})
		}
	}
}

func TestRailAddressThatIsNoURLIsRefused(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"", "127.0.0.1:8090", "ftp://rail", "http://", "://"} {
		_, err := railproxy.NewClient(bad, time.Second, time.Second)
		require.ErrorContains(t, err, "want a URL", bad)
	}
}
