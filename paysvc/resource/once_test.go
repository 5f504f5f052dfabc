package resource_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"fenceline/paysvc/payapi"
)

// createBody asks for a payout of the amount from the payer.
func createBody(amount int64) string {
	return fmt.Sprintf(`{"accountId":%q,"amountMinor":%d,"currency":"EUR"}`, payer, amount)
}

func (b *bench) create(key, body string) answer {
	b.t.Helper()
	return b.do("POST", payapi.PathPayouts, body, payapi.HeaderOwner, "clerk", payapi.HeaderIdempotencyKey, key)
}

// count reads one number with the owner's rights.
func (b *bench) count(sql string, args ...any) (n int64) {
	b.t.Helper()
	require.NoError(b.t, b.owner.QueryRow(b.t.Context(), sql, args...).Scan(&n))
	return n
}

func (b *bench) setState(id, state string) {
	b.t.Helper()
	_, err := b.owner.Exec(b.t.Context(), "UPDATE payout SET state = $2 WHERE payout_id = $1", id, state)
	require.NoError(b.t, err)
}

func same(t *testing.T, first answer, again answer) {
	t.Helper()
	require.Equal(t, first.status, again.status, string(again.body))
	require.Equal(t, string(first.body), string(again.body))
	require.Equal(t, first.header.Get("Content-Type"), again.header.Get("Content-Type"))
}

func TestRequestThatComesAgainIsGivenItsFirstAnswerByteForByte(t *testing.T) {
	b := newBench(t)
	created := b.create("k1", createBody(2500))
	var p payapi.Payout
	created.into(t, 201, &p)
	claimed := b.claim(p.PayoutID, "PENDING", holder("a", 34)...)
	require.Equal(t, 200, claimed.status)
	b.setState(p.PayoutID, "RAIL_ACKED")
	posted := b.post(p.PayoutID, holder("a", 34)...)
	require.Equal(t, 200, posted.status)

	// Everything has moved on since; the first answers haven't.
	same(t, created, b.create("k1", createBody(2500)))
	same(t, claimed, b.claim(p.PayoutID, "PENDING", holder("a", 34)...))
	same(t, posted, b.post(p.PayoutID, holder("a", 34)...))
	same(t, posted, b.post(p.PayoutID, holder("somebody else with the same grant", 34)...))
	require.EqualValues(t, 4, testutil.ToFloat64(b.counter("payout_request_replayed_total")))
	require.Len(t, b.log.events(t, "request_replayed"), 4)
	a := b.account(payer)
	require.EqualValues(t, opening-2500, a.BalanceMinor)
	require.Equal(t, a.BalanceMinor, a.LedgerSumMinor)
	require.EqualValues(t, 1, b.payout(p.PayoutID).AttemptCount)
}

// The refusal has failed the payout, so it is an effect like any other.
func TestRefusalThatFailedThePayoutIsRepeatedToo(t *testing.T) {
	b := newBench(t)
	p := b.createFor(poor, 1001)
	first := b.claim(p.PayoutID, "PENDING", holder("a", 33)...)
	first.refused(t, 422, payapi.CodeInsufficientFunds)
	same(t, first, b.claim(p.PayoutID, "PENDING", holder("a", 33)...))
}

func TestRefusalWithoutAnEffectIsForgottenAndTheRequestJudgedAnew(t *testing.T) {
	b := newBench(t)
	id := uuid.NewString()
	b.claim(id, "PENDING", holder("a", 33)...).refused(t, 404, payapi.CodePayoutNotFound)
	_, err := b.owner.Exec(t.Context(), `INSERT INTO payout (payout_id, account_id, amount_minor, currency, idempotency_key) VALUES ($1::uuid, $2, 5, 'EUR', $1::uuid::text)`, id, payer)
	require.NoError(t, err)
	b.claim(id, "CLAIMED", holder("a", 33)...).refused(t, 409, payapi.CodePayoutNotClaimable)
	require.Zero(t, b.count("SELECT count(*) FROM request_ledger"))
	require.Equal(t, 200, b.claim(id, "PENDING", holder("a", 33)...).status)
}

