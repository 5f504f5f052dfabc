package pgmark

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"fenceline/internal/postgres"
	"fenceline/sidecar/config"
	"fenceline/sidecar/mark"
)

// trusted makes sure that Check has held once: nothing is admitted by a store that could forget it.
func (s *Store) trusted(ctx context.Context) error {
	if s.checked.Load() {
		return nil
	}
	if err := s.Check(ctx); err != nil {
		return fmt.Errorf("%w: %w", mark.ErrUnavailable, err)
	}
	return nil
}

// Check says whether the store can be trusted with marks: writable, durable, and each guard's table as the configuration says, with the
// rights that an admission needs.
func (s *Store) Check(ctx context.Context) error {
	errs := []error{postgres.CheckWritable(ctx, s.pool), postgres.CheckDurability(ctx, s.pool)}
	if len(s.ordered) > 0 { // they need the register, wherever their marks are
		if err := s.checkContract(ctx); err != nil {
			errs = append(errs, fmt.Errorf("the sidecar's own tables (sidecar migrate makes them): %w", err))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.guards)) {
		if err := s.checkGuard(ctx, s.guards[name]); err != nil {
			errs = append(errs, fmt.Errorf("guard %s: %w", name, err))
		}
	}
	err := errors.Join(errs...)
	s.checked.Store(err == nil)
	return err
}

// ErrContract means that a guard's table isn't what the configuration says.
var ErrContract = errors.New("mark table doesn't fit")

// describe reads what an admission needs to know of one column. One row: the column; none: there is no such column.
//
// The key must be unique by an index of its own that is checked at once (ON CONFLICT can use no other), since two rows for one key would be two marks.
const describe = `
SELECT format_type(a.atttypid, NULL), a.attnotnull,
       EXISTS (SELECT FROM pg_index i
                WHERE i.indrelid = a.attrelid AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL AND i.indkey::text = a.attnum::text),
       has_column_privilege(a.attrelid, a.attnum, 'SELECT'),
       has_column_privilege(a.attrelid, a.attnum, 'UPDATE'),
       has_column_privilege(a.attrelid, a.attnum, 'INSERT')
  FROM pg_attribute a
 WHERE a.attrelid = to_regclass($1) AND a.attname = $2 AND a.attnum > 0 AND NOT a.attisdropped`

type column struct {
	name                          string
	typeName                      string
	notNull, unique               bool
	mayRead, mayUpdate, mayInsert bool
}

func (s *Store) describe(ctx context.Context, table, name string) (column, error) {
	c := column{name: name}
	err := s.pool.QueryRow(ctx, describe, table, name).Scan(&c.typeName, &c.notNull, &c.unique, &c.mayRead, &c.mayUpdate, &c.mayInsert)
	if errors.Is(err, pgx.ErrNoRows) {
		return column{}, fmt.Errorf("%w: there is no column %s in %s", ErrContract, name, table)
	}
	if err != nil {
		return column{}, fmt.Errorf("look at column %s of %s: %w", name, table, postgres.Classify(ctx, err))
	}
	return c, nil
}

func (s *Store) checkGuard(ctx context.Context, g guard) error {
	m := g.mark
	if m.Own() {
		return s.checkOwn(ctx, m)
	}
	if g.readOnly {
		m.Missing, m.UpdatedAt = config.MissingReject, "" // nothing is inserted or stamped
	}
	table := pgx.Identifier(m.Table).Sanitize()
	var exists bool
	if err := s.pool.QueryRow(ctx, "SELECT to_regclass($1) IS NOT NULL", table).Scan(&exists); err != nil {
		return fmt.Errorf("look at %s: %w", table, postgres.Classify(ctx, err))
	}
	if !exists {
		return fmt.Errorf("%w: there is no table %s", ErrContract, table)
	}
	return errors.Join(s.checkKey(ctx, m, table), s.checkToken(ctx, m, table, g.readOnly), s.checkStamp(ctx, m, table))
}

