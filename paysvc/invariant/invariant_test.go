package invariant_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/internal/postgres"
	"fenceline/lockd/lock"
	"fenceline/migrations"
	"fenceline/paysvc/invariant"
	"fenceline/paysvc/paydb"
	"fenceline/paysvc/payout"
	"fenceline/paysvc/railproxy/submission"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var (
	clearing = uuid.MustParse("00000000-0000-4000-8000-000000000001")
	payer    = uuid.MustParse("00000000-0000-4000-8000-000000000101")
	paid     = uuid.MustParse("aaaaaaaa-0000-4000-8000-000000000001")
	failed   = uuid.MustParse("aaaaaaaa-0000-4000-8000-000000000002")
	waiting  = uuid.MustParse("aaaaaaaa-0000-4000-8000-000000000003")
)

// nested lets a check run inside a transaction that a test rolls back afterwards.
type nested struct{ pgx.Tx }

func (n nested) BeginTx(ctx context.Context, _ pgx.TxOptions) (pgx.Tx, error) { return n.Begin(ctx) }

// story is a paydb in which everything went right, in fenced mode: A claims a payout with 33 and is taken over by B, who pays it with 34; A's
// late submission is fenced out. One payout failed for funds under 35, one is claimed under 36.
func story(t *testing.T) *pgx.Conn {
	t.Helper()
	database := pgtest.Database(t, migrations.PayDB(), migrations.SeedPayDB())
	owner := pgtest.Connect(t, database)
	require.NoError(t, invariant.InstallHistory(t.Context(), owner))
	open := func(role string) *paydb.Fenced {
		pool, err := postgres.Open(t.Context(), postgres.Config{URL: pgtest.Login(t, database, role)})
		require.NoError(t, err)
		t.Cleanup(pool.Close)
		return paydb.NewFenced(pool, clearing, 3*time.Second)
	}
	railPool, err := postgres.Open(t.Context(), postgres.Config{URL: pgtest.Login(t, database, "railapp")})
	require.NoError(t, err)
	t.Cleanup(railPool.Close)
	rail, resource := paydb.NewFencedRail(railPool, 3*time.Second), open("payapp_fenced")

	for id, amount := range map[uuid.UUID]payout.Minor{paid: 2500, failed: 1_000_000, waiting: 10} {
		_, _, err := resource.Create(t.Context(), payout.Draft{ID: id, AccountID: payer, Money: payout.Money{Minor: amount, Currency: "EUR"}, IdempotencyKey: id.String()})
		require.NoError(t, err)
	}
	claim := func(id uuid.UUID, expected payout.State, owner string, token lock.Token) error {
		_, err := resource.Claim(t.Context(), id, expected, payout.Holder{Owner: owner, Token: token})
		return err
	}
	submit := func(token lock.Token) submission.Admission {
		s := submission.Submission{ID: uuid.New(), PayoutID: paid, IdempotencyKey: "k", Token: token, SubmittedAt: time.Now()}
		admission, err := rail.Admit(t.Context(), s, payer)
		require.NoError(t, err)
		if admission.Fenced == nil {
			s.Outcome, s.RailReference, s.ResolvedAt = submission.Acked, "rail-1", time.Now()
			_, err := rail.Resolve(t.Context(), s)
			require.NoError(t, err)
		}
		return admission
	}
	require.NoError(t, claim(paid, payout.Pending, "worker-a", 33))
	require.NoError(t, claim(paid, payout.Claimed, "worker-b", 34))
	require.Nil(t, submit(34).Fenced)
	require.NotNil(t, submit(33).Fenced)
	_, err = resource.Post(t.Context(), paid, payout.Holder{Owner: "worker-b", Token: 34})
	require.NoError(t, err)
	require.ErrorIs(t, claim(failed, payout.Pending, "worker-b", 35), payout.ErrInsufficientFunds)
	require.NoError(t, claim(waiting, payout.Pending, "worker-a", 36))
	return owner
}

