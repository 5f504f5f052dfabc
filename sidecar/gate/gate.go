// Package gate keeps the order of effects: while a request with token T may still take effect, none with a higher token for its key is forwarded, and after that
// nothing with a lower one takes effect.
//
// A request lives like this:
//
//	registering ─► waiting ⇄ looking ─► cleared ─► sent ─► settled
//	     │            │         │          │         └──► unsettled ─► settled
//	     └────────────┴─────────┴──────────┴─► refused: never sent, its row is settled
//
// It is registered in the store in the same step that raises the mark, so whoever comes later sees it. It waits while requests with lower tokens stand in the
// register. It is sent at most once. When its outcome is known it is settled, which lets higher tokens go on; when the outcome is unknown it is unsettled, and
// blocks them until a late response, an operator, or time (where the guard says so) settles it.
//
// Machine is that life for all requests of one sidecar: a value that takes events and returns actions, without clock, goroutine, HTTP or SQL, so that every
// interleaving of a small system can be tried (model_test.go). Gate drives it with real events.
package gate

import "slices"

// Sent says how much of a request may have reached the resource.
type Sent int

const (
	// NotSent means that it is certain that no byte reached the resource.
	NotSent Sent = iota
	// PartlySent means that something may have.
	PartlySent
	// WhollySent means that all of it was handed over.
	WhollySent
)

// End is what is known when nobody waits for the response any more.
type End struct {
	Sent Sent
	// Answered means that a whole response came, with an end that was marked (a length, a last chunk, or a status that has no body).
	Answered bool
	Status   int
}

// Outcome is what may be said of a request's effect.
type Outcome string

// The outcomes, as they stand in answers and metrics.
const (
	OutcomeNotSent Outcome = "not_sent" // it has no effect, ever
	OutcomeSettled Outcome = "settled"  // its effect, if any, is over
	OutcomeUnknown Outcome = "unknown"  // it may have taken effect, or may yet do so
)

// UnfinishedStatus are the statuses that say "not finished" or come from a middleman that gave up, and so tell nothing about the worker behind it. A guard may
// have others.
func UnfinishedStatus() []int { return []int{202, 408, 502, 503, 504} }

// Settle judges a request's end. After an unfinished status the resource may still be at work.
func Settle(e End, unfinished []int) Outcome {
	switch {
	case e.Sent == NotSent:
		return OutcomeNotSent
	case e.Sent != WhollySent || !e.Answered || slices.Contains(unfinished, e.Status):
		return OutcomeUnknown
	}
	return OutcomeSettled
}
