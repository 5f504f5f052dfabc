package lockclient

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// The clock of the network's silence: nothing is answered, and the lock is lost at its local deadline all the same.
func TestLossNeedsNoAnswer(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]error{"refused": errRefused, "silent": errSilence} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBubble(t, time.Minute, trust) // the grant's own time is looked at here
				h := b.acquire()
				b.fail(fault, false, "renew", "heartbeat")
				b.pass(trusted(testLockTTL) - time.Nanosecond)
				require.NoError(b, h.Err())
				require.NoError(b, h.Context().Err())
				b.pass(time.Nanosecond)
				require.ErrorIs(b, context.Cause(h.Context()), ErrLockLost, "to the nanosecond")
				require.NotErrorIs(b, context.Cause(h.Context()), ErrNoAnswer, "the cause is the time, not the fault")
				<-h.Lost()
				require.ErrorIs(b, h.Err(), ErrLockLost)
				require.Len(b, b.events.named(EventSessionLost), 1)
				require.NotEmpty(b, b.events.named(EventRenewalFailed))
				require.True(b, b.lockd.valid("k", h.Token()), "the margin: lockd still keeps it for us")
				b.fail(nil, true)
				require.ErrorIs(b, h.Check(b.Context()), ErrLockLost, "lost stays lost")
				require.NoError(b, h.Release(b.Context()))
				require.False(b, b.lockd.valid("k", h.Token()), "given back, so that nobody waits for its end")
			})
		})
	}
}

func TestWithoutHeartbeatsTheLockIsLostByTheSessionsDeadline(t *testing.T) {
	t.Parallel()
	inBubble(t, func(b *bubble) {
		h := b.acquire()
		b.fail(errRefused, false, "heartbeat")
		b.pass(trusted(testSessionTTL) - time.Nanosecond)
		require.NoError(b, h.Err())
		require.NotZero(b, b.lockd.requests("renew"), "the grant itself was renewed")
		b.pass(time.Nanosecond)
		require.ErrorIs(b, context.Cause(h.Context()), ErrLockLost)
		require.ErrorIs(b, context.Cause(h.Context()), ErrSessionLost)
		<-b.session.Lost()
		_, err := b.session.Acquire(b.Context(), "other", AcquireOptions{})
		require.ErrorIs(b, err, ErrSessionLost)
		require.NoError(b, h.Release(b.Context()))
	})
}

// Either clock alone ends it, at the latest at the next look, and for Err at once.
func TestEitherClockAloneEndsTheLock(t *testing.T) {
	t.Parallel()
	for name, jump := range map[string][2]time.Duration{
		"wall clock ahead, monotonic stands": {0, trusted(testSessionTTL)},
		"monotonic ahead, wall clock stands": {trusted(testSessionTTL), 0},
		"wall clock back, monotonic ahead":   {trusted(testSessionTTL), -time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(b *bubble) {
				h := b.acquire()
				b.jump(jump[0], jump[1])
				b.pass(maxLook)
				require.ErrorIs(b, context.Cause(h.Context()), ErrLockLost)
				require.NoError(b, h.Release(b.Context()))
			})
			inBubble(t, func(b *bubble) {
				h := b.acquire()
				b.jump(jump[0], jump[1])
				require.ErrorIs(b, h.Err(), ErrLockLost, "at once")
				require.ErrorIs(b, h.Check(b.Context()), ErrLockLost)
				require.Zero(b, b.lockd.requests("renew"), "nobody was asked")
				require.NoError(b, h.Release(b.Context()))
			})
		})
	}
	inBubble(t, func(b *bubble) {
		h := b.acquire()
		b.jump(0, -time.Hour)
		b.pass(maxLook)
		require.NoError(b, h.Err(), "a wall clock set back takes nothing and gives nothing")
		b.fail(errRefused, false, "renew", "heartbeat")
		b.pass(trusted(testSessionTTL))
		require.ErrorIs(b, h.Err(), ErrLockLost)
		require.NoError(b, h.Release(b.Context()))
	})
}

