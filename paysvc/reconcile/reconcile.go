// Package reconcile compares what the payment system has on record with what the rail has carried out, and reports every class of discrepancy, those that
// it found none of included.
//
// It repairs nothing, but for two moves of a payout that is RAIL_AMBIGUOUS, and those only when it is told to and by evidence from the rail: exactly one transfer of
// the payout's amount → RAIL_ACKED; none, after the rail's answer window → FAILED. See Options.RailWindow for why "none" is no evidence before that.
package reconcile

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"

	"fenceline/paysvc/payout"
	"fenceline/paysvc/reconcile/finding"
)

// Store is paydb. Its errors are those of internal/postgres.
type Store interface {
	// Look compares everything on one snapshot with the transfers, which it takes page by page; at most limit of each class are listed.
	Look(ctx context.Context, transfers func(add func([]finding.Transfer) error) error, limit int) (finding.Look, error)
	// Ambiguous returns up to limit payouts that are RAIL_AMBIGUOUS, in the order of their ids, those above after.
	Ambiguous(ctx context.Context, after uuid.UUID, limit int) ([]finding.Ambiguous, error)
	// Resolve moves an ambiguous payout as the evidence says; false when it isn't ambiguous any more.
	Resolve(ctx context.Context, e finding.Evidence) (bool, error)
}

// Rail looks things up at the rail. It changes nothing there.
type Rail interface {
	// Transfers gives every transfer to add, page by page.
	Transfers(ctx context.Context, add func([]finding.Transfer) error) error
	// Lookup returns the transfers of one payout, all of them. An error means that nothing is known.
	Lookup(ctx context.Context, payoutID uuid.UUID) ([]finding.Transfer, error)
}

// Options say what a reconciliation does.
type Options struct {
	// Settle is the time between a look that found something and the next one. What only one of the two found was work under way: the rail and paydb
	// can't be read at one instant, and plain mode posts in two transactions. 0 makes one look do, for a system that is at rest.
	Settle time.Duration
	// Limit bounds how many discrepancies of a class are listed. All are counted.
	Limit int
	// Resolve makes the two moves of ambiguous payouts.
	Resolve bool
	// RailWindow is how long after it was handed a submission the rail may still carry it out: its answer window. A lookup that finds nothing before that shows
	// nothing, since the transfer may be on its way; after it, it shows that there is none and will be none. It counts from the payout's move to
	// RAIL_AMBIGUOUS, by the database's clock, which is later than the submission. For the rail-stub, which records a transfer before anything else, any
	// window above the rail-proxy's own time limit does.
	RailWindow time.Duration
}

// Report is what came of it.
type Report struct {
	Clean bool `json:"clean"`
	// Looks is 2 when the first one found something and its findings were confirmed, else 1.
	Looks int `json:"looks"`
	finding.Look
	Resolved *Resolved `json:"resolved,omitempty"`
}

// Resolved counts what became of the ambiguous payouts.
type Resolved struct {
	Acknowledged int `json:"acknowledged"` // now RAIL_ACKED; a worker posts them
	Failed       int `json:"failed"`
	Undecided    int `json:"undecided"` // the evidence doesn't do
}

// Reconciler compares.
type Reconciler struct {
	store   Store
	rail    Rail
	options Options
	logger  hclog.Logger
}

// New returns a reconciler.
func New(store Store, rail Rail, options Options, logger hclog.Logger) *Reconciler {
	return &Reconciler{store: store, rail: rail, options: options, logger: logger}
}

// Run resolves, if it is to, and compares.
func (r *Reconciler) Run(ctx context.Context) (Report, error) {
	var report Report
	if r.options.Resolve {
		resolved, err := r.resolve(ctx)
		if err != nil {
			return report, err
		}
		report.Resolved = &resolved
	}
	look, err := r.look(ctx)
	if err != nil {
		return report, err
	}
	report.Looks = 1
	if look.Count() > 0 && r.options.Settle > 0 {
		if err := wait(ctx, r.options.Settle); err != nil {
			return report, err
		}
		second, err := r.look(ctx)
		if err != nil {
			return report, err
		}
		look, report.Looks = confirmed(look, second), 2
	}
	report.Look, report.Clean = look, look.Count() == 0
	return report, nil
}

