// Package etcdstore keeps sessions and grants in etcd. The token of a grant is the ModRevision of the put that won, plus a base that is 0
// unless the token source was moved.
//
// A grant is two keys. grant/KEY is written once, by the acquire that won, and says whose it is. grant-life/KEY hangs on an etcd lease for the
// time to live, so that etcd's clock alone judges expiry. A session is two keys likewise. A grant is alive while its own life and
// its session's are there. What is left without a life has expired: an acquire takes its place, the reaper removes it and reports
// it, and until then an expired session can be told from an unknown one.
//
// Times in grants and sessions (acquiredAt, expiresAt, serverTime, overdue) are this process's clock and meant for people. expiresAt counts from before
// the request to etcd was sent, so etcd keeps the grant at least that long.
package etcdstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	clientv3 "go.etcd.io/etcd/client/v3"

	"fenceline/lockd/lock"
)

// DefaultPrefix begins the keys of a lockd that wasn't given another one.
const DefaultPrefix = "fenceline/lockd/"

// Config says how to reach etcd.
type Config struct {
	Endpoints []string    // URLs or host:port of any members, or unix:///path
	TLS       *tls.Config // nil: none
	Username  string      // empty: none
	Password  string
	// Prefix begins all of lockd's keys; empty means DefaultPrefix. Two lock services may share one etcd under different prefixes.
	Prefix string
	// Timeout bounds one call of the store, its several requests together; 0 means 3 s.
	Timeout time.Duration
	Logger  hclog.Logger
}

// Store implements lock.Store, lock.Watcher, lock.Lister and lock.TokenSource.
type Store struct {
	config Config
	keys   layout
	place  string // for messages
	logger hclog.Logger
	rules  rules

	connecting sync.Mutex
	client     *clientv3.Client

	checked  atomic.Bool
	settling sync.Mutex
	seen     atomic.Int64 // the highest position of the token source that this process knows of

	spare     spareLeases
	discarded discarder
}

var (
	_ lock.Store       = (*Store)(nil)
	_ lock.Watcher     = (*Store)(nil)
	_ lock.Lister      = (*Store)(nil)
	_ lock.TokenSource = (*Store)(nil)
)

// Open returns a store that connects on first use: an etcd that is down doesn't keep a daemon from starting. An error means that the
// configuration itself can't be used.
func Open(config Config) (*Store, error) {
	if len(config.Endpoints) == 0 {
		return nil, errors.New("etcd: no endpoints; give at least one, such as http://127.0.0.1:2379")
	}
	if config.Prefix == "" {
		config.Prefix = DefaultPrefix
	}
	if !strings.HasSuffix(config.Prefix, "/") {
		config.Prefix += "/"
	}
	if config.Timeout == 0 {
		config.Timeout = 3 * time.Second
	}
	if config.Logger == nil {
		config.Logger = hclog.NewNullLogger()
	}
	s := &Store{config: config, keys: layout{config.Prefix}, place: strings.Join(config.Endpoints, ", "), logger: config.Logger, rules: normative()}
	if config.Username == "" {
		if _, err := s.connect(context.Background()); err != nil { // asks nobody
			return nil, fmt.Errorf("etcd endpoints %s: %w", s.place, err)
		}
	}
	s.discarded.start(s.revokeLease)
	return s, nil
}

// Close ends the store's connections. Leases that were about to be given back end by themselves.
func (s *Store) Close() error {
	s.discarded.stop()
	s.connecting.Lock()
	defer s.connecting.Unlock()
	if s.client == nil {
		return nil
	}
	if err := s.client.Close(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("close etcd client: %w", err)
	}
	return nil
}

// limit bounds one call of the store. A member that knows no leader, being cut off from the others, refuses at once instead of keeping it waiting.
func (s *Store) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(clientv3.WithRequireLeader(ctx), s.config.Timeout)
}

// wholeSeconds is how etcd counts: up.
func wholeSeconds(d time.Duration) int64 {
	return max(int64((d+time.Second-1)/time.Second), 1)
}
