package locktest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/go-hclog"

	"fenceline/lockd/lock"
)

// replica is one lockd over the store: the service that lets clients wait.
type replica struct {
	*lock.Service
	stop context.CancelFunc
	done chan struct{}
}

type noRecorder struct{}

func (noRecorder) Acquired(string, time.Duration) {}
func (noRecorder) LeasesExpired(int)              {}
func (noRecorder) Held(int64)                     {}
func (noRecorder) Waiting(int)                    {}

// newReplica returns once it hears what happens at the store.
func newReplica(ctx context.Context, s Store) (*replica, error) {
	ctx, stop := context.WithCancel(ctx)
	r := &replica{Service: lock.NewService(s, "tested", lock.Limits{}, hclog.NewNullLogger(), noRecorder{}), stop: stop, done: make(chan struct{})}
	watcher, ok := s.Store.(lock.Watcher)
	if !ok {
		close(r.done)
		return r, nil
	}
	watched := &observed{Watcher: watcher, ready: make(chan struct{}, 1)}
	go func() {
		defer close(r.done)
		r.Follow(ctx, watched)
	}()
	select {
	case <-watched.ready:
		return r, nil
	case <-ctx.Done():
		r.end()
		return nil, fmt.Errorf("the store can't be watched: %w", context.Cause(ctx))
	}
}

func (r *replica) end() {
	r.stop()
	<-r.done
}

// observed tells when the watcher is ready.
type observed struct {
	lock.Watcher
	ready chan struct{}
}

func (o *observed) Watch(ctx context.Context, ready func(), freed func(string, lock.Token)) error {
	return o.Watcher.Watch(ctx, func() {
		ready()
		select {
		case o.ready <- struct{}{}:
		default:
		}
	}, freed)
}

// waited is what became of a waiter.
type waited struct {
	lock.Acquired
	err error
	at  time.Time
}

// wait lets a client wait, and returns when it stands in the queue as the nth.
func (r *replica) wait(ctx context.Context, c *client, key string, nth int) (<-chan waited, error) {
	done := make(chan waited, 1)
	go func() {
		result, err := r.Acquire(ctx, lock.AcquireRequest{Key: key, OwnerID: c.session.OwnerID, SessionID: c.session.ID, TTL: longTTL, Wait: lock.MaxWait})
		done <- waited{result, err, time.Now()}
	}()
	for r.Waiters(key) < nth {
		if err := pause(ctx); err != nil {
			return nil, fmt.Errorf("waiter %d doesn't get into the queue: %w", nth, err)
		}
	}
	return done, nil
}

// granted wants the waiter to get its grant.
func granted(ctx context.Context, waiter <-chan waited) (waited, error) {
	select {
	case got := <-waiter:
		if got.err != nil {
			return got, fmt.Errorf("waiting: %w", got.err)
		}
		if !got.Granted {
			return got, errors.New("waiting ended contended, want a grant")
		}
		return got, nil
	case <-ctx.Done():
		return waited{}, fmt.Errorf("the waiter isn't granted: %w", context.Cause(ctx))
	}
}

// onReplicas runs fn with n replicas over the store and clients of their own.
func onReplicas(ctx context.Context, s Store, n, clients int, fn func(replicas []*replica, clients []*client) error) error {
	var replicas []*replica
	for range n {
		r, err := newReplica(ctx, s)
		if err != nil {
			return err
		}
		defer r.end()
		replicas = append(replicas, r)
	}
	var all []*client
	for range clients {
		c, err := newClientFor(ctx, s, lock.MaxSessionTTL)
		if err != nil {
			return err
		}
		all = append(all, c)
	}
	return fn(replicas, all)
}

const waitersInOrder = 8

// waitersAreServedInOrder lets several clients wait and hands the key on from one to the next.
func waitersAreServedInOrder(ctx context.Context, s Store) error {
	return onReplicas(ctx, s, 1, waitersInOrder+1, func(replicas []*replica, clients []*client) error {
		held, err := clients[0].must(ctx, newKey(), longTTL)
		if err != nil {
			return err
		}
		var waiters []<-chan waited
		for i, c := range clients[1:] {
			waiter, err := replicas[0].wait(ctx, c, held.Key, i+1)
			if err != nil {
				return err
			}
			waiters = append(waiters, waiter)
		}
		for i, waiter := range waiters {
			if _, err := replicas[0].Release(ctx, held.Key, held.OwnerID, held.Token); err != nil {
				return fmt.Errorf("release: %w", err)
			}
			got, err := granted(ctx, waiter)
			if err != nil {
				return fmt.Errorf("waiter %d of %d, in the order of arrival: %w", i+1, len(waiters), err)
			}
			if got.Grant.Token <= held.Token {
				return fmt.Errorf("token %d was granted after %d", got.Grant.Token, held.Token)
			}
			held = got.Grant
		}
		return wantHolder(ctx, s, held)
	})
}