func (r *Reconciler) look(ctx context.Context) (finding.Look, error) {
	return r.store.Look(ctx, func(add func([]finding.Transfer) error) error { return r.rail.Transfers(ctx, add) }, r.options.Limit)
}

// confirmed is the second look with only those findings that the first one had as well. Of a class with more than could be listed nothing is taken away: there
// are too many for them to be work under way.
func confirmed(first, second finding.Look) finding.Look {
	known := map[finding.Class]map[finding.Found]bool{}
	whole := map[finding.Class]bool{}
	for _, d := range first.Discrepancies {
		known[d.Class] = map[finding.Found]bool{}
		whole[d.Class] = d.Count == int64(len(d.Found))
		for _, f := range d.Found {
			known[d.Class][f] = true
		}
	}
	for i, d := range second.Discrepancies {
		if !whole[d.Class] || d.Count != int64(len(d.Found)) {
			continue
		}
		kept := []finding.Found{}
		for _, f := range d.Found {
			if known[d.Class][f] {
				kept = append(kept, f)
			}
		}
		second.Discrepancies[i].Found, second.Discrepancies[i].Count = kept, int64(len(kept))
	}
	return second
}

// ambiguousPage is how many ambiguous payouts are read at a time.
const ambiguousPage = 100

func (r *Reconciler) resolve(ctx context.Context) (Resolved, error) {
	var resolved Resolved
	var after uuid.UUID
	for {
		page, err := r.store.Ambiguous(ctx, after, ambiguousPage)
		if err != nil {
			return resolved, err
		}
		if len(page) == 0 {
			return resolved, nil
		}
		for _, a := range page {
			if err := r.resolveOne(ctx, a, &resolved); err != nil {
				return resolved, err
			}
			after = a.PayoutID
		}
	}
}

func (r *Reconciler) resolveOne(ctx context.Context, a finding.Ambiguous, resolved *Resolved) error {
	found, err := r.rail.Lookup(ctx, a.PayoutID)
	if err != nil {
		return fmt.Errorf("look payout %s up at the rail: %w", a.PayoutID, err)
	}
	evidence, why := judge(a, found, r.options.RailWindow)
	if why != "" {
		resolved.Undecided++
		r.logger.Warn("the rail's answer doesn't decide about the payout", "event", "payout_undecided", "payoutId", a.PayoutID.String(), "reason", why)
		return nil
	}
	moved, err := r.store.Resolve(ctx, evidence)
	if err != nil || !moved {
		return err
	}
	if evidence.Event == payout.Acknowledge {
		resolved.Acknowledged++
	} else {
		resolved.Failed++
	}
	r.logger.Info("ambiguous payout decided by the rail's lookup", "event", "payout_resolved", "payoutId", a.PayoutID.String(),
		"transition", string(evidence.Event), "railReference", evidence.RailReference, "ambiguousMillis", a.Age.Milliseconds())
	return nil
}

// judge says what the rail's transfers for an ambiguous payout show, or why they show nothing.
func judge(a finding.Ambiguous, found []finding.Transfer, window time.Duration) (e finding.Evidence, why string) {
	switch {
	case len(found) > 1:
		return e, fmt.Sprintf("the rail has %d transfers", len(found))
	case len(found) == 1 && found[0].Money != a.Money:
		return e, fmt.Sprintf("the rail's transfer is of %s %s, the payout of %s %s", found[0].Money.Minor, found[0].Money.Currency, a.Money.Minor, a.Money.Currency)
	case len(found) == 1:
		return finding.Evidence{PayoutID: a.PayoutID, Event: payout.Acknowledge, RailReference: found[0].RailReference}, ""
	case a.Age < window:
		return e, fmt.Sprintf("no transfer yet, and the rail's answer window of %s isn't over", window)
	}
	return finding.Evidence{PayoutID: a.PayoutID, Event: payout.Reject}, ""
}

func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
