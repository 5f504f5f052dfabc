package gate

import (
	"fenceline/lockd/lock"
	"fenceline/sidecar/mark"
)

// Event is something that happened.
type Event interface{ event() }

// The events.
type (
	// Arrived brings a new request. Its ID was never used before.
	Arrived struct {
		ID    ID
		Entry mark.Entry
		At    Instant
	}
	// Registered brings the store's answer to a Register action.
	Registered struct {
		ID     ID
		Result mark.Registration
		Err    error
		At     Instant
	}
	// Hinted says that something of this key was settled elsewhere, or that it is time to look again.
	Hinted struct{ Guard, Key string }
	// Due says that a waiting request's time to look again, or its patience, may have come.
	Due struct {
		ID ID
		At Instant
	}
	// Looked brings the store's answer to a Look action that was asked for at Asked.
	Looked struct {
		ID    ID
		Sight mark.Sight
		Err   error
		Asked Instant
		At    Instant
	}
	// FirstByte asks whether the first byte may go out at this moment. Nothing of the request has been sent.
	FirstByte struct {
		ID ID
		At Instant
	}
	// Ended says how a forwarded request ended; also a second time, when a late response settles it.
	Ended struct {
		ID      ID
		Outcome Outcome
	}
	// LifeBegan says that the store took a new life, asked for at Asked.
	LifeBegan struct{ Asked Instant }
	// Beaten brings the store's answer to a heartbeat that was sent at Asked.
	Beaten struct {
		Pulse mark.Pulse
		Asked Instant
	}
	// Removed says that the store has removed these rows on our word.
	Removed struct{ Rows []mark.Row }
)

func (Arrived) event()    {}
func (Registered) event() {}
func (Hinted) event()     {}
func (Due) event()        {}
func (Looked) event()     {}
func (FirstByte) event()  {}
func (Ended) event()      {}
func (LifeBegan) event()  {}
func (Beaten) event()     {}
func (Removed) event()    {}

// Action is something to do. Those with an ID are that request's.
type Action interface{ action() }

// The actions.
type (
	// Register has the request admitted and registered.
	Register struct {
		ID    ID
		Entry mark.Entry
	}
	// Look has the store looked at again.
	Look struct {
		ID    ID
		Entry mark.Entry
		Row   mark.Row
	}
	// Sleep lets the request wait for a Look, and until it is Due.
	Sleep struct {
		ID    ID
		Until Instant
		// Told means that everything it waits for is this sidecar's own: a Look comes when it changes.
		Told bool
	}
	// Forward lets the request be prepared for sending; FirstByte comes before the first byte.
	Forward struct{ ID ID }
	// Send lets the first byte go out, now.
	Send struct{ ID ID }
	// Refuse ends a request that was never sent.
	Refuse struct {
		ID      ID
		Reason  Reason
		Highest lock.Token
		Err     error
	}
	// SettleRow has a row removed. It may be tried again until it succeeds.
	SettleRow struct{ Row mark.Row }
	// UnsettleRow has it recorded that the outcome is unknown from now on.
	UnsettleRow struct{ Row mark.Row }
	// Counted says how many requests of a guard are unsettled now.
	Counted struct {
		Guard     string
		Unsettled int
	}
)

func (Register) action()    {}
func (Look) action()        {}
func (Sleep) action()       {}
func (Forward) action()     {}
func (Send) action()        {}
func (Refuse) action()      {}
func (SettleRow) action()   {}
func (UnsettleRow) action() {}
func (Counted) action()     {}

// Reason is why a request was refused.
type Reason int

// The reasons.
const (
	FencedOut   Reason = iota + 1 // a higher token was admitted
	Implausible                   // the token is too far above the mark
	KeyNotFound                   // there is no such key
	Busy                          // an older request is in flight, or the key is held
	Unavailable                   // the store can't decide
	WentBack                      // somebody lowered the mark
)
