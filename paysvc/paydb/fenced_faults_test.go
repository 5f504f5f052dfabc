package paydb_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"fenceline/internal/postgres"
	"fenceline/paysvc/payout"
)

// dieAt ends the connection in the middle of whatever writes to the table.
func (b *bench) dieAt(table string) {
	b.t.Helper()
	b.exec(`CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
	        BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(10); RETURN NULL; END $$`)
	b.exec("CREATE TRIGGER die BEFORE INSERT OR UPDATE ON " + table + " FOR EACH ROW EXECUTE FUNCTION die()")
}

func (b *bench) liveAgain(table string) {
	b.t.Helper()
	b.exec("DROP TRIGGER die ON " + table)
	b.exec("DROP FUNCTION die()")
}

// The database goes away in each step of a posting and of a claim: nothing has happened, and it is said so.
func TestDatabaseThatGoesAwayInAnyStepLeavesNothingBehind(t *testing.T) {
	b := newFencedBench(t)
	claimable := b.create(100)
	p := b.ackedUnder(100, 34)
	for _, table := range []string{"account", "ledger_entry", "payout"} {
		before := b.everything()
		b.dieAt(table)
		_, err := b.post(p.ID, 35)
		require.ErrorIs(t, err, postgres.ErrUnavailable, table)
		require.NotErrorIs(t, err, postgres.ErrOutcomeUnknown, table)
		if table != "ledger_entry" {
			require.ErrorIs(t, b.claim(claimable.ID, 35), postgres.ErrUnavailable, table)
		}
		b.liveAgain(table)
		require.Equal(t, before, b.everything(), table)
	}
	_, err := b.post(p.ID, 35)
	require.NoError(t, err)
	b.sound()
}

// A lost answer to the commit is neither success nor failure; whichever it was, all of it or nothing is there.
func TestLostAnswerToAFencedCommitIsAnUnknownOutcome(t *testing.T) {
	b := newFencedBench(t)
	p := b.ackedUnder(100, 34)
	b.dieAtCommit("ledger_entry")
	_, err := b.post(p.ID, 35)
	require.ErrorIs(t, err, postgres.ErrOutcomeUnknown)
	require.NotErrorIs(t, err, payout.ErrPostingIncomplete)
	b.sound()
	b.exec("DROP TRIGGER die ON ledger_entry")
	b.exec("DROP FUNCTION die()")
	_, err = b.post(p.ID, 36)
	require.NoError(t, err)
	balance, sum := b.balances(payerID)
	require.EqualValues(t, opening-100, balance)
	require.Equal(t, balance, sum)
}
