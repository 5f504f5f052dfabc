package paydb_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/internal/postgres"
	"fenceline/migrations"
	"fenceline/paysvc/paydb"
	"fenceline/paysvc/payout"
)

// dieAtCommit ends the connection in the middle of the commit of whoever writes to the table.
func (b *bench) dieAtCommit(table string) {
	b.t.Helper()
	b.exec(`CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
	        BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(10); RETURN NULL; END $$`)
	b.exec("CREATE CONSTRAINT TRIGGER die AFTER INSERT OR UPDATE ON " + pgx.Identifier{table}.Sanitize() +
		" DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION die()")
}

func TestLostAnswerToTheCommitIsAnUnknownOutcome(t *testing.T) {
	b := newBench(t)
	p := b.create(100)
	b.dieAtCommit("payout")
	_, err := b.store.Claim(t.Context(), p.ID, payout.Pending, holder("worker", 1))
	require.ErrorIs(t, err, postgres.ErrOutcomeUnknown)
	_, _, err = b.store.Create(t.Context(), draft(5))
	require.ErrorIs(t, err, postgres.ErrOutcomeUnknown)
}

func TestLostAnswerInEitherTransactionOfAPostingIsAnUnknownOutcome(t *testing.T) {
	b := newBench(t)
	first := b.acked(100, 1)
	b.dieAtCommit("ledger_entry")
	_, err := b.store.Post(t.Context(), first.ID, holder("worker", 2))
	require.ErrorIs(t, err, postgres.ErrOutcomeUnknown)
	require.ErrorIs(t, err, payout.ErrPostingIncomplete, "the debit is known")
	balance, sum := b.balances(payerID)
	require.EqualValues(t, opening-100, balance)
	require.EqualValues(t, opening, sum)

	b.exec("DROP TRIGGER die ON ledger_entry")
	b.exec("DROP FUNCTION die()")
	b.dieAtCommit("account")
	_, err = b.store.Post(t.Context(), first.ID, holder("worker", 2))
	require.ErrorIs(t, err, postgres.ErrOutcomeUnknown)
	require.NotErrorIs(t, err, payout.ErrPostingIncomplete)
}

func TestRowThatSomebodyHoldsEndsTheWaitInTimeAndChangesNothing(t *testing.T) {
	b := newBench(t)
	p := b.create(100)
	store := paydb.NewPlain(openPool(t, pgtest.Login(t, b.url, "payapp")), clearingID, 100*time.Millisecond)
	tx, err := b.owner.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "SELECT FROM payout WHERE payout_id = $1 FOR UPDATE", p.ID)
	require.NoError(t, err)
	_, err = store.Claim(t.Context(), p.ID, payout.Pending, holder("worker", 1))
	require.ErrorIs(t, err, postgres.ErrTimeout)
	require.NoError(t, tx.Rollback(t.Context()))
	after, err := b.store.Payout(t.Context(), p.ID)
	require.NoError(t, err)
	require.Equal(t, payout.Pending, after.State)
}

// The mark in account.fence is the sidecar's. payapp can't write it, and a posting doesn't change it.
func TestMarkIsOutOfTheResourcesReach(t *testing.T) {
	b := newBench(t)
	b.exec("UPDATE account SET fence = 41 WHERE account_id = $1", payerID)
	p := b.acked(100, 33)
	_, err := b.store.Post(t.Context(), p.ID, holder("worker", 33))
	require.NoError(t, err)
	require.EqualValues(t, 41, b.number("SELECT fence FROM account WHERE account_id = $1", payerID))

	conn := pgtest.Connect(t, pgtest.Login(t, b.url, "payapp"))
	for _, sql := range []string{
		"UPDATE account SET fence = 0",
		"INSERT INTO account (account_id, currency, fence) VALUES (gen_random_uuid(), 'EUR', 1)",
		"SELECT * FROM rail_high_water",
		"UPDATE rail_high_water SET highest_token = 1",
		"DELETE FROM ledger_entry",
		"UPDATE ledger_entry SET amount_minor = 1",
	} {
		_, err := conn.Exec(t.Context(), sql)
		require.Equal(t, "42501", postgres.State(err), sql)
	}
}

func TestCheckNamesWhatIsWrongWithTheDatabase(t *testing.T) {
	b := newBench(t)
	check := func(url string, clearing uuid.UUID) error {
		return paydb.NewPlain(openPool(t, url), clearing, time.Second).Check(t.Context())
	}
	require.NoError(t, check(pgtest.Login(t, b.url, "payapp"), clearingID))
	require.ErrorContains(t, check(pgtest.Login(t, b.url, "railapp"), clearingID), "payapp")
	require.ErrorContains(t, check(pgtest.Login(t, b.url, "payapp"), uuid.New()), "clearing account")

	other := pgtest.Database(t, migrations.LockDB())
	require.ErrorContains(t, check(other, clearingID), `"lockdb"`)
	require.ErrorContains(t, check(pgtest.Database(t), clearingID), "run the migrations")
	for version, acceptable := range map[int]bool{1: false, 2: true, 3: false} {
		b.exec("UPDATE schema_contract SET version = $1", version)
		err := check(pgtest.Login(t, b.url, "payapp"), clearingID)
		if acceptable {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, fmt.Sprintf("version %d", version))
		}
	}
}

func TestSeedingTwiceChangesNothing(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t, migrations.PayDB())
	store := paydb.NewPlain(openPool(t, pgtest.Login(t, url, "payapp")), clearingID, time.Second)
	owner := pgtest.Connect(t, url)
	account, euro := uuid.New(), func(n payout.Minor) payout.Money { return payout.Money{Minor: n, Currency: "EUR"} }
	openings := []paydb.Opening{{AccountID: account, PayoutID: uuid.New(), EntryID: uuid.New(), Balance: euro(500)}}
	drafts := make([]payout.Draft, 1200) // more than travel together
	for i := range drafts {
		id := uuid.New()
		drafts[i] = payout.Draft{ID: id, AccountID: account, Money: euro(7), IdempotencyKey: "k-" + id.String()}
	}
	first, err := store.Seed(t.Context(), "EUR", openings, drafts)
	require.NoError(t, err)
	require.Len(t, first, len(drafts))
	require.Equal(t, drafts[1199].ID, first[1199].ID)
	_, err = store.Claim(t.Context(), drafts[0].ID, payout.Pending, holder("worker", 1))
	require.NoError(t, err)

	openings[0].Balance = euro(900)
	again, err := store.Seed(t.Context(), "EUR", openings, drafts)
	require.NoError(t, err)
	require.Equal(t, payout.Claimed, again[0].State)
	found, err := store.Account(t.Context(), account)
	require.NoError(t, err)
	require.Equal(t, euro(500), found.Balance)
	require.EqualValues(t, 500, found.LedgerSum)
	require.NoError(t, store.Check(t.Context()), "the clearing account is there too")

	drafts[0].ID = uuid.New() // its key belongs to another payout
	openings = append(openings, paydb.Opening{AccountID: uuid.New(), PayoutID: uuid.New(), EntryID: uuid.New(), Balance: euro(1)})
	_, err = store.Seed(t.Context(), "EUR", openings, drafts)
	require.ErrorContains(t, err, "payout_idem_uq")
	var accounts int
	require.NoError(t, owner.QueryRow(t.Context(), "SELECT count(*) FROM account").Scan(&accounts))
	require.Equal(t, 2, accounts, "all of it or nothing")
}
