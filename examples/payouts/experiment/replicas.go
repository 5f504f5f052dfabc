package experiment

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"fenceline/lockd/lock"
	"fenceline/lockd/lockclient"
	"fenceline/paysvc/executor"
	"fenceline/paysvc/payapi"
	"fenceline/paysvc/payout"
)

// ReplicaStory is one way in which an old request stalls inside one of two replicas while a new holder works through the other one.
type ReplicaStory struct {
	Name, Title string
	// Effects makes the sidecars order effects; otherwise they order admissions.
	Effects bool
	// Unsettled is what becomes of a request whose outcome is unknown: "then: hold", or "then: release" with a time.
	Unsettled string
	// Kill ends sidecar 1 with SIGKILL while the old request is stalled.
	Kill bool
	// Takeover has both holders submit to the rail instead of claiming; the new one reads first what is on record.
	Takeover bool
	// Barrier has the new holder pass the barrier before it reads.
	Barrier bool
	// Bad is what the story must come to, every time: it is there to show what goes wrong. Without Bad nothing may.
	Bad bool
}

// releaseAfter is above what the sidecars' time limits add up to.
const releaseAfter = "then: release, after: 5s"

// ReplicaStories are all of them, in the order in which they are told.
func ReplicaStories() []ReplicaStory {
	return []ReplicaStory{
		{Name: "admissions", Title: "order: admissions", Bad: true},
		{Name: "effects", Title: "order: effects", Effects: true, Unsettled: "then: hold"},
		{Name: "admissions_kill", Title: "order: admissions, sidecar 1 killed", Kill: true, Bad: true},
		{Name: "effects_hold_kill", Title: "order: effects, then: hold, sidecar 1 killed", Effects: true, Unsettled: "then: hold", Kill: true},
		{Name: "effects_release_kill", Title: "order: effects, then: release, sidecar 1 killed", Effects: true, Unsettled: releaseAfter, Kill: true},
		{Name: "takeover", Title: "takeover, order: effects, no barrier", Effects: true, Unsettled: "then: hold", Takeover: true, Bad: true},
		{Name: "takeover_barrier", Title: "takeover, order: effects, with the barrier", Effects: true, Unsettled: "then: hold", Takeover: true, Barrier: true},
	}
}

// ReplicaResult is one run of one story.
type ReplicaResult struct {
	Story          ReplicaStory
	TokenA, TokenB int64
	Landed         []int64 // tokens of the claims, in the order in which they took effect
	Transfers      int     // that the rail made
	Busy           int     // times that the new holder was told FENCE_BUSY
	Settled        bool    // by an operator
}

// Violation says in words what went wrong, from what stands in the tables and in the rail's log; empty when nothing did.
func (r ReplicaResult) Violation() string {
	switch {
	case r.Story.Takeover && r.Transfers > 1:
		return fmt.Sprintf("%d transfers for one payout", r.Transfers)
	case r.Story.Takeover:
		return ""
	}
	for i := 1; i < len(r.Landed); i++ {
		if r.Landed[i] < r.Landed[i-1] {
			return fmt.Sprintf("token %d took effect after %d", r.Landed[i], r.Landed[i-1])
		}
	}
	return ""
}

// JudgeReplicas says why a run isn't what its story must come to. A run in which a request of either holder never took effect proves nothing.
func JudgeReplicas(r ReplicaResult) error {
	violation := r.Violation()
	switch {
	case r.TokenA <= 0 || r.TokenB <= r.TokenA:
		return fmt.Errorf("%s: no takeover happened: A had token %d, B %d", r.Story.Title, r.TokenA, r.TokenB)
	case r.Story.Bad && violation == "":
		return fmt.Errorf("%s: nothing went wrong, so this run proves nothing: %+v", r.Story.Title, r)
	case !r.Story.Bad && violation != "":
		return fmt.Errorf("%s: %s", r.Story.Title, violation)
	case r.Story.Takeover && r.Transfers == 0:
		return fmt.Errorf("%s: nothing was transferred", r.Story.Title)
	case !r.Story.Takeover && (len(r.Landed) != 3 || !slices.Contains(r.Landed, r.TokenA) || !slices.Contains(r.Landed, r.TokenB)):
		return fmt.Errorf("%s: claims under the tokens %v took effect, want those of the first holder, of A (%d) and of B (%d)", r.Story.Title, r.Landed, r.TokenA, r.TokenB)
	case r.Story.Effects && r.Story.Kill && r.Busy == 0:
		return fmt.Errorf("%s: nobody was held up", r.Story.Title)
	}
	return nil
}

// RunReplicas tells each story as often as is asked for, on one system of two databases, and hands each run's result out as it comes.
func (b *Bench) RunReplicas(ctx context.Context, stories []ReplicaStory, repeat int, limit time.Duration, result func(ReplicaResult) error) error {
	return b.withDatabases(ctx, Setup{Name: "replicas", Title: "two replicas"}, func(s *System) error {
		r := &replicas{System: s}
		if err := r.startParts(ctx); err != nil {
			return err
		}
		for _, story := range stories {
			if err := r.useSidecars(ctx, story); err != nil {
				return err
			}
			for i := range repeat {
				runCtx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no end after %s", limit))
				one, err := r.tell(runCtx, story)
				cancel()
				if err != nil {
					return fmt.Errorf("%s, run %d: %w", story.Title, i+1, err)
				}
				if err := result(one); err != nil {
					return err
				}
			}
			if err := r.stopSidecars(ctx); err != nil {
				return err
			}
		}
		return nil
	})
}

