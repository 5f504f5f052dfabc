package paydb_test

import (
	"math"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"fenceline/paysvc/payout"
)

func TestCreatingTwiceUnderOneKeyGivesTheSamePayout(t *testing.T) {
	b := newBench(t)
	first := draft(2500)
	p, created, err := b.store.Create(t.Context(), first)
	require.NoError(t, err)
	require.True(t, created)
	require.Equal(t, payout.Pending, p.State)
	b.putInto(p.ID, payout.Posted)

	again := first
	again.ID = uuid.New()
	same, created, err := b.store.Create(t.Context(), again)
	require.NoError(t, err)
	require.False(t, created)
	require.Equal(t, p.ID, same.ID)
	require.Equal(t, payout.Posted, same.State, "as it now stands")

	for name, change := range map[string]func(*payout.Draft){
		"amount":          func(d *payout.Draft) { d.Money.Minor++ },
		"currency":        func(d *payout.Draft) { d.Money.Currency = "USD" },
		"account":         func(d *payout.Draft) { d.AccountID = uuid.MustParse("00000000-0000-4000-8000-000000000102") },
		"unknown account": func(d *payout.Draft) { d.AccountID = uuid.New() },
	} {
		other := again
		change(&other)
		_, _, err := b.store.Create(t.Context(), other)
		require.ErrorIs(t, err, payout.ErrIdempotencyConflict, name)
	}
	require.EqualValues(t, 1, b.number("SELECT count(*) FROM payout WHERE idempotency_key = $1", first.IdempotencyKey))
}

func TestConcurrentCreatesUnderOneKeyMakeOnePayout(t *testing.T) {
	b := newBench(t)
	shared := draft(2500)
	var made atomic.Int64
	var wg sync.WaitGroup
	for range 12 {
		wg.Go(func() {
			d := shared
			d.ID = uuid.New()
			_, created, err := b.store.Create(t.Context(), d)
			if err != nil {
				t.Errorf("create: %v", err)
			}
			if created {
				made.Add(1)
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 1, made.Load())
	require.EqualValues(t, 1, b.number("SELECT count(*) FROM payout WHERE idempotency_key = $1", shared.IdempotencyKey))
}

func TestPayoutIsCreatedOnlyForAnAccountThatCanPayIt(t *testing.T) {
	b := newBench(t)
	unknown := draft(1)
	unknown.AccountID = uuid.New()
	_, _, err := b.store.Create(t.Context(), unknown)
	require.ErrorIs(t, err, payout.ErrAccountNotFound)
	foreign := draft(1)
	foreign.Money.Currency = "USD"
	_, _, err = b.store.Create(t.Context(), foreign)
	require.ErrorIs(t, err, payout.ErrInvalid)
	require.ErrorContains(t, err, "currency: the account is kept in EUR")
	clearing := draft(1)
	clearing.AccountID = clearingID
	_, _, err = b.store.Create(t.Context(), clearing)
	require.ErrorIs(t, err, payout.ErrInvalid)
	most := draft(math.MaxInt64)
	p, created, err := b.store.Create(t.Context(), most)
	require.NoError(t, err)
	require.True(t, created)
	require.EqualValues(t, math.MaxInt64, p.Money.Minor)
	require.EqualValues(t, 1, b.number("SELECT count(*) FROM payout WHERE state = 'PENDING'"))
}

// Pages over rows that were created at one instant: every row once, in the order of the ids, whatever the page's size.
func TestPagesOverEqualTimesGiveEveryPayoutOnce(t *testing.T) {
	b := newBench(t)
	b.exec(`INSERT INTO payout (payout_id, account_id, amount_minor, currency, idempotency_key, created_at)
	        SELECT gen_random_uuid(), $1, n, 'EUR', 'page-' || n, '2030-01-01T00:00:00.123456Z' FROM generate_series(1, 7) n`, payerID)
	var want []uuid.UUID
	rows, err := b.owner.Query(t.Context(), "SELECT payout_id FROM payout WHERE state = 'PENDING' ORDER BY created_at, payout_id")
	require.NoError(t, err)
	want, err = pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	require.NoError(t, err)
	require.Len(t, want, 7)
	for limit := 1; limit <= 8; limit++ {
		q := payout.Query{State: payout.Pending, Limit: limit}
		var got []uuid.UUID
		for {
			page, more, err := b.store.Payouts(t.Context(), q)
			require.NoError(t, err)
			require.NotEmpty(t, page, "a cursor is given only when another row exists")
			require.LessOrEqual(t, len(page), limit)
			require.LessOrEqual(t, len(got), len(want), "no row comes twice")
			for _, p := range page {
				got = append(got, p.ID)
			}
			if !more {
				break
			}
			last := page[len(page)-1]
			q.After = &payout.Position{CreatedAt: last.CreatedAt, ID: last.ID}
		}
		require.Equal(t, want, got, "limit %d", limit)
	}
}

func TestListIsRestrictedByStateAndAccount(t *testing.T) {
	b := newBench(t)
	pending := b.create(1)
	claimed := b.create(1)
	_, err := b.store.Claim(t.Context(), claimed.ID, payout.Pending, holder("worker", 3))
	require.NoError(t, err)
	ids := func(q payout.Query) []uuid.UUID {
		q.Limit = 100
		page, more, err := b.store.Payouts(t.Context(), q)
		require.NoError(t, err)
		require.False(t, more)
		var found []uuid.UUID
		for _, p := range page {
			found = append(found, p.ID)
		}
		return found
	}
	payer := uuid.NullUUID{UUID: payerID, Valid: true}
	require.Equal(t, []uuid.UUID{pending.ID}, ids(payout.Query{State: payout.Pending}))
	require.Equal(t, []uuid.UUID{claimed.ID}, ids(payout.Query{State: payout.Claimed, AccountID: payer}))
	require.Len(t, ids(payout.Query{AccountID: payer}), 3, "the opening balance is a payout too")
	require.Empty(t, ids(payout.Query{AccountID: uuid.NullUUID{UUID: uuid.New(), Valid: true}}))
	require.Len(t, ids(payout.Query{}), 2+8)
}

func TestAccountSumsItsEntriesAndNeverWrongly(t *testing.T) {
	b := newBench(t)
	_, err := b.store.Account(t.Context(), uuid.New())
	require.ErrorIs(t, err, payout.ErrAccountNotFound)
	balance, sum := b.balances(payerID)
	require.EqualValues(t, opening, balance)
	require.Equal(t, balance, sum)
	_, sum = b.balances(clearingID)
	require.Zero(t, sum, "no entry yet")
	for range 2 {
		p := b.create(math.MaxInt64)
		b.exec(`INSERT INTO ledger_entry (entry_id, payout_id, account_id, direction, amount_minor, fence)
		        VALUES ($1, $2, $3, 'CREDIT', $4, 1)`, uuid.New(), p.ID, payerID, int64(math.MaxInt64))
	}
	_, err = b.store.Account(t.Context(), payerID)
	require.ErrorIs(t, err, payout.ErrOverflow)
}

func TestUnknownPayoutIsNotFound(t *testing.T) {
	b := newBench(t)
	_, err := b.store.Payout(t.Context(), uuid.New())
	require.ErrorIs(t, err, payout.ErrPayoutNotFound)
	_, err = b.store.Claim(t.Context(), uuid.New(), payout.Pending, holder("worker", 1))
	require.ErrorIs(t, err, payout.ErrPayoutNotFound)
}
