// Package finding says what a reconciliation looks at and what it can find. It knows no database and no HTTP.
package finding

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"fenceline/paysvc/payout"
)

// Class is one kind of discrepancy. Programs may branch on it.
type Class string

// The classes. One fault shows itself as one class: where a statement below would find what another one has found already, it leaves that out.
const (
	PostedWithoutLegs         Class = "posted_without_legs"
	LegsWithoutPosted         Class = "legs_without_posted"
	UnbalancedLegs            Class = "unbalanced_legs"
	BalanceMismatch           Class = "balance_mismatch"
	AckedNotAdvanced          Class = "acked_not_advanced"
	RejectedNotFailed         Class = "rejected_not_failed"
	TimeoutNotAmbiguous       Class = "timeout_not_ambiguous"
	UnresolvedSubmission      Class = "unresolved_submission"
	PaidWithoutSubmission     Class = "paid_without_submission"
	TransferWithoutSubmission Class = "transfer_without_submission"
	TransferNotPaid           Class = "transfer_not_paid"
	AckedWithoutTransfer      Class = "acked_without_transfer"
	MultipleTransfers         Class = "multiple_transfers"
	TransferAmount            Class = "transfer_amount"
	AmbiguousUnresolved       Class = "ambiguous_unresolved"
	TokenOrder                Class = "token_order"
)

// Description is what a class means, for people.
type Description struct {
	Class Class
	Text  string
}

// Classes returns every class, in the order in which they are reported.
func Classes() []Description {
	return []Description{
		{PostedWithoutLegs, "POSTED, but no ledger entry"},
		{LegsWithoutPosted, "ledger entries of a payout that isn't POSTED"},
		{UnbalancedLegs, "ledger entries other than one DEBIT of the payer and one CREDIT of another account, both of the payout's amount"},
		{BalanceMismatch, "a balance that isn't the sum of its entries"},
		{AckedNotAdvanced, "the rail acknowledged, but the payout is neither RAIL_ACKED nor POSTED"},
		{RejectedNotFailed, "the rail rejected, but the payout isn't FAILED"},
		{TimeoutNotAmbiguous, "the rail's answer was lost, but the payout is neither RAIL_AMBIGUOUS nor ABANDONED"},
		{UnresolvedSubmission, "a submission without an outcome: whether it reached the rail isn't on record"},
		{PaidWithoutSubmission, "a state that only a submission leads to, without one on record"},
		{TransferWithoutSubmission, "the rail has a transfer for which no submission is on record"},
		{TransferNotPaid, "the rail has a transfer for a payout that is FAILED or ABANDONED"},
		{AckedWithoutTransfer, "acknowledged on record, but the rail has no such transfer"},
		{MultipleTransfers, "the rail has more than one transfer for a payout"},
		{TransferAmount, "the rail's transfer is of another amount or currency than the payout and its debit"},
		{AmbiguousUnresolved, "RAIL_AMBIGUOUS: only evidence from the rail or an operator can decide"},
		{TokenOrder, "a write under an older fencing token after one under a newer"},
	}
}

// Found is one discrepancy.
type Found struct {
	// Subject is a payout's or an account's id, or the rail's client reference.
	Subject string `json:"subject"`
	Detail  string `json:"detail"`
}

// Discrepancies are those of one class.
type Discrepancies struct {
	Class Class `json:"class"`
	// Count is of all, also of those that Found leaves out.
	Count int64   `json:"count"`
	Found []Found `json:"found"`
}

// Checked says how much was compared.
type Checked struct {
	Payouts     int64 `json:"payouts"`
	Submissions int64 `json:"submissions"`
	Transfers   int64 `json:"transfers"`
	Entries     int64 `json:"entries"`
	Accounts    int64 `json:"accounts"`
}

// Total compares the sums of one currency. What left through the rail was debited or is still to be.
type Total struct {
	Currency         string      `json:"currency"`
	TransferredMinor json.Number `json:"transferredMinor"`
	DebitedMinor     json.Number `json:"debitedMinor"`
	// OpenMinor is what the rail paid for payouts that aren't POSTED.
	OpenMinor json.Number `json:"openMinor"`
}

// Information is what is no discrepancy but worth knowing.
type Information struct {
	// FencedSubmissions were refused, since a newer token had been seen.
	FencedSubmissions int64 `json:"fencedSubmissions"`
	// AckedNotPosted are payouts of which only the posting is missing; a worker finishes them.
	AckedNotPosted int64 `json:"ackedNotPosted"`
	// UndeliveredEvents and ParkedEvents are the outbox's.
	UndeliveredEvents int64 `json:"undeliveredEvents"`
	ParkedEvents      int64 `json:"parkedEvents"`
}

// Look is one comparison of everything.
type Look struct {
	At            time.Time        `json:"at"` // the database's clock
	Checked       Checked          `json:"checked"`
	Discrepancies []Discrepancies  `json:"discrepancies"` // every class, in the order of Classes
	States        map[string]int64 `json:"states"`        // payouts by state, every state
	Totals        []Total          `json:"totals"`
	Information   Information      `json:"information"`
}

// Count is the number of all discrepancies.
func (l Look) Count() int64 {
	var n int64
	for _, d := range l.Discrepancies {
		n += d.Count
	}
	return n
}

// Transfer is one that the rail carried out.
type Transfer struct {
	RailReference   string
	ClientReference string
	Money           payout.Money
}

// Ambiguous is a payout of which nobody knows whether the rail carried it out.
type Ambiguous struct {
	PayoutID uuid.UUID
	Money    payout.Money
	// Age is how long it has been RAIL_AMBIGUOUS, by the database's clock.
	Age time.Duration
}

// Evidence is what the rail said about an ambiguous payout.
type Evidence struct {
	PayoutID uuid.UUID
	// Event is payout.Acknowledge or payout.Reject.
	Event payout.Event
	// RailReference is the transfer's, with Acknowledge.
	RailReference string
}
