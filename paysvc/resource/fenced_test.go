package resource_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"fenceline/paysvc/payapi"
	"fenceline/paysvc/payout"
)

// counters wants lock_fenced_out_total and payout_transition_refused_total to stand there.
func (b *bench) counters(account, ledger, refused int) {
	b.t.Helper()
	require.NoError(b.t, testutil.GatherAndCompare(b.registry, strings.NewReader(fmt.Sprintf(`# HELP lock_fenced_out_total Writes refused because a newer token had been seen. Healthy at 0.
# TYPE lock_fenced_out_total counter
lock_fenced_out_total{resource="account"} %d
lock_fenced_out_total{resource="ledger"} %d
# HELP payout_transition_refused_total Transitions that the state machine doesn't have.
# TYPE payout_transition_refused_total counter
payout_transition_refused_total %d
`, account, ledger, refused)), "lock_fenced_out_total", "payout_transition_refused_total"))
}

func (b *bench) exec(sql string, args ...any) {
	b.t.Helper()
	_, err := b.owner.Exec(b.t.Context(), sql, args...)
	require.NoError(b.t, err)
}

func TestStaleHolderIsFencedOutWithEverythingThatItMustKnow(t *testing.T) {
	b := newFencedBench(t)
	p := b.createFor(payer, 2500)
	b.counters(0, 0, 0)
	require.Equal(t, 200, b.claim(p.PayoutID, "PENDING", holder("a", 33)...).status)
	require.Equal(t, 200, b.claim(p.PayoutID, "CLAIMED", holder("b", 34)...).status)
	b.exec("UPDATE payout SET state = 'RAIL_ACKED' WHERE payout_id = $1", p.PayoutID)
	require.Equal(t, 200, b.post(p.PayoutID, holder("b", 34)...).status)

	e := b.post(p.PayoutID, holder("a", 33)...).refused(t, 409, payapi.CodeFencedOut)
	require.False(t, e.RetrySafe, "never again, under no token")
	require.Equal(t, map[string]any{"presentedToken": 33.0, "highestToken": 34.0, "resourceType": "account", "resourceId": payer, "ownerId": "a"}, e.Details)
	events := b.log.events(t, "fenced_out")
	require.Len(t, events, 1)
	for field, want := range map[string]any{
		"@level": "error", "resource": "account", "resourceId": payer, "presentedToken": 33.0, "highestToken": 34.0, "ownerId": "a",
		"route": "post", "traceId": e.TraceID, "payoutId": p.PayoutID,
	} {
		require.Equal(t, want, events[0][field], field)
	}
	b.counters(1, 0, 0)

	e = b.claim(p.PayoutID, "POSTED", holder("a", 33)...).refused(t, 409, payapi.CodeFencedOut)
	require.Equal(t, "account", e.Details["resourceType"])
	require.Equal(t, "claim", b.log.events(t, "fenced_out")[1]["route"])
	b.counters(2, 0, 0)
	a := b.account(payer)
	require.EqualValues(t, opening-2500, a.BalanceMinor)
	require.Equal(t, a.BalanceMinor, a.LedgerSumMinor)
}

func TestPostingRefusedByTheLedgersFenceIsCountedThere(t *testing.T) {
	b := newFencedBench(t)
	p := b.createFor(payer, 2500)
	b.exec("UPDATE payout SET state = 'RAIL_ACKED', claimed_by = 'b', claim_token = 34 WHERE payout_id = $1", p.PayoutID)
	e := b.post(p.PayoutID, holder("a", 33)...).refused(t, 409, payapi.CodeFencedOut)
	require.Equal(t, "ledger", e.Details["resourceType"])
	require.Equal(t, 34.0, e.Details["highestToken"])
	b.counters(0, 1, 0)
}

func TestPostingThatIsDoneAlreadyIsAnsweredAsDone(t *testing.T) {
	b := newFencedBench(t)
	p := b.createFor(payer, 2500)
	require.Equal(t, 200, b.claim(p.PayoutID, "PENDING", holder("a", 33)...).status)
	b.exec("UPDATE payout SET state = 'RAIL_ACKED' WHERE payout_id = $1", p.PayoutID)
	first := b.post(p.PayoutID, holder("b", 34)...)
	require.Equal(t, 200, first.status, string(first.body))
	again := b.post(p.PayoutID, append(holder("c", 35), payapi.HeaderIdempotencyKey, "another")...) // with the same key the ledger of requests would answer
	require.Equal(t, 200, again.status, string(again.body))
	require.Equal(t, string(first.body), string(again.body))
	require.Len(t, b.log.events(t, "payout_posted"), 1)
	require.Len(t, b.log.events(t, "payout_already_posted"), 1)
	b.counters(0, 0, 0)
}

// Over HTTP every arrow that the machine lacks is refused, logged and counted, each time with another answer than the fence's.
func TestEveryTransitionThatTheMachineLacksIsRefusedLoggedAndCounted(t *testing.T) {
	b := newFencedBench(t)
	refused, token := 0, int64(100)
	for _, state := range payout.States() {
		for _, event := range []payout.Event{payout.Claim, payout.Post} {
			if _, err := payout.Next(state, event); err == nil || (event == payout.Post && state == payout.Posted) {
				continue
			}
			p := b.createFor(payer, 1)
			if state != payout.Pending {
				b.exec("UPDATE payout SET state = $2, claimed_by = 'x', claim_token = 5 WHERE payout_id = $1", p.PayoutID, state)
			}
			token++
			var e payapi.Error
			if event == payout.Claim {
				e = b.claim(p.PayoutID, string(state), holder("w", token)...).refused(t, 409, payapi.CodePayoutNotClaimable)
			} else {
				e = b.post(p.PayoutID, holder("w", token)...).refused(t, 409, payapi.CodePayoutNotPostable)
			}
			require.Equal(t, string(state), e.Details["state"])
			events := b.log.events(t, "transition_refused")
			refused++
			require.Len(t, events, refused)
			require.Equal(t, string(state), events[refused-1]["state"])
			require.Equal(t, string(event), events[refused-1]["transition"])
			b.counters(0, 0, refused)
		}
	}
	require.Equal(t, 6+6, refused)
}

// After the rail has paid, missing funds don't fail a payout: that arrow isn't there, and the attempt shows.
func TestMissingFundsAfterTheRailHasPaidAreRefusedAndShown(t *testing.T) {
	b := newFencedBench(t)
	p := b.createFor(poor, 1001)
	b.exec("UPDATE payout SET state = 'RAIL_ACKED', claimed_by = 'a', claim_token = 33 WHERE payout_id = $1", p.PayoutID)
	e := b.post(p.PayoutID, holder("a", 33)...).refused(t, 422, payapi.CodeInsufficientFunds)
	require.Equal(t, map[string]any{"state": "RAIL_ACKED", "balanceMinor": 1000.0, "amountMinor": 1001.0}, e.Details)
	require.Equal(t, "RAIL_ACKED", b.payout(p.PayoutID).State)
	require.Equal(t, "refuse_funds", b.log.events(t, "transition_refused")[0]["transition"])
	b.counters(0, 0, 1)
}
