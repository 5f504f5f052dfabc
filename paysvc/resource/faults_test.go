package resource_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fenceline/paysvc/invariant"
	"fenceline/paysvc/payapi"
)

// modes are both ways of running the resource.
func modes() map[string]func(*testing.T) *bench {
	return map[string]func(*testing.T) *bench{"plain": newBench, "fenced": newFencedBench}
}

// unharmed wants every invariant that the tables show to hold, and no money lost or made over all accounts together.
func (b *bench) unharmed(after string) {
	b.t.Helper()
	report, err := invariant.Check(b.t.Context(), b.owner, invariant.Evidence{})
	require.NoError(b.t, err, after)
	require.Contains(b.t, report.Checked, invariant.MoneyAddsUp)
	require.NoError(b.t, report.Err(), after)
	require.Equal(b.t, b.count("SELECT sum(amount_minor) FROM payout WHERE idempotency_key LIKE 'opening-balance:%'"), b.count("SELECT sum(balance_minor) FROM account"), after)
}

func TestBadInputNeitherLosesNorMakesMoney(t *testing.T) {
	t.Parallel()
	for mode, open := range modes() {
		t.Run(mode, func(t *testing.T) {
			b := open(t)
			for name, one := range map[string]struct {
				body   string
				status int
				code   string
			}{
				"0":                {createBody(0), 400, payapi.CodeValidationFailed},
				"negative":         {createBody(-1), 400, payapi.CodeValidationFailed},
				"lowest":           {createBody(-1 << 63), 400, payapi.CodeValidationFailed},
				"2^63":             {strings.Replace(createBody(1), ":1,", ":9223372036854775808,", 1), 400, payapi.CodeValidationFailed},
				"fraction":         {strings.Replace(createBody(1), ":1,", ":1.5,", 1), 400, payapi.CodeValidationFailed},
				"exponent":         {strings.Replace(createBody(1), ":1,", ":1e400,", 1), 400, payapi.CodeValidationFailed},
				"text":             {strings.Replace(createBody(1), ":1,", `:"1",`, 1), 400, payapi.CodeValidationFailed},
				"unknown currency": {strings.Replace(createBody(1), "EUR", "XXX", 1), 400, payapi.CodeValidationFailed},
				"no currency":      {strings.Replace(createBody(1), "EUR", "", 1), 400, payapi.CodeValidationFailed},
				"wrong account":    {strings.Replace(createBody(1), payer, uuid.NewString(), 1), 404, payapi.CodeAccountNotFound},
				"clearing account": {strings.Replace(createBody(1), payer, clearing, 1), 400, payapi.CodeValidationFailed},
			} {
				b.create("bad-"+name, one.body).refused(t, one.status, one.code)
				b.unharmed(name)
			}

			// The most that there can be is a payout like any other; it can't be paid.
			most := b.createFor(payer, 1<<63-1)
			b.claim(most.PayoutID, "PENDING", holder("a", 5)...).refused(t, 422, payapi.CodeInsufficientFunds)
			require.Equal(t, "FAILED", b.payout(most.PayoutID).State)
			b.unharmed("2^63-1")

			// What would make the clearing account's balance overflow changes nothing.
			over := b.createFor(payer, 10)
			require.Equal(t, 200, b.claim(over.PayoutID, "PENDING", holder("a", 6)...).status)
			b.setState(over.PayoutID, "RAIL_ACKED")
			_, err := b.owner.Exec(t.Context(), "UPDATE account SET balance_minor = 9223372036854775807 WHERE account_id = $1", clearing)
			require.NoError(t, err)
			b.post(over.PayoutID, holder("a", 6)...).refused(t, 422, payapi.CodeAmountOutOfRange)
			_, err = b.owner.Exec(t.Context(), "UPDATE account SET balance_minor = 0 WHERE account_id = $1", clearing)
			require.NoError(t, err)
			b.unharmed("overflow")
			require.Equal(t, 200, b.post(over.PayoutID, holder("a", 6)...).status, "the refusal left nothing behind")
			b.unharmed("posted")
		})
	}
}

// Two posts at once, with one key, with two keys, and of two holders. Plain mode alone promises only the first; the others are what its sidecar is for.
func TestPostsAtOnceDebitOnce(t *testing.T) {
	t.Parallel()
	for mode, open := range modes() {
		t.Run(mode, func(t *testing.T) {
			b := open(t)
			cases := map[string][2][]string{"one key": {holder("a", 33), holder("a", 33)}}
			if mode == "fenced" {
				cases["two keys"] = [2][]string{holder("a", 43), append(holder("a", 43), payapi.HeaderIdempotencyKey, "another")}
				cases["two holders"] = [2][]string{holder("a", 53), append(holder("b", 54), payapi.HeaderIdempotencyKey, "a third")}
			}
			for _, name := range []string{"one key", "two keys", "two holders"} { // in the order of their tokens
				if _, ok := cases[name]; !ok {
					continue
				}
				p := b.createFor(payer, 100)
				before := b.account(payer).BalanceMinor
				require.Equal(t, 200, b.claim(p.PayoutID, "PENDING", cases[name][0]...).status)
				b.setState(p.PayoutID, "RAIL_ACKED")
				var answers [2]answer
				var both sync.WaitGroup
				for i, headers := range cases[name] {
					both.Go(func() { answers[i] = b.post(p.PayoutID, headers...) })
				}
				both.Wait()
				require.True(t, answers[0].status == 200 || answers[1].status == 200, "%s: %s %s", name, answers[0].body, answers[1].body)
				require.Equal(t, before-100, b.account(payer).BalanceMinor, name)
				b.unharmed(name)
			}
		})
	}
}

