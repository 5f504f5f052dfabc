package migrations_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/internal/postgres"
	"fenceline/migrations"
)

const account = "00000000-0000-4000-8000-000000000101"

// Each role is refused what isn't its business, by the database itself.
func TestRolesAreDeniedWhatTheyDoNotNeed(t *testing.T) {
	t.Parallel()
	lockdb := pgtest.Database(t, migrations.LockDB())
	paydb := pgtest.Database(t, migrations.PayDB(), migrations.SeedPayDB(), migrations.Fence())
	for name, c := range map[string]struct{ database, role, sql string }{
		"resource can't lower or raise a mark":      {paydb, "payapp", "UPDATE account SET fence = 0"},
		"resource can't create a raised mark":       {paydb, "payapp", "INSERT INTO account (account_id, currency, fence) VALUES (gen_random_uuid(), 'EUR', 5)"},
		"resource can't read the rail's marks":      {paydb, "payapp", "SELECT * FROM rail_high_water"},
		"resource can't write the rail's marks":     {paydb, "payapp", "DELETE FROM rail_high_water"},
		"resource can't change the ledger":          {paydb, "payapp", "UPDATE ledger_entry SET amount_minor = 1"},
		"resource can't delete from the ledger":     {paydb, "payapp", "DELETE FROM ledger_entry"},
		"fenced resource can't read rail's marks":   {paydb, "payapp_fenced", "SELECT * FROM rail_high_water"},
		"fenced resource can't write rail's marks":  {paydb, "payapp_fenced", "UPDATE rail_high_water SET highest_token = 1"},
		"fenced resource can't change the ledger":   {paydb, "payapp_fenced", "UPDATE ledger_entry SET amount_minor = 1"},
		"fenced resource can't create a raised one": {paydb, "payapp_fenced", "INSERT INTO account (account_id, currency, fence) VALUES (gen_random_uuid(), 'EUR', 5)"},
		"resource has no part in fencing":           {paydb, "payapp", "SELECT * FROM fence.mark"},
		"rail-proxy can't touch balances":           {paydb, "railapp", "UPDATE account SET balance_minor = 0"},
		"rail-proxy can't change amounts":           {paydb, "railapp", "UPDATE payout SET amount_minor = 1"},
		"rail-proxy can't write the ledger":         {paydb, "railapp", "INSERT INTO ledger_entry SELECT * FROM ledger_entry"},
		"account sidecar can't touch balances":      {paydb, "fence_account", "UPDATE account SET balance_minor = 0"},
		"account sidecar can't read balances":       {paydb, "fence_account", "SELECT balance_minor FROM account"},
		"account sidecar can't change payouts":      {paydb, "fence_account", "UPDATE payout SET state = 'POSTED'"},
		"account sidecar can't touch rail's marks":  {paydb, "fence_account", "UPDATE rail_high_water SET highest_token = 1"},
		"rail sidecar can't touch accounts":         {paydb, "fence_rail", "UPDATE account SET fence = 1"},
		"rail sidecar can't delete marks":           {paydb, "fence_rail", "DELETE FROM rail_high_water"},
		"rail sidecar can't read submissions":       {paydb, "fence_rail", "SELECT * FROM rail_submission"},
		"sidecars can't delete marks of their own":  {paydb, "fence_account", "DELETE FROM fence.mark"},
		"reconcile can't move money":                {paydb, "reconcile", "UPDATE account SET balance_minor = 0"},
		"reconcile can't write the ledger":          {paydb, "reconcile", "INSERT INTO ledger_entry SELECT * FROM ledger_entry"},
		"relay can't make events":                   {paydb, "relayapp", "INSERT INTO outbox DEFAULT VALUES"},
		"relay can't change events":                 {paydb, "relayapp", "UPDATE outbox SET payload = '{}'"},
		"relay can't delete events":                 {paydb, "relayapp", "DELETE FROM outbox"},
		"relay can't read payouts":                  {paydb, "relayapp", "SELECT * FROM payout"},
		"relay can't touch accounts":                {paydb, "relayapp", "UPDATE account SET balance_minor = 0"},
		"operator can't change amounts":             {paydb, "payoperator", "UPDATE payout SET amount_minor = 1"},
		"operator can't make payouts":               {paydb, "payoperator", "INSERT INTO payout SELECT * FROM payout"},
		"operator can't touch accounts":             {paydb, "payoperator", "UPDATE account SET balance_minor = 0"},
		"operator can't write the ledger":           {paydb, "payoperator", "INSERT INTO ledger_entry SELECT * FROM ledger_entry"},
		"operator can't rewrite what was given up":  {paydb, "payoperator", "UPDATE payout_abandonment SET reason = ''"},
		"operator can't touch marks":                {paydb, "payoperator", "UPDATE rail_high_water SET highest_token = 1"},
		"sidecar can't touch the resource's tables": {paydb, "fence_sidecar", "SELECT * FROM account"},
		"sidecar can't rewrite settlements":         {paydb, "fence_sidecar", "UPDATE fence.settlement SET operator = 'x'"},
		"sidecar can't delete settlements":          {paydb, "fence_sidecar", "DELETE FROM fence.settlement"},
		"sidecar can't rewrite rejections":          {paydb, "fence_sidecar", "UPDATE fence.rejection SET owner_id = 'x'"},
		"sidecar can't move a request's token":      {paydb, "fence_sidecar", "UPDATE fence.inflight SET token = 1"},
		"sidecar can't give a life another id":      {paydb, "fence_sidecar", "UPDATE fence.sidecar SET id = 'x'"},
		"sidecar can't delete its marks":            {paydb, "fence_sidecar", "DELETE FROM fence.mark"},
		"sidecar can't forget a guard":              {paydb, "fence_sidecar", "DELETE FROM fence.guard"},
		"sidecar can't raise its contract":          {paydb, "fence_sidecar", "UPDATE fence.schema_contract SET version = 9"},
		"lockd can't rewrite the audit":             {lockdb, "lockapp", "UPDATE lock_revocation SET reason = ''"},
		"lockd can't delete the audit":              {lockdb, "lockapp", "DELETE FROM lock_revocation"},
		"lockd can't set the token source":          {lockdb, "lockapp", "SELECT setval('fencing_token_seq', 1)"},
		"lockd can't change the schema":             {lockdb, "lockapp", "CREATE TABLE t ()"},
		"resource can't change the schema":          {paydb, "payapp", "CREATE TABLE t ()"},
		"sidecars can't change the schema":          {paydb, "fence_rail", "CREATE TABLE fence.t ()"},
		"nobody rewrites the migration history":     {lockdb, "lockapp", "DELETE FROM flyway_schema_history"},
		"nobody rewrites paydb's migration history": {paydb, "payapp", "DELETE FROM flyway_schema_history"},
		"nobody raises the contract's version":      {paydb, "payapp", "UPDATE schema_contract SET version = 9"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := pgtest.Connect(t, pgtest.Login(t, c.database, c.role)).Exec(t.Context(), c.sql)
			require.Equal(t, "42501", postgres.State(err), "%v", err)
		})
	}
}

