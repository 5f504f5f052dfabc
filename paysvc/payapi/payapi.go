// Package payapi is the payment system's wire contract: paths, JSON bodies, header names and error codes of
// the calls P1 to P6 (payment-resource) and R1 (rail-proxy), for servers and clients alike. Amounts are whole minor units; times
// are RFC 3339 UTC with milliseconds and are for people.
package payapi

import (
	"strconv"
	"time"

	"fenceline/lockd/lockapi"
)

// Header names.
const (
	HeaderToken          = "X-Fencing-Token"
	HeaderOwner          = "X-Owner-Id"
	HeaderIdempotencyKey = "X-Idempotency-Key"
)

// Paths. {id} is a UUID.
const (
	PathPayouts     = "/v1/payouts"            // P1 GET, P6 POST
	PathPayout      = "/v1/payouts/{id}"       // P4 GET
	PathClaim       = "/v1/payouts/{id}/claim" // P2 POST
	PathPost        = "/v1/payouts/{id}/post"  // P3 POST
	PathAccount     = "/v1/accounts/{id}"      // P5 GET
	PathSubmissions = "/v1/rail/submissions"   // R1 POST
)

// Error codes. Programs branch on these.
const (
	CodeValidationFailed     = "VALIDATION_FAILED"      // 400
	CodeInvalidToken         = "INVALID_TOKEN"          // 400
	CodeNotFound             = "NOT_FOUND"              // 404, no such call
	CodePayoutNotFound       = "PAYOUT_NOT_FOUND"       // 404
	CodeAccountNotFound      = "ACCOUNT_NOT_FOUND"      // 404
	CodeMethodNotAllowed     = "METHOD_NOT_ALLOWED"     // 405
	CodeRequestTimeout       = "REQUEST_TIMEOUT"        // 408
	CodePayoutNotClaimable   = "PAYOUT_NOT_CLAIMABLE"   // 409, details: state, expectedState
	CodePayoutNotPostable    = "PAYOUT_NOT_POSTABLE"    // 409, details: state; fenced mode only
	CodePayoutNotSubmittable = "PAYOUT_NOT_SUBMITTABLE" // 409, details: state; fenced mode only
	CodeIdempotencyConflict  = "IDEMPOTENCY_CONFLICT"   // 409
	CodeFencedOut            = "FENCED_OUT"             // 409
	CodeDuplicateSubmission  = "DUPLICATE_SUBMISSION"   // 409
	CodeRailAmbiguous        = "RAIL_AMBIGUOUS"         // 409
	CodeBodyTooLarge         = "BODY_TOO_LARGE"         // 413
	CodeInsufficientFunds    = "INSUFFICIENT_FUNDS"     // 422
	CodeAmountOutOfRange     = "AMOUNT_OUT_OF_RANGE"    // 422, a balance would leave the range of 64 bits
	CodeHeadTooLarge         = "HEAD_TOO_LARGE"         // 431
	CodeInternal             = "INTERNAL"               // 500, a defect of the deployment or the program
	CodePostingIncomplete    = "POSTING_INCOMPLETE"     // 500, debited, but the legs aren't written
	CodeStoreUnavailable     = "STORE_UNAVAILABLE"      // 503, nothing has happened
	CodeOutcomeUnknown       = "OUTCOME_UNKNOWN"        // 503, details: outcome = unknown
	CodeRailUnavailable      = "RAIL_UNAVAILABLE"       // 503, only when provably nothing was presented
)

// Details of FENCED_OUT, spelt as a sidecar spells them.
const (
	DetailResourceType   = "resourceType" // account, ledger or rail; a sidecar's guard
	DetailResourceID     = "resourceId"
	DetailPresentedToken = "presentedToken"
	DetailHighestToken   = "highestToken"
	DetailOwnerID        = "ownerId"
)

// Time is an instant in the contract's format.
type Time struct{ time.Time }

const timeFormat = "2006-01-02T15:04:05.000Z07:00"

// MarshalJSON writes the instant in UTC with milliseconds. It is needed beside time.Time's own, which would write the zone and the
// nanoseconds. That one's UnmarshalJSON reads RFC 3339 with any fraction.
func (t Time) MarshalJSON() ([]byte, error) {
	return strconv.AppendQuote(nil, t.UTC().Format(timeFormat)), nil
}

// Error is every refusal's body. Its form is lockd's.
type Error = lockapi.Error

// Payout is the answer of P2, P4 and P6, and an element of P1's.
type Payout struct {
	PayoutID       string `json:"payoutId"`
	AccountID      string `json:"accountId"`
	AmountMinor    int64  `json:"amountMinor"`
	Currency       string `json:"currency"`
	State          string `json:"state"`
	ClaimedBy      string `json:"claimedBy,omitempty"`
	ClaimToken     int64  `json:"claimToken,omitempty"`
	IdempotencyKey string `json:"idempotencyKey"`
	AttemptCount   int    `json:"attemptCount"`
	CreatedAt      Time   `json:"createdAt"`
	UpdatedAt      Time   `json:"updatedAt"`
}

// PayoutPage is P1's answer, in the order (created_at, payout_id).
type PayoutPage struct {
	Payouts []Payout `json:"payouts"`
	// NextCursor is there only when another payout exists.
	NextCursor string `json:"nextCursor,omitempty"`
}

// ClaimRequest is P2's body.
type ClaimRequest struct {
	// ExpectedState is the state that the caller read: PENDING, or CLAIMED to take over.
	ExpectedState string `json:"expectedState"`
}

// PostRequest is P3's body: what the rail-proxy answered.
type PostRequest struct {
	RailReference string `json:"railReference"`
	SubmissionID  string `json:"submissionId"`
}

// Posting is P3's answer.
type Posting struct {
	PayoutID string `json:"payoutId"`
	State    string `json:"state"`
	// BalanceMinor is the payer's balance after the debit.
	BalanceMinor int64 `json:"balanceMinor"`
	// Entries are the two legs: the payer's DEBIT and the clearing account's CREDIT.
	Entries []LedgerEntry `json:"entries"`
}

// LedgerEntry is one leg.
type LedgerEntry struct {
	EntryID      string `json:"entryId"`
	AccountID    string `json:"accountId"`
	Direction    string `json:"direction"`
	AmountMinor  int64  `json:"amountMinor"`
	FencingToken int64  `json:"fencingToken"`
	CreatedAt    Time   `json:"createdAt"`
}

// Account is P5's answer. It is advisory: never a basis for acting.
type Account struct {
	AccountID      string `json:"accountId"`
	Currency       string `json:"currency"`
	BalanceMinor   int64  `json:"balanceMinor"`
	LedgerSumMinor int64  `json:"ledgerSumMinor"`
	UpdatedAt      Time   `json:"updatedAt"`
}

// CreatePayoutRequest is P6's body.
type CreatePayoutRequest struct {
	AccountID   string `json:"accountId"`
	AmountMinor int64  `json:"amountMinor"`
	Currency    string `json:"currency"`
}

// SubmissionRequest is R1's body.
type SubmissionRequest struct {
	PayoutID       string `json:"payoutId"`
	AccountID      string `json:"accountId"`
	AmountMinor    int64  `json:"amountMinor"`
	Currency       string `json:"currency"`
	BeneficiaryRef string `json:"beneficiaryRef"`
}

// OutcomeAcked is the outcome of a submission that the rail carried out.
const OutcomeAcked = "ACKED"

// Submission is R1's answer.
type Submission struct {
	SubmissionID  string `json:"submissionId"`
	PayoutID      string `json:"payoutId"`
	Outcome       string `json:"outcome"`
	RailReference string `json:"railReference"`
}
