package paydb

import (
	"context"
	"errors"
	"fmt"

	"fenceline/internal/postgres"
)

// checkRailRole: 1 row. The rights that the rail-proxy's statements need, from whichever role they come.
const checkRailRole = `
SELECT has_column_privilege('payout', 'state', 'UPDATE') AND has_table_privilege('payout', 'SELECT')
   AND has_table_privilege('rail_submission', 'SELECT') AND has_table_privilege('rail_submission', 'INSERT')`

var errRailRole = errors.New("the login isn't a member of the role railapp")

// Check says whether this is the database that the rail-proxy can work with: paydb by its contract and version, writable, under a role with
// the needed rights, and one that doesn't forget a submission that it has confirmed.
func (r *Rail) Check(ctx context.Context) error { return r.check(ctx, checkRailRole) }

func (r *Rail) check(ctx context.Context, roleQuery string) error {
	err := errors.Join(postgres.CheckContract(ctx, r.pool, Contract()), postgres.CheckWritable(ctx, r.pool), postgres.CheckDurability(ctx, r.pool))
	if err != nil {
		return err
	}
	allowed := false
	if err := r.pool.QueryRow(ctx, roleQuery).Scan(&allowed); err != nil {
		return fmt.Errorf("read privileges: %w", postgres.Classify(ctx, err))
	}
	if !allowed {
		return errRailRole
	}
	return nil
}
