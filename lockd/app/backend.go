package app

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"fenceline/lockd/lock"
)

// backend is an open lock store with everything that lockd asks of one, whatever the technology.
type backend struct {
	name  string // in metrics and logs, such as "pg"
	place string // in /readyz and in messages, such as "lockdb"
	store lock.Store
	// The rest of what a store can do; nil while a backend can't.
	watcher lock.Watcher
	lister  lock.Lister
	tokens  lock.TokenSource
	// check says whether the store can be trusted with tokens now.
	check func(ctx context.Context) error
	// hopeless says of an error of check that no waiting mends it, so that lockd refuses to start.
	hopeless func(err error) bool
	// register adds the metrics of the connection.
	register func(registry prometheus.Registerer)
	// failed delivers the end of a store that runs in this process; nil when it runs elsewhere.
	failed <-chan error
	close  func(ctx context.Context) error
}

// complete fills in what the store can do besides storing.
func (b *backend) complete() *backend {
	b.watcher, _ = b.store.(lock.Watcher)
	b.lister, _ = b.store.(lock.Lister)
	b.tokens, _ = b.store.(lock.TokenSource)
	return b
}

// openBackend opens the configured store. It doesn't wait for it to be reachable.
func openBackend(ctx context.Context, config Config, logger hclog.Logger) (*backend, error) {
	switch config.Backend {
	case "", "pg":
		if config.Etcd.Embedded != "" || len(config.Etcd.Endpoints) > 0 {
			return nil, errors.New("--etcd flags need --backend etcd")
		}
		return openPG(ctx, config, logger.Named("store"))
	case "etcd":
		return openEtcd(ctx, config, logger)
	}
	return nil, fmt.Errorf("--backend %s: want pg or etcd", config.Backend)
}
