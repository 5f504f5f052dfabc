package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// lease is an etcd lease just granted or kept alive.
type lease struct {
	id    clientv3.LeaseID
	asked int64 // seconds
	given int64 // seconds; etcd has a least time to live
	// until is when it ends at the earliest, by this process's clock: counted from before the request was sent, so etcd's own end is later.
	until time.Time
}

// newLease asks for a lease of its own. If the answer is lost, nothing hangs on it and it ends by itself.
func (s *Store) newLease(ctx context.Context, seconds int64) (lease, error) {
	client, err := s.connect(ctx)
	if err != nil {
		return lease{}, err
	}
	start := now()
	response, err := client.Grant(ctx, seconds)
	if err != nil {
		return lease{}, s.silent(ctx, unread(fmt.Errorf("grant an etcd lease: %w", err)))
	}
	return lease{response.ID, seconds, response.TTL, start.Add(time.Duration(response.TTL) * time.Second)}, nil
}

// errLeaseOver means that etcd has no such lease (any more).
var errLeaseOver = errors.New("the etcd lease is over")

// keepAlive lets a lease begin anew.
func (s *Store) keepAlive(ctx context.Context, id clientv3.LeaseID, asked int64) (lease, error) {
	for {
		one, flight := withFlight(ctx)
		l, err := s.tryKeepAlive(one, id, asked)
		switch {
		case err == nil, errors.Is(err, errLeaseOver):
			return l, err
		case !errors.Is(err, rpctypes.ErrNoLeader):
			return l, s.silent(ctx, unwritten(fmt.Errorf("keep an etcd lease alive: %w", err), flight))
		}
		if !pause(ctx, leaderPause) { // as for a write
			return l, s.silent(ctx, unread(err))
		}
	}
}

// tryKeepAlive asks once: the client's own KeepAliveOnce asks again and again without a pause.
func (s *Store) tryKeepAlive(ctx context.Context, id clientv3.LeaseID, asked int64) (lease, error) {
	client, err := s.connect(ctx)
	if err != nil {
		return lease{}, err
	}
	ctx, cancel := context.WithCancel(ctx) // ends the stream
	defer cancel()
	start := now()
	stream, err := pb.NewLeaseClient(client.ActiveConnection()).LeaseKeepAlive(ctx, grpc.WaitForReady(true))
	if err != nil {
		return lease{}, clientv3.ContextError(ctx, err)
	}
	if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(id)}); err != nil {
		return lease{}, clientv3.ContextError(ctx, err)
	}
	response, err := stream.Recv()
	switch {
	case err != nil:
		return lease{}, clientv3.ContextError(ctx, err)
	case response.TTL <= 0:
		return lease{}, errLeaseOver
	}
	return lease{id, asked, response.TTL, start.Add(time.Duration(response.TTL) * time.Second)}, nil
}

// leaseFor returns a lease with its whole time before it that nothing hangs on: a spare one if there is one, which costs no write, or a new one.
func (s *Store) leaseFor(ctx context.Context, seconds int64) (lease, error) {
	for range spareTries {
		id, found := s.spare.take(seconds)
		if !found {
			break
		}
		l, err := s.tryKeepAlive(ctx, id, seconds)
		if err == nil {
			return l, nil
		}
		if !errors.Is(err, errLeaseOver) && !errors.Is(err, rpctypes.ErrNoLeader) {
			return lease{}, s.silent(ctx, unread(fmt.Errorf("keep an etcd lease alive: %w", err)))
		}
	}
	return s.newLease(ctx, seconds)
}

// giveBack takes a lease on which nothing hangs any more. That must be certain, and nobody else may give it back: whoever takes a key off its lease
// compares in the same transaction that it was still there, so there is only one.
func (s *Store) giveBack(id clientv3.LeaseID, asked int64) {
	if id != clientv3.NoLease && !s.spare.put(id, asked) {
		s.discarded.add(id)
	}
}

const (
	spareTries = 2
	maxSpare   = 1024
)

// spareLeases keeps leases for the next acquire with the same time to live. What isn't used ends by itself.
type spareLeases struct {
	mu     sync.Mutex
	leases map[int64][]spareLease // by the seconds that were asked for; the newest last
	n      int
}

type spareLease struct {
	id    clientv3.LeaseID
	since time.Time
}

func (p *spareLeases) put(id clientv3.LeaseID, asked int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.n >= maxSpare {
		for asked := range p.leases {
			p.forget(asked)
		}
	}
	if p.n >= maxSpare {
		return false
	}
	if p.leases == nil {
		p.leases = map[int64][]spareLease{}
	}
	p.leases[asked] = append(p.leases[asked], spareLease{id, time.Now()})
	p.n++
	return true
}

func (p *spareLeases) take(asked int64) (clientv3.LeaseID, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forget(asked)
	all := p.leases[asked]
	if len(all) == 0 {
		return clientv3.NoLease, false
	}
	newest := all[len(all)-1]
	p.leases[asked] = all[:len(all)-1]
	p.n--
	return newest.id, true
}

// forget drops those that must be over by now.
func (p *spareLeases) forget(asked int64) {
	all := p.leases[asked]
	over := 0
	for over < len(all) && time.Since(all[over].since) > time.Duration(asked)*time.Second {
		over++
	}
	p.n -= over
	if over == len(all) {
		delete(p.leases, asked)
	} else {
		p.leases[asked] = append(all[:0], all[over:]...)
	}
}

// discarder ends leases beside the calls that need no answer to that. When it can't keep up, they end by themselves.
type discarder struct {
	leases chan clientv3.LeaseID
	cancel context.CancelFunc
	done   sync.WaitGroup
}

const (
	discardWorkers = 2
	discardQueue   = 1024
	discardTimeout = 2 * time.Second
)

func (d *discarder) start(revoke func(context.Context, clientv3.LeaseID)) {
	ctx, cancel := context.WithCancel(context.Background())
	d.leases, d.cancel = make(chan clientv3.LeaseID, discardQueue), cancel
	for range discardWorkers {
		d.done.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case id := <-d.leases:
					one, cancel := context.WithTimeout(ctx, discardTimeout)
					revoke(one, id)
					cancel()
				}
			}
		})
	}
}

func (d *discarder) add(id clientv3.LeaseID) {
	if id == clientv3.NoLease {
		return
	}
	select {
	case d.leases <- id:
	default:
	}
}

func (d *discarder) stop() {
	d.cancel()
	d.done.Wait()
}

func (s *Store) revokeLease(ctx context.Context, id clientv3.LeaseID) {
	client, err := s.connect(ctx)
	if err == nil {
		_, _ = client.Revoke(ctx, id) // it ends by itself too
	}
}
