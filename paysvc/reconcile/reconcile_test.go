package reconcile_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fenceline/paysvc/reconcile"
	"fenceline/paysvc/reconcile/finding"
)

func TestNothingIsFoundWhereEverythingAgreesAndEveryClassIsReported(t *testing.T) {
	w := newWorld(t)
	w.healthy()
	report := w.run(reconcile.Options{})
	require.Empty(t, found(report))
	require.True(t, report.Clean)
	require.Equal(t, 1, report.Looks)
	require.Len(t, report.Discrepancies, len(finding.Classes()))
	for i, class := range finding.Classes() {
		require.Equal(t, class.Class, report.Discrepancies[i].Class)
		require.NotNil(t, report.Discrepancies[i].Found)
	}
	require.Equal(t, finding.Checked{Payouts: 8 + 8, Submissions: 5, Transfers: 2, Entries: 8 + 2, Accounts: 9}, report.Checked)
	require.EqualValues(t, 1, report.Information.FencedSubmissions)
	require.EqualValues(t, 1, report.Information.AckedNotPosted)
	require.EqualValues(t, 3, report.Information.UndeliveredEvents)
	require.EqualValues(t, 9, report.States["POSTED"])
	require.EqualValues(t, 0, report.States["RAIL_AMBIGUOUS"])
	require.Equal(t, []finding.Total{{Currency: "EUR", TransferredMinor: "5000", DebitedMinor: "2500", OpenMinor: "2500"}}, report.Totals)

	var text, encoded bytes.Buffer
	require.NoError(t, report.WriteText(&text))
	require.Contains(t, text.String(), "clean: everything agrees")
	require.NoError(t, report.WriteJSON(&encoded))
	var back reconcile.Report
	require.NoError(t, json.Unmarshal(encoded.Bytes(), &back))
	require.True(t, back.Clean)
	require.Contains(t, encoded.String(), `"class": "token_order",`+"\n      "+`"count": 0`)
}

// plants make exactly one fault each, in a world that is healthy otherwise, and return what is at fault.
func plants() map[finding.Class]func(w *world) (subject string) {
	return map[finding.Class]func(w *world) string{
		finding.PostedWithoutLegs: func(w *world) string {
			id := w.payout("POSTED")
			w.transferred(id, w.submitted(id, "ACKED"), 2500)
			return id
		},
		finding.LegsWithoutPosted: func(w *world) string {
			id := w.paid()
			w.exec("UPDATE payout SET state = 'RAIL_ACKED' WHERE payout_id = $1", id)
			return id
		},
		finding.UnbalancedLegs: func(w *world) string {
			id := w.payout("POSTED")
			w.transferred(id, w.submitted(id, "ACKED"), 2500)
			w.leg(id, payer, "DEBIT", 2500, 33)
			return id
		},
		finding.BalanceMismatch: func(w *world) string {
			w.exec("UPDATE account SET balance_minor = balance_minor - 1 WHERE account_id = $1", payer)
			return payer
		},
		finding.AckedNotAdvanced: func(w *world) string {
			id := w.payout("CLAIMED")
			w.transferred(id, w.submitted(id, "ACKED"), 2500)
			return id
		},
		finding.RejectedNotFailed: func(w *world) string {
			id := w.payout("CLAIMED")
			w.submitted(id, "REJECTED")
			return id
		},
		finding.TimeoutNotAmbiguous: func(w *world) string {
			id := w.payout("RAIL_SUBMITTED")
			w.submitted(id, "TIMEOUT")
			return id
		},
		finding.UnresolvedSubmission: func(w *world) string {
			id := w.payout("RAIL_SUBMITTED")
			w.submitted(id, "")
			return id
		},
		finding.PaidWithoutSubmission: func(w *world) string { return w.payout("RAIL_SUBMITTED") },
		finding.TransferWithoutSubmission: func(w *world) string {
			id := w.payout("CLAIMED")
			w.transferred(id, "rail-x", 2500)
			return id
		},
		finding.TransferNotPaid: func(w *world) string {
			id := w.payout("FAILED")
			w.submitted(id, "REJECTED")
			w.transferred(id, "rail-x", 2500)
			return id
		},
		finding.AckedWithoutTransfer: func(w *world) string {
			id := w.payout("RAIL_ACKED")
			w.submitted(id, "ACKED")
			return id
		},
		finding.MultipleTransfers: func(w *world) string {
			id := w.paid()
			w.transferred(id, "rail-again", 2500)
			return id
		},
		finding.TransferAmount: func(w *world) string {
			id := w.payout("RAIL_ACKED")
			w.transferred(id, w.submitted(id, "ACKED"), 2499)
			return id
		},
		finding.AmbiguousUnresolved: func(w *world) string {
			id := w.payout("RAIL_AMBIGUOUS")
			w.submitted(id, "TIMEOUT")
			return id
		},
		finding.TokenOrder: func(w *world) string {
			id := w.paid()
			w.exec("UPDATE payout SET claim_token = 34 WHERE payout_id = $1", id)
			w.exec("UPDATE ledger_entry SET fence = 34 WHERE payout_id = $1", id)
			return id
		},
	}
}

