package executor

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fenceline/internal/daemon"
	"fenceline/internal/sendonce"
	"fenceline/paysvc/payapi"
	"fenceline/paysvc/payout"
)

const ioTimeout = 5 * time.Second

// rawServer answers every request with the bytes, counts the requests and keeps the last one's head.
func rawServer(t *testing.T, bytes string, keep bool) (base string, requests *atomic.Int64) {
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

func httpAnswer(status int, body string) string {
	return fmt.Sprintf("HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s", status, len(body), body)
}

func testWrite() Write {
	return Write{
		Owner: "worker", Token: 7,
		Payout: payapi.Payout{PayoutID: "7f3e2d1c-0000-4000-8000-000000000000", AccountID: "7f3e2d1c-0000-4000-8000-000000000001", AmountMinor: 2500, Currency: "EUR"},
	}
}

// Each write carries an idempotency key, for which net/http's own client would send it again.
func TestEveryWriteIsSentOnceWhateverTheAnswer(t *testing.T) {
	t.Parallel()
	writes := map[string]func(context.Context, *Client) error{
		"claim": func(ctx context.Context, c *Client) error { return c.Claim(ctx, testWrite(), payout.Pending) },
		"submit": func(ctx context.Context, c *Client) error {
			_, err := c.Submit(ctx, testWrite())
			return err
		},
		"post": func(ctx context.Context, c *Client) error {
			return c.Post(ctx, testWrite(), payapi.Submission{SubmissionID: "s", RailReference: "r"})
		},
	}
	for fault, bytes := range map[string]string{
		"closed without an answer": "", "garbage": "what?\r\n\r\n", "half an answer": "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}",
		"502": httpAnswer(502, "bad gateway"), "503 with an envelope": httpAnswer(503, `{"code":"INTERNAL"}`),
		"redirect": "HTTP/1.1 307 X\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n",
	} {
		for name, write := range writes {
			for _, keep := range []bool{false, true} {
				if keep && bytes == "" {
					continue // a server that never answers: TestSilenceIsAnUnknownOutcome
				}
				t.Run(fmt.Sprintf("%s, %s, connection kept %t", name, fault, keep), func(t *testing.T) {
					t.Parallel()
					base, requests := rawServer(t, bytes, keep)
					client, err := NewClient("resource", base, 500*time.Millisecond)
					require.NoError(t, err)
					for n := range 3 {
						require.ErrorIs(t, write(t.Context(), client), errUnknown)
						require.EqualValues(t, n+1, requests.Load())
					}
				})
			}
		}
	}
}

func TestSilenceIsAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	base, requests := rawServer(t, "", true)
	client, err := NewClient("resource", base, 200*time.Millisecond)
	require.NoError(t, err)
	require.ErrorIs(t, client.Claim(t.Context(), testWrite(), payout.Pending), errUnknown)
	require.EqualValues(t, 1, requests.Load())
}

func TestRefusedConnectionIsNotAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	client, err := NewClient("resource", "http://127.0.0.1:1", ioTimeout)
	require.NoError(t, err)
	err = client.Claim(t.Context(), testWrite(), payout.Pending)
	require.ErrorIs(t, err, sendonce.ErrNotSent)
	require.NotErrorIs(t, err, errUnknown)
}

func TestAcknowledgementMustSaySo(t *testing.T) {
	t.Parallel()
	for _, body := range []string{
		`{}`, `{"outcome":"TIMEOUT","submissionId":"s","railReference":"r"}`, `{"outcome":"ACKED","railReference":"r"}`, `{"outcome":"ACKED","submissionId":"s"}`,
	} {
		base, _ := rawServer(t, httpAnswer(200, body), false)
		client, err := NewClient("rail-proxy", base, ioTimeout)
		require.NoError(t, err)
		_, err = client.Submit(t.Context(), testWrite())
		require.ErrorIs(t, err, errUnknown, body)
	}
}

func TestWritesCarryTokenOwnerAndAKeyOfThePayout(t *testing.T) {
	t.Parallel()
	heads := make(chan http.Header, 3)
	l, err := daemon.Listen(t.Context(), "127.0.0.1:0")
	require.NoError(t, err)
	server := &http.Server{ReadHeaderTimeout: ioTimeout, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		heads <- r.Header
		_, _ = io.WriteString(w, `{"outcome":"ACKED","submissionId":"s","railReference":"r"}`)
	})}
	go func() { _ = server.Serve(l) }()
	defer func() { require.NoError(t, server.Close()) }()
	client, err := NewClient("resource", "http://"+l.Addr().String(), ioTimeout)
	require.NoError(t, err)
	require.NoError(t, client.Claim(t.Context(), testWrite(), payout.Pending))
	_, err = client.Submit(t.Context(), testWrite())
	require.NoError(t, err)
	require.NoError(t, client.Post(t.Context(), testWrite(), payapi.Submission{}))
	for range 3 {
		head := <-heads
		require.Equal(t, []string{"7"}, head.Values(payapi.HeaderToken))
		require.Equal(t, []string{"worker"}, head.Values(payapi.HeaderOwner))
		require.Equal(t, []string{"payout-" + testWrite().Payout.PayoutID}, head.Values(payapi.HeaderIdempotencyKey))
	}
}