func TestLateAnswerOfARenewalCountsFromWhenItWasSent(t *testing.T) {
	t.Parallel()
	inBubble(t, func(b *bubble) {
		h := b.acquire()
		b.fail(errRefused, false, "renew") // the renewals of its own are out of the way until the answer is late
		b.pass(5*time.Second + 500*time.Millisecond)
		b.lockd.set(func() { b.lockd.back = func(string) time.Duration { return 4 * time.Second } })
		b.fail(nil, true)
		sent := time.Now()
		require.NoError(b, h.Renew(b.Context())) // answered 4 s later
		require.Equal(b, 4*time.Second, time.Since(sent))
		h.mu.Lock()
		left := h.lease.left(b.session.rules.now())
		h.mu.Unlock()
		require.Equal(b, trusted(testLockTTL)-4*time.Second, left)
		require.NoError(b, h.Release(b.Context()))
	})
}

// renewedAfterRelease looks for renewals after an end of the lock.
func renewedAfterRelease(b *bubble, end func(h *Held)) error {
	h := b.acquire()
	b.pass(testLockTTL)
	if b.lockd.requests("renew") == 0 {
		return errors.New("it wasn't renewed before either")
	}
	end(h)
	before := b.lockd.requests("renew")
	b.pass(2 * testLockTTL)
	if after := b.lockd.requests("renew"); after != before {
		return fmt.Errorf("%d renewals after its release", after-before)
	}
	return nil
}

func TestReleasedLockIsNotRenewed(t *testing.T) {
	t.Parallel()
	inBubble(t, func(b *bubble) {
		require.NoError(b, renewedAfterRelease(b, func(h *Held) { require.NoError(b, h.Release(b.Context())) }))
		h := b.acquire()
		require.NoError(b, h.Release(b.Context()))
		require.ErrorIs(b, h.Renew(b.Context()), ErrReleased, "not by hand either")
		require.ErrorIs(b, h.Check(b.Context()), ErrReleased)
		require.ErrorIs(b, context.Cause(h.Context()), ErrReleased)
		require.Empty(b, b.events.named(EventSessionLost), "a release is no loss")
		select {
		case <-h.Lost():
			b.Error("a release is no loss")
		default:
		}
	})
	inBubble(t, func(b *bubble) { // the control: a release that forgets its renewals
		var forgotten *Held
		require.ErrorContains(b, renewedAfterRelease(b, func(h *Held) {
			forgotten = h
			_, err := b.session.client.Release(b.Context(), h.Key(), h.Token())
			require.NoError(b, err)
		}), "renewals after its release")
		require.NoError(b, forgotten.Release(b.Context()))
	})
}

// Renewals under way when the lock is released have ended when Release returns.
func TestReleaseWaitsForRenewalsUnderWay(t *testing.T) {
	t.Parallel()
	inBubble(t, func(b *bubble) {
		h := b.acquire()
		b.lockd.set(func() {
			b.lockd.back = func(n string) time.Duration { return map[string]time.Duration{"renew": time.Second}[n] }
		})
		checked := make(chan error, 1)
		go func() { checked <- h.Check(context.Background()) }()
		synctest.Wait()
		started := time.Now()
		require.NoError(b, h.Release(b.Context()))
		require.Zero(b, time.Since(started), "it cuts them off")
		require.ErrorIs(b, <-checked, ErrReleased)
		require.Equal(b, 1, b.lockd.requests("release"))
	})
}

func TestReleaseWorksWithAContextThatIsOver(t *testing.T) {
	t.Parallel()
	inBubble(t, func(b *bubble) {
		ctx, cancel := context.WithCancel(b.Context())
		h, err := b.session.Acquire(ctx, "k", AcquireOptions{})
		require.NoError(b, err)
		cancel()
		b.pass(time.Second)
		require.NoError(b, h.Err(), "the context of the acquire bounds the acquire only")
		require.NoError(b, h.Release(ctx))
		require.False(b, b.lockd.valid("k", h.Token()))
		require.NoError(b, h.Release(ctx), "twice is fine")
		require.Equal(b, 1, b.lockd.requests("release"))
	})
}

func TestFailedReleaseIsSaidAndBounded(t *testing.T) {
	t.Parallel()
	inBubble(t, func(b *bubble) {
		h := b.acquire()
		b.fail(errSilence, false, "release")
		started := time.Now()
		require.ErrorIs(b, h.Release(b.Context()), ErrNoAnswer)
		require.LessOrEqual(b, time.Since(started), cleanupTimeout)
		require.Len(b, b.events.named(EventReleaseFailed), 1)
		require.ErrorIs(b, h.Release(b.Context()), ErrNoAnswer, "the first result")
	})
}