func TestEveryClassIsFoundWhereItIsPlantedAndNoOther(t *testing.T) {
	t.Parallel()
	require.Len(t, plants(), len(finding.Classes()), "every class has a plant")
	for class, plant := range plants() {
		t.Run(string(class), func(t *testing.T) {
			w := newWorld(t)
			w.healthy()
			subject := plant(w)
			report := w.run(reconcile.Options{})
			require.Equal(t, map[finding.Class]int64{class: 1}, found(report))
			require.False(t, report.Clean)
			for _, d := range report.Discrepancies {
				if d.Class == class {
					require.Equal(t, subject, d.Found[0].Subject)
					require.NotEmpty(t, d.Found[0].Detail)
				}
			}
			var text bytes.Buffer
			require.NoError(t, report.WriteText(&text))
			require.Contains(t, text.String(), subject)
			require.Contains(t, text.String(), "1 discrepancies")
		})
	}
}

// Other ways in which tokens can be out of order, and legs out of balance, each found in the same class.
func TestOtherShapesOfAFaultAreFoundToo(t *testing.T) {
	t.Parallel()
	for name, one := range map[string]struct {
		class finding.Class
		plant func(w *world)
	}{
		"a leg below the claim": {finding.TokenOrder, func(w *world) { w.exec("UPDATE ledger_entry SET fence = 32 WHERE payout_id = $1", w.paid()) }},
		"legs under two tokens": {finding.TokenOrder, func(w *world) {
			w.exec("UPDATE ledger_entry SET fence = 34 WHERE payout_id = $1 AND direction = 'CREDIT'", w.paid())
		}},
		"a mark below a leg": {finding.TokenOrder, func(w *world) {
			w.exec("UPDATE account SET fence = 20 WHERE account_id = $1", payer)
		}},
		"a mark below a submission": {finding.TokenOrder, func(w *world) { w.exec("UPDATE rail_high_water SET highest_token = 20") }},
		"legs of another amount": {finding.UnbalancedLegs, func(w *world) {
			id := w.payout("POSTED")
			w.transferred(id, w.submitted(id, "ACKED"), 2500)
			w.leg(id, payer, "DEBIT", 2400, 33)
			w.leg(id, clearing, "CREDIT", 2400, 33)
		}},
		"legs on somebody else's account": {finding.UnbalancedLegs, func(w *world) {
			id := w.payout("POSTED")
			w.transferred(id, w.submitted(id, "ACKED"), 2500)
			w.leg(id, clearing, "DEBIT", 2500, 33)
			w.leg(id, payer, "CREDIT", 2500, 33)
		}},
		"an opening without its leg": {finding.PostedWithoutLegs, func(w *world) {
			w.exec("DELETE FROM ledger_entry l USING payout p WHERE p.payout_id = l.payout_id AND p.idempotency_key = 'opening-balance:00000000-0000-4000-8000-000000000108'")
			w.exec("UPDATE account SET balance_minor = 0 WHERE account_id = '00000000-0000-4000-8000-000000000108'")
		}},
		"a transfer for nobody": {finding.TransferWithoutSubmission, func(w *world) { w.transferred("not one of ours", "rail-x", 1) }},
		"a transfer for a payout that was only fenced": {finding.TransferWithoutSubmission, func(w *world) {
			id := w.payout("CLAIMED")
			w.submitted(id, "FENCED")
			w.transferred(id, "rail-x", 2500)
		}},
		"an acknowledgement of another transfer": {finding.AckedWithoutTransfer, func(w *world) {
			id := w.payout("RAIL_ACKED")
			w.submitted(id, "ACKED")
			w.transferred(id, "rail-x", 2500)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.healthy()
			one.plant(w)
			require.NotZero(t, found(w.run(reconcile.Options{}))[one.class])
			require.Len(t, found(w.run(reconcile.Options{})), 1)
		})
	}
}

// What is gone at the second look was work under way; what is still there is reported.
func TestWorkUnderWayIsNoDiscrepancy(t *testing.T) {
	w := newWorld(t)
	w.healthy()
	stays := w.payout("RAIL_SUBMITTED")
	passes := w.payout("RAIL_SUBMITTED")
	w.submitted(stays, "")
	w.submitted(passes, "")
	watched := &watchedStore{Store: w.store, after: func() {
		w.exec("UPDATE rail_submission SET outcome = 'REJECTED', resolved_at = now() WHERE payout_id = $1", passes)
		w.exec("UPDATE payout SET state = 'FAILED' WHERE payout_id = $1", passes)
	}}
	report, err := reconcile.New(watched, w.rail, reconcile.Options{Settle: time.Millisecond, Limit: 100}, nil).Run(t.Context())
	require.NoError(t, err)
	require.Equal(t, 2, report.Looks)
	require.Equal(t, map[finding.Class]int64{finding.UnresolvedSubmission: 1}, found(report))
}

// watchedStore does something after each look.
type watchedStore struct {
	reconcile.Store
	after func()
}

func (s *watchedStore) Look(ctx context.Context, transfers func(func([]finding.Transfer) error) error, limit int) (finding.Look, error) {
	look, err := s.Store.Look(ctx, transfers, limit)
	s.after()
	return look, err
}