func TestKeyOfAnotherRequestIsAConflictAndChangesNothing(t *testing.T) {
	b := newBench(t)
	first, second := b.createFor(payer, 100), b.createFor(payer, 200)
	b.create("k", createBody(1)).into(t, 201, &payapi.Payout{})
	b.create("k", createBody(2)).refused(t, 409, payapi.CodeIdempotencyConflict)
	b.create("k", strings.Replace(createBody(1), payer, poor, 1)).refused(t, 409, payapi.CodeIdempotencyConflict)
	b.create("k", strings.Replace(createBody(1), "EUR", "USD", 1)).refused(t, 409, payapi.CodeIdempotencyConflict)

	key := append(holder("a", 5), payapi.HeaderIdempotencyKey, "shared")
	newer := append(holder("a", 6), payapi.HeaderIdempotencyKey, "shared")
	require.Equal(t, 200, b.claim(first.PayoutID, "PENDING", key...).status)
	b.claim(first.PayoutID, "CLAIMED", key...).refused(t, 409, payapi.CodeIdempotencyConflict)
	b.claim(second.PayoutID, "PENDING", key...).refused(t, 409, payapi.CodeIdempotencyConflict)
	b.claim(second.PayoutID, "PENDING", newer...).refused(t, 409, payapi.CodeIdempotencyConflict)
	require.Equal(t, "PENDING", b.payout(second.PayoutID).State)

	b.setState(first.PayoutID, "RAIL_ACKED")
	require.Equal(t, 200, b.post(first.PayoutID, key...).status)
	b.post(second.PayoutID, key...).refused(t, 409, payapi.CodeIdempotencyConflict)
	other := b.do("POST", "/v1/payouts/"+first.PayoutID+"/post", `{"railReference":"rail-2","submissionId":"7f3e2d1c-0000-4000-8000-000000000000"}`, key...)
	other.refused(t, 409, payapi.CodeIdempotencyConflict)
	require.EqualValues(t, opening-100, b.account(payer).BalanceMinor)
}

// A later holder uses the payout's one key as well. Its claim is neither answered with the earlier holder's answer nor a conflict, and the earlier
// holder isn't told afterwards that the payout is its.
func TestLaterHoldersClaimIsNotAnsweredWithTheEarlierOnes(t *testing.T) {
	b := newBench(t)
	p := b.createFor(payer, 2500)
	require.Equal(t, 200, b.claim(p.PayoutID, "PENDING", holder("a", 33)...).status)
	var claimed payapi.Payout
	b.claim(p.PayoutID, "CLAIMED", holder("b", 34)...).into(t, 200, &claimed)
	require.Equal(t, "b", claimed.ClaimedBy)
	require.EqualValues(t, 34, claimed.ClaimToken)
	b.claim(p.PayoutID, "PENDING", holder("a", 33)...).refused(t, 409, payapi.CodePayoutNotClaimable)
	require.Equal(t, "b", b.payout(p.PayoutID).ClaimedBy)
}

func TestKeyIsWantedOnEveryWrite(t *testing.T) {
	b := newBench(t)
	p := b.createFor(payer, 2500)
	for _, key := range [][]string{
		{},
		{payapi.HeaderIdempotencyKey, ""},
		{payapi.HeaderIdempotencyKey, strings.Repeat("k", 129)},
		{payapi.HeaderIdempotencyKey, "a", payapi.HeaderIdempotencyKey, "b"},
	} {
		headers := append(holder("a", 33), key...)
		for path, body := range map[string]string{
			payapi.PathPayouts:                     createBody(1),
			"/v1/payouts/" + p.PayoutID + "/claim": `{"expectedState":"PENDING"}`,
			"/v1/payouts/" + p.PayoutID + "/post":  `{"railReference":"r","submissionId":"7f3e2d1c-0000-4000-8000-000000000000"}`,
		} {
			e := b.do("POST", path, body, headers...).refused(t, 400, payapi.CodeValidationFailed)
			require.Contains(t, e.Message, payapi.HeaderIdempotencyKey, path)
		}
	}
	require.Equal(t, "PENDING", b.payout(p.PayoutID).State)
	require.EqualValues(t, opening, b.account(payer).BalanceMinor)
}

