// Package gate holds the rules by which one admitted request lives, apart from HTTP and SQL.
//
// This version orders admissions: after a token was admitted for a key, no lower one is admitted. A request that was admitted before may still be
// on its way, and may take effect after a newer one; ordering effects too is what this package is for and isn't in this version.
package gate

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

// Settle judges a request's end. A status that says "not finished" or comes from a middleman that gave up (202, 408, 502, 503, 504) tells nothing about
// the worker behind it.
func Settle(e End) Outcome {
	switch {
	case e.Sent == NotSent:
		return OutcomeNotSent
	case e.Sent != WhollySent || !e.Answered:
		return OutcomeUnknown
	}
	switch e.Status {
	case 202, 408, 502, 503, 504:
		return OutcomeUnknown
	}
	return OutcomeSettled
}
