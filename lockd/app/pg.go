package app

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"fenceline/internal/manifest"
	"fenceline/internal/postgres"
	"fenceline/lockd/pgstore"
)

// openPG returns the store over lockdb.
func openPG(ctx context.Context, config Config, logger hclog.Logger) (*backend, error) {
	pool, err := postgres.Open(ctx, postgres.Config{
		URL: config.DatabaseURL, MaxConns: config.MaxConns, QueryMode: config.QueryMode, ApplicationName: "lockd",
	})
	if err != nil {
		return nil, fmt.Errorf("lockdb: %w", err)
	}
	store := pgstore.New(pool, config.StoreTimeout, pgstore.WithLogger(logger), pgstore.WithDirectURL(config.ListenURL))
	b := &backend{
		name: "pg", place: "lockdb", store: store, check: store.Check,
		hopeless: func(err error) bool {
			return errors.Is(err, postgres.ErrNotDurable) || errors.Is(err, postgres.ErrSchema) || errors.Is(err, postgres.ErrPermission)
		},
		register: func(registry prometheus.Registerer) { postgres.RegisterPoolMetrics(registry, "lockdb", pool) },
		close: func(context.Context) error {
			store.Close()
			pool.Close()
			return nil
		},
	}
	return b.complete(), nil
}

// Manifest says what lockd is towards lockdb.
func Manifest() manifest.Manifest {
	return manifest.New("lockd", pgstore.Contract(), pgstore.Statements())
}