// And may do what is.
func TestRolesAreAllowedWhatTheyNeed(t *testing.T) {
	t.Parallel()
	paydb := pgtest.Database(t, migrations.PayDB(), migrations.SeedPayDB(), migrations.Fence())
	for _, c := range []struct{ role, sql string }{
		{"payapp", "UPDATE account SET balance_minor = balance_minor, updated_at = now() WHERE account_id = '" + account + "'"},
		{"payapp_fenced", "UPDATE account SET balance_minor = balance_minor, fence = fence, updated_at = now() WHERE account_id = '" + account + "'"},
		{"payapp_fenced", "SELECT count(*) FROM payout, ledger_entry, schema_contract"},
		{"fence_account", "UPDATE account SET fence = 5, updated_at = now() WHERE account_id = '" + account + "' AND fence < 5"},
		{"fence_account", "INSERT INTO fence.mark (guard, key, token) VALUES ('g', 'k', 1)"},
		{"fence_rail", "INSERT INTO rail_high_water (account_id, highest_token) VALUES ('" + account + "', 5)"},
		{"fence_rail", "SELECT version FROM fence.schema_contract"},
		{"relayapp", "UPDATE outbox SET attempts = attempts"},
		{"payoperator", "UPDATE payout SET state = state, updated_at = now()"},
		{"fence_sidecar", "UPDATE fence.inflight SET unsettled_at = now()"},
		{"fence_sidecar", "DELETE FROM fence.claim"},
		{"railapp", "UPDATE payout SET state = state, updated_at = now()"},
	} {
		_, err := pgtest.Connect(t, pgtest.Login(t, paydb, c.role)).Exec(t.Context(), c.sql)
		require.NoError(t, err, "%s: %s", c.role, c.sql)
	}
}

// Every balance of the synthetic data is the sum of its entries, and stays so when the seed is applied to a database in use.
func TestSeededBalancesAreTheSumsOfTheirEntries(t *testing.T) {
	t.Parallel()
	conn := pgtest.Connect(t, pgtest.Database(t, migrations.PayDB(), migrations.SeedPayDB()))
	wrong := func() (n int) {
		require.NoError(t, conn.QueryRow(t.Context(), `
			SELECT count(*) FROM account a
			 WHERE balance_minor <> coalesce((SELECT sum(CASE direction WHEN 'CREDIT' THEN amount_minor ELSE -amount_minor END)
			                                    FROM ledger_entry l WHERE l.account_id = a.account_id), 0)`).Scan(&n))
		return n
	}
	require.Zero(t, wrong())
	var accounts int
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT count(*) FROM account").Scan(&accounts))
	require.Greater(t, accounts, 5)

	_, err := conn.Exec(t.Context(), migrations.SQL(migrations.SeedPayDB()), pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err)
	require.Zero(t, wrong())
}

// The names that C1 gives to constraints and indexes are there: errors are told apart by them.
func TestSchemaHasTheContractsNames(t *testing.T) {
	t.Parallel()
	for set, names := range map[string][]string{
		pgtest.Database(t, migrations.LockDB()): {
			"lock_session_ttl_ck", "lock_entry_token_ck", "lock_entry_ttl_ck", "lock_entry_expiry_idx", "lock_entry_session_idx", "fencing_token_seq",
		},
		pgtest.Database(t, migrations.PayDB()): {
			"account_currency_ck", "account_balance_ck", "account_fence_ck", "payout_idem_uq", "payout_amount_ck", "payout_attempts_ck",
			"payout_state_ck", "payout_pending_ck", "payout_claimed_ck", "payout_pending_idx", "payout_account_idx", "ledger_direction_ck", "ledger_amount_ck",
			"ledger_fence_ck", "ledger_leg_uq", "rail_outcome_ck", "rail_token_ck", "rail_resolved_ck", "rail_submission_attempt_uidx", "rail_hwm_token_ck",
		},
	} {
		conn := pgtest.Connect(t, set)
		for _, name := range names {
			var found bool
			require.NoError(t, conn.QueryRow(t.Context(),
				"SELECT EXISTS (SELECT FROM pg_constraint WHERE conname = $1) OR to_regclass($1) IS NOT NULL", name).Scan(&found))
			require.True(t, found, name)
		}
	}
}
