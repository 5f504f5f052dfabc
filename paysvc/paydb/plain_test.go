package paydb_test

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/internal/postgres"
	"fenceline/lockd/lock"
	"fenceline/migrations"
	"fenceline/paysvc/paydb"
	"fenceline/paysvc/payout"
)

// clearingID and payerID are accounts of the synthetic data; the payer opens with 100 000.
var (
	clearingID = uuid.MustParse("00000000-0000-4000-8000-000000000001")
	payerID    = uuid.MustParse("00000000-0000-4000-8000-000000000101")
)

const opening = 100_000

// bench is a fresh paydb, the store under the role payapp, and the owner's own connection to look and to prepare with.
type bench struct {
	t     *testing.T
	url   string
	store *paydb.Plain
	owner *pgx.Conn
}

func newBench(t *testing.T) *bench {
	t.Helper()
	t.Parallel()
	url := pgtest.Database(t, migrations.PayDB(), migrations.SeedPayDB())
	return &bench{t: t, url: url, store: paydb.NewPlain(openPool(t, pgtest.Login(t, url, "payapp")), clearingID, 3*time.Second), owner: pgtest.Connect(t, url)}
}

func openPool(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := postgres.Open(t.Context(), postgres.Config{URL: url})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

func (b *bench) exec(sql string, args ...any) {
	b.t.Helper()
	_, err := b.owner.Exec(b.t.Context(), sql, args...)
	require.NoError(b.t, err)
}

func (b *bench) number(sql string, args ...any) int64 {
	b.t.Helper()
	var n int64
	require.NoError(b.t, b.owner.QueryRow(b.t.Context(), sql, args...).Scan(&n))
	return n
}

// create makes a payout through the store.
func (b *bench) create(amount payout.Minor) payout.Payout {
	b.t.Helper()
	d := draft(amount)
	p, created, err := b.store.Create(b.t.Context(), d)
	require.NoError(b.t, err)
	require.True(b.t, created)
	return p
}

func draft(amount payout.Minor) payout.Draft {
	id := uuid.New()
	return payout.Draft{ID: id, AccountID: payerID, Money: payout.Money{Minor: amount, Currency: "EUR"}, IdempotencyKey: "key-" + id.String()}
}

func holder(owner string, token int64) payout.Holder {
	return payout.Holder{Owner: owner, Token: lock.Token(token)}
}

// balances returns an account's balance and the sum of its entries.
func (b *bench) balances(id uuid.UUID) (balance, sum payout.Minor) {
	b.t.Helper()
	a, err := b.store.Account(b.t.Context(), id)
	require.NoError(b.t, err)
	return a.Balance.Minor, a.LedgerSum
}

// acked brings a payout to RAIL_ACKED, claimed under the token.
func (b *bench) acked(amount payout.Minor, token int64) payout.Payout {
	b.t.Helper()
	p := b.create(amount)
	_, err := b.store.Claim(b.t.Context(), p.ID, payout.Pending, holder("worker", token))
	require.NoError(b.t, err)
	b.exec("UPDATE payout SET state = 'RAIL_ACKED' WHERE payout_id = $1", p.ID)
	return p
}

// putInto puts a payout into a state, as its constraints want it.
func (b *bench) putInto(id uuid.UUID, state payout.State) {
	b.t.Helper()
	if state == payout.Pending {
		b.exec("UPDATE payout SET state = 'PENDING', claimed_by = NULL, claim_token = NULL, attempt_count = 0 WHERE payout_id = $1", id)
		return
	}
	b.exec("UPDATE payout SET state = $2, claimed_by = 'first', claim_token = 5, attempt_count = 1 WHERE payout_id = $1", id, state)
}

func TestClaimIsAllowedExactlyWhereTheMachineAllowsItAndTheStateIsTheExpectedOne(t *testing.T) {
	b := newBench(t)
	p := b.create(100)
	for _, state := range payout.States() {
		for _, expected := range payout.States() {
			b.putInto(p.ID, state)
			before, err := b.store.Payout(t.Context(), p.ID)
			require.NoError(t, err)
			got, err := b.store.Claim(t.Context(), p.ID, expected, holder("second", 9))
			_, machine := payout.Next(state, payout.Claim)
			if state == expected && machine == nil {
				require.NoError(t, err, "%s expected %s", state, expected)
				require.Equal(t, payout.Claimed, got.State)
				require.Equal(t, "second", got.ClaimedBy)
				require.EqualValues(t, 9, got.ClaimToken)
				require.Equal(t, before.AttemptCount+1, got.AttemptCount)
				continue
			}
			var refused *payout.NotClaimableError
			require.ErrorAs(t, err, &refused, "%s expected %s", state, expected)
			require.Equal(t, state, refused.Payout.State)
			require.Equal(t, expected, refused.Expected)
			after, err := b.store.Payout(t.Context(), p.ID)
			require.NoError(t, err)
			require.Equal(t, before, after, "a refused claim changes nothing")
		}
	}
}

func TestOfConcurrentClaimsOneWins(t *testing.T) {
	b := newBench(t)
	p := b.create(100)
	var won atomic.Int64
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			_, err := b.store.Claim(t.Context(), p.ID, payout.Pending, holder("worker", int64(i+1)))
			if err == nil {
				won.Add(1)
			} else if _, refused := errors.AsType[*payout.NotClaimableError](err); !refused {
				t.Errorf("claim %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 1, won.Load())
	after, err := b.store.Payout(t.Context(), p.ID)
	require.NoError(t, err)
	require.Equal(t, 1, after.AttemptCount)
}

// The carelessness of plain mode: the token is stamped and never compared, so a stale holder takes a payout back.
func TestStaleHolderTakesTheClaimBackBecauseTokensAreNotCompared(t *testing.T) {
	b := newBench(t)
	p := b.create(100)
	for _, token := range []int64{33, 34} {
		expected := payout.Pending
		if token == 34 {
			expected = payout.Claimed
		}
		_, err := b.store.Claim(t.Context(), p.ID, expected, holder("worker", token))
		require.NoError(t, err)
	}
	stale, err := b.store.Claim(t.Context(), p.ID, payout.Claimed, holder("stale", 33))
	require.NoError(t, err)
	require.EqualValues(t, 33, stale.ClaimToken)
	require.Equal(t, "stale", stale.ClaimedBy)
}

func TestInsufficientFundsFailAPendingPayoutAndLeaveAClaimedOneAlone(t *testing.T) {
	b := newBench(t)
	p := b.create(opening + 1)
	_, err := b.store.Claim(t.Context(), p.ID, payout.Pending, holder("worker", 7))
	var funds *payout.InsufficientFundsError
	require.ErrorAs(t, err, &funds)
	require.ErrorIs(t, err, payout.ErrInsufficientFunds)
	require.EqualValues(t, opening, funds.Balance)
	require.Equal(t, payout.Failed, funds.Payout.State)
	after, err := b.store.Payout(t.Context(), p.ID)
	require.NoError(t, err)
	require.Equal(t, payout.Failed, after.State)
	require.Zero(t, after.ClaimToken)
	require.Zero(t, after.AttemptCount)

	exact := b.create(opening)
	_, err = b.store.Claim(t.Context(), exact.ID, payout.Pending, holder("worker", 7))
	require.NoError(t, err, "exactly enough is enough")
	b.exec("UPDATE account SET balance_minor = balance_minor - 1 WHERE account_id = $1", payerID)
	_, err = b.store.Claim(t.Context(), exact.ID, payout.Claimed, holder("later", 8))
	require.ErrorIs(t, err, payout.ErrInsufficientFunds)
	after, err = b.store.Payout(t.Context(), exact.ID)
	require.NoError(t, err)
	require.Equal(t, payout.Claimed, after.State)
	require.Equal(t, "worker", after.ClaimedBy)
}

// Money that comes and goes while claims are made never leads to an answer that is none of the two.
func TestClaimUnderAMovingBalanceIsEitherGrantedOrRefusedForFunds(t *testing.T) {
	b := newBench(t)
	ids := make([]uuid.UUID, 60)
	for i := range ids {
		ids[i] = b.create(opening).ID
	}
	ctx, stop := context.WithCancel(t.Context())
	mover := pgtest.Connect(t, b.url)
	var wg sync.WaitGroup
	wg.Go(func() {
		for delta := int64(-1); ctx.Err() == nil; delta = -delta {
			if _, err := mover.Exec(context.WithoutCancel(ctx), "UPDATE account SET balance_minor = balance_minor + $2 WHERE account_id = $1", payerID, delta); err != nil {
				t.Errorf("move balance: %v", err)
				return
			}
		}
	})
	for i, id := range ids {
		p, err := b.store.Claim(t.Context(), id, payout.Pending, holder("worker", int64(i+1)))
		if err == nil {
			require.Equal(t, payout.Claimed, p.State)
			continue
		}
		require.ErrorIs(t, err, payout.ErrInsufficientFunds)
	}
	stop()
	wg.Wait()
	require.EqualValues(t, len(ids), b.number("SELECT count(*) FROM payout WHERE state IN ('CLAIMED', 'FAILED')"))
}

func TestPostingDebitsThePayerCreditsTheClearingAccountAndWritesBothLegs(t *testing.T) {
	b := newBench(t)
	p := b.acked(2500, 33)
	posting, err := b.store.Post(t.Context(), p.ID, holder("worker", 34))
	require.NoError(t, err)
	require.EqualValues(t, opening-2500, posting.Balance)
	require.Equal(t, payout.Posted, posting.Payout.State)
	require.EqualValues(t, 33, posting.Payout.ClaimToken, "the claim's token stays")
	require.Len(t, posting.Entries, 2)
	for i, want := range []struct {
		account   uuid.UUID
		direction payout.Direction
	}{{payerID, payout.Debit}, {clearingID, payout.Credit}} {
		require.Equal(t, want.account, posting.Entries[i].AccountID)
		require.Equal(t, want.direction, posting.Entries[i].Direction)
		require.EqualValues(t, 2500, posting.Entries[i].Minor)
		require.EqualValues(t, 34, posting.Entries[i].Fence, "the leg names the grant that wrote it")
		require.Equal(t, p.ID, posting.Entries[i].PayoutID)
	}
	for _, account := range []uuid.UUID{payerID, clearingID} {
		balance, sum := b.balances(account)
		require.Equal(t, sum, balance)
	}
}

// The carelessness of plain mode, and what the sidecar is there for: a second posting, under another grant's token, is not
// refused. It debits again, its legs are taken for written, and the balance is no longer the sum of the entries.
func TestSecondPostingDebitsTwiceAndBreaksTheBalance(t *testing.T) {
	b := newBench(t)
	p := b.acked(2500, 33)
	for _, token := range []int64{34, 33} {
		posting, err := b.store.Post(t.Context(), p.ID, holder("worker", token))
		require.NoError(t, err)
		require.Len(t, posting.Entries, 2)
		require.EqualValues(t, 34, posting.Entries[0].Fence)
	}
	balance, sum := b.balances(payerID)
	require.EqualValues(t, opening-2*2500, balance)
	require.EqualValues(t, opening-2500, sum)
	balance, sum = b.balances(clearingID)
	require.EqualValues(t, 2*2500, balance)
	require.EqualValues(t, 2500, sum)
}

// The same carelessness: posting doesn't ask for the state, so a payout that nobody claimed is debited before the schema refuses the rest.
func TestPostingAnUnclaimedPayoutEndsBetweenItsTwoTransactions(t *testing.T) {
	b := newBench(t)
	p := b.create(2500)
	_, err := b.store.Post(t.Context(), p.ID, holder("worker", 34))
	require.ErrorIs(t, err, payout.ErrPostingIncomplete)
	require.NotErrorIs(t, err, postgres.ErrOutcomeUnknown)
	balance, sum := b.balances(payerID)
	require.EqualValues(t, opening-2500, balance)
	require.EqualValues(t, opening, sum)
	after, err := b.store.Payout(t.Context(), p.ID)
	require.NoError(t, err)
	require.Equal(t, payout.Pending, after.State)
}

func TestPostingThatCannotMoveTheMoneyChangesNothing(t *testing.T) {
	b := newBench(t)
	small, most := b.acked(1, 33), b.create(math.MaxInt64)
	unchanged := func(clearing payout.Minor) {
		t.Helper()
		balance, _ := b.balances(payerID)
		require.EqualValues(t, opening, balance)
		require.EqualValues(t, clearing, b.number("SELECT balance_minor FROM account WHERE account_id = $1", clearingID))
		require.Zero(t, b.number("SELECT count(*) FROM ledger_entry WHERE payout_id IN ($1, $2)", small.ID, most.ID))
	}
	_, err := b.store.Post(t.Context(), most.ID, holder("worker", 34))
	require.ErrorIs(t, err, payout.ErrInsufficientFunds)
	unchanged(0)
	_, err = b.store.Post(t.Context(), uuid.New(), holder("worker", 34))
	require.ErrorIs(t, err, payout.ErrPayoutNotFound)
	unchanged(0)
	b.exec("UPDATE account SET balance_minor = $2 WHERE account_id = $1", clearingID, int64(math.MaxInt64))
	_, err = b.store.Post(t.Context(), small.ID, holder("worker", 34))
	require.ErrorIs(t, err, payout.ErrOverflow)
	unchanged(math.MaxInt64)
	b.exec("UPDATE account SET currency = 'USD' WHERE account_id = $1", clearingID)
	_, err = b.store.Post(t.Context(), small.ID, holder("worker", 34))
	require.ErrorContains(t, err, "clearing account")
	unchanged(math.MaxInt64)
}
