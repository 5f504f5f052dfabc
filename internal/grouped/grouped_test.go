package grouped_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fenceline/internal/grouped"
)

// store records the groups that reach it, and lets them go one by one.
type store struct {
	*grouped.Grouper[int, string]
	arrived chan []string
	release chan struct{}
}

func newStore(flights int) *store {
	s := &store{arrived: make(chan []string, 100), release: make(chan struct{})}
	s.Grouper = &grouped.Grouper[int, string]{
		Flights: flights, Size: 3, Waiting: 10, Alone: make(chan struct{}, 1),
		Send: func(_ context.Context, members []*grouped.Member[int, string]) {
			var keys []string
			for _, m := range members {
				keys = append(keys, m.Key)
			}
			s.arrived <- keys
			<-s.release
			for _, m := range members {
				m.Answer, m.Retry = fmt.Sprint("together ", m.Ask), m.Ask < 0
			}
		},
		SendAlone: func(_ context.Context, m *grouped.Member[int, string]) { m.Answer = fmt.Sprint("alone ", m.Ask) },
	}
	return s
}

func TestCallsThatArriveTogetherShareAGroupAndAKeyIsInItOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(1)
		var wg sync.WaitGroup
		answers := make(chan string, 10)
		for i, key := range []string{"first", "a", "b", "a", "c", "d"} {
			wg.Go(func() {
				answer, err := s.Do(t.Context(), key, i)
				require.NoError(t, err)
				answers <- answer
			})
			synctest.Wait()
		}
		require.Equal(t, 1, s.Flying())
		require.Equal(t, 5, s.Pending())
		for _, want := range [][]string{{"first"}, {"a", "b", "c"}, {"a", "d"}} {
			require.Equal(t, want, <-s.arrived)
			s.release <- struct{}{}
			synctest.Wait()
		}
		wg.Wait()
		require.Len(t, answers, 6)
		require.Zero(t, s.Flying()+s.Pending())
	})
}

func TestMemberWhoseGroupDecidedNothingGoesAloneAndItsKeyWaitsForIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(1)
		s.Alone <- struct{}{} // somebody else is alone at the store
		got := make(chan string, 2)
		for _, ask := range []int{-1, 2} {
			go func() {
				answer, err := s.Do(t.Context(), "k", ask)
				require.NoError(t, err)
				got <- answer
			}()
			synctest.Wait()
		}
		s.release <- struct{}{}
		synctest.Wait()
		require.Equal(t, 1, s.Pending(), "its key is busy until it has been alone")
		<-s.Alone
		require.Equal(t, "alone -1", <-got)
		s.release <- struct{}{}
		require.Equal(t, "together 2", <-got)
	})
}

func TestCallThatDidNotLeaveSaysSo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(1)
		go func() { _, _ = s.Do(t.Context(), "k", 1) }()
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 2)
		for _, key := range []string{"k", "other"} {
			go func() {
				_, err := s.Do(ctx, key, 2)
				ended <- err
			}()
			synctest.Wait()
		}
		for range 8 {
			go func() { _, _ = s.Do(t.Context(), "more", 3) }()
		}
		synctest.Wait()
		_, err := s.Do(t.Context(), "too many", 4)
		require.ErrorIs(t, err, grouped.ErrNotSent)
		require.ErrorIs(t, err, grouped.ErrTooMany)
		cancel()
		busy := 0
		for range 2 {
			err := <-ended
			require.ErrorIs(t, err, grouped.ErrNotSent)
			require.ErrorIs(t, err, context.Canceled)
			if errors.Is(err, grouped.ErrKeyBusy) {
				busy++
			}
		}
		require.Equal(t, 1, busy, "the one whose key was at the store")
		close(s.release)
	})
}

func TestFurtherGroupLeavesWithCompanyOrAfterAWhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(2)
		s.Company, s.Patience = 3, time.Second
		var wg sync.WaitGroup
		call := func(keys ...string) {
			for _, key := range keys {
				wg.Go(func() {
					_, err := s.Do(t.Context(), key, 1)
					require.NoError(t, err)
				})
				synctest.Wait()
			}
		}
		flies := func(want ...string) {
			t.Helper()
			select {
			case got := <-s.arrived:
				require.Equal(t, want, got)
			default:
				require.Empty(t, want, "nobody has left")
			}
		}
		call("first", "a", "b")
		flies("first")
		flies() // two are no company
		call("c")
		flies("a", "b", "c")

		call("d")
		s.release <- struct{}{} // one lands; the other one is still there
		synctest.Wait()
		flies()
		<-time.After(time.Second) // the timer of those who have left
		synctest.Wait()
		flies()
		<-time.After(time.Second)
		synctest.Wait()
		flies("d")

		call("e")
		s.release <- struct{}{}
		s.release <- struct{}{}
		synctest.Wait()
		flies("e") // when all have landed the next one leaves, whoever it is
		s.release <- struct{}{}
		wg.Wait()
		require.Zero(t, s.Flying()+s.Pending())
		<-time.After(time.Minute) // a timer that finds nobody
	})
}

func TestGroupThatTakesLongKeepsFewWaitingForAWhileOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(2)
		s.Company, s.Patience = 3, time.Second
		for _, key := range []string{"stuck", "a"} {
			go func() { _, _ = s.Do(t.Context(), key, 1) }()
			synctest.Wait()
		}
		require.Equal(t, []string{"stuck"}, <-s.arrived)
		<-time.After(time.Second - time.Millisecond)
		synctest.Wait()
		require.Empty(t, s.arrived)
		<-time.After(time.Millisecond)
		synctest.Wait()
		require.Equal(t, []string{"a"}, <-s.arrived)
		close(s.release)
	})
}