func TestWhatLockdSaysIsOverIsOver(t *testing.T) {
	t.Parallel()
	inBubble(t, func(b *bubble) { // revoked
		h := b.acquire()
		b.lockd.set(func() { delete(b.lockd.grants, "k") })
		b.pass(trusted(testLockTTL) / 3)
		require.ErrorIs(b, context.Cause(h.Context()), ErrLockLost)
		lost := b.events.named(EventSessionLost)
		require.Len(b, lost, 1)
		require.Equal(b, []any{"k", h.Token()}, []any{lost[0].Key, lost[0].Token})
		require.NoError(b, h.Release(b.Context()))
		require.NotEqual(b, h.Token(), b.acquire().Token(), "the session goes on")
	})
	inBubble(t, func(b *bubble) { // the session's end
		h := b.acquire()
		b.lockd.set(func() { clear(b.lockd.sessions) })
		b.pass(trusted(testSessionTTL) / 3)
		require.ErrorIs(b, context.Cause(h.Context()), ErrLockLost)
		require.ErrorIs(b, b.session.Err(), ErrSessionLost)
	})
}

func TestHeldLockLastsAsLongAsItIsNeeded(t *testing.T) {
	t.Parallel()
	inBubble(t, func(b *bubble) {
		h := b.acquire()
		for range 100 {
			b.pass(3 * time.Second)
			require.NoError(b, h.Err())
			require.True(b, b.lockd.valid("k", h.Token()))
		}
		require.Equal(b, 42, b.lockd.requests("renew"), "every third of what is relied on")
		require.Equal(b, 85, b.lockd.requests("heartbeat"))
		require.NoError(b, h.Release(b.Context()))
	})
}

func TestCloseEndsWhatIsStillHeld(t *testing.T) {
	t.Parallel()
	inBubble(t, func(b *bubble) {
		h := b.acquire()
		ctx, cancel := context.WithCancel(b.Context())
		cancel()
		require.NoError(b, b.session.Close(ctx))
		require.ErrorIs(b, context.Cause(h.Context()), ErrLockLost)
		require.ErrorIs(b, h.Err(), ErrSessionClosed)
		require.NoError(b, h.Release(b.Context()))
		require.Zero(b, b.lockd.requests("release"), "the session's end has done it")
		require.NoError(b, b.session.Close(b.Context()))
		require.Equal(b, 1, b.lockd.requests("close"))
		_, err := b.session.Acquire(b.Context(), "k", AcquireOptions{})
		require.ErrorIs(b, err, ErrSessionClosed)
	})
}

func TestDoReleasesAfterItsFunctionHasReturned(t *testing.T) {
	t.Parallel()
	inBubble(t, func(b *bubble) {
		boom := errors.New("boom")
		require.ErrorIs(b, b.session.Do(b.Context(), "k", func(ctx context.Context, h *Held) error {
			sleep(ctx, time.Second)
			require.NoError(b, ctx.Err())
			require.True(b, b.lockd.valid("k", h.Token()))
			return boom
		}), boom)
		require.Equal(b, 1, b.lockd.requests("release"))
		require.PanicsWithValue(b, "oh", func() {
			_ = b.session.Do(b.Context(), "k", func(context.Context, *Held) error { panic("oh") }) //nolint:forbidigo // what a program may do
		})
		require.Equal(b, 2, b.lockd.requests("release"), "also when it panics")

		ctx, cancel := context.WithCancel(b.Context())
		require.NoError(b, b.session.Do(ctx, "k", func(ctx context.Context, h *Held) error {
			cancel()
			<-ctx.Done()
			require.True(b, b.lockd.valid("k", h.Token()), "not released under its feet")
			return nil
		}))
		require.Equal(b, 3, b.lockd.requests("release"))

		err := b.session.Do(b.Context(), "k", func(ctx context.Context, _ *Held) error {
			b.lockd.set(func() { delete(b.lockd.grants, "k") })
			<-ctx.Done()
			require.ErrorIs(b, context.Cause(ctx), ErrLockLost)
			return nil
		})
		require.ErrorIs(b, err, ErrLockLost, "its caller learns that it may have worked in vain")
	})
}

