package app

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/go-hclog"
	"github.com/jackc/pgx/v5"

	"fenceline/internal/postgres"
	"fenceline/lockd/lock"
)

// FastForward moves the token source above request.Above, directly at the store: no lockd needs to run. It returns the highest token before and after; ErrInvalid
// when the source is there already, or the value is above the ceiling.
func FastForward(ctx context.Context, config Config, request lock.FastForwardRequest, logger hclog.Logger) (from, to lock.Token, err error) {
	b, err := openBackend(ctx, config, logger)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, b.close(context.WithoutCancel(ctx))) }()
	if b.tokens == nil {
		return 0, 0, fmt.Errorf("%s: its token source can't be moved", b.place)
	}
	return b.tokens.FastForward(ctx, request)
}

// Marks are the highest tokens that resources have seen, by where they are kept.
type Marks map[string]lock.Token

// Highest is the highest of them; 0 when there is none.
func (m Marks) Highest() (highest lock.Token) {
	for _, token := range m {
		highest = max(highest, token)
	}
	return highest
}

// marksOf are the places where a resource's database keeps marks. Each statement gives one row.
var marksOf = []struct{ table, name, sql string }{ //nolint:gochecknoglobals // never changed
	{"public.account", "account.fence", "SELECT coalesce(max(fence), 0) FROM public.account"},
	{"public.rail_high_water", "rail_high_water.highest_token", "SELECT coalesce(max(highest_token), 0) FROM public.rail_high_water"},
	{"fence.mark", "fence.mark", "SELECT coalesce(max(token), 0) FROM fence.mark"},
}

// ReadMarks reads the marks of a resource's database, in one read-only transaction. A place that doesn't exist is left out; a database without any
// is an error, since it is another one than was meant.
func ReadMarks(ctx context.Context, url string) (Marks, error) {
	conn, err := pgx.Connect(ctx, url) // pgx redacts the password
	if err != nil {
		return nil, fmt.Errorf("connect to paydb: %w", postgres.Classify(ctx, err))
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	found := Marks{}
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		for _, place := range marksOf {
			var exists bool
			if err := tx.QueryRow(ctx, "SELECT to_regclass($1) IS NOT NULL", place.table).Scan(&exists); err != nil {
				return err
			}
			if !exists {
				continue
			}
			var token lock.Token
			if err := tx.QueryRow(ctx, place.sql).Scan(&token); err != nil {
				return fmt.Errorf("%s: %w", place.name, err)
			}
			found[place.name] = token
		}
		return nil
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("read marks: %w", postgres.Classify(ctx, err))
	case len(found) == 0:
		return nil, errors.New("read marks: this database has none of account, rail_high_water and fence.mark; is it paydb?")
	}
	return found, nil
}