// wakeBound is well below the time after which a waiter looks at the store without having been told.
const wakeBound = 2500 * time.Millisecond

// waiterIsWokenThroughAnotherReplica ends the grant through one replica while the waiter stands at another: by a release, a revocation,
// and the end of the holder's session.
func waiterIsWokenThroughAnotherReplica(ctx context.Context, s Store) error {
	ends := map[string]func(*replica, lock.Grant) error{
		"release": func(r *replica, g lock.Grant) error {
			_, err := r.Release(ctx, g.Key, g.OwnerID, g.Token)
			return err
		},
		"revocation": func(r *replica, g lock.Grant) error {
			_, err := r.Revoke(ctx, lock.RevokeRequest{Key: g.Key, Operator: "op", Reason: "it is its turn"})
			return err
		},
		"end of the session": func(r *replica, g lock.Grant) error { return r.CloseSession(ctx, g.SessionID) },
	}
	for name, end := range ends {
		err := onReplicas(ctx, s, 2, 2, func(replicas []*replica, clients []*client) error {
			held, err := clients[0].must(ctx, newKey(), longTTL)
			if err != nil {
				return err
			}
			waiter, err := replicas[1].wait(ctx, clients[1], held.Key, 1)
			if err != nil {
				return err
			}
			if err := end(replicas[0], held); err != nil {
				return err
			}
			ended := time.Now()
			got, err := granted(ctx, waiter)
			if err != nil {
				return err
			}
			if late := got.at.Sub(ended); late > wakeBound {
				return fmt.Errorf("granted %s after it", late)
			}
			return wantHolder(ctx, s, got.Grant)
		})
		if err != nil {
			return fmt.Errorf("%s through another replica: %w", name, err)
		}
	}
	return nil
}

// waiterIsGrantedWhenTheLeaseRunsOut never releases: the holder's time ends.
func waiterIsGrantedWhenTheLeaseRunsOut(ctx context.Context, s Store) error {
	return onReplicas(ctx, s, 1, 2, func(replicas []*replica, clients []*client) error {
		held, err := clients[0].must(ctx, newKey(), shortTTL)
		if err != nil {
			return err
		}
		result, err := replicas[0].Acquire(ctx, lock.AcquireRequest{
			Key: held.Key, OwnerID: clients[1].session.OwnerID, SessionID: clients[1].session.ID, TTL: longTTL, Wait: lock.MaxWait,
		})
		if err != nil || !result.Granted {
			return fmt.Errorf("waiting for a lease to run out: granted %t, %w", result.Granted, err)
		}
		if result.Grant.Token <= held.Token {
			return fmt.Errorf("token %d was granted after %d", result.Grant.Token, held.Token)
		}
		return wantHolder(ctx, s, result.Grant)
	})
}

// cancelledWaiterLeavesNoGrant lets one of two waiters go away: the other gets the key, and the first nothing.
func cancelledWaiterLeavesNoGrant(ctx context.Context, s Store) error {
	return onReplicas(ctx, s, 1, 3, func(replicas []*replica, clients []*client) error {
		held, err := clients[0].must(ctx, newKey(), longTTL)
		if err != nil {
			return err
		}
		goneCtx, goAway := context.WithCancel(ctx)
		defer goAway()
		gone, err := replicas[0].wait(goneCtx, clients[1], held.Key, 1)
		if err != nil {
			return err
		}
		stays, err := replicas[0].wait(ctx, clients[2], held.Key, 2)
		if err != nil {
			return err
		}
		goAway()
		if got := <-gone; !errors.Is(got.err, context.Canceled) {
			return fmt.Errorf("cancelled waiter: granted %t, %w, want its cancellation", got.Granted, got.err)
		}
		if _, err := replicas[0].Release(ctx, held.Key, held.OwnerID, held.Token); err != nil {
			return fmt.Errorf("release: %w", err)
		}
		got, err := granted(ctx, stays)
		if err != nil {
			return err
		}
		return wantHolder(ctx, s, got.Grant)
	})
}
