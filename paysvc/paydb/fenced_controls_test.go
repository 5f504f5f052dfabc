package paydb_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fenceline/paysvc/paydb"
	"fenceline/paysvc/payout"
)

// The negative controls of the fenced statements: each is made wrong in one place and run on the real database, to see what the mistake
// does. A control that showed nothing would say that the line it changes isn't needed, or that no test would notice its loss.

// C1 §1.6: "Using <= in (a) would let the same token write twice after a partial failure".
func TestControlDebitThatTakesItsOwnTokenAgainDebitsTwice(t *testing.T) {
	b := newFencedBench(t)
	first, second := b.ackedUnder(100, 34), b.ackedUnder(100, 34)
	broken := b.fenced.Broken(t, "debit", "fence         < @token", "fence         <= @token")
	for _, p := range []payout.Payout{first, second} {
		_, err := broken.Post(t.Context(), p.ID, holder("worker", 34))
		require.NoError(t, err)
	}
	require.EqualValues(t, 2, b.number("SELECT count(*) FROM ledger_entry WHERE direction = 'DEBIT' AND fence = 34 AND account_id = $1", payerID),
		"one grant has debited the account twice")

	// For one payout the ledger's own constraint covers the mistake: the second debit is rolled back with the leg that is there already.
	balance, _ := b.balances(payerID)
	posting, err := broken.Post(t.Context(), first.ID, holder("worker", 34))
	require.NoError(t, err)
	require.True(t, posting.Already)
	after, _ := b.balances(payerID)
	require.Equal(t, balance, after)
}

// The partial failure itself: where a debit was committed without its legs, <= in (a) takes the money a second time.
func TestControlDebitThatTakesItsOwnTokenAgainDebitsTwiceAfterAPartialFailure(t *testing.T) {
	b := newFencedBench(t)
	p := b.ackedUnder(2500, 34)
	b.exec("UPDATE account SET balance_minor = balance_minor - 2500, fence = 34 WHERE account_id = $1", payerID) // (a), committed by itself
	_, err := b.post(p.ID, 34)
	fencedOut(t, err, payout.GuardAccount, 34, 34)
	_, err = b.fenced.Broken(t, "debit", "fence         < @token", "fence         <= @token").Post(t.Context(), p.ID, holder("worker", 34))
	require.NoError(t, err)
	balance, sum := b.balances(payerID)
	require.EqualValues(t, opening-2*2500, balance)
	require.EqualValues(t, opening-2500, sum)
}

// C1 §1.6: "using < in (b) would reject every legitimate posting".
func TestControlLegThatWantsAnOlderFenceRefusesEveryLegitimatePosting(t *testing.T) {
	b := newFencedBench(t)
	broken := b.fenced.Broken(t, "leg", "a.fence     <= @token", "a.fence     < @token")
	for token := int64(34); token < 37; token++ {
		p := b.ackedUnder(100, token)
		before := b.everything()
		_, err := broken.Post(t.Context(), p.ID, holder("worker", token))
		fencedOut(t, err, payout.GuardLedger, token, token)
		require.Equal(t, before, b.everything())
		_, err = b.post(p.ID, token)
		require.NoError(t, err)
	}
}

// staleTransition lets A claim with 33 and B with 34, brings the payout to RAIL_ACKED and lets A post.
func (b *fencedBench) staleTransition(store *paydb.Fenced) (uuid.UUID, error) {
	b.t.Helper()
	p := b.create(2500)
	_, err := store.Claim(b.t.Context(), p.ID, payout.Pending, holder("a", 33))
	require.NoError(b.t, err)
	_, err = store.Claim(b.t.Context(), p.ID, payout.Claimed, holder("b", 34))
	require.NoError(b.t, err)
	b.exec("UPDATE payout SET state = 'RAIL_ACKED' WHERE payout_id = $1", p.ID)
	_, err = store.Post(b.t.Context(), p.ID, holder("a", 33))
	return p.ID, err
}

const (
	raisedFence = "SET fence = @token::bigint - 1"
	sameFence   = "SET fence = a.fence"
	comparing   = " AND claim_token <= @token"
)

// Two lines stop a stale holder's posting after a newer claim: the claim's step to token − 1, and (c)'s comparison. Without both A posts the
// payout that B has claimed.
func TestControlWithoutTheClaimsStepAndTheLastComparisonAStaleHolderPosts(t *testing.T) {
	b := newFencedBench(t)
	broken := b.fenced.Broken(t, "raise", raisedFence, sameFence).Broken(t, "transition", comparing, "")
	id, err := b.staleTransition(broken)
	require.NoError(t, err)
	after, err := b.store.Payout(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, payout.Posted, after.State)
	require.EqualValues(t, 34, after.ClaimToken)
	require.EqualValues(t, 2, b.number("SELECT count(*) FROM ledger_entry WHERE payout_id = $1 AND fence = 33", id), "written under a token that is older than the claim")
}

