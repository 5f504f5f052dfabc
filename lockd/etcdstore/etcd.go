package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// How quickly a connection that is dead without saying so is found out.
const (
	dialTimeout      = 2 * time.Second
	keepAliveTime    = 10 * time.Second // etcd closes connections that ask more often than every 5 s
	keepAliveTimeout = 3 * time.Second
	// leaderPause is the time between two attempts at members that know no leader.
	leaderPause = 20 * time.Millisecond
)

// connect returns the client. Without a user it is there from the start; with one etcd must have answered once, since the client asks for its
// token when it is made.
func (s *Store) connect(ctx context.Context) (*clientv3.Client, error) {
	s.connecting.Lock()
	defer s.connecting.Unlock()
	if s.client != nil {
		return s.client, nil
	}
	if err := ctx.Err(); err != nil {
		return nil, unread(err)
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: s.config.Endpoints, TLS: s.config.TLS, Username: s.config.Username, Password: s.config.Password,
		DialTimeout: dialTimeout, DialKeepAliveTime: keepAliveTime, DialKeepAliveTimeout: keepAliveTimeout,
		DialOptions: []grpc.DialOption{grpc.WithStatsHandler(flights{lost: func() { s.checked.Store(false) }})},
		Logger:      zap.NewNop(), // what matters is in the errors
	})
	if err != nil {
		return nil, unread(fmt.Errorf("connect to etcd: %w", err))
	}
	s.client = client
	return client, nil
}

// read reads keys as of one instant, and linearizably: what was confirmed before the call is seen.
func (s *Store) read(ctx context.Context, ops ...clientv3.Op) (*clientv3.TxnResponse, error) {
	client, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	response, err := client.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		return nil, s.silent(ctx, unread(err))
	}
	return response, nil
}

// write is one transaction, carried out once at most. Its failed comparison is an answer, not an error.
func (s *Store) write(ctx context.Context, conditions []clientv3.Cmp, then []clientv3.Op, otherwise ...clientv3.Op) (*clientv3.TxnResponse, error) {
	client, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	for {
		one, flight := withFlight(ctx)
		response, err := client.Txn(one).If(conditions...).Then(then...).Else(otherwise...).Commit()
		switch {
		case err == nil:
			return response, nil
		case errors.Is(err, rpctypes.ErrLeaseNotFound):
			return nil, err // a put under a lease that is over: nothing was written
		case !errors.Is(err, rpctypes.ErrNoLeader):
			return nil, s.silent(ctx, unwritten(err, flight))
		}
		// A member that knows no leader refuses before it does anything, so the next one may be asked.
		if !pause(ctx, leaderPause) {
			return nil, s.silent(ctx, unread(err))
		}
	}
}

func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// silent says whom it asked in vain. The token source is looked at as a whole before the next token: what answers then may be another etcd.
func (s *Store) silent(ctx context.Context, err error) error {
	s.checked.Store(false)
	if ctx.Err() != nil {
		return fmt.Errorf("etcd at %s: %w", s.place, err)
	}
	return err
}

// now is this process's clock. Nothing is decided by it: times are for people.
func now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }
