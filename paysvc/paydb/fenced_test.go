package paydb_test

import (
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/lockd/lock"
	"fenceline/migrations"
	"fenceline/paysvc/paydb"
	"fenceline/paysvc/payout"
)

// fencedBench is a fresh paydb with the store of fenced mode under its own role.
type fencedBench struct {
	*bench
	fenced *paydb.Fenced
}

func newFencedBench(t *testing.T) *fencedBench {
	t.Helper()
	b := newBench(t)
	return &fencedBench{bench: b, fenced: paydb.NewFenced(openPool(t, pgtest.Login(t, b.url, "payapp_fenced")), clearingID, 3*time.Second)}
}

func (b *fencedBench) claim(id uuid.UUID, token int64) error {
	b.t.Helper()
	p, err := b.store.Payout(b.t.Context(), id)
	require.NoError(b.t, err)
	_, err = b.fenced.Claim(b.t.Context(), id, p.State, holder("worker", token))
	return err
}

// ackedUnder brings a payout to RAIL_ACKED, claimed under the token.
func (b *fencedBench) ackedUnder(amount payout.Minor, token int64) payout.Payout {
	b.t.Helper()
	p := b.create(amount)
	require.NoError(b.t, b.claim(p.ID, token))
	b.exec("UPDATE payout SET state = 'RAIL_ACKED' WHERE payout_id = $1", p.ID)
	return p
}

func (b *fencedBench) post(id uuid.UUID, token int64) (payout.Posting, error) {
	return b.fenced.Post(b.t.Context(), id, holder("worker", token))
}

func (b *fencedBench) fence() int64 {
	b.t.Helper()
	return b.number("SELECT fence FROM account WHERE account_id = $1", payerID)
}

// everything is what a refused call must leave as it was.
func (b *fencedBench) everything() string {
	b.t.Helper()
	var all string
	require.NoError(b.t, b.owner.QueryRow(b.t.Context(), `
		SELECT (SELECT string_agg(a::text, ';' ORDER BY account_id) FROM account a) || (SELECT string_agg(p::text, ';' ORDER BY payout_id) FROM payout p)
		    || (SELECT string_agg(l::text, ';' ORDER BY entry_id) FROM ledger_entry l)`).Scan(&all))
	return all
}

// sound checks that money was neither lost nor made.
func (b *fencedBench) sound() {
	b.t.Helper()
	require.Zero(b.t, b.number(`
		SELECT count(*) FROM account a WHERE balance_minor <> coalesce(
		       (SELECT sum(CASE direction WHEN 'CREDIT' THEN amount_minor ELSE -amount_minor END) FROM ledger_entry l WHERE l.account_id = a.account_id), 0)`))
}

func fencedOut(t *testing.T, err error, guard payout.Guard, presented, highest int64) {
	t.Helper()
	require.ErrorIs(t, err, payout.ErrFencedOut)
	var refused *payout.FencedOutError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, payout.FencedOutError{Guard: guard, AccountID: payerID, Presented: lock.Token(presented), Highest: lock.Token(highest)}, *refused)
}

func TestClaimShutsOlderTokensOutAndLeavesItsOwnPostingItsStep(t *testing.T) {
	b := newFencedBench(t)
	p := b.ackedUnder(2500, 34)
	require.EqualValues(t, 33, b.fence(), "token − 1")

	before := b.everything()
	_, err := b.post(p.ID, 33)
	fencedOut(t, err, payout.GuardAccount, 33, 33)
	_, err = b.fenced.Claim(t.Context(), p.ID, payout.Claimed, holder("stale", 33))
	fencedOut(t, err, payout.GuardAccount, 33, 33)
	require.Equal(t, before, b.everything())

	posting, err := b.post(p.ID, 34)
	require.NoError(t, err)
	require.Equal(t, payout.Posted, posting.Payout.State)
	require.EqualValues(t, 34, b.fence(), "(a) stamps the token")
	require.EqualValues(t, opening-2500, posting.Balance)
	require.False(t, posting.Already)
	require.Len(t, posting.Entries, 2)
	for _, e := range posting.Entries {
		require.EqualValues(t, 34, e.Fence)
		require.EqualValues(t, 2500, e.Minor)
	}
	require.Equal(t, []uuid.UUID{payerID, clearingID}, []uuid.UUID{posting.Entries[0].AccountID, posting.Entries[1].AccountID})
	b.sound()
}

func TestLaterHolderTakesAClaimOverAndTheEarlierOneIsFencedOut(t *testing.T) {
	b := newFencedBench(t)
	p := b.create(100)
	require.NoError(t, b.claim(p.ID, 33))
	require.NoError(t, b.claim(p.ID, 33), "the same grant may claim again: it has debited nothing")
	require.NoError(t, b.claim(p.ID, 34))
	require.EqualValues(t, 33, b.fence())
	fencedOut(t, b.claim(p.ID, 33), payout.GuardAccount, 33, 33)
	after, err := b.store.Payout(t.Context(), p.ID)
	require.NoError(t, err)
	require.EqualValues(t, 34, after.ClaimToken)
	require.Equal(t, 3, after.AttemptCount)
}

// A payout may carry a claim from the time when fencing was off, and then the account's fence says nothing.
func TestClaimNeverStampsALowerTokenThanTheOneThatIsThere(t *testing.T) {
	b := newFencedBench(t)
	p := b.create(100)
	_, err := b.store.Claim(t.Context(), p.ID, payout.Pending, holder("worker", 34)) // plain mode
	require.NoError(t, err)
	before := b.everything()
	fencedOut(t, b.claim(p.ID, 33), payout.GuardAccount, 33, 34)
	require.Equal(t, before, b.everything())
}

// One grant makes one posting on an account: the fence stands at its token afterwards.
func TestOneTokenDebitsAnAccountOnce(t *testing.T) {
	b := newFencedBench(t)
	first, second := b.ackedUnder(100, 34), b.ackedUnder(100, 34)
	_, err := b.post(first.ID, 34)
	require.NoError(t, err)
	before := b.everything()
	_, err = b.post(second.ID, 34)
	fencedOut(t, err, payout.GuardAccount, 34, 34)
	_, err = b.post(first.ID, 34)
	fencedOut(t, err, payout.GuardAccount, 34, 34)
	require.Equal(t, before, b.everything())
	_, err = b.post(second.ID, 35)
	require.NoError(t, err)
	b.sound()
}

// C1 §1.6: (b) stumbles over the other holder's legs, the transaction is rolled back, and the work is done.
func TestPostingThatAnotherHolderHasFinishedIsAnIdempotentSuccess(t *testing.T) {
	b := newFencedBench(t)
	p := b.ackedUnder(2500, 33)
	first, err := b.post(p.ID, 34)
	require.NoError(t, err)
	before := b.everything()
	again, err := b.post(p.ID, 35)
	require.NoError(t, err)
	require.True(t, again.Already)
	require.Equal(t, first.Entries, again.Entries)
	require.Equal(t, first.Balance, again.Balance)
	require.Equal(t, first.Payout, again.Payout)
	require.Equal(t, before, b.everything(), "neither money nor fence")

	// The same without a leg to stumble over: (c) finds no row, and the state says why.
	bare := b.create(100)
	b.exec("UPDATE payout SET state = 'POSTED', claimed_by = 'x', claim_token = 5 WHERE payout_id = $1", bare.ID)
	before = b.everything()
	again, err = b.post(bare.ID, 36)
	require.NoError(t, err)
	require.True(t, again.Already)
	require.Equal(t, before, b.everything())

	// And with a balance that couldn't pay it a second time.
	b.exec("UPDATE account SET balance_minor = 0 WHERE account_id = $1", payerID)
	again, err = b.post(p.ID, 37)
	require.NoError(t, err)
	require.True(t, again.Already)
}

