// Package payout is the domain of the payment system: money, the life of a payout, and the
// ways in which a call on it can fail. It is pure: no database, no HTTP, no clock.
package payout

import (
	"errors"
	"fmt"
	"slices"
)

// State is where a payout stands in its life. The values are those of the column payout.state (C1 §1.5).
type State string

// The states. POSTED, FAILED and ABANDONED are terminal.
const (
	Pending       State = "PENDING"
	Claimed       State = "CLAIMED"
	RailSubmitted State = "RAIL_SUBMITTED"
	RailAcked     State = "RAIL_ACKED"
	RailAmbiguous State = "RAIL_AMBIGUOUS"
	Posted        State = "POSTED"
	Failed        State = "FAILED"
	Abandoned     State = "ABANDONED"
)

// States returns every state, in the order of a payout's life.
func States() []State {
	return []State{Pending, Claimed, RailSubmitted, RailAcked, RailAmbiguous, Posted, Failed, Abandoned}
}

// ParseState reads a state as it stands in requests and in the database: exactly spelt.
func ParseState(text string) (State, error) {
	if s := State(text); slices.Contains(States(), s) {
		return s, nil
	}
	return "", fmt.Errorf("%w: state: want one of %v", ErrInvalid, States())
}

// Terminal says whether nothing leads out of the state.
func (s State) Terminal() bool {
	return !slices.ContainsFunc(transitions(), func(t transition) bool { return t.from == s })
}

// Event is what can happen to a payout.
type Event string

// The events.
const (
	// Claim: a worker takes the payout, or a later holder takes over one that was claimed and not submitted.
	Claim Event = "claim"
	// RefuseFunds: the account can't cover the payout.
	RefuseFunds Event = "refuse_funds"
	// Submit: the rail-proxy is about to send the payout to the rail, or has sent it.
	Submit Event = "submit"
	// Acknowledge: the rail said, or a lookup showed, that the transfer was carried out.
	Acknowledge Event = "acknowledge"
	// Reject: the rail said, or a lookup showed, that there is no transfer and will be none.
	Reject Event = "reject"
	// LoseOutcome: the rail's answer didn't come; nothing is known.
	LoseOutcome Event = "lose_outcome"
	// Post: the money is in the ledger.
	Post Event = "post"
	// Abandon: an operator gives the payout up, with a reason.
	Abandon Event = "abandon"
)

// Events returns every event.
func Events() []Event {
	return []Event{Claim, RefuseFunds, Submit, Acknowledge, Reject, LoseOutcome, Post, Abandon}
}

type transition struct {
	from  State
	event Event
	to    State
}

// transitions is the state machine, whole: what doesn't stand here doesn't happen.
func transitions() []transition {
	return []transition{
		{Pending, Claim, Claimed},
		{Pending, RefuseFunds, Failed},
		{Pending, Abandon, Abandoned},
		{Claimed, Claim, Claimed}, // a later holder finds nothing submitted and starts over
		{Claimed, Submit, RailSubmitted},
		{RailSubmitted, Acknowledge, RailAcked},
		{RailSubmitted, Reject, Failed},
		{RailSubmitted, LoseOutcome, RailAmbiguous},
		{RailAmbiguous, Acknowledge, RailAcked}, // by lookup evidence only
		{RailAmbiguous, Reject, Failed},         // by lookup evidence only
		{RailAmbiguous, Abandon, Abandoned},
		{RailAcked, Post, Posted},
	}
}

// Next returns the state that the event leads to. ErrTransition means that the event can't
// happen in this state.
func Next(from State, event Event) (State, error) {
	for _, t := range transitions() {
		if t.from == from && t.event == event {
			return t.to, nil
		}
	}
	return "", fmt.Errorf("%w: %s in state %s", ErrTransition, event, from)
}

// From returns the states in which the event can happen.
func From(event Event) []State {
	var states []State
	for _, t := range transitions() {
		if t.event == event {
			states = append(states, t.from)
		}
	}
	return states
}

// ErrTransition means that the state machine has no such transition.
var ErrTransition = errors.New("no such transition")
