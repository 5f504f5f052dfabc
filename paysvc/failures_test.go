package main

import (
	"context"
	"fmt"
	"net/http"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fenceline/internal/postgres/failuretest"
	"fenceline/migrations"
	"fenceline/paysvc/payapi"
)

// Answers of a payment-resource whose database fails.
var (
	payDone    = failuretest.Answer{Status: http.StatusOK}
	payNothing = failuretest.Answer{Status: http.StatusServiceUnavailable, Code: payapi.CodeStoreUnavailable}
	payUnknown = failuretest.Answer{Status: http.StatusServiceUnavailable, Code: payapi.CodeOutcomeUnknown, Outcome: "unknown"}
)

// payFailures is the table of docs/failures.md.
func payFailures(calls ...string) []failuretest.Row {
	var table []failuretest.Row
	for _, call := range calls {
		table = append(table, []failuretest.Row{
			{Fault: failuretest.EndedInStatement(), Call: call, Want: payNothing},
			{Fault: failuretest.EndedInCommit(), Call: call, Want: payUnknown},
			{Fault: failuretest.CutInStatement(), Call: call, Want: payNothing, During: "database unavailable"},
			{Fault: failuretest.CutInCommit(), Call: call, Want: payUnknown, During: "database unavailable"},
			{Fault: failuretest.Deadlock(), Call: call, Want: payDone},
			{Fault: failuretest.LostTwice(), Call: call, Want: payDone},
			{Fault: failuretest.LostAlways(), Call: call, Want: payNothing},
		}...)
	}
	return append(table, []failuretest.Row{
		{Fault: failuretest.ReadOnly(), Call: calls[0], Want: payNothing, During: "read-only"},
		{Fault: failuretest.NoConnections(), Call: calls[0], Want: payNothing, During: "database unavailable"},
	}...)
}

// payTimeouts are those that last as long as the store's time-out.
func payTimeouts() []failuretest.Row {
	return []failuretest.Row{
		{Fault: failuretest.StatementTimeout(), Call: "post", Want: payNothing},
		{Fault: failuretest.LockTimeout(), Call: "post", Want: payNothing},
		{Fault: failuretest.PoolExhausted(), Call: "claim", Want: payNothing, During: "timed out"},
	}
}

func TestResourceInEachFailureOfItsDatabase(t *testing.T) {
	t.Parallel()
	t.Run("fenced", func(t *testing.T) {
		t.Parallel()
		resourceMeets(t, "payapp_fenced", payFailures("claim", "post"), "--fencing-enabled", "--store-timeout", "2s")
	})
	// A posting in plain mode is two transactions on purpose; what becomes of it in between is another test's.
	t.Run("plain", func(t *testing.T) {
		t.Parallel()
		resourceMeets(t, "payapp", payFailures("plain claim"), "--store-timeout", "2s")
	})
}

func TestResourceWhoseDatabaseTakesTooLong(t *testing.T) {
	t.Parallel()
	resourceMeets(t, "payapp_fenced", payTimeouts(), "--fencing-enabled", "--store-timeout", "700ms")
}

func TestResourceWhoseDatabaseIsRestartedUnderLoad(t *testing.T) {
	t.Parallel()
	b, server := deployment().OwnServer(t)
	d := resourceOn(t, b, "--fencing-enabled", "--store-timeout", "2s")
	for _, end := range []failuretest.End{failuretest.ByCrash, failuretest.Cleanly} {
		require.NoError(t, b.RestartUnderLoad(t.Context(), d, "post", server, end, payNothing, payUnknown))
	}
}

// deployment is the database of these tests.
func deployment() failuretest.Deployment {
	return failuretest.Deployment{Section: "payment-resource", Role: "payapp_fenced", Sets: []migrations.Set{migrations.PayDB(), migrations.SeedPayDB()}}
}

func resourceMeets(t *testing.T, role string, table []failuretest.Row, flags ...string) {
	t.Helper()
	on := deployment()
	on.Role = role
	b := on.Bench(t)
	on.Meet(t, b, resourceOn(t, b, flags...), table...)
}

// payoutOf is the id of the n-th payout.
func payoutOf(n int) string { return fmt.Sprintf("00000000-0000-4000-b000-%012d", n) }

// accountOf is the account that it is paid from, which has just enough. Each payout has one of its own, so that no token is stale.
func accountOf(n int) string { return fmt.Sprintf("00000000-0000-4000-c000-%012d", n) }

