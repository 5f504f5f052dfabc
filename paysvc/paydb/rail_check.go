package paydb

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"fenceline/internal/postgres"
)

// railGrants: 1 row. What the rail-proxy needs and, in plain mode, must not have: money in accounts is none of its business.
const railGrants = `
SELECT has_column_privilege('payout', 'state', 'UPDATE') AND has_table_privilege('rail_submission', 'INSERT'),
       has_table_privilege('account', 'UPDATE') OR has_any_column_privilege('account', 'UPDATE')`

// Check says whether this is the database that the rail-proxy is made for: the right schema, writable, durable, and a role that may
// write submissions and no accounts.
func (r *Rail) Check(ctx context.Context) error {
	contract := postgres.Contract{Table: pgx.Identifier{"public", "schema_contract"}, Name: "paydb", Min: 1, Max: 1}
	if err := postgres.CheckContract(ctx, r.pool, contract); err != nil {
		return err
	}
	if err := postgres.CheckWritable(ctx, r.pool); err != nil {
		return err
	}
	if err := postgres.CheckDurability(ctx, r.pool); err != nil {
		return err
	}
	var enough, tooMuch bool
	if err := r.pool.QueryRow(ctx, railGrants).Scan(&enough, &tooMuch); err != nil {
		return fmt.Errorf("read grants: %w", postgres.Classify(ctx, err))
	}
	switch {
	case !enough:
		return fmt.Errorf("%w: the login isn't a member of railapp", postgres.ErrPermission)
	case tooMuch:
		return errors.New("the login may change accounts: the rail-proxy must run as a member of railapp only")
	}
	return nil
}
