package lock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
)

// bubbleStore is one key's store on the bubble's clock. It counts how often it is asked, which is what these tests are about; what a real store
// decides is tested with real ones.
type bubbleStore struct {
	Store
	mu      sync.Mutex
	holder  *Grant
	last    Token
	inserts int
	reads   int
	deletes int
	takes   time.Duration // how long an insert takes
	fails   error
}

func (b *bubbleStore) Insert(_ context.Context, key, owner string, session uuid.UUID, ttl time.Duration) (Acquired, error) {
	time.Sleep(b.takes) //nolint:forbidigo // the bubble's clock
	b.mu.Lock()
	defer b.mu.Unlock()
	b.inserts++
	now := time.Now()
	switch {
	case b.fails != nil:
		return Acquired{}, b.fails
	case b.holder != nil && b.holder.ExpiresAt.After(now) && b.holder.SessionID != session:
		return Acquired{Holder: Holder{OwnerID: b.holder.OwnerID, ExpiresAt: b.holder.ExpiresAt}}, nil
	}
	b.last++
	b.holder = &Grant{Key: key, OwnerID: owner, SessionID: session, Token: b.last, AcquiredAt: now, ExpiresAt: now.Add(ttl), TTL: ttl}
	return Acquired{Granted: true, Grant: *b.holder}, nil
}

func (b *bubbleStore) Read(context.Context, string) (Grant, bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reads++
	if b.holder == nil {
		return Grant{}, false, nil
	}
	return *b.holder, true, nil
}

func (b *bubbleStore) Delete(_ context.Context, _ string, token Token) (Released, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.deletes++
	if b.holder == nil || b.holder.Token != token {
		return Released{Stale: true}, nil
	}
	b.holder = nil
	return Released{}, nil
}

// waitingRoom is a service in a bubble with one key that "first" holds for a minute.
type waitingRoom struct {
	*Service
	t     *testing.T
	store *bubbleStore
	first Grant
}

func inWaitingRoom(t *testing.T, limits Limits, do func(t *testing.T, r *waitingRoom)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		store := &bubbleStore{}
		r := &waitingRoom{Service: NewService(store, "fake", limits, hclog.NewNullLogger(), &recorded{}), t: t, store: store}
		result, err := r.Acquire(t.Context(), request("first", 0))
		require.NoError(t, err)
		r.first = result.Grant
		r.waiting.watching(true) // polls are rare then, so that what wakes a waiter is the hint under test
		do(t, r)
	})
}

func request(owner string, wait time.Duration) AcquireRequest {
	return AcquireRequest{Key: "k", OwnerID: owner, SessionID: uuid.NewSHA1(uuid.Nil, []byte(owner)), TTL: time.Minute, Wait: wait}
}

// outcome is what became of a waiter.
type outcome struct {
	Acquired
	err   error
	after time.Duration
}

// enqueue lets an owner wait, and returns when it stands in the queue.
func (r *waitingRoom) enqueue(ctx context.Context, owner string, wait time.Duration) <-chan outcome {
	done := make(chan outcome, 1)
	start := time.Now()
	go func() {
		result, err := r.Acquire(ctx, request(owner, wait))
		done <- outcome{result, err, time.Since(start)}
	}()
	synctest.Wait()
	return done
}

func (r *waitingRoom) release(grant Grant) {
	r.t.Helper()
	_, err := r.Release(r.t.Context(), grant.Key, grant.OwnerID, grant.Token)
	require.NoError(r.t, err)
}

func TestWaitersAreServedInTheOrderOfArrivalWithOneLookEach(t *testing.T) {
	t.Parallel()
	inWaitingRoom(t, Limits{}, func(t *testing.T, r *waitingRoom) {
		const n = 200
		var queue []<-chan outcome
		for i := range n {
			queue = append(queue, r.enqueue(t.Context(), fmt.Sprint("w", i), MaxWait))
		}
		require.Equal(t, n, r.Waiters("k"))
		r.store.inserts, r.store.reads = 0, 0
		held := r.first
		for i, waiter := range queue {
			r.release(held)
			got := <-waiter
			require.NoError(t, got.err)
			require.True(t, got.Granted)
			require.Equal(t, fmt.Sprint("w", i), got.Grant.OwnerID)
			require.Greater(t, got.Grant.Token, held.Token)
			held = got.Grant
			synctest.Wait()
		}
		require.Equal(t, n, r.store.inserts, "a release wakes one waiter, not all")
		require.Zero(t, r.store.reads)
		require.Zero(t, r.Waiters("k"))
		require.Empty(t, r.waiting.queues, "nothing stays of a key that nobody waits for")
	})
}

