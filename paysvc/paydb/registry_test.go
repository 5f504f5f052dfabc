package paydb_test

import (
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/internal/postgres"
	"fenceline/internal/postgres/statementtest"
	"fenceline/migrations"
	"fenceline/paysvc/paydb"
)

const (
	accountP  = "00000000-0000-4000-8000-000000000101" // opens with 1000
	accountC  = "00000000-0000-4000-8000-000000000001" // the clearing account
	firstID   = "00000000-0000-4000-9000-000000000001"
	secondID  = "00000000-0000-4000-9000-000000000002"
	unknownID = "00000000-0000-4000-9000-00000000000f"
	freshID   = "00000000-0000-4000-9000-0000000000f0"
	freshToo  = "00000000-0000-4000-9000-0000000000f1"

	fixture = `
INSERT INTO account (account_id, currency, balance_minor) VALUES ('` + accountP + `', 'EUR', 1000), ('` + accountC + `', 'EUR', 0);
INSERT INTO payout (payout_id, account_id, amount_minor, currency, idempotency_key)
VALUES ('` + firstID + `', '` + accountP + `', 100, 'EUR', 'i1'), ('` + secondID + `', '` + accountP + `', 100, 'EUR', 'i2');`

	claimedBy7 = `UPDATE payout SET state = 'CLAIMED', claimed_by = 'w', claim_token = 7;`
	acked      = `UPDATE payout SET state = 'RAIL_ACKED', claimed_by = 'w', claim_token = 7 WHERE payout_id = '` + firstID + `';`
	ambiguous1 = `UPDATE payout SET state = 'RAIL_AMBIGUOUS', claimed_by = 'w', claim_token = 7 WHERE payout_id = '` + firstID + `';`
	ambiguous  = `UPDATE payout SET state = 'RAIL_AMBIGUOUS', claimed_by = 'w', claim_token = 7;`
	legDebit   = `INSERT INTO ledger_entry VALUES (gen_random_uuid(), '` + firstID + `', '` + accountP + `', 'DEBIT', 100, 7);`
	legCredit  = `INSERT INTO ledger_entry VALUES (gen_random_uuid(), '` + firstID + `', '` + accountC + `', 'CREDIT', 100, 7);`
	request    = `INSERT INTO request_ledger (operation, key, subject, token, fingerprint) VALUES ('claim', 'k', 's', 7, decode(repeat('00', 32), 'hex'));`
	attempt    = `INSERT INTO rail_submission (submission_id, payout_id, idempotency_key, presented_token) VALUES ('` + freshID + `', '` + firstID + `', 'i1', 7);`
	fencedTry  = `INSERT INTO rail_submission (submission_id, payout_id, idempotency_key, presented_token, outcome, resolved_at) VALUES ('` + freshToo + `', '` + firstID + `', 'i1', 6, 'FENCED', now());`
	timedOut   = `UPDATE rail_submission SET outcome = 'TIMEOUT', resolved_at = now();`
	mark7      = `INSERT INTO rail_high_water VALUES ('` + accountP + `', 7);`
	parked     = `UPDATE outbox SET parked_at = now();`
	transfers  = `CREATE TEMPORARY TABLE rail_transfer (rail_reference TEXT, client_reference TEXT, payout_id UUID, amount_minor BIGINT, currency TEXT) ON COMMIT DROP; GRANT ALL ON rail_transfer TO reconcile;`
)

type list = []statementtest.Case

func under(role string, cases map[string]list) map[string]list {
	for _, cases := range cases {
		for i := range cases {
			if cases[i].Role == "" {
				cases[i].Role = role
			}
		}
	}
	return cases
}

func fingerprint() []byte { return make([]byte, 32) }