// dieAt ends the connection of whoever writes to the table, when the statement is done or, deferred, in the middle of the commit.
func (b *bench) dieAt(table string, deferred bool) (undo func()) {
	b.t.Helper()
	trigger := "CREATE TRIGGER die AFTER INSERT OR UPDATE ON " + table + " FOR EACH ROW EXECUTE FUNCTION die()"
	if deferred {
		trigger = "CREATE CONSTRAINT TRIGGER die AFTER INSERT OR UPDATE ON " + table + " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION die()"
	}
	for _, sql := range []string{
		`CREATE OR REPLACE FUNCTION die() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
		 BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(10); RETURN NULL; END $$`, trigger,
	} {
		_, err := b.owner.Exec(b.t.Context(), sql)
		require.NoError(b.t, err)
	}
	return func() {
		_, err := b.owner.Exec(b.t.Context(), "DROP TRIGGER die ON "+table)
		require.NoError(b.t, err)
	}
}

// paydb goes away in the middle of each step: after each of its writes, and in its commit. The answer says so and claims no effect that there isn't; the same request
// again, when paydb is back, has its effect once. In plain mode a posting that loses paydb between its two transactions is the one exception, which it says.
func TestPaydbGoneInTheMiddleOfAStepNeitherLosesNorMakesMoney(t *testing.T) {
	t.Parallel()
	for mode, open := range modes() {
		t.Run(mode, func(t *testing.T) {
			b := open(t)
			met := 0
			for i, point := range []struct {
				table    string
				deferred bool
			}{{"request_ledger", false}, {"account", false}, {"payout", false}, {"ledger_entry", false}, {"outbox", false}, {"account", true}, {"payout", true}} {
				at := fmt.Sprintf("%s, in the commit: %t", point.table, point.deferred)
				met += b.throughFaults(mode, at, int64(100+i), func() func() { return b.dieAt(point.table, point.deferred) })
			}
			require.GreaterOrEqual(t, met, 12, "every point is met in at least one step")
		})
	}
}

// throughFaults takes a payout through all three steps, each of which meets the fault first, and returns how often that was.
func (b *bench) throughFaults(mode, at string, token int64, fault func() (undo func())) (met int) {
	b.t.Helper()
	halves := false // plain mode's posting has lost its second half
	step := func(name string, send func() answer) answer {
		b.t.Helper()
		undo := fault()
		first := send()
		undo()
		switch {
		case first.status < 300: // the step doesn't touch the table
		case strings.Contains(string(first.body), payapi.CodePostingIncomplete) || strings.Contains(string(first.body), `"debited":true`):
			require.Equal(b.t, "plain", mode, "%s at %s: %s", name, at, first.body)
			halves = true
			met++
			return first
		default:
			met++
			require.Equal(b.t, 503, first.status, "%s at %s: %s", name, at, first.body)
		}
		b.unharmed(name + " at " + at)
		again := send()
		require.Less(b.t, again.status, 300, "%s at %s, again: %s", name, at, again.body)
		b.unharmed(name + " at " + at + ", again")
		return again
	}
	before := b.account(payer).BalanceMinor
	var p payapi.Payout
	step("create", func() answer { return b.create(at, createBody(100)) }).into(b.t, 201, &p)
	require.EqualValues(b.t, 1, b.count("SELECT count(*) FROM payout WHERE idempotency_key = $1", at))
	step("claim", func() answer { return b.claim(p.PayoutID, "PENDING", holder("a", token)...) })
	require.EqualValues(b.t, 1, b.payout(p.PayoutID).AttemptCount)
	b.setState(p.PayoutID, "RAIL_ACKED")
	step("post", func() answer { return b.post(p.PayoutID, holder("a", token)...) })
	require.Equal(b.t, before-100, b.account(payer).BalanceMinor, "one debit, at "+at)
	if halves {
		b.mend(p.PayoutID, token)
	}
	b.unharmed("all of it at " + at)
	return met
}

// mend does by hand what an operator would after POSTING_INCOMPLETE: the same request again debits nothing, so the legs are written.
func (b *bench) mend(id string, token int64) {
	b.t.Helper()
	before := b.account(payer).BalanceMinor
	b.post(id, holder("a", token)...).refused(b.t, 500, payapi.CodePostingIncomplete)
	require.Equal(b.t, before, b.account(payer).BalanceMinor)
	for account, direction := range map[string]string{payer: "DEBIT", clearing: "CREDIT"} {
		_, err := b.owner.Exec(b.t.Context(), "INSERT INTO ledger_entry (entry_id, payout_id, account_id, direction, amount_minor, fence) VALUES (gen_random_uuid(), $1, $2, $3, 100, $4)",
			id, account, direction, token)
		require.NoError(b.t, err)
	}
	b.setState(id, "POSTED")
}
