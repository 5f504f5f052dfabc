// Package migrate is the migrate command that all three programs share: it applies the program's own schema, checks
// it, or prints it.
package migrate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
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

	Output string `help:"${enum}: for people or for programs. As json, one object: for each schema what was done (action) and to which scripts." enum:"text,json" default:"text" short:"o"`
}

// Report is what --output json prints, also when the run failed on the way: then with what was done before.
type Report struct {
	Schemas []Schema `json:"schemas"`
	Pending int      `json:"pending"` // migrations that --check found
}

// Schema is one schema of a Report.
type Schema struct {
	Schema string `json:"schema"`
	// Action is applied, pending (--check), baseline or print (--print-sql).
	Action  string   `json:"action"`
	Scripts []string `json:"scripts"`           // in their order; with baseline and print none
	Version int      `json:"version,omitempty"` // of a baseline
	SQL     string   `json:"sql,omitempty"`     // with print
}

func (s Schema) writeText(out io.Writer) error {
	lines := make([]string, 0, len(s.Scripts))
	for _, script := range s.Scripts {
		lines = append(lines, fmt.Sprintf("%-8s %s %s\n", s.Action, s.Schema, script))
	}
	switch {
	case s.SQL != "":
		lines = []string{s.SQL}
	case s.Version != 0:
		lines = []string{fmt.Sprintf("%-8s %s version %d\n", s.Action, s.Schema, s.Version)}
	case len(s.Scripts) == 0:
		lines = []string{fmt.Sprintf("current  %s\n", s.Schema)}
	}
	_, err := io.WriteString(out, strings.Join(lines, ""))
	return err
}

func (c Command) print(out io.Writer, report Report) (err error) {
	if c.Output == "json" {
		encoder := json.NewEncoder(out)
		encoder.SetEscapeHTML(false)
		err = encoder.Encode(report)
	} else {
		for _, schema := range report.Schemas {
			err = errors.Join(err, schema.writeText(out))
		}
	}
	if err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
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

// Run does it and writes to out what was done.
func (c Command) Run(ctx context.Context, out io.Writer) error {
	if len(c.Sets) > 1 && (c.Target != 0 || c.Baseline != 0) {
		return errors.New("--target and --baseline mean versions of the schema itself: run them without the seed")
	}
	if c.Target != 0 && c.Baseline != 0 {
		return errors.New("--target and --baseline are two steps: begin the history with --baseline, then run again with --target")
	}
	report, err := c.run(ctx)
	if err != nil && len(report.Schemas) == 0 {
		return err
	}
	if err := errors.Join(err, c.print(out, report)); err != nil {
		return err
	}
	if report.Pending > 0 {
		return fmt.Errorf("%w: %d", ErrPending, report.Pending)
	}
	return nil
}

// run returns what was done, also with an error.
func (c Command) run(ctx context.Context) (report Report, err error) {
	report.Schemas = []Schema{}
	if c.PrintSQL {
		for _, set := range c.Sets {
			text, err := migrations.SQLUpTo(set, c.Target)
			if err != nil {
				return report, err
			}
			report.Schemas = append(report.Schemas, Schema{Schema: set.Name(), Action: "print", Scripts: []string{}, SQL: text})
		}
		return report, nil
	}
	conn, err := c.connect(ctx)
	if err != nil {
		return report, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	for _, set := range c.Sets {
		schema, err := c.runSet(ctx, conn, set)
		if err == nil || len(schema.Scripts) > 0 {
			report.Schemas = append(report.Schemas, schema)
		}
		if err != nil {
			return report, err
		}
		if schema.Action == pending {
			report.Pending += len(schema.Scripts)
		}
	}
	return report, nil
}

func (c Command) connect(ctx context.Context) (*pgx.Conn, error) {
	if c.DatabaseURL == "" {
		return nil, errors.New("no database URL: give --database-url or set its environment variable (see --help)")
	}
	config, err := pgx.ParseConfig(c.DatabaseURL)
	if err != nil {
		return nil, fmt.Errorf("database URL: %w", err) // pgx redacts the password here
	}
	config.ConnectTimeout = connectTimeout
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return conn, nil
}

const pending = "pending"

// runSet returns what was done to one schema, also with an error.
func (c Command) runSet(ctx context.Context, conn *pgx.Conn, set migrations.Set) (done Schema, err error) {
	done = Schema{Schema: set.Name(), Scripts: []string{}}
	var scripts []string
	switch {
	case c.Baseline != 0:
		done.Action, done.Version = "baseline", c.Baseline
		err = migrations.Baseline(ctx, conn, set, c.Baseline)
	case c.Check:
		done.Action = pending
		scripts, err = migrations.PendingUpTo(ctx, conn, set, c.Target)
	default:
		done.Action = "applied"
		scripts, err = migrations.ApplyUpTo(ctx, conn, set, c.Target)
	}
	done.Scripts = append(done.Scripts, scripts...)
	return done, err
}
