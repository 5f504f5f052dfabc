package lockclient

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fenceline/lockd/lock"
	"fenceline/lockd/lockapi"
)

// other lets another session hold the key for a time.
func (b *bubble) other(key string, ttl time.Duration) {
	b.lockd.set(func() {
		b.lockd.last++
		b.lockd.sessions["other"] = b.lockd.lease(ttl)
		b.lockd.grants[key] = fakeGrant{fakeLease: b.lockd.lease(ttl), token: b.lockd.last, session: "other"}
	})
}

func TestContendedLockIsTriedForABoundedTime(t *testing.T) {
	t.Parallel()
	inBubble(t, func(b *bubble) {
		b.other("k", time.Hour)
		started := time.Now()
		_, err := b.session.Acquire(b.Context(), "k", AcquireOptions{})
		require.ErrorIs(b, err, ErrContended)
		require.Zero(b, time.Since(started))
		require.Equal(b, 1, b.lockd.requests("acquire"), "no wait, one try")

		_, err = b.session.Acquire(b.Context(), "k", AcquireOptions{Wait: 90 * time.Second})
		require.ErrorIs(b, err, ErrContended)
		require.Equal(b, 90*time.Second, time.Since(started))
		require.Greater(b, b.lockd.requests("acquire"), 90, "a server that doesn't let it wait is asked about once a second")
		require.Less(b, b.lockd.requests("acquire"), 250)

		b.other("k", 5*time.Second)
		h, err := b.session.Acquire(b.Context(), "k", AcquireOptions{Wait: time.Minute})
		require.NoError(b, err)
		require.NoError(b, h.Release(b.Context()))
	})
}

func TestLostAnswerOfAnAcquireEndsWithTheNewerToken(t *testing.T) {
	t.Parallel()
	inBubble(t, func(b *bubble) {
		lost := 2
		b.lockd.set(func() {
			b.lockd.fault = func(n string) (error, bool) {
				if n == "acquire" && lost > 0 {
					lost--
					return errRefused, true // it arrives, whatever the client hears
				}
				return nil, true
			}
		})
		h := b.acquire()
		require.Equal(b, 3, b.lockd.requests("acquire"))
		require.True(b, b.lockd.valid("k", h.Token()))
		require.NoError(b, h.Err())
		require.NoError(b, h.Release(b.Context()))
	})
}

func TestTriesAreBoundedAndNeverForWhatIsNotSafe(t *testing.T) {
	t.Parallel()
	inBubble(t, func(b *bubble) {
		b.fail(errRefused, false, "acquire")
		started := time.Now()
		_, err := b.session.Acquire(b.Context(), "k", AcquireOptions{})
		require.ErrorIs(b, err, ErrNoAnswer)
		require.NotErrorIs(b, err, ErrContended)
		require.GreaterOrEqual(b, time.Since(started), 375*time.Millisecond)
		require.LessOrEqual(b, time.Since(started), 750*time.Millisecond, "50, 100, 200, 400 ms and jitter")
	})
	for code, want := range map[string]struct {
		refusal *Refusal
		tries   int
	}{
		"unavailable":          {&Refusal{Status: 503, Envelope: lockapi.Error{Code: lockapi.CodeBackendUnavailable, RetrySafe: true}}, maxTries},
		"unavailable, unsafe":  {&Refusal{Status: 503, Envelope: lockapi.Error{Code: lockapi.CodeBackendUnavailable}}, 1},
		"defect":               {&Refusal{Status: 500, Envelope: lockapi.Error{Code: lockapi.CodeInternal}}, 1},
		"contended, no matter": {&Refusal{Status: 409, Envelope: lockapi.Error{Code: lockapi.CodeLockContended, RetrySafe: true}}, 1},
		"lost":                 {&Refusal{Status: 409, Envelope: lockapi.Error{Code: lockapi.CodeLockLost}}, 1},
	} {
		inBubble(t, func(b *bubble) {
			tries := 0
			err := retry(b.Context(), func(context.Context) error { tries++; return want.refusal })
			require.ErrorIs(b, err, want.refusal)
			require.Equal(b, want.tries, tries, code)
		})
	}
	inBubble(t, func(b *bubble) {
		tries, started := 0, time.Now()
		refusal := &Refusal{Status: 503, Envelope: lockapi.Error{RetrySafe: true, RetryAfterMillis: 3000}}
		ctx, cancel := context.WithTimeout(b.Context(), 7*time.Second)
		defer cancel()
		require.ErrorIs(b, retry(ctx, func(context.Context) error { tries++; return refusal }), refusal)
		require.Equal(b, 3, tries, "not before the time that lockd asks for")
		require.Equal(b, 7*time.Second, time.Since(started), "and not after the context's end")
	})
}