func TestBarrierAsksEachGuardUnderTheToken(t *testing.T) {
	t.Parallel()
	var (
		mu      sync.Mutex
		got     []string
		answers []int
		code    = "FENCE_BUSY"
		safe    = true
	)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, fmt.Sprintf("%s %s guard=%s key=%s [%s] [%s] %d", r.Method, r.URL.Path, r.URL.Query().Get("guard"), r.URL.Query().Get("key"),
			r.Header.Get("X-Fencing-Token"), r.Header.Get("X-Owner-Id"), r.ContentLength))
		status := http.StatusNoContent
		if len(answers) > 0 {
			status, answers = answers[0], answers[1:]
		}
		w.WriteHeader(status)
		if status >= 400 {
			_, _ = fmt.Fprintf(w, `{"code":%q,"message":"words","retrySafe":%t}`, code, safe)
		}
	}))
	t.Cleanup(server.Close)
	s := fakeSession(t, newFake())
	h, err := s.Acquire(t.Context(), "k", AcquireOptions{})
	require.NoError(t, err)
	account, rail := BarrierURL(server.URL+"/", "account", "a/b&c"), BarrierURL(server.URL, "rail", "7")
	require.NoError(t, h.Barrier(t.Context(), account, rail))
	require.Equal(t, []string{
		"POST /.fence/barrier guard=account key=a/b&c [" + h.Token().String() + "] [worker] 0",
		"POST /.fence/barrier guard=rail key=7 [" + h.Token().String() + "] [worker] 0",
	}, got)

	answers, got = []int{503, 503, 204}, nil
	require.NoError(t, h.Barrier(t.Context(), rail))
	require.Len(t, got, 3, "busy is waited for")
	answers, got, safe = []int{503}, nil, false
	require.ErrorContains(t, h.Barrier(t.Context(), rail), `guard "rail"`)
	require.Len(t, got, 1)
	answers, got, code = []int{409}, nil, "FENCED_OUT"
	require.ErrorIs(t, h.Barrier(t.Context(), rail, account), ErrFencedOut)
	require.Len(t, got, 1, "no further one")
	for _, status := range []int{200, 202, 302} {
		answers = []int{status}
		require.ErrorContains(t, h.Barrier(t.Context(), rail), "want 204")
	}
	for _, bad := range []string{"", server.URL, server.URL + BarrierPath, ":"} {
		require.ErrorContains(t, h.Barrier(t.Context(), bad), "BarrierURL")
	}
	require.NoError(t, h.Release(t.Context()))
	got = nil
	require.ErrorIs(t, h.Barrier(t.Context(), rail), ErrReleased)
	require.Empty(t, got)
}

func TestTransportSendsUnderTheTokenAndNothingAfterwards(t *testing.T) {
	t.Parallel()
	var got []string
	base := roundTrip(func(r *http.Request) (*http.Response, error) {
		got = append(got, r.Header.Get("X-Fencing-Token")+" "+r.Header.Get("X-Owner-Id")+" "+r.Header.Get("X-Other"))
		return say(200, nil, 0), nil
	})
	s := fakeSession(t, newFake())
	h, err := s.Acquire(t.Context(), "k", AcquireOptions{})
	require.NoError(t, err)
	client := &http.Client{Transport: h.Transport(base)}
	request := func() *http.Request {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://resource/", strings.NewReader("x"))
		require.NoError(t, err)
		r.Header.Set("X-Other", "stays")
		r.Header.Set("X-Fencing-Token", "999999")
		return r
	}
	r := request()
	response, err := client.Do(r)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, []string{h.Token().String() + " worker stays"}, got)
	require.Equal(t, "999999", r.Header.Get("X-Fencing-Token"), "the caller's request is left alone")
	require.NoError(t, h.Release(t.Context()))
	_, err = client.Do(request()) //nolint:bodyclose // there is none
	require.ErrorIs(t, err, ErrReleased)
	require.Len(t, got, 1)
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// fakeSession is a session of a fake lockd outside of a bubble.
func fakeSession(t *testing.T, lockd *fakeLockd) *Session {
	t.Helper()
	s, err := Open(t.Context(), "worker", Options{HTTPClient: &http.Client{Transport: lockd}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close(context.Background())) })
	require.Equal(t, "worker", s.Owner())
	require.NotEmpty(t, s.ID())
	return s
}