func plainCases() map[string]list {
	id := func(id string) []any { return []any{id} }
	page := func(limit int) []any { return []any{nil, nil, nil, nil, limit} }
	return under("payapp", map[string]list{
		"selectPayout":      {{Args: id(unknownID), Rows: 0}, {Args: id(firstID), Rows: 1}},
		"listPayouts":       {{Setup: claimedBy7, Args: []any{"PENDING", nil, nil, nil, 10}, Rows: 0}, {Args: page(1), Rows: 1}, {Args: page(10), Rows: 2}},
		"selectAccount":     {{Args: id(unknownID), Rows: 0}, {Args: id(accountP), Rows: 1}},
		"insertPayout":      {{Args: []any{freshID, accountP, 5, "EUR", "i1"}, Rows: 0}, {Args: []any{freshID, accountP, 5, "USD", "i9"}, Rows: 0}, {Args: []any{freshID, accountP, 5, "EUR", "i9"}, Rows: 1}},
		"selectPayoutByKey": {{Args: id("i9"), Rows: 0}, {Args: id("i1"), Rows: 1}},
		"selectCurrency":    {{Args: id(unknownID), Rows: 0}, {Args: id(accountP), Rows: 1}},
		"diagnoseClaim":     {{Args: id(unknownID), Rows: 0}, {Args: id(firstID), Rows: 1}},
		"failPayout":        {{Setup: claimedBy7, Args: id(firstID), Rows: 0}, {Args: id(firstID), Rows: 1}},
		"creditClearing":    {{Args: []any{accountC, 5, "USD"}, Rows: 0}, {Args: []any{accountC, 5, "EUR"}, Rows: 1}},
		"selectLegs":        {{Args: id(firstID), Rows: 0}, {Setup: legDebit, Args: id(firstID), Rows: 1}, {Setup: legCredit + legDebit, Args: id(firstID), Rows: 2}},
		"checkRole":         {{Rows: 1}},
		"checkClearing":     {{Args: id(accountC), Rows: 1}, {Args: id(unknownID), Rows: 1}},
		"insertRequest":     {{Setup: request, Args: []any{"claim", "k", "s", 7, fingerprint()}, Rows: 0}, {Args: []any{"claim", "k", "s", 7, fingerprint()}, Rows: 1}},
		"selectRequest":     {{Args: []any{"claim", "k"}, Rows: 0}, {Setup: request, Args: []any{"post", "k"}, Rows: 0}, {Setup: request, Args: []any{"claim", "k"}, Rows: 1}},
		"takeOverRequest":   {{Args: []any{"claim", "k", 8, fingerprint()}, Rows: 0}, {Setup: request, Args: []any{"claim", "k", 8, fingerprint()}, Rows: 1}},
		"answerRequest": {
			{Setup: request, Args: []any{"claim", "k", 200, []byte("{}"), []byte("another")}, Rows: 0}, {Setup: request, Args: []any{"claim", "k", 200, []byte("{}"), fingerprint()}, Rows: 1},
		},
		"seedAccount":    {{Args: []any{accountP, "EUR", 5}, Rows: 0}, {Args: []any{freshID, "EUR", 5}, Rows: 1}},
		"seedOpening":    {{Args: []any{firstID, accountP, 5, "EUR"}, Rows: 0}, {Args: []any{freshID, accountP, 5, "EUR"}, Rows: 1}},
		"seedOpeningLeg": {{Setup: legCredit, Args: []any{freshID, firstID, accountC, 5}, Rows: 0}, {Args: []any{freshID, firstID, accountP, 5}, Rows: 1}},
		"seedPayout":     {{Args: []any{firstID, accountP, 5, "EUR", "i9"}, Rows: 0}, {Args: []any{freshID, accountP, 5, "EUR", "i9"}, Rows: 1}},
		"seeded":         {{Args: []any{[]string{unknownID}}, Rows: 0}, {Args: []any{[]string{firstID, unknownID}}, Rows: 1}, {Args: []any{[]string{secondID, firstID}}, Rows: 2}},
		"claimPayout": {
			{Args: []any{firstID, "w", 7, "CLAIMED", []string{"PENDING", "CLAIMED"}}, Rows: 0}, {Args: []any{firstID, "w", 7, "PENDING", []string{"PENDING", "CLAIMED"}}, Rows: 1},
		},
		"debitPayer": {{Args: id(unknownID), Rows: 0}, {Args: id(firstID), Rows: 1}},
		"insertLeg":  {{Setup: legDebit, Args: []any{freshID, firstID, accountP, "DEBIT", 100, 8}, Rows: 0}, {Args: []any{freshID, firstID, accountP, "DEBIT", 100, 8}, Rows: 1}},
		"markPosted": {{Args: id(unknownID), Rows: 0}, {Setup: acked, Args: id(firstID), Rows: 1}},
	})
}

