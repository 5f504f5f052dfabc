package sendonce

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const okAnswer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// upstream is a raw server that counts the requests that reach it. Answer gives the bytes for the nth request (from 1) and
// whether the connection stays open after them.
type upstream struct {
	listener net.Listener
	requests atomic.Int64
	answer   func(n int64) (bytes string, keep bool)
}

func newUpstream(t *testing.T, answer func(n int64) (string, bool)) *upstream {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	u := &upstream{listener: l, answer: answer}
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go u.serve(c)
		}
	}()
	return u
}

func (u *upstream) url() string { return "http://" + u.listener.Addr().String() + "/v1/transfers" }

func (u *upstream) serve(c net.Conn) {
	defer func() { _ = c.Close() }()
	reader := bufio.NewReader(c)
	for {
		request, err := http.ReadRequest(reader)
		if err != nil {
			return
		}
		if _, err := io.Copy(io.Discard, request.Body); err != nil {
			return
		}
		answer, keep := u.answer(u.requests.Add(1))
		if _, err := io.WriteString(c, answer); err != nil || !keep {
			return
		}
	}
}

func newRequest(t *testing.T, method, url string) *http.Request {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(`{"amountMinor":2500}`))
	require.NoError(t, err)
	request.Header.Set("X-Idempotency-Key", "payout-1") // makes net/http believe that a second try is harmless
	return request
}

// faults are the ways in which an upstream can fail a request that has reached it.
func faults() map[string]string {
	return map[string]string{
		"closes without an answer":  "",
		"answers garbage":           "what?\r\n\r\n",
		"answers half a body":       "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc",
		"answers half a head":       "HTTP/1.1 200 OK\r\nContent-Le",
		"breaks off within a chunk": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
	}
}

func TestRequestIsSentOnceForEveryMethodAndFault(t *testing.T) {
	t.Parallel()
	for name, answer := range faults() {
		for _, method := range []string{"GET", "PUT", "POST", "PATCH", "DELETE"} {
			t.Run(method+" upstream "+name, func(t *testing.T) {
				t.Parallel()
				// The first request is served and its connection left open, so that a client that reuses connections has one to reuse.
				u := newUpstream(t, func(n int64) (string, bool) {
					if n == 1 {
						return okAnswer, true
					}
					return answer, false
				})
				client := New(time.Second, 5*time.Second)
				got, err := client.Do(t.Context(), newRequest(t, method, u.url()))
				require.NoError(t, err)
				require.Equal(t, "ok", string(got.Body))

				_, err = client.Do(t.Context(), newRequest(t, method, u.url()))
				require.Error(t, err)
				require.NotErrorIs(t, err, ErrNotSent, "the request was on its way: nobody knows what became of it")
				require.EqualValues(t, 2, u.requests.Load(), "one send for each call")
			})
		}
	}
}

// The control: with net/http's own client the same upstream sees the request again. Without this the count above might prove
// nothing.
func TestOrdinaryClientSendsAgainOnAReusedConnection(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, func(n int64) (string, bool) {
		if n == 2 {
			return "", false
		}
		return okAnswer, true
	})
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	for range 2 {
		response, err := client.Do(newRequest(t, "POST", u.url()))
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, response.Body)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
	}
	require.EqualValues(t, 3, u.requests.Load(), "two calls, three sends")
}

func TestRedirectIsAnAnswerAndIsNotFollowed(t *testing.T) {
	t.Parallel()
	second := newUpstream(t, func(int64) (string, bool) { return okAnswer, false })
	first := newUpstream(t, func(int64) (string, bool) {
		return "HTTP/1.1 307 Temporary Redirect\r\nLocation: " + second.url() + "\r\nContent-Length: 0\r\n\r\n", false
	})
	got, err := New(time.Second, 5*time.Second).Do(t.Context(), newRequest(t, "POST", first.url()))
	require.NoError(t, err)
	require.Equal(t, 307, got.Status)
	require.Zero(t, second.requests.Load())
}

func TestRefusedConnectionIsKnownAsNotSent(t *testing.T) {
	t.Parallel()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	_, err = New(time.Second, 5*time.Second).Do(t.Context(), newRequest(t, "POST", "http://"+l.Addr().String()+"/"))
	require.ErrorIs(t, err, ErrNotSent)
}

func TestCallThatIsOverBeforeItBeginsIsKnownAsNotSent(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, func(int64) (string, bool) { return okAnswer, false })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := New(time.Second, 5*time.Second).Do(ctx, newRequest(t, "POST", u.url()))
	require.ErrorIs(t, err, ErrNotSent)
	require.Zero(t, u.requests.Load())
}

func TestSilentUpstreamIsAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	u := newUpstream(t, func(int64) (string, bool) { <-release; return okAnswer, false })
	defer close(release)
	_, err := New(time.Second, 100*time.Millisecond).Do(t.Context(), newRequest(t, "POST", u.url()))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotErrorIs(t, err, ErrNotSent)
	require.EqualValues(t, 1, u.requests.Load())
}

func TestEndlessAnswerIsCutOff(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, func(int64) (string, bool) {
		return "HTTP/1.1 200 OK\r\nContent-Length: 4000000\r\n\r\n" + strings.Repeat("x", 4000000), false
	})
	_, err := New(time.Second, 5*time.Second).Do(t.Context(), newRequest(t, "POST", u.url()))
	require.ErrorContains(t, err, "longer than")
}