func TestEachReasonForNoRowHasItsOwnAnswer(t *testing.T) {
	b := newFencedBench(t)
	_, err := b.post(uuid.New(), 34)
	require.ErrorIs(t, err, payout.ErrPayoutNotFound)
	_, err = b.fenced.Claim(t.Context(), uuid.New(), payout.Pending, holder("worker", 34))
	require.ErrorIs(t, err, payout.ErrPayoutNotFound)

	dear := b.ackedUnder(opening, 34)
	b.exec("UPDATE account SET balance_minor = balance_minor - 1 WHERE account_id = $1", payerID)
	before := b.everything()
	_, err = b.post(dear.ID, 34)
	var funds *payout.InsufficientFundsError
	require.ErrorAs(t, err, &funds)
	require.EqualValues(t, opening-1, funds.Balance)
	require.Equal(t, payout.RailAcked, funds.Payout.State, "the rail has paid: no way leads to FAILED")
	_, err = b.post(dear.ID, 33)
	fencedOut(t, err, payout.GuardAccount, 33, 33)
	require.Equal(t, before, b.everything())

	// A newer claim than the posting's token, with a fence that doesn't show it: (c) finds no row.
	b.exec("UPDATE account SET fence = 5, balance_minor = balance_minor + 1 WHERE account_id = $1", payerID)
	before = b.everything()
	_, err = b.post(dear.ID, 20)
	fencedOut(t, err, payout.GuardLedger, 20, 34)
	require.Equal(t, before, b.everything())

	b.exec("UPDATE account SET currency = 'USD' WHERE account_id = $1", payerID)
	before = b.everything()
	_, err = b.post(dear.ID, 34)
	require.ErrorIs(t, err, payout.ErrCurrency)
	require.Equal(t, before, b.everything())
}

// (b) finds no row: somebody moved the fence past the token inside (a)'s own transaction, which only a trigger can.
func TestFenceThatMovesBetweenDebitAndLegRollsEverythingBack(t *testing.T) {
	b := newFencedBench(t)
	p := b.ackedUnder(100, 34)
	b.exec(`CREATE FUNCTION jump() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.fence := NEW.fence + 7; RETURN NEW; END $$`)
	b.exec(`CREATE TRIGGER jump BEFORE UPDATE OF balance_minor ON account FOR EACH ROW EXECUTE FUNCTION jump()`)
	before := b.everything()
	_, err := b.post(p.ID, 34)
	fencedOut(t, err, payout.GuardLedger, 34, 41)
	require.Equal(t, before, b.everything())
}

// Every state against both of the resource's events: what the machine doesn't have is refused and changes nothing.
func TestFencedModeTakesExactlyTheMachinesArrows(t *testing.T) {
	b := newFencedBench(t)
	token := int64(100)
	for _, state := range payout.States() {
		for _, event := range []payout.Event{payout.Claim, payout.Post} {
			p := b.create(1)
			b.putInto(p.ID, state)
			token += 2
			before := b.everything()
			var err error
			var posting payout.Posting
			if event == payout.Claim {
				err = b.claim(p.ID, token)
			} else {
				posting, err = b.post(p.ID, token)
			}
			next, refused := payout.Next(state, event)
			if refused == nil {
				require.NoError(t, err, "%s in %s", event, state)
				after, err := b.store.Payout(t.Context(), p.ID)
				require.NoError(t, err)
				require.Equal(t, next, after.State)
				continue
			}
			require.Equal(t, before, b.everything(), "%s in %s", event, state)
			switch {
			case event == payout.Post && state == payout.Posted:
				require.NoError(t, err)
				require.True(t, posting.Already)
			case event == payout.Post:
				var wrong *payout.WrongStateError
				require.ErrorAs(t, err, &wrong, "%s in %s", event, state)
				require.Equal(t, state, wrong.Payout.State)
				require.ErrorIs(t, err, payout.ErrTransition)
			default:
				var wrong *payout.NotClaimableError
				require.ErrorAs(t, err, &wrong, "%s in %s", event, state)
			}
		}
	}
	require.Equal(t, []payout.State{payout.RailAcked}, payout.From(payout.Post), "(c) names this state")
	require.Equal(t, []payout.State{payout.Pending}, payout.From(payout.RefuseFunds), "failing for funds names this state")
	b.sound()
}

