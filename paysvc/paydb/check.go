package paydb

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"fenceline/internal/postgres"
)

// Contract is the schema that this package's statements are written for.
func Contract() postgres.Contract {
	return postgres.Contract{Table: pgx.Identifier{"public", "schema_contract"}, Name: "paydb", Min: 2, Max: 2}
}

var (
	errClearing = errors.New("no clearing account")
	errRole     = errors.New("the login isn't a member of the role payapp")
	errFenced   = errors.New("the login isn't a member of the role payapp_fenced")
)

// checkRole: 1 row. The rights that plain mode's statements need, from whichever role they come.
const checkRole = `
SELECT has_table_privilege('payout', 'SELECT') AND has_table_privilege('payout', 'INSERT') AND has_table_privilege('payout', 'UPDATE')
   AND has_table_privilege('ledger_entry', 'SELECT') AND has_table_privilege('ledger_entry', 'INSERT')
   AND has_table_privilege('account', 'SELECT') AND has_column_privilege('account', 'balance_minor', 'UPDATE')`

// checkFencedRole: 1 row. The rights that fenced mode needs: those of plain mode, and the mark.
const checkFencedRole = checkRole + ` AND has_column_privilege('account', 'fence', 'UPDATE')`

// checkClearing: 1 row.
const checkClearing = `SELECT EXISTS (SELECT FROM account WHERE account_id = $1)`

// Check says whether this is the database that the payment-resource can work with: paydb by its contract and version, writable and durable, under a
// role with the needed rights, with the clearing account. The errors name what is wrong and hold no secret.
func (s *Plain) Check(ctx context.Context) error { return s.check(ctx, checkRole, errRole) }

// Check is Plain's, under the role of fenced mode.
func (s *Fenced) Check(ctx context.Context) error { return s.check(ctx, checkFencedRole, errFenced) }

func (s *payments) check(ctx context.Context, roleQuery string, errRole error) error {
	if err := errors.Join(postgres.CheckContract(ctx, s.pool, Contract()), postgres.CheckWritable(ctx, s.pool),
		postgres.CheckDurability(ctx, s.pool)); err != nil {
		return err
	}
	allowed := false
	if err := s.pool.QueryRow(ctx, roleQuery).Scan(&allowed); err != nil {
		return fmt.Errorf("read privileges: %w", postgres.Classify(ctx, err))
	}
	if !allowed {
		return errRole
	}
	return s.checkClearing(ctx, s.clearing)
}

func (s *payments) checkClearing(ctx context.Context, id uuid.UUID) error {
	there := false
	if err := s.pool.QueryRow(ctx, checkClearing, id).Scan(&there); err != nil {
		return fmt.Errorf("read clearing account: %w", postgres.Classify(ctx, err))
	}
	if !there {
		return fmt.Errorf("%w: %s isn't in account; create it, or name another one with --clearing-account", errClearing, id)
	}
	return nil
}