// An opening balance's leg has no counterpart. Nobody may make a payout that looks like one.
func TestKeysOfOpeningBalancesAreNotForClients(t *testing.T) {
	b := newBench(t)
	e := b.create("opening-balance:"+payer, createBody(1)).refused(t, 400, payapi.CodeValidationFailed)
	require.Contains(t, e.Message, "opening-balance:")
}

// Fifty at once: one effect, and everybody is told the same.
func TestConcurrentDuplicatesHaveOneEffectAndOneAnswer(t *testing.T) {
	b := newBench(t)
	p := b.createFor(payer, 2500)
	atOnce := func(send func() answer) {
		t.Helper()
		answers := make([]answer, 50)
		var all sync.WaitGroup
		for i := range answers {
			all.Go(func() { answers[i] = send() })
		}
		all.Wait()
		require.Less(t, answers[0].status, 300, string(answers[0].body))
		for _, one := range answers {
			same(t, answers[0], one)
		}
	}
	before := b.count("SELECT count(*) FROM payout")
	atOnce(func() answer { return b.create("k", createBody(1)) })
	require.Equal(t, before+1, b.count("SELECT count(*) FROM payout"))
	atOnce(func() answer { return b.claim(p.PayoutID, "PENDING", holder("a", 33)...) })
	require.EqualValues(t, 1, b.payout(p.PayoutID).AttemptCount)
	b.setState(p.PayoutID, "RAIL_ACKED")
	atOnce(func() answer { return b.post(p.PayoutID, holder("a", 33)...) })
	a := b.account(payer)
	require.EqualValues(t, opening-2500, a.BalanceMinor)
	require.Equal(t, a.BalanceMinor, a.LedgerSumMinor)
	require.EqualValues(t, 3, b.count("SELECT count(*) FROM request_ledger WHERE status < 300 AND response IS NOT NULL AND key IN ('k', $1)", "payout-"+p.PayoutID))
}

// A posting that was cut off after its debit stays cut off: repeating it debits nothing.
func TestPostingThatWasCutOffDebitsNothingMore(t *testing.T) {
	b := newBench(t)
	p := b.createFor(payer, 2500) // PENDING can't become POSTED: payout_claimed_ck
	b.post(p.PayoutID, holder("a", 33)...).refused(t, 500, payapi.CodePostingIncomplete)
	b.post(p.PayoutID, holder("a", 33)...).refused(t, 500, payapi.CodePostingIncomplete)
	require.EqualValues(t, opening-2500, b.account(payer).BalanceMinor)
}

// With the key that stays the same for a payout's whole life: the later holder's claim has an effect of its own, and a stale holder is told that it is stale, not
// what it was told before.
func TestFenceIsAskedBeforeAStoredAnswerIsGivenOut(t *testing.T) {
	b := newFencedBench(t)
	p := b.createFor(payer, 2500)
	claimed := b.claim(p.PayoutID, "PENDING", holder("a", 33)...)
	require.Equal(t, 200, claimed.status)
	same(t, claimed, b.claim(p.PayoutID, "PENDING", holder("a", 33)...))
	require.Equal(t, 200, b.claim(p.PayoutID, "CLAIMED", holder("b", 35)...).status)
	b.claim(p.PayoutID, "PENDING", holder("a", 33)...).refused(t, 409, payapi.CodeFencedOut)

	b.setState(p.PayoutID, "RAIL_ACKED")
	posted := b.post(p.PayoutID, holder("b", 35)...)
	require.Equal(t, 200, posted.status)
	same(t, posted, b.post(p.PayoutID, holder("b", 35)...))
	same(t, posted, b.post(p.PayoutID, holder("c", 36)...)) // a later holder, who finds it done
	b.post(p.PayoutID, holder("a", 33)...).refused(t, 409, payapi.CodeFencedOut)
	b.claim(p.PayoutID, "CLAIMED", holder("b", 35)...).refused(t, 409, payapi.CodeFencedOut)
	other := b.createFor(payer, 1)
	b.post(other.PayoutID, append(holder("a", 33), payapi.HeaderIdempotencyKey, "payout-"+p.PayoutID)...).refused(t, 409, payapi.CodeFencedOut)
	a := b.account(payer)
	require.EqualValues(t, opening-2500, a.BalanceMinor)
	require.Equal(t, a.BalanceMinor, a.LedgerSumMinor)
}
