package lockclient

import "fenceline/lockd/lock"

// Names of events.
const (
	// EventSessionLost: a grant is lost, with or without its session. It is the one to count (lock_session_lost_total) and to alarm on.
	EventSessionLost = "session_lost"
	// EventHeartbeatFailed and EventRenewalFailed: a call failed and is tried again; nothing is lost yet.
	EventHeartbeatFailed = "heartbeat_failed"
	EventRenewalFailed   = "renewal_failed"
	// EventReleaseFailed and EventSessionCloseFailed: lockd couldn't be told; the grant, or the session, ends by its time.
	EventReleaseFailed      = "release_failed"
	EventSessionCloseFailed = "session_close_failed"
)

// Event is something that happened on its own, outside of a call of the program's.
type Event struct {
	Name  string
	Key   string     // "" for an event of the session
	Token lock.Token // 0 for an event of the session
	Err   error      // the cause
}

// Observer hears of events, to log and count them. It is called from goroutines of this package, several at once, and must not block.
type Observer interface {
	Observe(e Event)
}

// ObserverFunc is a function as an Observer.
type ObserverFunc func(Event)

// Observe implements Observer.
func (f ObserverFunc) Observe(e Event) { f(e) }