func TestGrantIsMadeWhenTheLeaseRunsOut(t *testing.T) {
	t.Parallel()
	inWaitingRoom(t, Limits{}, func(t *testing.T, r *waitingRoom) {
		r.store.holder.ExpiresAt = time.Now().Add(3 * time.Second)
		got := <-r.enqueue(t.Context(), "w", MaxWait)
		require.NoError(t, got.err)
		require.True(t, got.Granted)
		require.InDelta(t, 3.0, got.after.Seconds(), 0.01)
		require.Equal(t, got.after, got.Waited, "all of it was waiting")
	})
}

// The attempt that is granted takes a second here. Its time isn't part of Waited: the lease counts from its beginning.
func TestWaitedLeavesTheAttemptOut(t *testing.T) {
	t.Parallel()
	inWaitingRoom(t, Limits{}, func(t *testing.T, r *waitingRoom) {
		waiter := r.enqueue(t.Context(), "w", MaxWait)
		time.Sleep(2 * time.Second) //nolint:forbidigo // the bubble's clock
		r.store.takes = time.Second
		r.release(r.first)
		got := <-waiter
		require.True(t, got.Granted)
		require.Equal(t, 3*time.Second, got.after)
		require.Equal(t, 2*time.Second, got.Waited)
	})
}

func TestLostHintIsMadeUpForByAPoll(t *testing.T) {
	t.Parallel()
	for watched, late := range map[bool]time.Duration{true: pollWatched, false: pollUnwatched} {
		inWaitingRoom(t, Limits{}, func(t *testing.T, r *waitingRoom) {
			r.waiting.watching(watched)
			waiter := r.enqueue(t.Context(), "w", MaxWait)
			r.store.mu.Lock()
			r.store.holder = nil // released through another replica, and nobody tells
			r.store.mu.Unlock()
			got := <-waiter
			require.True(t, got.Granted)
			require.LessOrEqual(t, got.after, late)
		})
	}
}

func TestHintAboutAnOlderGrantCostsNoLook(t *testing.T) {
	t.Parallel()
	inWaitingRoom(t, Limits{}, func(t *testing.T, r *waitingRoom) {
		one, two := r.enqueue(t.Context(), "one", MaxWait), r.enqueue(t.Context(), "two", MaxWait)
		r.release(r.first)
		granted := (<-one).Grant
		synctest.Wait()
		before := r.store.inserts
		r.waiting.freed("k", r.first.Token) // the same release, told by the watcher
		synctest.Wait()
		require.Equal(t, before, r.store.inserts)
		r.waiting.freed("k", granted.Token) // this one might be news
		synctest.Wait()
		require.Equal(t, before+1, r.store.inserts)
		r.waiting.freed("", 0)
		synctest.Wait()
		require.Equal(t, before+2, r.store.inserts)
		r.release(granted)
		require.True(t, (<-two).Granted)
	})
}

// A hint belongs to the queue: the waiter that it woke may leave without having looked.
func TestHintOutlivesTheWaiterThatItWoke(t *testing.T) {
	t.Parallel()
	inWaitingRoom(t, Limits{}, func(t *testing.T, r *waitingRoom) {
		ctx, hangUp := context.WithCancel(t.Context())
		one, two := r.enqueue(ctx, "one", MaxWait), r.enqueue(t.Context(), "two", MaxWait)
		r.store.takes = time.Second
		r.release(r.first)
		hangUp()
		require.ErrorIs(t, (<-one).err, context.Canceled)
		got := <-two
		require.True(t, got.Granted)
		require.Less(t, got.after, pollUnwatched*3)
	})
}

func TestWaiterWhoHangsUpLeavesTheQueueAndWhatItWasGrantedIsReleased(t *testing.T) {
	t.Parallel()
	inWaitingRoom(t, Limits{}, func(t *testing.T, r *waitingRoom) {
		gone := errors.New("the client has gone")
		ctx, hangUp := context.WithCancelCause(t.Context())
		waiter := r.enqueue(ctx, "w", MaxWait)
		r.store.takes = time.Second
		r.release(r.first)
		synctest.Wait() // the attempt is under way
		hangUp(gone)
		got := <-waiter
		require.ErrorIs(t, got.err, gone)
		require.Nil(t, r.store.holder, "given back")
		require.Equal(t, 2, r.store.deletes)

		ctx, hangUp = context.WithCancelCause(t.Context())
		r.store.takes = 0
		_, err := r.Acquire(t.Context(), request("first", 0))
		require.NoError(t, err)
		waiter = r.enqueue(ctx, "w", MaxWait)
		before := r.store.inserts
		hangUp(gone)
		require.ErrorIs(t, (<-waiter).err, gone)
		require.Equal(t, before, r.store.inserts, "nothing was asked for somebody who has gone")
		require.Zero(t, r.Waiters("k"))
	})
}