// evidence fits the story.
func evidence(t *testing.T) invariant.Evidence {
	t.Helper()
	var log strings.Builder
	line := func(second int, event, owner string, token, lease int, more string) {
		fmt.Fprintf(&log, `{"@timestamp":"2030-01-01T00:00:%02d.000Z","event":%q,"lockKey":"payout:%s","token":%d,"ownerId":%q,"leaseMillis":%d%s}`+"\n",
			second, event, payer, token, owner, lease, more)
	}
	line(1, "lock_granted", "worker-a", 33, 2000, "")
	line(4, "lease_expired", "", 33, 0, "")
	line(4, "lock_granted", "worker-b", 34, 30000, "")
	line(5, "lock_released", "worker-a", 33, 0, `,"stale":true`)
	line(6, "lock_released", "worker-b", 34, 0, "")
	line(7, "lock_granted", "worker-b", 35, 2000, "")
	line(9, "lock_granted", "worker-a", 36, 2000, "") // the earlier lease had run out
	log.WriteString("not an event\n{\"event\":\"listening\"}\n")
	grants, err := invariant.ReadGrants(strings.NewReader(log.String()))
	require.NoError(t, err)
	require.Len(t, grants, 7, "a stale release says that its grant was over by then")
	transfers, err := invariant.ReadTransfers(strings.NewReader(fmt.Sprintf(`{"railReference":"rail-1","clientReference":%q,"amountMinor":2500}`+"\n", paid)))
	require.NoError(t, err)
	return invariant.Evidence{Grants: grants, Transfers: transfers, FencedResource: true, FencedRail: true}
}

func TestStoryInWhichEverythingWentRightViolatesNothing(t *testing.T) {
	t.Parallel()
	owner := story(t)
	report, err := invariant.Check(t.Context(), owner, evidence(t))
	require.NoError(t, err)
	require.NoError(t, report.Err())
	require.Equal(t, []string{"INV-01", "INV-02", "INV-03", "INV-04", "INV-05", "INV-06", "INV-07", "INV-08"}, report.Checked)

	// Less evidence, fewer checks, and it is said which.
	report, err = invariant.Check(t.Context(), owner, invariant.Evidence{})
	require.NoError(t, err)
	require.Equal(t, []string{"INV-01", "INV-02", "INV-03", "INV-05", "INV-08"}, report.Checked)
	bare := pgtest.Connect(t, pgtest.Database(t, migrations.PayDB(), migrations.SeedPayDB()))
	report, err = invariant.Check(t.Context(), bare, invariant.Evidence{})
	require.NoError(t, err)
	require.NoError(t, report.Err())
	require.Equal(t, []string{"INV-02", "INV-03"}, report.Checked)
}

// plant is one violation, put there on purpose.
type plant struct {
	invariant, what string
	sql             []string
	change          func(*invariant.Evidence)
}

func granted(seq int, holder string, token, at int64) invariant.Grant {
	return invariant.Grant{Seq: seq, Event: "lock_granted", Key: "payout:" + payer.String(), Token: token, Holder: holder, AtMillis: at, LeaseMillis: 30_000}
}

