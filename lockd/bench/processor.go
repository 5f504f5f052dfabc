package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"fenceline/internal/measure"
)

// processes are those whose processor time is a contestant's, beside this one, which is its clients. 0 is none.
type processes struct{ service, database int }

func (p processes) spent() measure.Spent { return measure.SpentBy([]int{p.service}, p.database) }

// serverProcess is the process of which all others of a PostgreSQL server on this machine are children; 0 where the system doesn't tell it.
func serverProcess(ctx context.Context, url string) (int, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return 0, fmt.Errorf("connect: %w", err)
	}
	defer func() { _ = conn.Close(ctx) }()
	var backend int
	if err := conn.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&backend); err != nil {
		return 0, fmt.Errorf("find the server's process: %w", err)
	}
	return measure.Parent(backend), nil
}