func TestMoreThanCanBeListedIsCounted(t *testing.T) {
	w := newWorld(t)
	for range 5 {
		w.payout("RAIL_SUBMITTED")
	}
	report := w.run(reconcile.Options{Limit: 2, Settle: time.Millisecond})
	require.Equal(t, map[finding.Class]int64{finding.PaidWithoutSubmission: 5}, found(report))
	var text bytes.Buffer
	require.NoError(t, report.WriteText(&text))
	require.Contains(t, text.String(), "… and 3 more")
}

func (w *world) state(id string) (state, outcome string) {
	w.t.Helper()
	require.NoError(w.t, w.owner.QueryRow(w.t.Context(), `SELECT p.state, coalesce(s.outcome, '') FROM payout p LEFT JOIN rail_submission s USING (payout_id) WHERE payout_id = $1`, id).
		Scan(&state, &outcome))
	return state, outcome
}

func TestAmbiguousPayoutIsResolvedByTheRailsEvidenceOnly(t *testing.T) {
	w := newWorld(t)
	w.healthy()
	ambiguous := func() string {
		id := w.payout("RAIL_AMBIGUOUS")
		w.submitted(id, "TIMEOUT")
		return id
	}
	carried, twice, other, none, recent := ambiguous(), ambiguous(), ambiguous(), ambiguous(), ambiguous()
	unrecorded := w.payout("RAIL_AMBIGUOUS") // somebody's hand: no submission to resolve
	w.transferred(carried, "rail-1", 2500)
	w.transferred(twice, "rail-2", 2500)
	w.transferred(twice, "rail-3", 2500)
	w.transferred(other, "rail-4", 25)
	w.exec("UPDATE payout SET updated_at = now() - interval '1 hour' WHERE payout_id IN ($1, $2)", none, unrecorded)

	before := w.run(reconcile.Options{RailWindow: time.Minute})
	require.Nil(t, before.Resolved)
	require.EqualValues(t, 6, found(before)[finding.AmbiguousUnresolved], "without being told to it changes nothing")

	report := w.run(reconcile.Options{RailWindow: time.Minute, Resolve: true})
	require.Equal(t, &reconcile.Resolved{Acknowledged: 1, Failed: 1, Undecided: 3}, report.Resolved)
	for id, want := range map[string][2]string{
		carried:    {"RAIL_ACKED", "ACKED"},
		none:       {"FAILED", "REJECTED"},
		recent:     {"RAIL_AMBIGUOUS", "TIMEOUT"}, // the transfer may be on its way
		twice:      {"RAIL_AMBIGUOUS", "TIMEOUT"},
		other:      {"RAIL_AMBIGUOUS", "TIMEOUT"},
		unrecorded: {"RAIL_AMBIGUOUS", ""},
	} {
		state, outcome := w.state(id)
		require.Equal(t, want, [2]string{state, outcome})
	}
	var reference string
	require.NoError(t, w.owner.QueryRow(t.Context(), "SELECT rail_reference FROM rail_submission WHERE payout_id = $1", carried).Scan(&reference))
	require.Equal(t, "rail-1", reference)
	require.Equal(t, map[finding.Class]int64{
		finding.AmbiguousUnresolved: 4, finding.MultipleTransfers: 1, finding.TransferAmount: 1, finding.PaidWithoutSubmission: 1,
	}, found(report))

	again := w.run(reconcile.Options{RailWindow: time.Minute, Resolve: true})
	require.Equal(t, &reconcile.Resolved{Undecided: 3}, again.Resolved, "once decided it stays so")
}

// An answer that isn't the rail's whole answer decides nothing and is no report either.
func TestRailThatCannotBeReadIsAFailureAndNoEvidence(t *testing.T) {
	w := newWorld(t)
	id := w.payout("RAIL_AMBIGUOUS")
	w.submitted(id, "TIMEOUT")
	w.exec("UPDATE payout SET updated_at = now() - interval '1 hour' WHERE payout_id = $1", id)
	for name, answer := range map[string]string{
		"another service": `{}`, "broken": `{"transfers":[`, "somebody else's": `{"transfers":[{"clientReference":"` + uuid.NewString() + `","railReference":"r"}]}`,
		"endless": `{"transfers":[],"nextCursor":"5"}`, "null": `{"transfers":null}`,
	} {
		server := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, _ *http.Request) { _, _ = out.Write([]byte(answer)) }))
		client, err := reconcile.NewClient(server.URL, 5*time.Second)
		require.NoError(t, err)
		_, err = reconcile.New(w.store, client, reconcile.Options{Resolve: true, Limit: 1}, nil).Run(t.Context())
		require.Error(t, err, name)
		server.Close()
	}
	client, err := reconcile.NewClient("http://127.0.0.1:1", time.Second)
	require.NoError(t, err)
	_, err = reconcile.New(w.store, client, reconcile.Options{Limit: 1}, nil).Run(t.Context())
	require.ErrorContains(t, err, "read the rail's transfers")
	state, _ := w.state(id)
	require.Equal(t, "RAIL_AMBIGUOUS", state)
}
