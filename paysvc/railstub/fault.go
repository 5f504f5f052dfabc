package railstub

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"
)

// Kind is one way in which the rail can treat a submission.
type Kind string

// The kinds. Only with KindNone and KindDouble does the client learn of its transfer.
const (
	// KindNone: recorded, then answered.
	KindNone Kind = "none"
	// KindDecline: refused with 422 DECLINED; nothing recorded.
	KindDecline Kind = "decline"
	// KindDrop: the connection is closed without an answer; nothing recorded.
	KindDrop Kind = "drop"
	// KindLost: recorded, then the connection is closed without an answer.
	KindLost Kind = "lost"
	// KindDouble: recorded once, and the answer is sent twice on the same connection. A client that
	// uses the connection again would take the second one for the answer to its next request.
	KindDouble Kind = "double"
)

// Fault is what happens to one submission.
type Fault struct {
	Kind Kind
	// Latency passes after the submission was recorded (if it is) and before it is answered (if it is).
	Latency time.Duration
}

// Plan says which submission meets which fault. The fault of a client reference goes before chance.
type Plan struct {
	// Latency is added to every submission without a fault of its own.
	Latency time.Duration
	// Chances are probabilities from 0 to 1 for each kind; together at most 1. What is left is KindNone.
	Chances map[Kind]float64
	// ByReference gives a client reference a fault of its own.
	ByReference map[string]Fault
	// Seed makes chance repeatable.
	Seed uint64
}

// kinds in the order in which chance goes through them.
func kinds() []Kind { return []Kind{KindDecline, KindDrop, KindLost, KindDouble} }

// Validate returns an error for latencies below 0 and for chances that aren't probabilities.
func (p Plan) Validate() error {
	if p.Latency < 0 {
		return fmt.Errorf("latency %s: want 0 or more", p.Latency)
	}
	sum := 0.0
	for _, kind := range kinds() {
		chance := p.Chances[kind]
		if !(chance >= 0 && chance <= 1) { // also refuses NaN
			return fmt.Errorf("chance of %s %g: want 0 to 1", kind, chance)
		}
		sum += chance
	}
	if sum > 1 {
		return fmt.Errorf("the chances of all faults add up to %g: want at most 1", sum)
	}
	return nil
}

// ParseFault reads "REFERENCE=KIND" or "REFERENCE=KIND:LATENCY", such as "7f3e=lost" or "7f3e=none:2s".
func ParseFault(text string) (reference string, fault Fault, err error) {
	reference, what, found := strings.Cut(text, "=")
	kind, latency, timed := strings.Cut(what, ":")
	if !found || reference == "" {
		return "", Fault{}, fmt.Errorf("fault %q: want REFERENCE=KIND or REFERENCE=KIND:LATENCY", text)
	}
	fault.Kind = Kind(kind)
	switch fault.Kind {
	case KindNone, KindDecline, KindDrop, KindLost, KindDouble:
	default:
		return "", Fault{}, fmt.Errorf("fault %q: kind %q: want none, decline, drop, lost or double", text, kind)
	}
	if timed {
		fault.Latency, err = time.ParseDuration(latency)
		if err != nil || fault.Latency < 0 {
			return "", Fault{}, fmt.Errorf("fault %q: latency %q: want a duration such as 500ms", text, latency)
		}
	}
	return reference, fault, nil
}

// chooser draws the fault of each submission.
type chooser struct {
	plan Plan
	mu   sync.Mutex // guards dice
	dice *rand.Rand
}

func newChooser(plan Plan) *chooser {
	return &chooser{plan: plan, dice: rand.New(rand.NewPCG(plan.Seed, 0))} //nolint:gosec // repeatable chance is the point; nothing secret
}

func (c *chooser) choose(reference string) Fault {
	if fault, ok := c.plan.ByReference[reference]; ok {
		return fault
	}
	c.mu.Lock()
	drawn := c.dice.Float64()
	c.mu.Unlock()
	for _, kind := range kinds() {
		chance := c.plan.Chances[kind]
		if drawn < chance {
			return Fault{Kind: kind, Latency: c.plan.Latency}
		}
		drawn -= chance
	}
	return Fault{Kind: KindNone, Latency: c.plan.Latency}
}
