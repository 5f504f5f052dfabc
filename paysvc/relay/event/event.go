// Package event is what the outbox holds. It knows no database and no HTTP.
package event

import (
	"encoding/json"
	"time"
)

// Event is something that others are to be told.
type Event struct {
	// ID grows with the events of one payout, in the order in which they happened.
	ID int64
	// Key is the same for every delivery of this event, and for no other event.
	Key       string
	Type      string // payout.posted, payout.failed or payout.ambiguous
	Payload   json.RawMessage
	CreatedAt time.Time
	Attempt   int // 1 for the first delivery
}

// Backlog is what isn't delivered.
type Backlog struct {
	Waiting int64 // all of it
	Parked  int64 // given up after too many attempts, until a person says otherwise
	Blocked int64 // behind a parked event of the same payout
	Lag     time.Duration
}