func TestWaitingEndsContendedAfterItsTime(t *testing.T) {
	t.Parallel()
	inWaitingRoom(t, Limits{}, func(t *testing.T, r *waitingRoom) {
		one, two := r.enqueue(t.Context(), "one", 2*time.Second), r.enqueue(t.Context(), "two", 3*time.Second)
		for waiter, after := range map[<-chan outcome]time.Duration{one: 2 * time.Second, two: 3 * time.Second} {
			got := <-waiter
			require.NoError(t, got.err)
			require.False(t, got.Granted)
			require.Equal(t, "first", got.Holder.OwnerID)
			require.Equal(t, after, got.after)
		}
	})
}

func TestNobodyOvertakesTheQueueButTheHolderItself(t *testing.T) {
	t.Parallel()
	inWaitingRoom(t, Limits{}, func(t *testing.T, r *waitingRoom) {
		waiter := r.enqueue(t.Context(), "w", MaxWait)
		r.store.mu.Lock()
		free := r.store.holder
		r.store.holder = nil // free, but it is the waiter's turn
		r.store.mu.Unlock()
		result, err := r.Acquire(t.Context(), request("newcomer", 0))
		require.NoError(t, err)
		require.False(t, result.Granted)
		r.store.mu.Lock()
		r.store.holder = free
		r.store.mu.Unlock()
		for _, wait := range []time.Duration{0, MaxWait} {
			again, err := r.Acquire(t.Context(), request("first", wait))
			require.NoError(t, err)
			require.True(t, again.Granted, "it would wait for itself")
			require.Greater(t, again.Grant.Token, r.first.Token)
			require.Zero(t, again.Waited)
			r.first = again.Grant
		}
		r.release(r.first)
		require.True(t, (<-waiter).Granted)
	})
}

func TestQueueIsBoundedInAllAndForEachKey(t *testing.T) {
	t.Parallel()
	inWaitingRoom(t, Limits{Waiters: 3, WaitersPerKey: 2}, func(t *testing.T, r *waitingRoom) {
		r.enqueue(t.Context(), "one", 5*time.Second)
		r.enqueue(t.Context(), "two", 5*time.Second)
		got := <-r.enqueue(t.Context(), "three", 5*time.Second)
		require.ErrorIs(t, got.err, ErrTooManyWaiters)
		other := request("four", 5*time.Second)
		other.Key = "other"
		_, err := r.waiting.join("other")
		require.NoError(t, err)
		_, err = r.Acquire(t.Context(), other)
		require.ErrorIs(t, err, ErrTooManyWaiters)
	})
}

func TestStoreFaultEndsOneWaitAndTheNextWaiterLooksForItself(t *testing.T) {
	t.Parallel()
	inWaitingRoom(t, Limits{}, func(t *testing.T, r *waitingRoom) {
		one, two := r.enqueue(t.Context(), "one", MaxWait), r.enqueue(t.Context(), "two", MaxWait)
		r.store.mu.Lock()
		r.store.fails = ErrUnavailable
		r.store.mu.Unlock()
		r.waiting.freed("k", 0)
		require.ErrorIs(t, (<-one).err, ErrUnavailable)
		require.ErrorIs(t, (<-two).err, ErrUnavailable)
		require.Zero(t, r.Waiters("k"))
	})
}

func TestDrainingEndsAllWaiting(t *testing.T) {
	t.Parallel()
	inWaitingRoom(t, Limits{}, func(t *testing.T, r *waitingRoom) {
		one, two := r.enqueue(t.Context(), "one", MaxWait), r.enqueue(t.Context(), "two", MaxWait)
		r.Drain()
		r.Drain()
		for _, waiter := range []<-chan outcome{one, two} {
			got := <-waiter
			require.ErrorIs(t, got.err, ErrUnavailable)
			require.Zero(t, got.after)
		}
	})
}

// script is a watcher that breaks and comes back.
type script struct{ watched chan struct{} }

func (s *script) Watch(ctx context.Context, ready func(), _ func(string, Token)) error {
	ready()
	select {
	case s.watched <- struct{}{}:
		return errors.New("broken")
	case <-ctx.Done():
		return ctx.Err()
	}
}

func TestFollowingGoesOnAfterTheWatcherBrokeAndLooksAfterEachGap(t *testing.T) {
	t.Parallel()
	inWaitingRoom(t, Limits{}, func(t *testing.T, r *waitingRoom) {
		ctx, cancel := context.WithCancel(t.Context())
		watcher := &script{watched: make(chan struct{})}
		done := make(chan struct{})
		go func() { defer close(done); r.Follow(ctx, watcher) }()
		waiter := r.enqueue(ctx, "w", MaxWait)
		before := r.store.inserts
		<-watcher.watched
		time.Sleep(firstWatchPause) //nolint:forbidigo // the bubble's clock
		synctest.Wait()
		require.Equal(t, before+1, r.store.inserts, "anything may have happened in the gap")
		cancel()
		<-done
		require.ErrorIs(t, (<-waiter).err, context.Canceled)
	})
}
