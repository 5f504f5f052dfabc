// Package lockapi is lockd's wire contract: paths, JSON bodies, header names and error
// codes, for the server and for clients alike. Times are RFC 3339 UTC with milliseconds and are for
// people; durations are whole milliseconds.
package lockapi

import (
	"strconv"
	"time"
)

// Header names. A grant's token travels as decimal text, since JavaScript clients lose integers above 2^53.
const (
	HeaderToken   = "X-Fencing-Token"
	HeaderOwner   = "X-Owner-Id"
	HeaderTraceID = "X-Trace-Id"
)

// Error codes. Programs branch on these. Catalogue has their statuses and meanings.
const (
	CodeValidationFailed    = "VALIDATION_FAILED"
	CodeInvalidToken        = "INVALID_TOKEN"
	CodeUnauthenticated     = "UNAUTHENTICATED"
	CodeForbidden           = "FORBIDDEN"
	CodeNotFound            = "NOT_FOUND"
	CodeSessionUnknown      = "SESSION_UNKNOWN"
	CodeLockNotHeld         = "LOCK_NOT_HELD"
	CodeMethodNotAllowed    = "METHOD_NOT_ALLOWED"
	CodeRequestTimeout      = "REQUEST_TIMEOUT"
	CodeLockContended       = "LOCK_CONTENDED"
	CodeLockLost            = "LOCK_LOST"
	CodeTokenMismatch       = "TOKEN_MISMATCH"
	CodeSessionExpired      = "SESSION_EXPIRED"
	CodeBodyTooLarge        = "BODY_TOO_LARGE"
	CodeContentionExceeded  = "CONTENTION_EXCEEDED"
	CodeHeadTooLarge        = "HEAD_TOO_LARGE"
	CodeClientClosedRequest = "CLIENT_CLOSED_REQUEST"
	CodeInternal            = "INTERNAL"
	CodeBackendUnavailable  = "BACKEND_UNAVAILABLE"
	CodeOverloaded          = "OVERLOADED"
)

// OutcomeUnknown is the value of details.outcome in an answer BACKEND_UNAVAILABLE when the change may or may not have happened. Without it
// nothing has happened.
const OutcomeUnknown = "unknown"

// Time is an instant in the contract's format.
type Time struct{ time.Time }

const timeFormat = "2006-01-02T15:04:05.000Z07:00"

// MarshalJSON writes the instant in UTC with milliseconds. It stands here although time.Time has one, since that one would write the
// zone and nanoseconds. Reading is time.Time's: RFC 3339 with any fraction.
func (t Time) MarshalJSON() ([]byte, error) {
	return strconv.AppendQuote(nil, t.UTC().Format(timeFormat)), nil
}

// OpenSessionRequest is L1's body.
type OpenSessionRequest struct {
	OwnerID   string `json:"ownerId"`
	TTLMillis *int64 `json:"ttlMillis,omitempty"`
}

// Session is L1's answer.
type Session struct {
	SessionID string `json:"sessionId"`
	OwnerID   string `json:"ownerId"`
	TTLMillis int64  `json:"ttlMillis"`
	ExpiresAt Time   `json:"expiresAt"`
}

// Heartbeat is L2's answer.
type Heartbeat struct {
	SessionID     string `json:"sessionId"`
	ExpiresAt     Time   `json:"expiresAt"`
	ServerTime    Time   `json:"serverTime"`
	HeldLockCount int    `json:"heldLockCount"`
}

// AcquireRequest is L4's body.
type AcquireRequest struct {
	SessionID  string `json:"sessionId"`
	TTLMillis  *int64 `json:"ttlMillis,omitempty"`
	WaitMillis *int64 `json:"waitMillis,omitempty"`
}

// LockGrant is the answer of L4 and L5; the token also stands in the header X-Fencing-Token.
type LockGrant struct {
	Key                string `json:"key"`
	OwnerID            string `json:"ownerId"`
	SessionID          string `json:"sessionId"`
	FencingToken       int64  `json:"fencingToken"`
	AcquiredAt         Time   `json:"acquiredAt"`
	ExpiresAt          Time   `json:"expiresAt"`
	TTLMillis          int64  `json:"ttlMillis"`
	GrantedAfterMillis int64  `json:"grantedAfterMillis"`
}

// RenewRequest is L5's optional body.
type RenewRequest struct {
	TTLMillis *int64 `json:"ttlMillis,omitempty"`
}

// ReleaseResult is L6's answer.
type ReleaseResult struct {
	Released bool `json:"released"`
	Stale    bool `json:"stale"`
}

// LockInfo is L7's answer. It is advisory: never a basis for acting.
type LockInfo struct {
	Key          string `json:"key"`
	Held         bool   `json:"held"`
	OwnerID      string `json:"ownerId,omitempty"`
	FencingToken int64  `json:"fencingToken,omitempty"`
	AcquiredAt   *Time  `json:"acquiredAt,omitempty"`
	ExpiresAt    *Time  `json:"expiresAt,omitempty"`
	WaiterCount  *int   `json:"waiterCount,omitempty"`
}

// RevokeRequest is L8's body.
type RevokeRequest struct {
	Operator      string `json:"operator"`
	Reason        string `json:"reason"`
	ExpectedToken *int64 `json:"expectedToken,omitempty"`
}

// Revocation is L8's answer.
type Revocation struct {
	RevokedToken  int64 `json:"revokedToken"`
	NewTokenFloor int64 `json:"newTokenFloor"`
	RevocationID  int64 `json:"revocationId"`
}

// HeldLock is one row of a LockPage.
type HeldLock struct {
	Key          string `json:"key"`
	OwnerID      string `json:"ownerId"`
	SessionID    string `json:"sessionId"`
	FencingToken int64  `json:"fencingToken"`
	AcquiredAt   Time   `json:"acquiredAt"`
	ExpiresAt    Time   `json:"expiresAt"`
}

// LockPage is the answer of L9 for held locks, in the order of the keys' bytes. It is advisory: a row may be over by the time that it is read.
type LockPage struct {
	Locks []HeldLock `json:"locks"`
	// NextCursor, when another row is known to exist, is what cursor must be to get it; else it is left out.
	NextCursor string `json:"nextCursor,omitempty"`
}

// RevocationRecord is one row of a RevocationPage.
type RevocationRecord struct {
	RevocationID  int64  `json:"revocationId"`
	Key           string `json:"key"`
	RevokedToken  int64  `json:"revokedToken"`
	PreviousOwner string `json:"previousOwner"`
	Operator      string `json:"operator"`
	Reason        string `json:"reason"`
	RevokedAt     Time   `json:"revokedAt"`
}

// RevocationPage is the answer of L9 for revocations, in the order of their ids.
type RevocationPage struct {
	Revocations []RevocationRecord `json:"revocations"`
	// NextCursor, when another row is known to exist, is what after must be to get it; else it is left out.
	NextCursor string `json:"nextCursor,omitempty"`
}

// Error is every refusal's body.
type Error struct {
	Code             string         `json:"code"`
	Message          string         `json:"message"`
	RetrySafe        bool           `json:"retrySafe"`
	RetryAfterMillis int64          `json:"retryAfterMillis,omitempty"`
	Details          map[string]any `json:"details,omitempty"`
	TraceID          string         `json:"traceId"`
}
