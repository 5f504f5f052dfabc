// Package postgres is the one place where Fenceline meets PostgreSQL's ways: how a
// pool is made, how a transaction is run and retried, which SQLSTATE means what, and
// what a server must be like before money or tokens are trusted to it.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Config says how to reach one database.
type Config struct {
	// URL is a connection URL or keyword string as libpq takes it. It may hold a
	// password, so it is never logged. With passfile=FILE in it, or PGPASSFILE in the environment, the password is read from that file anew for every
	// connection, so that it can change under a running process.
	URL string
	// MaxConns bounds the pool; 0 means 8.
	MaxConns int32
	// QueryMode is how statements are sent: "cache_describe" (the default; works
	// through a transaction-mode pooler), "cache_statement" (named prepared statements, a
	// direct connection only), "exec" or "simple_protocol".
	QueryMode string
	// ConnectTimeout bounds one connection attempt; 0 means 2 s.
	ConnectTimeout time.Duration
	// ApplicationName is shown in pg_stat_activity.
	ApplicationName string
}

// Open returns a pool that connects on first use: a database that is down doesn't
// keep a daemon from starting, it keeps it from being ready. An error means that the
// configuration itself can't be used; its text holds no password.
func Open(ctx context.Context, cfg Config) (*pgxpool.Pool, error) {
	if cfg.URL == "" {
		return nil, errors.New("database URL is empty")
	}
	parsed, err := pgxpool.ParseConfig(cfg.URL)
	if err != nil {
		return nil, fmt.Errorf("database URL: %w", err) // pgx redacts the password here
	}
	mode, err := queryMode(cfg.QueryMode)
	if err != nil {
		return nil, err
	}
	parsed.ConnConfig.DefaultQueryExecMode = mode
	parsed.ConnConfig.ConnectTimeout = orDefault(cfg.ConnectTimeout, 2*time.Second)
	parsed.MaxConns = orDefault(cfg.MaxConns, 8)
	parsed.MinConns = 0
	parsed.MaxConnIdleTime = 5 * time.Minute
	parsed.MaxConnLifetimeJitter = 5 * time.Minute
	if cfg.ApplicationName != "" {
		parsed.ConnConfig.RuntimeParams["application_name"] = cfg.ApplicationName
	}
	parsed.BeforeConnect = func(_ context.Context, conn *pgx.ConnConfig) error {
		// Parsing reads the password file. One that can't be read at this moment leaves the password that was known.
		if fresh, err := pgx.ParseConfig(cfg.URL); err == nil && fresh.Password != "" {
			conn.Password = fresh.Password
		}
		return nil
	}
	pool, err := pgxpool.NewWithConfig(ctx, parsed)
	if err != nil {
		return nil, fmt.Errorf("create pool: %w", err)
	}
	return pool, nil
}

// DefaultQueryMode is how statements are sent where nothing else is said.
const DefaultQueryMode = "cache_describe"

func queryMode(name string) (pgx.QueryExecMode, error) {
	switch name {
	case "", DefaultQueryMode:
		return pgx.QueryExecModeCacheDescribe, nil
	case "cache_statement":
		return pgx.QueryExecModeCacheStatement, nil
	case "exec":
		return pgx.QueryExecModeExec, nil
	case "simple_protocol":
		return pgx.QueryExecModeSimpleProtocol, nil
	}
	return 0, fmt.Errorf("query mode %q: want cache_describe, cache_statement, exec or simple_protocol", name)
}

func orDefault[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}
