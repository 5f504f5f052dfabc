package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"go.etcd.io/etcd/api/v3/version"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
)

func etcdVersion() string { return version.Version }

// etcd is the contestant: its Go client's Mutex, locked and unlocked.
type etcd struct {
	client   *clientv3.Client
	sessions []*concurrency.Session
	uses     processes
}

// sessionSeconds is how long sessions live without a sign of life, on both sides. Both clients send them meanwhile.
const sessionSeconds = 60

func newEtcd(ctx context.Context, address string, clients int) (*etcd, error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{address}, DialTimeout: 10 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		return nil, fmt.Errorf("connect to etcd: %w", err)
	}
	e := &etcd{client: client}
	for range clients {
		session, err := concurrency.NewSession(client, concurrency.WithTTL(sessionSeconds), concurrency.WithContext(ctx))
		if err != nil {
			return nil, fmt.Errorf("etcd session: %w", err)
		}
		e.sessions = append(e.sessions, session)
	}
	return e, nil
}

func (e *etcd) name() string { return "etcd, Mutex" }

func (e *etcd) processes() processes { return e.uses }

func (e *etcd) worker(i int) pair {
	mutex := concurrency.NewMutex(e.sessions[i], "/bench/"+strconv.Itoa(i))
	return func(ctx context.Context) error {
		if err := mutex.Lock(ctx); err != nil {
			return fmt.Errorf("lock: %w", err)
		}
		if err := mutex.Unlock(ctx); err != nil {
			return fmt.Errorf("unlock: %w", err)
		}
		return nil
	}
}