// Either line alone is enough for this: with one of them gone the other refuses, at another guard.
func TestControlEachOfTheTwoLinesCoversTheOthersLoss(t *testing.T) {
	b := newFencedBench(t)
	_, err := b.staleTransition(b.fenced.Broken(t, "raise", raisedFence, sameFence))
	fencedOut(t, err, payout.GuardLedger, 33, 34) // (c) refuses
	balance, sum := b.balances(payerID)
	require.EqualValues(t, opening, balance, "what (a) had debited is rolled back")
	require.Equal(t, balance, sum)

	b.exec("UPDATE account SET fence = 0 WHERE account_id = $1", payerID)
	_, err = b.staleTransition(b.fenced.Broken(t, "transition", comparing, ""))
	fencedOut(t, err, payout.GuardAccount, 33, 33) // (a) refuses
}

// Not covered by (c): without the claim's step a stale holder takes the claim itself back, unless the claim compares tokens as well.
func TestControlWithoutTheClaimsStepAndComparisonAStaleHolderTakesTheClaimBack(t *testing.T) {
	b := newFencedBench(t)
	take := func(store *paydb.Fenced) (payout.Payout, error) {
		p := b.create(100)
		_, err := store.Claim(t.Context(), p.ID, payout.Pending, holder("b", 34))
		require.NoError(t, err)
		return store.Claim(t.Context(), p.ID, payout.Claimed, holder("a", 33))
	}
	noStep := b.fenced.Broken(t, "raise", raisedFence, sameFence)
	_, err := take(noStep)
	fencedOut(t, err, payout.GuardAccount, 33, 34)
	stale, err := take(noStep.Broken(t, "claim", "p.claim_token <= @token", "true"))
	require.NoError(t, err)
	require.EqualValues(t, 33, stale.ClaimToken, "the payout's token went back")
}

// A claim that raises the fence to its own token, the mistake that token − 1 avoids: its own posting is refused.
func TestControlClaimThatRaisesTheFenceToItsOwnTokenRefusesItsOwnPosting(t *testing.T) {
	b := newFencedBench(t)
	p := b.create(100)
	_, err := b.fenced.Broken(t, "raise", raisedFence, "SET fence = @token::bigint").Claim(t.Context(), p.ID, payout.Pending, holder("worker", 34))
	require.NoError(t, err)
	b.exec("UPDATE payout SET state = 'RAIL_ACKED' WHERE payout_id = $1", p.ID)
	_, err = b.post(p.ID, 34)
	fencedOut(t, err, payout.GuardAccount, 34, 34)
}

// repeatable makes the holder's write one that is recognised when it comes again.
func repeatable(h payout.Holder, operation payout.Operation, id uuid.UUID) payout.Holder {
	h.Request = &payout.Request{
		Operation: operation, Key: "key-" + id.String(), Subject: id.String(), Token: h.Token,
		Render: func(any) (payout.Answer, error) {
			return payout.Answer{Status: 200, Body: []byte("under " + h.Token.String())}, nil
		},
	}
	return h
}

// A stored answer that is given out before the fence is asked tells a holder whose lease is over that it may go on. It does so, and what it
// does next is refused by (a): the money is covered, the holder's belief isn't.
func TestControlReplayBeforeTheFenceTellsAStaleHolderToGoOn(t *testing.T) {
	b := newFencedBench(t)
	p, other := b.create(100), b.create(200)
	claim := func(store *paydb.Fenced) (*payout.Answer, error) {
		a := repeatable(holder("a", 33), payout.OperationClaim, p.ID)
		_, err := store.Claim(t.Context(), p.ID, payout.Pending, a)
		return a.Request.Replayed, err
	}
	replayed, err := claim(b.fenced)
	require.NoError(t, err)
	require.Nil(t, replayed)
	require.NoError(t, b.claim(other.ID, 34)) // B takes the account over
	b.exec("UPDATE payout SET state = 'RAIL_ACKED'  WHERE payout_id IN ($1, $2)", p.ID, other.ID)
	_, err = b.post(other.ID, 34)
	require.NoError(t, err)

	_, err = claim(b.fenced)
	fencedOut(t, err, payout.GuardAccount, 33, 34)
	blind := b.fenced.Broken(t, "replay", "a.fence", "0")
	replayed, err = claim(blind)
	require.NoError(t, err)
	require.Equal(t, "under 33", string(replayed.Body), "as if its grant were still good")

	before := b.everything()
	_, err = blind.Post(t.Context(), p.ID, repeatable(holder("a", 33), payout.OperationPost, p.ID))
	fencedOut(t, err, payout.GuardAccount, 33, 34)
	require.Equal(t, before, b.everything())
}

// The same for a posting: the stale holder is told of its own, and nothing is posted again, as the answer is all that is repeated.
func TestControlReplayOfAPostingBeforeTheFenceMovesNoMoney(t *testing.T) {
	b := newFencedBench(t)
	p, other := b.ackedUnder(100, 33), b.create(200)
	post := func(store *paydb.Fenced) (*payout.Answer, error) {
		a := repeatable(holder("a", 33), payout.OperationPost, p.ID)
		_, err := store.Post(t.Context(), p.ID, a)
		return a.Request.Replayed, err
	}
	_, err := post(b.fenced)
	require.NoError(t, err)
	require.NoError(t, b.claim(other.ID, 35))
	before := b.everything()
	_, err = post(b.fenced)
	fencedOut(t, err, payout.GuardAccount, 33, 34)
	replayed, err := post(b.fenced.Broken(t, "replay", "a.fence", "0"))
	require.NoError(t, err)
	require.Equal(t, "under 33", string(replayed.Body))
	require.Equal(t, before, b.everything())
	b.sound()
}
