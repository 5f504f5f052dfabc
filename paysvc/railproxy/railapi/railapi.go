// Package railapi is what the rail-proxy's wire contract has beyond R1 (package payapi): what is on record about a payout, and what
// an error tells about a submission that was presented.
package railapi

import "fenceline/paysvc/payapi"

// CodeRailRejected (422) means that the rail said that it did nothing.
const CodeRailRejected = "RAIL_REJECTED"

// Details of an error about a submission that was presented.
const (
	DetailSubmissionID  = "submissionId"
	DetailOutcome       = "outcome"       // "unknown" with RAIL_AMBIGUOUS and OUTCOME_UNKNOWN, "known" with DUPLICATE_SUBMISSION, else "rejected"
	DetailRailOutcome   = "railOutcome"   // what the rail said: ACKED, REJECTED or TIMEOUT
	DetailRailReference = "railReference" // with railOutcome ACKED
)

// Record is one submission on record.
type Record struct {
	// Outcome is ACKED, REJECTED, TIMEOUT or FENCED, and empty while it is unknown.
	payapi.Submission
	PresentedToken int64        `json:"presentedToken"`
	SubmittedAt    payapi.Time  `json:"submittedAt"`
	ResolvedAt     *payapi.Time `json:"resolvedAt,omitempty"`
}

// List is the answer of GET /v1/rail/submissions?payoutId=: the submission that was presented first, if there is one, then the fenced
// ones, newest first, at most 100 in all.
type List struct {
	Submissions []Record `json:"submissions"`
}