// openAccount makes account $1 with an opening balance that is in the ledger, too, and its payout $2.
const openAccount = `
WITH opened AS (INSERT INTO account (account_id, currency, balance_minor) VALUES ($1::uuid, 'EUR', 1) RETURNING account_id),
     opening AS (INSERT INTO payout (payout_id, account_id, amount_minor, currency, state, claimed_by, claim_token, idempotency_key)
                 SELECT gen_random_uuid(), account_id, 1, 'EUR', 'POSTED', 'seed', 1, 'opening-balance:' || account_id FROM opened RETURNING payout_id, account_id),
     credit AS (INSERT INTO ledger_entry (entry_id, payout_id, account_id, direction, amount_minor, fence)
                SELECT gen_random_uuid(), payout_id, account_id, 'CREDIT', 1, 1 FROM opening)
INSERT INTO payout (payout_id, account_id, amount_minor, currency, state, idempotency_key) SELECT $2::uuid, account_id, 1, 'EUR', 'PENDING', 'made-' || account_id FROM opened`

// resourceOn starts a payment-resource on the bench's database. Its n-th change is about the n-th payout, under the token n.
func resourceOn(t *testing.T, b *failuretest.Bench, flags ...string) failuretest.Daemon {
	t.Helper()
	_, api, admin := resource(t, b.Login, append(flags, "--max-conns", "2")...)
	send := func(ctx context.Context, n int, path, body string) (failuretest.Answer, error) {
		answer, _, err := failuretest.Send(ctx, http.MethodPost, api+path, body,
			payapi.HeaderOwner, "worker", payapi.HeaderToken, fmt.Sprint(n), payapi.HeaderIdempotencyKey, "payout-"+payoutOf(n))
		return answer, err
	}
	claim := func(ctx context.Context, n int) (failuretest.Answer, error) {
		return send(ctx, n, "/v1/payouts/"+payoutOf(n)+"/claim", `{"expectedState":"PENDING"}`)
	}
	pending := func(ctx context.Context, n int) error { return b.Exec(ctx, openAccount, accountOf(n), payoutOf(n)) }
	acked := func(ctx context.Context, n int) error {
		if err := pending(ctx, n); err != nil {
			return err
		}
		answer, err := claim(ctx, n)
		if err == nil && answer != payDone {
			err = fmt.Errorf("no claim: %s", answer)
		}
		if err != nil {
			return err
		}
		return b.Exec(ctx, "UPDATE payout SET state = 'RAIL_ACKED' WHERE payout_id = $1", payoutOf(n))
	}
	claimCall := failuretest.Call{
		Table: "payout", Prepare: pending, Send: claim,
		Effect: func(ctx context.Context, n int) (failuretest.Effect, error) {
			var claimed, remembered bool
			err := b.Row(ctx, `SELECT state = 'CLAIMED' AND claim_token = $2::bigint AND attempt_count = 1,
				EXISTS (SELECT FROM request_ledger WHERE operation = 'claim' AND key = 'payout-' || $1) FROM payout WHERE payout_id = $1::text::uuid`,
				[]any{payoutOf(n), n}, &claimed, &remembered)
			return failuretest.All(claimed, remembered), err
		},
	}
	return failuretest.Daemon{Name: "payment-resource", Admin: admin, MaxConns: 2, Calls: map[string]failuretest.Call{
		"claim":       claimCall,
		"plain claim": claimCall,
		"post": {
			Table: "ledger_entry", Prepare: acked,
			Send: func(ctx context.Context, n int) (failuretest.Answer, error) {
				return send(ctx, n, "/v1/payouts/"+payoutOf(n)+"/post", `{"railReference":"rail-1","submissionId":"`+uuid.NewString()+`"}`)
			},
			Effect: func(ctx context.Context, n int) (failuretest.Effect, error) {
				// The money itself is judged over all accounts: each balance is the sum of its entries.
				var posted, debited, credited, remembered, told, balanced bool
				err := b.Row(ctx, `SELECT state = 'POSTED',
					(SELECT count(*) FROM ledger_entry e WHERE e.payout_id = p.payout_id AND direction = 'DEBIT') = 1,
					(SELECT count(*) FROM ledger_entry e WHERE e.payout_id = p.payout_id AND direction = 'CREDIT') = 1,
					EXISTS (SELECT FROM request_ledger WHERE operation = 'post' AND key = 'payout-' || $1),
					EXISTS (SELECT FROM outbox o WHERE o.payout_id = p.payout_id AND event_type = 'payout.posted'),
					NOT EXISTS (SELECT FROM account a WHERE balance_minor <> (SELECT coalesce(sum(CASE direction WHEN 'CREDIT' THEN e.amount_minor ELSE -e.amount_minor END), 0)
						FROM ledger_entry e WHERE e.account_id = a.account_id))
					FROM payout p WHERE payout_id = $1::text::uuid`,
					[]any{payoutOf(n)}, &posted, &debited, &credited, &remembered, &told, &balanced)
				if !balanced {
					return failuretest.Part, err
				}
				return failuretest.All(posted, debited, credited, remembered, told), err
			},
		},
	}}
}