func plants() map[string]plant {
	leg := `INSERT INTO ledger_entry (entry_id, payout_id, account_id, direction, amount_minor, fence) VALUES (gen_random_uuid(), '%s', '%s', '%s', %d, %d)`
	add := func(grants ...invariant.Grant) func(*invariant.Evidence) {
		return func(e *invariant.Evidence) { e.Grants = append(e.Grants, grants...) }
	}
	const late = 1_893_456_100_000 // after the story
	return map[string]plant{
		"a stale claim": {"INV-01", "a write under token 35 came after one under 36", []string{fmt.Sprintf("UPDATE payout SET claim_token = 35, claimed_by = 'stale' WHERE payout_id = '%s'", waiting)}, nil},
		"a stale submission": {"INV-01", "a write under token 33 came after one under 36", []string{
			fmt.Sprintf("INSERT INTO rail_submission (submission_id, payout_id, idempotency_key, presented_token) VALUES (gen_random_uuid(), '%s', 'k', 33)", waiting),
		}, nil},
		"two transfers": {"INV-02", "paid out 2 times", nil, func(e *invariant.Evidence) {
			e.Transfers = append(e.Transfers, invariant.Transfer{Reference: "rail-2", ClientReference: paid.String()})
		}},
		"two acknowledged submissions": {"INV-02", "paid out 2 times", []string{
			"DROP INDEX rail_submission_attempt_uidx",
			fmt.Sprintf("INSERT INTO rail_submission (submission_id, payout_id, idempotency_key, presented_token, outcome, resolved_at) VALUES (gen_random_uuid(), '%s', 'k', 35, 'ACKED', now())", paid),
		}, nil},
		"a second debit":                  {"INV-03", "the balance is", []string{fmt.Sprintf("UPDATE account SET balance_minor = balance_minor - 1, fence = 40 WHERE account_id = '%s'", payer)}, nil},
		"a leg without its counterpart":   {"INV-03", "its legs debit 10 and credit 0", []string{fmt.Sprintf(leg, waiting, payer, "DEBIT", 10, 36)}, nil},
		"legs of a payout that is FAILED": {"INV-03", "is FAILED, its legs debit 5 and credit 5", []string{fmt.Sprintf(leg, failed, payer, "DEBIT", 5, 36), fmt.Sprintf(leg, failed, clearing, "CREDIT", 5, 36)}, nil},
		"a posting that isn't there":      {"INV-03", "is POSTED, its legs debit 0", []string{fmt.Sprintf("UPDATE payout SET state = 'POSTED' WHERE payout_id = '%s'", waiting)}, nil},
		"a token twice":                   {"INV-04", "token 36 was granted after 36", nil, add(granted(90, "worker-b", 36, late))},
		"a token that went back":          {"INV-04", "token 12 was granted after 36", nil, add(granted(90, "worker-b", 12, late))},
		"a lowered fence":                 {"INV-05", "the mark went from 35 to 7", []string{fmt.Sprintf("UPDATE account SET fence = 7 WHERE account_id = '%s'", payer)}, nil},
		"a debit at the fence":            {"INV-05", "the mark went from 35 to 35", []string{fmt.Sprintf("UPDATE account SET balance_minor = balance_minor - 1 WHERE account_id = '%s'", payer)}, nil},
		"a lowered mark":                  {"INV-05", "the mark went from 34 to 1", []string{"UPDATE rail_high_water SET highest_token = 1"}, nil},
		"a mark that is gone":             {"INV-05", "the mark went from 34 to", []string{"DELETE FROM rail_high_water"}, nil},
		"a claim below the fence":         {"INV-05", "a write under token 36, with the mark at 50", []string{fmt.Sprintf("UPDATE account SET fence = 50 WHERE account_id = '%s'", payer), fmt.Sprintf("UPDATE payout SET claimed_by = 'again' WHERE payout_id = '%s'", waiting)}, nil},
		"a leg below the fence":           {"INV-05", "a write under token 3, with the mark at 35", []string{fmt.Sprintf(leg, waiting, payer, "DEBIT", 10, 3)}, nil},
		"a submission below the mark": {"INV-05", "a write under token 3, with the mark at 34", []string{
			fmt.Sprintf("INSERT INTO rail_submission (submission_id, payout_id, idempotency_key, presented_token) VALUES (gen_random_uuid(), '%s', 'k', 3)", waiting),
		}, nil},
		"two live grants": {"INV-06", "granted 10 ms after a grant of 30000 ms that nothing had ended", nil, add(granted(90, "worker-b", 40, late), granted(91, "worker-c", 41, late+10))},
		"a token that nobody granted": {"INV-07", "token 999 was never granted for payout:" + payer.String(), []string{
			fmt.Sprintf("INSERT INTO rail_submission (submission_id, payout_id, idempotency_key, presented_token, outcome, resolved_at) VALUES (gen_random_uuid(), '%s', 'k', 999, 'FENCED', now())", waiting),
		}, nil},
		"a mark that no token stands for": {"INV-07", "token 997 was never granted for payout:" + payer.String(), []string{"UPDATE rail_high_water SET highest_token = 997"}, nil},
		"a leg under a token of another key": {"INV-07", "token 37 was never granted", []string{fmt.Sprintf(leg, waiting, payer, "DEBIT", 10, 37)}, add(
			invariant.Grant{Seq: 90, Event: "lock_granted", Key: "payout:other", Token: 37, Holder: "x", AtMillis: late, LeaseMillis: 1},
		)},
		"a payout that comes back": {"INV-08", "the payout left POSTED for RAIL_ACKED", []string{fmt.Sprintf("UPDATE payout SET state = 'RAIL_ACKED' WHERE payout_id = '%s'", paid)}, nil},
		"a FAILED payout that is paid": {"INV-08", "the payout left FAILED for CLAIMED", []string{
			fmt.Sprintf("UPDATE payout SET state = 'CLAIMED', claimed_by = 'x', claim_token = 36 WHERE payout_id = '%s'", failed),
		}, nil},
		"a terminal payout that is gone": {"INV-08", "the payout left FAILED for nothing", []string{
			fmt.Sprintf("DELETE FROM outbox WHERE payout_id = '%s'", failed), fmt.Sprintf("DELETE FROM payout WHERE payout_id = '%s'", failed),
		}, nil},
	}
}

