package lockclient_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fenceline/lockd/lock"
	"fenceline/lockd/lockapi"
	"fenceline/lockd/lockclient"
)

// against returns a client of a server that answers as the handler does.
func against(t *testing.T, handler http.HandlerFunc) *lockclient.Client {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	c, err := lockclient.New(server.URL, "w", &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second})
	require.NoError(t, err)
	return c
}

func says(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// calls are all calls of the contract.
func calls() map[string]func(ctx context.Context, c *lockclient.Client) error {
	return map[string]func(ctx context.Context, c *lockclient.Client) error{
		"open": func(ctx context.Context, c *lockclient.Client) error {
			_, err := c.OpenSession(ctx, time.Second)
			return err
		},
		"heartbeat": func(ctx context.Context, c *lockclient.Client) error { _, err := c.Heartbeat(ctx, "s"); return err },
		"close":     func(ctx context.Context, c *lockclient.Client) error { return c.CloseSession(ctx, "s") },
		"acquire": func(ctx context.Context, c *lockclient.Client) error {
			_, err := c.Acquire(ctx, "k", "s", 0)
			return err
		},
		"renew":   func(ctx context.Context, c *lockclient.Client) error { _, err := c.Renew(ctx, "k", 7, 0); return err },
		"release": func(ctx context.Context, c *lockclient.Client) error { _, err := c.Release(ctx, "k", 7); return err },
		"list": func(ctx context.Context, c *lockclient.Client) error {
			_, err := c.ListLocks(ctx, "p", "c", 9)
			return err
		},
		"revocations": func(ctx context.Context, c *lockclient.Client) error {
			_, err := c.ListRevocations(ctx, "5", 0)
			return err
		},
		"inspect": func(ctx context.Context, c *lockclient.Client) error { _, err := c.Inspect(ctx, "k"); return err },
		"revoke": func(ctx context.Context, c *lockclient.Client) error {
			_, err := c.Revoke(ctx, "k", lockapi.RevokeRequest{Operator: "op", Reason: "it is stuck"})
			return err
		},
	}
}

// decisions are what only lockd can say.
func decisions() []error {
	return []error{
		lock.ErrLockLost, lock.ErrSessionExpired, lock.ErrSessionUnknown, lock.ErrNotHeld, lock.ErrTokenMismatch, lock.ErrUnavailable, lockclient.ErrContended,
	}
}

// Whatever goes wrong on the way, the caller learns that it doesn't know, and nothing else.
func TestMissingAnswerIsNoDecision(t *testing.T) {
	t.Parallel()
	closed, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	refusing, err := lockclient.New("http://"+closed.Addr().String(), "w", nil)
	require.NoError(t, err)
	grant := `{"key":"k","fencingToken":7,"released":true,"sessionId":"s"}`
	for name, c := range map[string]*lockclient.Client{
		"connection refused": refusing,
		"cut off":            against(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }), //nolint:forbidigo // net/http's way to cut off an answer
		"cut off within": against(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "500")
			w.WriteHeader(409)
			_, _ = io.WriteString(w, `{"code":"LOCK_LOST"`)
		}),
		"too large":          against(t, says(409, `{"code":"LOCK_LOST","message":"`+strings.Repeat("x", 5<<20)+`"}`)),
		"a proxy's error":    against(t, says(502, "<html>Bad Gateway</html>")),
		"JSON of another":    against(t, says(409, `{"error":"LOCK_LOST"}`)),
		"success of another": against(t, says(202, grant)),
		"redirect to lockd": against(t, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://"+r.Host+"/", http.StatusTemporaryRedirect)
		}),
		"envelope as success": against(t, says(302, `{"code":"LOCK_LOST","message":"m"}`)),
	} {
		for call, run := range calls() {
			err := run(t.Context(), c)
			require.ErrorIs(t, err, lockclient.ErrNoAnswer, "%s: %s", name, call)
			for _, decision := range decisions() {
				require.NotErrorIs(t, err, decision, "%s: %s", name, call)
			}
			var refusal *lockclient.Refusal
			require.False(t, errors.As(err, &refusal))
		}
	}
}

// The token and the owner go to lockd only, and a request is sent once.
func TestRedirectIsNotFollowed(t *testing.T) {
	t.Parallel()
	elsewhere := false
	c := against(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/elsewhere" {
			elsewhere = true
			return
		}
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
	})
	for name, run := range calls() {
		require.ErrorIs(t, run(t.Context(), c), lockclient.ErrNoAnswer, name)
		require.False(t, elsewhere, name)
	}
}

func TestCallThatTakesTooLongIsNoDecision(t *testing.T) {
	t.Parallel()
	c := against(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // from then on the server notices a client that has gone
		<-r.Context().Done()
	})
	for name, run := range calls() {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		err := run(ctx, c)
		cancel()
		require.ErrorIs(t, err, lockclient.ErrNoAnswer, name)
		require.ErrorIs(t, err, context.DeadlineExceeded, name)
	}
}