func TestFencedClaimWithoutFundsFailsAPendingPayoutOnly(t *testing.T) {
	b := newFencedBench(t)
	dear := b.create(opening + 1)
	err := b.claim(dear.ID, 34)
	var funds *payout.InsufficientFundsError
	require.ErrorAs(t, err, &funds)
	require.Equal(t, payout.Failed, funds.Payout.State)
	require.EqualValues(t, 33, b.fence(), "failing a payout is a write of this holder's")

	claimed := b.create(opening)
	require.NoError(t, b.claim(claimed.ID, 35))
	b.exec("UPDATE account SET balance_minor = balance_minor - 1 WHERE account_id = $1", payerID)
	err = b.claim(claimed.ID, 36)
	require.ErrorAs(t, err, &funds)
	require.Equal(t, payout.Claimed, funds.Payout.State)
	require.EqualValues(t, 35, funds.Payout.ClaimToken)
}

func TestPostingsAtOnceDebitOnce(t *testing.T) {
	b := newFencedBench(t)
	p := b.ackedUnder(2500, 10)
	var posted, already atomic.Int64
	var wg sync.WaitGroup
	for i := range int64(16) {
		wg.Go(func() {
			posting, err := b.post(p.ID, 10+i)
			switch {
			case err == nil && posting.Already:
				already.Add(1)
			case err == nil:
				posted.Add(1)
			case !errors.Is(err, payout.ErrFencedOut):
				t.Errorf("token %d: %v", 10+i, err)
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 1, posted.Load())
	balance, sum := b.balances(payerID)
	require.EqualValues(t, opening-2500, balance)
	require.Equal(t, balance, sum)
	b.sound()
}

func TestFencedPostingThatCannotBeWholeChangesNothing(t *testing.T) {
	b := newFencedBench(t)
	p := b.ackedUnder(1, 34)
	b.exec("UPDATE account SET balance_minor = $2 WHERE account_id = $1", clearingID, int64(math.MaxInt64))
	before := b.everything()
	_, err := b.post(p.ID, 34)
	require.ErrorIs(t, err, payout.ErrOverflow)
	require.Equal(t, before, b.everything())
	b.exec("UPDATE account SET currency = 'USD' WHERE account_id = $1", clearingID)
	before = b.everything()
	_, err = b.post(p.ID, 34)
	require.ErrorContains(t, err, "clearing account")
	require.Equal(t, before, b.everything())

	most := b.create(math.MaxInt64)
	b.putInto(most.ID, payout.RailAcked)
	_, err = b.post(most.ID, 34)
	require.ErrorIs(t, err, payout.ErrInsufficientFunds)
}

func TestCheckWantsTheRoleOfTheMode(t *testing.T) {
	b := newFencedBench(t)
	require.NoError(t, b.fenced.Check(t.Context()))
	plainRole := paydb.NewFenced(openPool(t, pgtest.Login(t, b.url, "payapp")), clearingID, time.Second)
	require.ErrorContains(t, plainRole.Check(t.Context()), "payapp_fenced")
	require.ErrorContains(t, paydb.NewFenced(openPool(t, pgtest.Login(t, b.url, "payapp_fenced")), uuid.New(), time.Second).Check(t.Context()), "clearing account")
	require.ErrorContains(t, paydb.NewFenced(openPool(t, pgtest.Database(t, migrations.LockDB())), clearingID, time.Second).Check(t.Context()), `"lockdb"`)
}