// ownContract is the version of the sidecar's own tables that this program works with.
var ownContract = postgres.Contract{Table: pgx.Identifier{"fence", "schema_contract"}, Name: "fence", Min: 3, Max: 3} //nolint:gochecknoglobals // a constant

func (s *Store) checkContract(ctx context.Context) error {
	return postgres.CheckContract(ctx, s.pool, ownContract)
}

// checkOwn: the migrations made the sidecar's own table, so only its version and our rights can be wrong.
func (s *Store) checkOwn(ctx context.Context, m config.Mark) error {
	if err := s.checkContract(ctx); err != nil {
		return fmt.Errorf("marks in fence.mark (sidecar migrate makes it): %w", err)
	}
	for _, name := range []string{"guard", "key", "token", "updated_at"} {
		c, err := s.describe(ctx, own.table, name)
		if err != nil {
			return err
		}
		raised := name == "token" || name == "updated_at"
		if !c.mayRead || !c.mayInsert || raised && !c.mayUpdate {
			return denied(c, own.table, m)
		}
	}
	return nil
}

func (s *Store) checkKey(ctx context.Context, m config.Mark, table string) error {
	c, err := s.describe(ctx, table, m.Key)
	if err != nil {
		return err
	}
	fits := map[config.KeyType][]string{config.KeyUUID: {"uuid"}, config.KeyInt: {"bigint", "integer"}, config.KeyText: {"text", "character varying"}}[m.KeyType]
	switch {
	case !slices.Contains(fits, c.typeName):
		return fmt.Errorf("%w: column %s of %s is %s, want %s", ErrContract, c.name, table, c.typeName, strings.Join(fits, " or "))
	case !c.unique:
		return fmt.Errorf("%w: column %s of %s has no unique index of its own", ErrContract, c.name, table)
	case !c.mayRead || m.Missing == config.MissingInsert && !c.mayInsert:
		return denied(c, table, m)
	}
	return nil
}

// checkToken: the token must not be null, since a null is neither above nor below.
func (s *Store) checkToken(ctx context.Context, m config.Mark, table string, readOnly bool) error {
	c, err := s.describe(ctx, table, m.Token)
	switch {
	case err != nil:
		return err
	case c.typeName != "bigint" || !c.notNull:
		return fmt.Errorf("%w: column %s of %s is %s (not null: %t), want bigint not null", ErrContract, c.name, table, c.typeName, c.notNull)
	case !c.mayRead || !c.mayUpdate && !readOnly || m.Missing == config.MissingInsert && !c.mayInsert:
		return denied(c, table, m)
	}
	return nil
}

func (s *Store) checkStamp(ctx context.Context, m config.Mark, table string) error {
	if m.UpdatedAt == "" {
		return nil
	}
	c, err := s.describe(ctx, table, m.UpdatedAt)
	switch {
	case err != nil:
		return err
	case !strings.HasPrefix(c.typeName, "timestamp"):
		return fmt.Errorf("%w: column %s of %s is %s, want a timestamp", ErrContract, c.name, table, c.typeName)
	case !c.mayUpdate || m.Missing == config.MissingInsert && !c.mayInsert:
		return denied(c, table, m)
	}
	return nil
}

func denied(c column, table string, m config.Mark) error {
	return fmt.Errorf("%w: our role may not do with column %s of %s what missing: %s needs (select %t, update %t, insert %t)",
		postgres.ErrPermission, c.name, table, m.Missing, c.mayRead, c.mayUpdate, c.mayInsert)
}

// CheckStatement says whether the database can prepare a statement: its tables, columns and functions are there. It runs nothing.
func (s *Store) CheckStatement(ctx context.Context, statement string) error {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return postgres.Classify(ctx, err)
	}
	defer conn.Release()
	if _, err := conn.Conn().PgConn().Prepare(ctx, "", statement, nil); err != nil {
		return postgres.Classify(ctx, err)
	}
	return nil
}