func fencedCases() map[string]list {
	fence := func(n string) string {
		return "UPDATE account SET fence = " + n + " WHERE account_id = '" + accountP + "';"
	}
	claim := func(token int) []any {
		return []any{pgx.NamedArgs{"payout_id": firstID, "owner": "w", "token": token, "expected": "PENDING", "claimable": []string{"PENDING"}}}
	}
	raise := func(token int) []any { return []any{pgx.NamedArgs{"payout_id": firstID, "token": token}} }
	debit := func(amount, token int) []any {
		return []any{pgx.NamedArgs{"account_id": accountP, "currency": "EUR", "amount_minor": amount, "token": token}}
	}
	leg := []any{pgx.NamedArgs{"entry_id": freshID, "payout_id": firstID, "account_id": accountP, "direction": "DEBIT", "amount_minor": 100, "token": 7}}
	id := func(id string) []any { return []any{id} }
	return under("payapp_fenced", map[string]list{
		"raiseFence":          {{Setup: fence("7"), Args: raise(7), Rows: 0}, {Setup: fence("6"), Args: raise(7), Rows: 1}},
		"claimFenced":         {{Setup: claimedBy7, Args: claim(8), Rows: 0}, {Args: claim(8), Rows: 1}},
		"debitFenced":         {{Setup: fence("7"), Args: debit(5, 7), Rows: 0}, {Args: debit(5000, 7), Rows: 0}, {Setup: fence("6"), Args: debit(5, 7), Rows: 1}},
		"insertFencedLeg":     {{Setup: fence("8"), Args: leg, Rows: 0}, {Setup: fence("7"), Args: leg, Rows: 1}},
		"transitionFenced":    {{Setup: acked, Args: []any{pgx.NamedArgs{"payout_id": firstID, "token": 6}}, Rows: 0}, {Setup: acked, Args: []any{pgx.NamedArgs{"payout_id": firstID, "token": 7}}, Rows: 1}},
		"diagnoseFenced":      {{Args: id(unknownID), Rows: 0}, {Args: id(firstID), Rows: 1}},
		"diagnoseFencedClaim": {{Args: id(unknownID), Rows: 0}, {Args: id(firstID), Rows: 1}},
		"selectFence":         {{Args: id(unknownID), Rows: 0}, {Args: id(accountP), Rows: 1}},
		"selectPayoutFence":   {{Args: id(unknownID), Rows: 0}, {Args: id(firstID), Rows: 1}},
		"checkFencedRole":     {{Rows: 1}},
	})
}

func railCases() map[string]list {
	id := func(id string) []any { return []any{id} }
	record := []any{freshID, firstID, "i1", 7, "ACKED", "r1", time.Now(), time.Now()}
	return under("railapp", map[string]list{
		"selectRailPayout":    {{Args: id(unknownID), Rows: 0}, {Args: id(firstID), Rows: 1}},
		"insertSubmission":    {{Setup: attempt, Args: record, Rows: 0}, {Setup: fencedTry, Args: record, Rows: 1}},
		"movePayout":          {{Args: []any{firstID, "CLAIMED", "RAIL_ACKED"}, Rows: 0}, {Setup: claimedBy7, Args: []any{firstID, "CLAIMED", "RAIL_ACKED"}, Rows: 1}},
		"selectPayoutState":   {{Args: id(unknownID), Rows: 0}, {Args: id(firstID), Rows: 1}},
		"selectSubmissions":   {{Args: []any{firstID, 10}, Rows: 0}, {Setup: attempt + fencedTry, Args: []any{firstID, 1}, Rows: 1}, {Setup: attempt + fencedTry, Args: []any{firstID, 10}, Rows: 2}},
		"advanceMark":         {{Setup: mark7, Args: []any{pgx.NamedArgs{"account_id": accountP, "token": 7}}, Rows: 0}, {Setup: mark7, Args: []any{pgx.NamedArgs{"account_id": accountP, "token": 8}}, Rows: 1}},
		"selectMark":          {{Args: id(accountP), Rows: 0}, {Setup: mark7, Args: id(accountP), Rows: 1}},
		"selectAttempt":       {{Setup: fencedTry, Args: id(firstID), Rows: 0}, {Setup: fencedTry + attempt, Args: id(firstID), Rows: 1}},
		"selectClaim":         {{Args: id(unknownID), Rows: 0}, {Args: id(firstID), Rows: 1}},
		"insertIntent":        {{Setup: fencedTry, Args: []any{freshID, firstID, "i1", 7, time.Now()}, Rows: 1}},
		"insertFenced":        {{Setup: attempt, Args: []any{freshToo, firstID, "i1", 6, time.Now()}, Rows: 1}},
		"resolveIntent":       {{Setup: attempt + timedOut, Args: []any{freshID, "ACKED", "r1", time.Now()}, Rows: 0}, {Setup: attempt, Args: []any{freshID, "ACKED", "r1", time.Now()}, Rows: 1}},
		"checkRailRole":       {{Rows: 1}},
		"checkFencedRailRole": {{Rows: 1}},
	})
}

