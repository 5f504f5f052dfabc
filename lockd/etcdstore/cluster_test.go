package etcdstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"fenceline/internal/etcdtest"
	"fenceline/lockd/etcdstore"
	"fenceline/lockd/lock"
)

// record watches over all grants of a key: one holder at a time, each token above the one before.
type record struct {
	mu     sync.Mutex
	holder lock.Token
	last   lock.Token
	grants int
}

func (r *record) granted(token lock.Token) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.holder != 0 {
		return fmt.Errorf("token %d was granted while %d is held", token, r.holder)
	}
	if token <= r.last {
		return fmt.Errorf("token %d was granted after %d", token, r.last)
	}
	r.holder, r.last = token, token
	r.grants++
	return nil
}

func (r *record) releasing() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.holder = 0
}

func (r *record) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.grants
}

// silence is an answer that says that there is none. Whatever else a store says under a fault is a decision.
func silence(err error) bool {
	return errors.Is(err, lock.ErrUnavailable) || errors.Is(err, lock.ErrUnknownOutcome)
}

// worker acquires and releases the key until ctx ends, with a session for each turn.
func worker(ctx context.Context, store lock.Store, r *record) error {
	for ctx.Err() == nil {
		session, err := store.OpenSession(ctx, "alice", time.Minute)
		if err != nil {
			if silence(err) {
				continue
			}
			return err
		}
		result, err := store.Insert(ctx, "key", "alice", session.ID, 5*time.Minute)
		if err == nil && result.Granted {
			if err := r.granted(result.Grant.Token); err != nil {
				return err
			}
			r.releasing()
			_, err = store.Delete(ctx, "key", result.Grant.Token)
		}
		if err != nil && !silence(err) {
			return err
		}
		for closed := false; !closed && ctx.Err() == nil; { // whatever it may still hold ends here
			_, err := store.CloseSession(ctx, session.ID)
			if closed = !silence(err); closed && err != nil && !errors.Is(err, lock.ErrSessionUnknown) {
				return err
			}
		}
	}
	return nil
}

// Real members die by SIGKILL, the leader too, and one is cut off from the others. Meanwhile no key is granted twice, tokens grow, and what can't be
// decided is said to be undecided.
func TestClusterThatLosesMembersNeverGrantsTwice(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.StartCluster(t, 3)
	r := &record{}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	workers, ctx := errgroup.WithContext(ctx)
	for range 2 {
		store := openAt(t, etcdstore.Config{Endpoints: cluster.Endpoints()})
		for range 2 {
			workers.Go(func() error { return worker(ctx, store, r) })
		}
	}
	goOn := func(when string) {
		t.Helper()
		before := r.count()
		require.Eventually(t, func() bool { return r.count() > before+10 || ctx.Err() != nil }, 2*time.Minute, 10*time.Millisecond, when)
		require.NoError(t, ctx.Err(), when)
	}
	goOn("all members run")

	follower := cluster.Follower(t)
	follower.Kill(t)
	goOn("a member is dead")
	follower.Restart(t)

	leader := cluster.Leader(t)
	leader.Kill(t)
	goOn("the leader is dead")
	leader.Restart(t)

	lonely := cluster.Leader(t)
	alone := openAt(t, etcdstore.Config{Endpoints: []string{lonely.Endpoint()}, Timeout: 2 * time.Second})
	session, err := alone.OpenSession(t.Context(), "bob", time.Minute)
	require.NoError(t, err)
	cluster.CutOff(t, lonely)
	goOn("the leader is cut off")
	for range 3 {
		_, err = alone.Insert(t.Context(), "another key", "bob", session.ID, time.Minute)
		require.True(t, silence(err), "who asks the minority: %v", err)
		_, err = alone.Extend(t.Context(), "key", 1, time.Minute)
		require.True(t, silence(err), "who asks the minority: %v", err)
	}
	cluster.Mend(t, lonely)
	goOn("all members are together again")
	cancel()
	require.NoError(t, workers.Wait())
}
