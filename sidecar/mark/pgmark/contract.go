package pgmark

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

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
	for _, name := range slices.Sorted(maps.Keys(s.guards)) {
		if err := s.checkGuard(ctx, s.guards[name].mark); err != nil {
			errs = append(errs, fmt.Errorf("guard %s: %w", name, err))
		}
	}
	err := errors.Join(errs...)
	s.checked.Store(err == nil)
	return err
}

// ErrContract means that a guard's table isn't what the configuration says.
var ErrContract = errors.New("mark table doesn't fit")

// describe reads what an admission depends on. One row: the table; else none.
//
// The key must be unique, since two rows for one key would be two marks; the token must not be null, since a null is neither above nor below.
const describe = `
SELECT coalesce((SELECT format_type(a.atttypid, NULL) FROM pg_attribute a WHERE a.attrelid = t.oid AND a.attname = $2 AND NOT a.attisdropped), ''),
       coalesce((SELECT format_type(a.atttypid, NULL) FROM pg_attribute a WHERE a.attrelid = t.oid AND a.attname = $3 AND NOT a.attisdropped), ''),
       coalesce((SELECT a.attnotnull FROM pg_attribute a WHERE a.attrelid = t.oid AND a.attname = $3), false),
       EXISTS (SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = t.oid AND a.attname = $2
                WHERE i.indrelid = t.oid AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indkey::text = a.attnum::text),
       coalesce((SELECT has_column_privilege(t.oid, a.attnum, 'SELECT') FROM pg_attribute a WHERE a.attrelid = t.oid AND a.attname = $3), false),
       coalesce((SELECT has_column_privilege(t.oid, a.attnum, 'UPDATE') FROM pg_attribute a WHERE a.attrelid = t.oid AND a.attname = $3), false),
       coalesce((SELECT has_column_privilege(t.oid, a.attnum, 'INSERT') FROM pg_attribute a WHERE a.attrelid = t.oid AND a.attname = $3), false)
  FROM pg_class t
 WHERE t.oid = to_regclass($1)`

func (s *Store) checkGuard(ctx context.Context, m config.Mark) error {
	var keyType, tokenType string
	var notNull, unique, mayRead, mayUpdate, mayInsert bool
	table := pgx.Identifier(m.Table).Sanitize()
	err := s.pool.QueryRow(ctx, describe, table, m.Key, m.Token).Scan(&keyType, &tokenType, &notNull, &unique, &mayRead, &mayUpdate, &mayInsert)
	if errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("%w: there is no table %s", ErrContract, table)
	}
	if err != nil {
		return fmt.Errorf("look at %s: %w", table, postgres.Classify(ctx, err))
	}
	wantKey := map[config.KeyType]string{config.KeyUUID: "uuid", config.KeyInt: "bigint", config.KeyText: "text"}[m.KeyType]
	switch {
	case keyType != wantKey && (m.KeyType != config.KeyInt || keyType != "integer"):
		return fmt.Errorf("%w: column %s of %s is %q, want %s", ErrContract, m.Key, table, keyType, wantKey)
	case tokenType != "bigint" || !notNull:
		return fmt.Errorf("%w: column %s of %s is %q (not null: %t), want bigint not null", ErrContract, m.Token, table, tokenType, notNull)
	case !unique:
		return fmt.Errorf("%w: column %s of %s has no unique index of its own", ErrContract, m.Key, table)
	case !mayRead || !mayUpdate || m.Missing == config.MissingInsert && !mayInsert:
		return fmt.Errorf("%w: our role may not read and write column %s of %s", postgres.ErrPermission, m.Token, table)
	}
	return nil
}