// Each violation is planted and seen, under its own name, with what it takes to find it.
func TestPlantedViolationsAreFound(t *testing.T) {
	t.Parallel()
	owner := story(t)
	found := map[string]bool{}
	for name, p := range plants() {
		tx, err := owner.Begin(t.Context())
		require.NoError(t, err)
		for _, sql := range p.sql {
			_, err := tx.Exec(t.Context(), sql)
			require.NoError(t, err, name)
		}
		e := evidence(t)
		if p.change != nil {
			p.change(&e)
		}
		report, err := invariant.Check(t.Context(), nested{tx}, e)
		require.NoError(t, err, name)
		require.NoError(t, tx.Rollback(t.Context()))
		require.Contains(t, report.Broken(), p.invariant, name)
		var texts []string
		for _, v := range report.Violations {
			if v.Invariant == p.invariant {
				texts = append(texts, v.String())
				require.NotEmpty(t, v.Rows, name)
			}
		}
		require.Contains(t, strings.Join(texts, "\n"), p.what, name)
		require.ErrorContains(t, report.Err(), p.invariant, name)
		found[p.invariant] = true
	}
	require.Len(t, found, 8)
}

func TestViolationNamesPayoutTokensHoldersAndRows(t *testing.T) {
	t.Parallel()
	owner := story(t)
	_, err := owner.Exec(t.Context(), "UPDATE payout SET claim_token = 35, claimed_by = 'stale' WHERE payout_id = $1", waiting)
	require.NoError(t, err)
	report, err := invariant.Check(t.Context(), owner, evidence(t))
	require.NoError(t, err)
	v := report.Violations[0]
	require.Equal(t, "INV-01", v.Invariant)
	require.Equal(t, waiting.String(), v.PayoutID)
	require.Equal(t, payer.String(), v.Account)
	require.Equal(t, []int64{36, 35}, v.Tokens)
	require.Contains(t, v.Holders, "stale")
	require.Regexp(t, `^payout_history \d+: UPDATE payout CLAIMED$`, v.Rows[0])
	require.Regexp(t, `^INV-01: a write under token 35 came after one under 36 \(payout aaaaaaaa-.*, tokens \[36 35\], holders \[stale stale\], rows: payout_history \d+`, v.String())
}

func TestLogsThatCannotBeUnderstoodAreErrors(t *testing.T) {
	t.Parallel()
	for _, line := range []string{
		`{"@timestamp":"2030-01-01T00:00:01.000Z","event":"lock_granted","lockKey":"k","token":5,"ownerId":"a"}`,
		`{"@timestamp":"2030-01-01T00:00:01.000Z","event":"lock_released","lockKey":"k"}`,
		`{"event":"lease_expired","lockKey":"k","token":5}`,
	} {
		_, err := invariant.ReadGrants(strings.NewReader(line))
		require.ErrorContains(t, err, "lacks a field", line)
	}
	for _, line := range []string{"nonsense", `{"railReference":"r"}`} {
		_, err := invariant.ReadTransfers(strings.NewReader(line))
		require.Error(t, err, line)
	}
	first := `{"@timestamp":"2030-01-01T00:00:01.000Z","event":"lock_granted","lockKey":"k","token":5,"ownerId":"a","leaseMillis":1}`
	second := strings.Replace(first, ":01.", ":02.", 1)
	grants, err := invariant.ReadGrants(strings.NewReader(second), strings.NewReader(first))
	require.NoError(t, err)
	require.Less(t, grants[0].AtMillis, grants[1].AtMillis, "logs of several replicas are put in order")
}
