// Package migrate is the migrate command that all three programs share: it applies the program's own schema, checks
// it, or prints it.
package migrate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"

	"fenceline/migrations"
)

// Command says what to do.
type Command struct {
	DatabaseURL string
	Check       bool // only say what is pending
	PrintSQL    bool // only print the statements
	Sets        []migrations.Set
}

// ErrPending means that --check found something to apply.
var ErrPending = errors.New("migrations are pending")

const connectTimeout = 10 * time.Second

// Run does it and writes a line for each script to out.
func (c Command) Run(ctx context.Context, out io.Writer) error {
	if c.PrintSQL {
		for _, set := range c.Sets {
			if _, err := io.WriteString(out, migrations.SQL(set)); err != nil {
				return fmt.Errorf("print: %w", err)
			}
		}
		return nil
	}
	if c.DatabaseURL == "" {
		return errors.New("no database URL: give --database-url or set its environment variable (see --help)")
	}
	config, err := pgx.ParseConfig(c.DatabaseURL)
	if err != nil {
		return fmt.Errorf("database URL: %w", err) // pgx redacts the password here
	}
	config.ConnectTimeout = connectTimeout
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	pending := 0
	for _, set := range c.Sets {
		n, err := c.runSet(ctx, conn, set, out)
		if err != nil {
			return err
		}
		pending += n
	}
	if pending > 0 {
		return fmt.Errorf("%w: %d", ErrPending, pending)
	}
	return nil
}

// runSet returns how many migrations it left pending.
func (c Command) runSet(ctx context.Context, conn *pgx.Conn, set migrations.Set, out io.Writer) (int, error) {
	if c.Check {
		pending, err := migrations.Pending(ctx, conn, set)
		if err != nil {
			return 0, err
		}
		return len(pending), list(out, set, "pending", pending)
	}
	applied, err := migrations.Apply(ctx, conn, set)
	return 0, errors.Join(err, list(out, set, "applied", applied))
}

func list(out io.Writer, set migrations.Set, what string, scripts []string) error {
	for _, script := range scripts {
		if _, err := fmt.Fprintf(out, "%-8s %s %s\n", what, set.Name(), script); err != nil {
			return fmt.Errorf("print: %w", err)
		}
	}
	if len(scripts) == 0 {
		if _, err := fmt.Fprintf(out, "current  %s\n", set.Name()); err != nil {
			return fmt.Errorf("print: %w", err)
		}
	}
	return nil
}
