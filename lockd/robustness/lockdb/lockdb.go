// Package lockdb gives the soak and the benchmark a PostgreSQL server of their own, with a lockdb in it.
package lockdb

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"

	"fenceline/internal/pgserver"
	"fenceline/migrations"
)

const database = "lockdb"

// Login is the role that lockd connects as.
const Login = "lockd_login"

// Server is a PostgreSQL server with a migrated lockdb.
type Server struct {
	*pgserver.Server
	// DatabaseURL is for lockd: a login with the least that its role allows.
	DatabaseURL string
}

// Start starts a server. Commits are durable: fsync, full_page_writes and synchronous_commit are as PostgreSQL has them by default, on.
func Start(ctx context.Context, name string, settings map[string]string, progress io.Writer) (*Server, error) {
	server, err := pgserver.Start(ctx, pgserver.Options{Name: name, Settings: settings, Progress: progress})
	if err != nil {
		return nil, err
	}
	s := &Server{Server: server}
	if err := s.prepare(ctx); err != nil {
		stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		return nil, fmt.Errorf("prepare lockdb: %w", errors.Join(err, server.Stop(stopCtx)))
	}
	return s, nil
}

func (s *Server) prepare(ctx context.Context) error {
	if err := s.execute(ctx, s.URL("postgres"), "CREATE DATABASE "+database); err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, s.URL(database))
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	_, err = migrations.Apply(ctx, conn, migrations.LockDB())
	if err := errors.Join(err, conn.Close(ctx)); err != nil {
		return err
	}
	password := rand.Text()
	s.DatabaseURL = s.URLFor(database, Login, password)
	return s.execute(ctx, s.URL(database), fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD '%s' IN ROLE lockapp", Login, password))
}

// OwnerURL is lockdb's URL for a superuser.
func (s *Server) OwnerURL() string { return s.URL(database) }

func (s *Server) execute(ctx context.Context, url, sql string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	_, err = conn.Exec(ctx, sql)
	return errors.Join(err, conn.Close(ctx))
}