func TestRefusalsHaveTheDomainsIdentity(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]error{
		"LOCK_LOST": lock.ErrLockLost, "SESSION_UNKNOWN": lock.ErrSessionUnknown, "SESSION_EXPIRED": lock.ErrSessionExpired,
		"LOCK_CONTENDED": lockclient.ErrContended, "LOCK_NOT_HELD": lock.ErrNotHeld, "TOKEN_MISMATCH": lock.ErrTokenMismatch,
		"INVALID_TOKEN": lock.ErrInvalidToken, "VALIDATION_FAILED": lock.ErrInvalid, "BACKEND_UNAVAILABLE": lock.ErrUnavailable,
		"UNAUTHENTICATED": lockclient.ErrUnauthenticated, "FORBIDDEN": lockclient.ErrForbidden,
	} {
		c := against(t, says(499, `{"code":"`+code+`","message":"words","retrySafe":true,"retryAfterMillis":500,"details":{"a":"b"},"traceId":"t"}`))
		for call, run := range calls() {
			err := run(t.Context(), c)
			require.ErrorIs(t, err, want, call)
			require.NotErrorIs(t, err, lockclient.ErrNoAnswer)
			var refusal *lockclient.Refusal
			require.ErrorAs(t, err, &refusal)
			require.Equal(t, lockclient.Refusal{Status: 499, Envelope: lockapi.Error{
				Code: code, Message: "words", RetrySafe: true, RetryAfterMillis: 500, Details: map[string]any{"a": "b"}, TraceID: "t",
			}}, *refusal)
		}
	}
	unknown := against(t, says(503, `{"code":"BACKEND_UNAVAILABLE","message":"m","details":{"outcome":"unknown"}}`))
	_, err := unknown.Acquire(t.Context(), "k", "s", 0)
	require.ErrorIs(t, err, lock.ErrUnknownOutcome)
	require.NotErrorIs(t, err, lock.ErrUnavailable, "that one promises that nothing has happened")
}

// A grant is believed only if it can be meant.
func TestGrantThatDoesNotFitIsNoGrant(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]struct{ header, body string }{
		"empty object":    {"7", `{}`},
		"no token":        {"7", `{"key":"k"}`},
		"no header":       {"", `{"key":"k","fencingToken":7}`},
		"other header":    {"8", `{"key":"k","fencingToken":7}`},
		"zero":            {"0", `{"key":"k","fencingToken":0}`},
		"negative":        {"-7", `{"key":"k","fencingToken":-7}`},
		"other key":       {"7", `{"key":"x","fencingToken":7}`},
		"not JSON":        {"7", `ok`},
		"token as string": {"7", `{"key":"k","fencingToken":"7"}`},
	} {
		c := against(t, func(w http.ResponseWriter, _ *http.Request) {
			if answer.header != "" {
				w.Header().Set("X-Fencing-Token", answer.header)
			}
			_, _ = io.WriteString(w, answer.body)
		})
		grant, err := c.Acquire(t.Context(), "k", "s", 0)
		require.ErrorIs(t, err, lockclient.ErrNoAnswer, name)
		require.Zero(t, grant)
	}
	other := against(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Fencing-Token", "8")
		_, _ = io.WriteString(w, `{"key":"k","fencingToken":8}`)
	})
	_, err := other.Renew(t.Context(), "k", 7, 0)
	require.ErrorIs(t, err, lockclient.ErrNoAnswer, "a renewal never changes the token")
	_, err = against(t, says(201, `{}`)).OpenSession(t.Context(), 0)
	require.ErrorIs(t, err, lockclient.ErrNoAnswer)
}

// What is sent: the owner on everything, the token only where it belongs, nothing twice, and 0 leaves the time to live to the server.
func TestRequestsAreThoseOfTheContract(t *testing.T) {
	t.Parallel()
	var got []string
	c := against(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got = append(got, fmt.Sprintf("%s %s %s [%s] %s", r.Method, r.RequestURI, r.Header.Get("X-Owner-Id"), r.Header.Get("X-Fencing-Token"), body))
		w.WriteHeader(500)
	})
	ctx := t.Context()
	_, _ = c.OpenSession(ctx, 1500*time.Millisecond)
	_, _ = c.Acquire(ctx, "payout:7", "s", 0)
	_, _ = c.Renew(ctx, "payout:7", 9_223_372_036_854_775_807, 2*time.Second)
	_, _ = c.Release(ctx, "payout:7", 7)
	_ = c.CloseSession(ctx, "a/b")
	_, _ = c.ListLocks(ctx, "", "", 0)
	_, _ = c.ListLocks(ctx, "payout:", "c", 7)
	_, _ = c.ListRevocations(ctx, "12", 0)
	_, _ = c.AcquireWaiting(ctx, "k", "s", time.Second, 1500*time.Millisecond)
	require.Equal(t, []string{
		`POST /v1/sessions w [] {"ownerId":"w","ttlMillis":1500}`,
		`POST /v1/locks/payout:7/acquire w [] {"sessionId":"s"}`,
		`POST /v1/locks/payout:7/renew w [9223372036854775807] {"ttlMillis":2000}`,
		`DELETE /v1/locks/payout:7 w [7] `,
		`DELETE /v1/sessions/a%2Fb w [] `,
		`GET /v1/locks w [] `,
		`GET /v1/locks?cursor=c&limit=7&prefix=payout%3A w [] `,
		`GET /v1/revocations?after=12 w [] `,
		`POST /v1/locks/k/acquire w [] {"sessionId":"s","ttlMillis":1000,"waitMillis":1500}`,
	}, got)
}

func TestAddressAndOwnerAreChecked(t *testing.T) {
	t.Parallel()
	for _, base := range []string{"", "127.0.0.1:7400", "ftp://h", "http://", "http://h/?x=1", "http://u:the-password@h:port"} {
		_, err := lockclient.New(base, "w", nil)
		require.ErrorContains(t, err, "want a URL", base)
		require.NotContains(t, err.Error(), "the-password")
	}
	for _, owner := range []string{"", strings.Repeat("x", 65), "a\nb"} {
		_, err := lockclient.New("http://h", owner, nil)
		require.ErrorIs(t, err, lock.ErrInvalid)
	}
}