// An acquire whose caller gave up may have been granted: the key isn't left locked by nobody.
func TestAbandonedAcquireLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	inBubble(t, func(b *bubble) {
		b.lockd.set(func() {
			b.lockd.back = func(n string) time.Duration { return map[string]time.Duration{"acquire": time.Second}[n] }
		})
		ctx, cancel := context.WithTimeout(b.Context(), 500*time.Millisecond)
		defer cancel()
		_, err := b.session.Acquire(ctx, "k", AcquireOptions{TTL: 5 * time.Minute})
		require.ErrorIs(b, err, context.DeadlineExceeded)
		b.pass(2 * time.Second)
		b.lockd.set(func() { _, held := b.lockd.live("k"); require.False(b, held) })
		require.Empty(b, b.session.keys)
	})
	inBubble(t, func(b *bubble) { // the other's grant is none of its business
		b.other("k", time.Minute)
		b.fail(errSilence, true, "acquire")
		ctx, cancel := context.WithTimeout(b.Context(), time.Second)
		defer cancel()
		_, err := b.session.Acquire(ctx, "k", AcquireOptions{Wait: time.Minute})
		require.ErrorIs(b, err, context.DeadlineExceeded)
		b.fail(nil, true)
		b.pass(time.Minute - 2*time.Second)
		b.lockd.set(func() { g, held := b.lockd.live("k"); require.True(b, held); require.Equal(b, "other", g.session) })
	})
}

func TestAnswerThatComesTooLateIsNoLock(t *testing.T) {
	t.Parallel()
	inBubble(t, func(b *bubble) {
		slow := 2
		b.lockd.set(func() {
			b.lockd.back = func(n string) time.Duration {
				if n == "acquire" && slow > 0 {
					slow--
					return 700 * time.Millisecond
				}
				return 0
			}
		})
		h, err := b.session.Acquire(b.Context(), "k", AcquireOptions{TTL: time.Second})
		require.NoError(b, err)
		require.Equal(b, 3, b.lockd.requests("acquire"))
		require.NoError(b, h.Err())
		require.NoError(b, h.Release(b.Context()))
	})
}

// A session is no way of sharing a lock between goroutines.
func TestOneSessionHoldsAKeyOnce(t *testing.T) {
	t.Parallel()
	inBubble(t, func(b *bubble) {
		h := b.acquire()
		_, err := b.session.Acquire(b.Context(), "k", AcquireOptions{})
		require.ErrorIs(b, err, ErrContended)
		require.ErrorContains(b, err, "this very session")
		require.Equal(b, 1, b.lockd.requests("acquire"), "asking would have ended the other one's grant")
		require.NoError(b, h.Release(b.Context()))

		var inside, most, done int
		var mu sync.Mutex
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				err := b.session.Do(b.Context(), "k", func(context.Context, *Held) error { return nil })
				if err == nil {
					return
				}
				h, err := b.session.Acquire(b.Context(), "k", AcquireOptions{Wait: time.Hour})
				if err != nil {
					return
				}
				mu.Lock()
				inside++
				most = max(most, inside)
				mu.Unlock()
				sleep(b.Context(), time.Second)
				mu.Lock()
				inside--
				done++
				mu.Unlock()
				_ = h.Release(b.Context())
			})
		}
		all.Wait()
		require.Equal(b, 1, most)
		require.Greater(b, done, 10)

		h = b.acquire()
		ctx, cancel := context.WithCancel(b.Context())
		cancel()
		_, err = b.session.Acquire(ctx, "k", AcquireOptions{Wait: time.Hour})
		require.ErrorIs(b, err, context.Canceled)
		require.NoError(b, h.Release(b.Context()))
	})
}

// The session's end ends an acquire that waits.
func TestAcquireEndsWithItsSession(t *testing.T) {
	t.Parallel()
	inBubble(t, func(b *bubble) {
		b.fail(errSilence, false, "acquire")
		result := make(chan error, 1)
		go func() {
			_, err := b.session.Acquire(context.Background(), "k", AcquireOptions{Wait: time.Hour})
			result <- err
		}()
		b.pass(time.Second)
		require.NoError(b, b.session.Close(b.Context()))
		require.ErrorIs(b, <-result, ErrSessionClosed)
	})
}

func TestOutOfBoundsIsRefusedBeforeAnythingIsSent(t *testing.T) {
	t.Parallel()
	inBubble(t, func(b *bubble) {
		for _, key := range []string{"", "a b", "ä"} {
			_, err := b.session.Acquire(b.Context(), key, AcquireOptions{})
			require.ErrorIs(b, err, lock.ErrInvalid)
		}
		for _, ttl := range []time.Duration{-1, time.Millisecond, time.Hour} {
			_, err := b.session.Acquire(b.Context(), "k", AcquireOptions{TTL: ttl})
			require.ErrorIs(b, err, lock.ErrInvalid)
		}
		require.Zero(b, b.lockd.requests("acquire"))
		for _, ttl := range []time.Duration{-1, time.Millisecond, time.Hour} {
			_, err := Open(b.Context(), "w", Options{SessionTTL: ttl})
			require.ErrorIs(b, err, lock.ErrInvalid)
		}
	})
}

func TestOpeningIsRepeatedWhileLockdCannotBeReached(t *testing.T) {
	t.Parallel()
	inBubble(t, func(b *bubble) {
		refused := 3
		b.lockd.set(func() {
			b.lockd.fault = func(n string) (error, bool) {
				if refused--; refused >= 0 {
					return errRefused, false
				}
				return nil, true
			}
		})
		s, err := open(b.Context(), b.session.client, b.session.options, b.session.rules)
		require.NoError(b, err)
		require.NoError(b, s.Close(b.Context()))
		b.fail(errRefused, false, "open")
		_, err = open(b.Context(), b.session.client, b.session.options, b.session.rules)
		require.ErrorIs(b, err, ErrNoAnswer)
		require.False(b, errors.Is(err, ErrSessionLost))
	})
}