func otherCases() map[string]list {
	event := []any{unknownID, 10, 30.0}
	failed := "UPDATE outbox SET event_id = DEFAULT, claim_id = '" + unknownID + "', claimed_until = now() + '1 h';"
	last := "SELECT setval(pg_get_serial_sequence('outbox', 'event_id'), 40, true);" // the next event is 41
	relay := under("relayapp", map[string]list{
		"claimEvents":    {{Args: event, Rows: 0}, {Setup: ambiguous + parked + "UPDATE outbox SET parked_at = NULL WHERE payout_id = '" + firstID + "';", Args: event, Rows: 1}, {Setup: ambiguous, Args: event, Rows: 2}},
		"markDelivered":  {{Args: []any{41}, Rows: 0}, {Setup: last + ambiguous1, Args: []any{41}, Rows: 1}},
		"markFailed":     {{Setup: last + ambiguous1, Args: []any{41, unknownID, 1.0, false, "why"}, Rows: 0}, {Setup: last + ambiguous1 + strings.Replace(failed, "event_id = DEFAULT, ", "", 1), Args: []any{41, unknownID, 1.0, true, "why"}, Rows: 1}},
		"unparkEvents":   {{Setup: ambiguous, Rows: 0}, {Setup: ambiguous1 + parked, Rows: 1}, {Setup: ambiguous + parked, Rows: 2}},
		"selectBacklog":  {{Rows: 1}, {Setup: ambiguous, Rows: 1}},
		"checkRelayRole": {{Rows: 1}},
	})
	operator := under("payoperator", map[string]list{
		"selectPayoutToAbandon": {{Args: []any{unknownID}, Rows: 0}, {Args: []any{firstID}, Rows: 1}},
		"abandonPayout":         {{Setup: claimedBy7, Args: []any{firstID, "CLAIMED", "o", 7}, Rows: 0}, {Setup: claimedBy7, Args: []any{firstID, "CLAIMED", "o", 8}, Rows: 1}},
		"insertAbandonment":     {{Args: []any{firstID, "o", "r", "PENDING", 7}, Rows: 1}},
	})
	reconcile := under("reconcile", map[string]list{
		"createTransfers":   {{Rows: 0}},
		"dropTransfers":     {{Rows: 0}},
		"indexTransfers":    {{Setup: "SET LOCAL ROLE reconcile; CREATE TEMPORARY TABLE rail_transfer (payout_id UUID) ON COMMIT DROP;", Rows: 0}},
		"analyzeTransfers":  {{Setup: transfers, Rows: 0}},
		"selectChecked":     {{Setup: transfers, Rows: 1}},
		"selectStates":      {{Setup: "DELETE FROM payout", Rows: 0}, {Rows: 1}, {Setup: ambiguous1, Rows: 2}},
		"selectTotals":      {{Setup: transfers + "DELETE FROM payout; DELETE FROM account", Rows: 0}, {Setup: transfers, Rows: 1}, {Setup: transfers + "INSERT INTO rail_transfer VALUES ('r', 'c', NULL, 1, 'USD')", Rows: 2}},
		"selectAmbiguous":   {{Args: []any{"00000000-0000-0000-0000-000000000000", 10}, Rows: 0}, {Setup: ambiguous, Args: []any{firstID, 10}, Rows: 1}, {Setup: ambiguous, Args: []any{"00000000-0000-0000-0000-000000000000", 10}, Rows: 2}},
		"resolveSubmission": {{Setup: attempt, Args: []any{firstID, "ACKED", "r"}, Rows: 0}, {Setup: attempt + timedOut, Args: []any{firstID, "ACKED", "r"}, Rows: 1}},
	})
	maps.Copy(relay, operator)
	maps.Copy(relay, reconcile)
	return relay
}

// Every statement gives the rows that it is registered with, under the role that runs it. The classes of discrepancies give none where nothing is wrong; that
// each finds what is planted for it is what the tests of reconciliation show.
func TestStatementsGiveTheRowsThatTheyAreRegisteredWith(t *testing.T) {
	t.Parallel()
	statementtest.Registered(t, os.DirFS("."), paydb.Statements())
	conn := pgtest.Connect(t, pgtest.Database(t, migrations.PayDB()))
	_, err := conn.Exec(t.Context(), fixture, pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err)
	cases := plainCases()
	for _, more := range []map[string]list{fencedCases(), railCases(), otherCases()} {
		maps.Copy(cases, more)
	}
	var walked []postgres.Statement
	for _, s := range paydb.Statements() {
		if !strings.HasPrefix(s.Name, "discrepancy ") {
			walked = append(walked, s)
			continue
		}
		quiet := []postgres.Statement{{Name: s.Name, SQL: s.SQL, Rows: postgres.Effect}}
		setup := transfers + "UPDATE account SET balance_minor = 0" // the fixture's balances have no entries
		statementtest.Run(t, conn, quiet, map[string]list{s.Name: {{Setup: setup, Role: "reconcile", Args: []any{10}, Rows: 0}}})
	}
	statementtest.Run(t, conn, walked, cases)
}
