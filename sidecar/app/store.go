package app

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"fenceline/internal/postgres"
	"fenceline/sidecar/config"
	"fenceline/sidecar/mark"
	"fenceline/sidecar/mark/filemark"
	"fenceline/sidecar/mark/pgmark"
)

// checkedStore is a store that says whether it can be trusted.
type checkedStore interface {
	mark.OperatedStore
	mark.Register
	Check(ctx context.Context) error
}

// backing is what a store stands on. It may outlive a configuration.
type backing struct {
	pool *pgxpool.Pool  // nil with a file
	file *filemark.File // nil with a database
}

// openBacking opens the file, or a pool that connects when it is used.
func openBacking(ctx context.Context, cfg *config.Config) (*backing, error) {
	if path := cfg.Store.File.Path; path != "" {
		file, err := filemark.Open(path, filemark.Options{})
		if err != nil {
			return nil, fmt.Errorf("store.file: %w", err)
		}
		return &backing{file: file}, nil
	}
	p := cfg.Store.Postgres
	pool, err := postgres.Open(ctx, postgres.Config{URL: p.URL.Reveal(), MaxConns: p.MaxConns, QueryMode: p.QueryMode, ApplicationName: "sidecar " + cfg.ID})
	if err != nil {
		return nil, fmt.Errorf("store.postgres: %w", err)
	}
	return &backing{pool: pool}, nil
}

func (b *backing) close() error {
	if b.file != nil {
		return b.file.Close()
	}
	b.pool.Close()
	return nil
}

// store returns the marks of a configuration's guards.
func (b *backing) store(cfg *config.Config) (checkedStore, error) {
	if b.file != nil {
		store, err := b.file.Store(cfg.ID, cfg.Guards, cfg.Store.Timeout(), cfg.Token.MaxJump)
		if err != nil {
			return nil, fmt.Errorf("store.file: %w", err)
		}
		return store, nil
	}
	store := pgmark.New(b.pool, cfg.Guards, cfg.Store.Timeout(), cfg.Token.MaxJump)
	store.Identify(cfg.ID, cfg.Store.Postgres.ListenURL.Reveal())
	return store, nil
}

// isFinal says whether a store's fault is one that waiting doesn't mend.
func isFinal(err error) bool {
	for _, final := range []error{postgres.ErrNotDurable, postgres.ErrPermission, postgres.ErrSchema, pgmark.ErrContract} {
		if errors.Is(err, final) {
			return true
		}
	}
	return false
}

// sameDatabase says whether two URLs lead to one database, whatever the user and the password.
func sameDatabase(a, b config.Secret) bool {
	one, errOne := pgconn.ParseConfig(a.Reveal())
	other, errOther := pgconn.ParseConfig(b.Reveal())
	if errOne != nil || errOther != nil {
		return a == b
	}
	return one.Host == other.Host && one.Port == other.Port && one.Database == other.Database
}
