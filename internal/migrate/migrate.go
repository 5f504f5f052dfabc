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

// Flags are what all three commands take. At most one of Check, PrintSQL and Baseline.
type Flags struct {
	Check    bool `help:"Change nothing; exit with 1 when something is pending." xor:"do"`
	PrintSQL bool `help:"Print the statements instead, for somebody else to apply; --baseline then begins the history." name:"print-sql" xor:"do"`
	Baseline int  `help:"Apply nothing; begin the history of a schema that has none, as if its versions up to this one had been applied." placeholder:"N" xor:"do"`
	Target   int  `help:"Go no further than this version. Nothing is ever undone." placeholder:"N"`
}

// Command says what to do, and to which database.
type Command struct {
	Flags
	DatabaseURL string
	Sets        []migrations.Set // the first has the versions that Baseline and Target mean; others go along only without these
}

// ErrPending means that --check found something to apply.
var ErrPending = errors.New("migrations are pending")

const connectTimeout = 10 * time.Second

// Run does it and writes a line for each script to out.
func (c Command) Run(ctx context.Context, out io.Writer) error {
	if len(c.Sets) > 1 && (c.Target != 0 || c.Baseline != 0) {
		return errors.New("--target and --baseline mean versions of the schema itself: run them without the seed")
	}
	if c.Target != 0 && c.Baseline != 0 {
		return errors.New("--target and --baseline are two steps: begin the history with --baseline, then run again with --target")
	}
	if c.PrintSQL {
		for _, set := range c.Sets {
			text, err := migrations.SQLUpTo(set, c.Target)
			if err != nil {
				return err
			}
			if _, err := io.WriteString(out, text); err != nil {
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
	if c.Baseline != 0 {
		if err := migrations.Baseline(ctx, conn, set, c.Baseline); err != nil {
			return 0, err
		}
		return 0, list(out, set, "baseline", []string{fmt.Sprintf("version %d", c.Baseline)})
	}
	if c.Check {
		pending, err := migrations.PendingUpTo(ctx, conn, set, c.Target)
		if err != nil {
			return 0, err
		}
		return len(pending), list(out, set, "pending", pending)
	}
	applied, err := migrations.ApplyUpTo(ctx, conn, set, c.Target)
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