// holder is a worker with its grant.
type holder struct {
	name string
	held *lockclient.Held
	end  func()
}

func (r *replicas) hold(ctx context.Context, name, account string) (*holder, error) {
	session, err := lockclient.Open(ctx, name, lockclient.Options{URL: r.lockd})
	if err != nil {
		return nil, err
	}
	held, err := session.Acquire(ctx, "payout:"+account, lockclient.AcquireOptions{Wait: 10 * time.Second})
	if err != nil {
		return nil, errors.Join(err, session.Close(ctx))
	}
	return &holder{name: name, held: held, end: func() { _ = session.Close(context.WithoutCancel(ctx)) }}, nil
}

func (h *holder) write(p payapi.Payout) executor.Write {
	return executor.Write{Payout: p, Owner: h.name, Token: h.held.Token()}
}

func (h *holder) token() lock.Token { return h.held.Token() }

// tell plays one run: A's request stalls in replica 1, A loses its lease, B takes over and works through replica 2, and replica 1 goes on.
func (r *replicas) tell(ctx context.Context, story ReplicaStory) (ReplicaResult, error) {
	result := ReplicaResult{Story: story}
	p, err := r.freshPayout(ctx)
	if err != nil {
		return result, err
	}
	a, err := r.hold(ctx, "worker-a", p.AccountID)
	if err != nil {
		return result, err
	}
	defer a.end()
	result.TokenA = int64(a.token())
	at := r.stage(story)
	if err := at.stalls.Suspend(ctx); err != nil {
		return result, err
	}
	defer func() { _ = at.stalls.Resume() }()
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		_ = at.old(ctx, a, p) // whatever it is told, it may have taken effect
	}()
	if err := at.received(ctx); err != nil {
		return result, fmt.Errorf("wait until the request of A is in replica 1: %w", err)
	}
	if story.Kill {
		if err := r.one.Kill(ctx); err != nil {
			return result, err
		}
	}
	a.end() // A's lease is over; its request isn't
	b, err := r.hold(ctx, "worker-b", p.AccountID)
	if err != nil {
		return result, err
	}
	defer b.end()
	result.TokenB = int64(b.token())
	if err := r.takeOver(ctx, at, b, p, &result); err != nil {
		return result, err
	}
	<-answered
	if story.Kill {
		if err := r.startFirst(ctx, story); err != nil {
			return result, err
		}
	}
	return result, r.readReplicaTruth(ctx, p.PayoutID, &result)
}

// takeOver has B work through replica 2. Replica 1 goes on when B is done or held up, whichever comes first.
func (r *replicas) takeOver(ctx context.Context, at *stage, b *holder, p payapi.Payout, result *ReplicaResult) error {
	done := make(chan error, 1)
	go func() { done <- at.next(ctx, b, p) }()
	var err error
	if result.Story.Effects {
		if err := r.heldUp(ctx, b.token()); err != nil {
			return err
		}
	} else {
		err = <-done
	}
	if wake := at.stalls.Resume(); wake != nil {
		return wake
	}
	if result.Story.Effects {
		err = <-done
	}
	for ; isBusy(err); err = at.next(ctx, b, p) {
		if result.Busy++; result.Story.Unsettled == "then: hold" && result.Story.Kill {
			if err := r.settleKilled(ctx, p.PayoutID, result); err != nil {
				return err
			}
		}
		if err := poll(ctx); err != nil {
			return fmt.Errorf("the request of B is still held up: %w", err)
		}
	}
	return err
}

// isBusy says that a sidecar refused because an older request is in flight.
func isBusy(err error) bool {
	refusal, ok := errors.AsType[*executor.Refusal](err)
	return ok && refusal.Code == "FENCE_BUSY"
}

// claimAgain is a write that takes the payout for its holder: whoever lands last has it.
func claimAgain(client *executor.Client) func(context.Context, *holder, payapi.Payout) error {
	return func(ctx context.Context, h *holder, p payapi.Payout) error {
		return client.Claim(ctx, h.write(p), payout.Claimed)
	}
}

// submitUnlessSubmitted is what a new holder does: it reads what is on record, and decides.
func submitUnlessSubmitted(client *executor.Client, barrier string) func(context.Context, *holder, payapi.Payout) error {
	return func(ctx context.Context, h *holder, p payapi.Payout) error {
		if barrier != "" {
			if err := h.held.Barrier(ctx, lockclient.BarrierURL(barrier, guardRail, p.AccountID)); err != nil {
				return err
			}
		}
		list, err := client.Submissions(ctx, p.PayoutID)
		if err != nil || len(list.Submissions) > 0 {
			return err
		}
		_, err = client.Submit(ctx, h.write(p))
		return err
	}
}
