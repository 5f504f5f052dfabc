// Package robustness shows that lockd is a fenced lock, whatever happens to it: clients fight for a few keys while lockd's
// processes are killed and paused and their connections to the store cut and delayed. What every client asked and was told becomes a
// history, and a checker (porcupine) looks for an order of all that in which a fenced mutex with expiry could have answered the same.
//
// Three kinds of answers are kept apart. An operation that was answered took effect, or didn't, at some instant between its call and its
// return. One of which it is known that nothing happened isn't part of the history. One whose outcome is unknown stays open to
// the end of the history: it may have taken effect at any instant since its call, or never.
package robustness

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"sync"
	"time"
)

// Kind is what a client asked.
type Kind string

// The operations of a history. Inspect isn't one of them: it is advisory.
const (
	Acquire   Kind = "acquire"
	Renew     Kind = "renew"
	Release   Kind = "release"
	Revoke    Kind = "revoke"
	Open      Kind = "open session"
	Heartbeat Kind = "heartbeat"
	Close     Kind = "close session"
)

// Result is what a client was told.
type Result string

// The answers. All but Unknown are definite.
const (
	OK         Result = "ok"
	Contended  Result = "contended"  // acquire: another session holds the key
	Lost       Result = "lost"       // renew: the grant is over
	Stale      Result = "stale"      // release: the grant was no longer there
	NotHeld    Result = "not held"   // revoke: nobody holds the key
	Mismatch   Result = "mismatch"   // revoke: the holder has another token than the expected one
	Expired    Result = "expired"    // the session's time is over
	Gone       Result = "gone"       // there is no such session any more
	Unknown    Result = "unknown"    // it may have happened, may happen later, or never
	Unexpected Result = "unexpected" // an answer that nobody should get here: the request or lockd is at fault
	Nothing    Result = "nothing"    // nothing happened, for certain; never part of a history
)

// Op is one operation. Times are measured on one monotonic clock from the beginning of the run.
type Op struct {
	Client  int           `json:"client"`
	Kind    Kind          `json:"kind"`
	Key     string        `json:"key,omitempty"`
	Session int           `json:"session"`          // acquire and the session's own operations; 0 is none
	Token   int64         `json:"token,omitempty"`  // what renew and release name, what a revocation expects
	TTL     time.Duration `json:"ttl,omitempty"`    // as granted, else as asked for
	Waited  time.Duration `json:"waited,omitempty"` // acquire: how long the server made it wait before the lease began
	Call    time.Duration `json:"call"`
	Return  time.Duration `json:"return"`
	Result  Result        `json:"result"`
	Got     int64         `json:"got,omitempty"`   // acquire: the token; revoke: the revoked one
	Floor   int64         `json:"floor,omitempty"` // revoke
	Detail  string        `json:"detail,omitempty"`
}

const forever = time.Duration(math.MaxInt64)

func (o *Op) String() string {
	text := string(o.Kind)
	if o.Session != 0 {
		text += fmt.Sprintf(" s%d", o.Session)
	}
	if o.Token != 0 {
		text += fmt.Sprintf(" token %d", o.Token)
	}
	if o.TTL != 0 {
		text += fmt.Sprintf(" ttl %s", o.TTL)
	}
	if o.Waited != 0 {
		text += fmt.Sprintf(" waited %s", o.Waited)
	}
	text += " → " + string(o.Result)
	if o.Got != 0 {
		text += fmt.Sprintf(" %d", o.Got)
	}
	if o.Floor != 0 {
		text += fmt.Sprintf(" floor %d", o.Floor)
	}
	return text
}

// line is the operation with its client and its times, in milliseconds.
func (o *Op) line() string {
	return fmt.Sprintf("%10.3f … %10.3f  client %2d  %s", millis(o.Call), millis(o.Return), o.Client, o)
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// History is what the clients saw. It is safe for concurrent use until it is checked.
type History struct {
	mu       sync.Mutex
	ops      []*Op
	sessions int
	nothing  int
	// Above is a token that was granted before the history began: every token in it is higher.
	Above int64
	// Queued says that clients waited. Who comes after them, and who has waited in vain, is told "contended" by the queue and not by the
	// store: the key may be free at that moment, and on its way to the first of the queue. So that answer says nothing then.
	Queued bool
	// Late is how long after its time a grant may still be there for the store.
	Late time.Duration
}

// NewSession numbers a session, from 1 on.
func (h *History) NewSession() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sessions++
	return h.sessions
}

// Add takes a finished operation.
func (h *History) Add(op Op) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if op.Result == Nothing {
		h.nothing++
		return
	}
	h.ops = append(h.ops, &op)
}

// Count says how many operations there are, how many of them are of unknown outcome, and how many came to nothing.
func (h *History) Count() (ops, unknown, nothing int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, op := range h.ops {
		if op.Result == Unknown {
			unknown++
		}
	}
	return len(h.ops), unknown, h.nothing
}

// HighestToken is the highest token that anybody was told.
func (h *History) HighestToken() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	highest := h.Above
	for _, op := range h.ops {
		if op.Kind == Acquire || op.Kind == Revoke {
			highest = max(highest, op.Got, op.Floor)
		}
	}
	return highest
}

// WriteJSON writes one operation a line, in the order of their calls.
func (h *History) WriteJSON(w io.Writer) error {
	encoder := json.NewEncoder(w)
	for _, op := range h.sorted(func(*Op) bool { return true }) {
		if err := encoder.Encode(op); err != nil {
			return fmt.Errorf("write history: %w", err)
		}
	}
	return nil
}
