package reconcile_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"fenceline/internal/daemon"
	"fenceline/internal/pgserver/pgtest"
	"fenceline/internal/postgres"
	"fenceline/migrations"
	"fenceline/paysvc/paydb"
	"fenceline/paysvc/railstub"
	"fenceline/paysvc/reconcile"
	"fenceline/paysvc/reconcile/finding"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// Accounts of the synthetic data.
const (
	clearing = "00000000-0000-4000-8000-000000000001"
	payer    = "00000000-0000-4000-8000-000000000101"
)

// world is a paydb, a rail with a log that the test writes, and the reconciler between them, under its own role.
type world struct {
	t       *testing.T
	owner   *pgx.Conn
	railLog *railstub.Log
	store   *paydb.Reconciliation
	rail    *reconcile.Client
}

func newWorld(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	database := pgtest.Database(t, migrations.PayDB(), migrations.SeedPayDB())
	pool, err := postgres.Open(t.Context(), postgres.Config{URL: pgtest.Login(t, database, "reconcile")})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	log, _, err := railstub.OpenLog(filepath.Join(t.TempDir(), "transfers.jsonl"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, log.Close()) })
	rail, err := railstub.New(log, railstub.Plan{}, hclog.NewNullLogger())
	require.NoError(t, err)
	l, err := daemon.Listen(t.Context(), "127.0.0.1:0")
	require.NoError(t, err)
	server := rail.Server()
	daemon.ServeHTTP("rail", l, server, hclog.NewNullLogger(), make(chan error, 1))
	t.Cleanup(func() { require.NoError(t, server.ShutdownWithContext(context.Background())) })
	client, err := reconcile.NewClient("http://"+l.Addr().String(), 5*time.Second)
	require.NoError(t, err)
	store := paydb.NewReconciliation(pool, 10*time.Second)
	require.NoError(t, store.Check(t.Context()))
	w := &world{t: t, owner: pgtest.Connect(t, database), railLog: log, store: store, rail: client}
	w.exec("UPDATE account SET fence = 50 WHERE account_id = $1", payer)
	w.exec("INSERT INTO rail_high_water VALUES ($1, 50)", payer)
	return w
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	_, err := w.owner.Exec(w.t.Context(), sql, args...)
	require.NoError(w.t, err)
}

// payout makes a payout of 25.00 EUR in the state, claimed under token 33 unless it is PENDING.
func (w *world) payout(state string) string {
	w.t.Helper()
	id := uuid.NewString()
	w.exec("INSERT INTO payout (payout_id, account_id, amount_minor, currency, idempotency_key) VALUES ($1::uuid, $2, 2500, 'EUR', 'key-' || $1::uuid)", id, payer)
	if state != "PENDING" {
		w.exec("UPDATE payout SET state = $2, claimed_by = 'w', claim_token = 33 WHERE payout_id = $1", id, state)
	}
	return id
}

// submitted puts a submission under token 33 on record and returns the rail reference that goes with it; outcome "" for none.
func (w *world) submitted(id, outcome string) (reference string) {
	w.t.Helper()
	if outcome == "ACKED" {
		reference = "rail-" + id
	}
	w.exec(`INSERT INTO rail_submission (submission_id, payout_id, idempotency_key, presented_token, outcome, rail_reference, resolved_at)
		VALUES (gen_random_uuid(), $1::uuid, 'k', 33, NULLIF($2, ''), NULLIF($3, ''), CASE WHEN $2 <> '' THEN now() END)`, id, outcome, reference)
	return reference
}

// transferred lets the rail carry out a transfer of the amount for the reference.
func (w *world) transferred(client, rail string, amount int64) {
	w.t.Helper()
	require.NoError(w.t, w.railLog.Append(railstub.Transfer{
		RailReference: rail, ClientReference: client, AmountMinor: amount, Currency: "EUR", BeneficiaryRef: "b", AcceptedAt: time.Now(),
	}))
}

// legs writes both legs under token 33 and moves the money.
func (w *world) legs(id string) {
	w.t.Helper()
	w.leg(id, payer, "DEBIT", 2500, 33)
	w.leg(id, clearing, "CREDIT", 2500, 33)
}

func (w *world) leg(id, account, direction string, amount, token int64) {
	w.t.Helper()
	w.exec("INSERT INTO ledger_entry (entry_id, payout_id, account_id, direction, amount_minor, fence) VALUES (gen_random_uuid(), $1, $2, $3, $4, $5)",
		id, account, direction, amount, token)
	w.exec("UPDATE account SET balance_minor = balance_minor + CASE $2 WHEN 'CREDIT' THEN $3::bigint ELSE -$3::bigint END WHERE account_id = $1", account, direction, amount)
}

// paid makes a payout for which everything is as it should be.
func (w *world) paid() string {
	w.t.Helper()
	id := w.payout("POSTED")
	w.transferred(id, w.submitted(id, "ACKED"), 2500)
	w.legs(id)
	return id
}

// healthy fills the world with one payout of every kind that a running system may have.
func (w *world) healthy() {
	w.t.Helper()
	paid := w.paid()
	w.exec(`INSERT INTO rail_submission (submission_id, payout_id, idempotency_key, presented_token, outcome, resolved_at)
		VALUES (gen_random_uuid(), $1, 'k', 12, 'FENCED', now())`, paid)
	w.payout("PENDING")
	w.payout("CLAIMED")
	w.payout("FAILED") // for lack of funds
	w.submitted(w.payout("FAILED"), "REJECTED")
	w.payout("ABANDONED")
	given := w.payout("ABANDONED") // after its answer was lost; the operator's token is newer
	w.submitted(given, "TIMEOUT")
	w.exec("UPDATE payout SET claim_token = 49 WHERE payout_id = $1", given)
	acked := w.payout("RAIL_ACKED")
	w.transferred(acked, w.submitted(acked, "ACKED"), 2500)
}

func (w *world) reconciler(options reconcile.Options) *reconcile.Reconciler {
	if options.Limit == 0 {
		options.Limit = 100
	}
	return reconcile.New(w.store, w.rail, options, hclog.NewNullLogger())
}

func (w *world) run(options reconcile.Options) reconcile.Report {
	w.t.Helper()
	report, err := w.reconciler(options).Run(w.t.Context())
	require.NoError(w.t, err)
	return report
}

// found are the classes with something in them.
func found(r reconcile.Report) map[finding.Class]int64 {
	counts := map[finding.Class]int64{}
	for _, d := range r.Discrepancies {
		if d.Count > 0 {
			counts[d.Class] = d.Count
		}
	}
	return counts
}
