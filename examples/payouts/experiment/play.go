package experiment

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"fenceline/internal/process"
)

// lockTTL is how long a lease lasts without renewal. Short, because the experiment waits for
// its end; long enough that a healthy worker on a busy machine renews in time.
const lockTTL = 2 * time.Second

// payoutAmount is what each payout pays.
const payoutAmount Money = 2500

// play runs both scenes side by side on accounts of their own, and reads the truth when
// both have ended.
func (b *Bench) play(ctx context.Context, s *System) (Result, error) {
	plans := scenePlans()
	accounts, err := payerAccounts(ctx, s.databases.pay.URL(s.databases.payName), len(plans))
	if err != nil {
		return Result{}, err
	}
	scenes := make([]Scene, len(plans))
	group, groupCtx := errgroup.WithContext(ctx)
	for i, plan := range plans {
		group.Go(func() error {
			scene, err := s.playScene(groupCtx, plan, accounts[i], i+1)
			if err != nil {
				return fmt.Errorf("%s, A stopped before its %s: %w", s.Setup.Title, plan.step, err)
			}
			scenes[i] = scene
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return Result{}, err
	}
	b.Progress("%s: reading the truth from paydb and the rail's log", s.Setup.Title)
	report, err := s.checkInvariants(ctx)
	if err != nil {
		return Result{}, err
	}
	for i := range scenes {
		payoutID := scenes[i].Truth.PayoutID
		if scenes[i].Truth, err = readTruth(ctx, s.databases.pay.URL(s.databases.payName), s.railLog, payoutID); err != nil {
			return Result{}, err
		}
		scenes[i].Refusals = s.refusals(scenes[i])
	}
	return Result{Setup: s.Setup, Scenes: scenes, Invariants: report}, nil
}

// playScene is the story of one payout.
func (s *System) playScene(ctx context.Context, plan scenePlan, account string, number int) (Scene, error) {
	say := func(format string, args ...any) {
		s.bench.Progress("%s: payout %d: %s", s.Setup.Title, number, fmt.Sprintf(format, args...))
	}
	scene := Scene{
		Step: plan.step, Guard: plan.guard,
		OwnerA: fmt.Sprintf("worker-a%d", number), OwnerB: fmt.Sprintf("worker-b%d", number),
	}
	payoutID, err := s.createPayout(ctx, account, number)
	if err != nil {
		return scene, err
	}
	scene.Truth.PayoutID = payoutID

	a, err := s.startWorker(ctx, scene.OwnerA, payoutID, "--pause-before", plan.step+"=stdin", "--skip-lock-check")
	if err != nil {
		return scene, err
	}
	pause, err := a.WaitEvent(ctx, "its pause point", func(e process.Event) bool { return e.Name() == "pause_point" })
	if err != nil {
		return scene, err
	}
	scene.TokenA = pause.Int("token")
	if err := a.Suspend(ctx); err != nil {
		return scene, err
	}
	// From here on A executes nothing. Its way out of the pause point is there when it wakes.
	if err := a.Type("go on"); err != nil {
		return scene, err
	}
	say("worker A (token %d) is stopped with SIGSTOP before its %s", scene.TokenA, plan.step)
	if err := s.waitExpired(ctx, account); err != nil {
		return scene, err
	}
	say("the lease of worker A has expired; worker B starts")

	if scene.ResultB, scene.TokenB, err = s.finishWorker(ctx, scene.OwnerB, payoutID); err != nil {
		return scene, err
	}
	say("worker B (token %d) ended with: %s; worker A goes on (SIGCONT)", scene.TokenB, words(scene.ResultB))
	if err := a.Resume(); err != nil {
		return scene, err
	}
	scene.OutcomeA, _, err = outcome(ctx, a)
	say("worker A ended with: %s", words(scene.OutcomeA))
	return scene, err
}

// createPayout creates a PENDING payout through the resource's own API.
func (s *System) createPayout(ctx context.Context, account string, number int) (string, error) {
	status, body, err := request(ctx, http.MethodPost, s.resource+"/v1/payouts",
		map[string]string{"Content-Type": "application/json", "X-Owner-Id": "experiment", "X-Idempotency-Key": fmt.Sprintf("experiment-%d", number)},
		map[string]any{"accountId": account, "amountMinor": payoutAmount, "currency": "EUR"})
	if err != nil {
		return "", err
	}
	var created struct {
		PayoutID string `json:"payoutId"`
	}
	if status != http.StatusCreated || json.Unmarshal(body, &created) != nil || created.PayoutID == "" {
		return "", fmt.Errorf("create payout: status %d: %s", status, body)
	}
	return created.PayoutID, nil
}

// startWorker starts a payout-executor for one payout.
func (s *System) startWorker(ctx context.Context, owner, payoutID string, extra ...string) (*process.Process, error) {
	args := append([]string{
		"executor", "--owner", owner, "--payout", payoutID, "--once",
		"--lockd", s.lockd, "--resource", s.resource, "--rail-proxy", s.railProxy, "--lock-ttl", lockTTL.String(),
	}, append(s.barriers(), extra...)...)
	p, err := process.Start(ctx, process.Spec{Name: owner, Path: s.bench.program("paysvc"), Args: args, LogDir: s.dir})
	if err != nil {
		return nil, err
	}
	s.track(p)
	return p, nil
}

// finishWorker runs a worker to its end.
func (s *System) finishWorker(ctx context.Context, owner, payoutID string) (result string, token int64, err error) {
	p, err := s.startWorker(ctx, owner, payoutID)
	if err != nil {
		return "", 0, err
	}
	return outcome(ctx, p)
}

// outcome waits for the worker's end and returns what it says of the payout.
func outcome(ctx context.Context, p *process.Process) (result string, token int64, err error) {
	e, err := p.WaitEvent(ctx, "its outcome", func(e process.Event) bool { return e.Name() == "payout_outcome" })
	if err != nil {
		return "", 0, err
	}
	if _, err := p.Wait(ctx); err != nil {
		return "", 0, err
	}
	return e.Text("outcome"), e.Int("token"), nil
}

// waitExpired waits until the lock service says that nobody holds the account's lock.
func (s *System) waitExpired(ctx context.Context, account string) error {
	for {
		status, body, err := request(ctx, http.MethodGet, s.lockd+"/v1/locks/payout:"+account, nil, nil)
		if err != nil {
			return err
		}
		var info struct {
			Held *bool `json:"held"`
		}
		if status != http.StatusOK || json.Unmarshal(body, &info) != nil || info.Held == nil {
			return fmt.Errorf("inspect lock: status %d: %s", status, body)
		}
		if !*info.Held {
			return nil
		}
		if err := poll(ctx); err != nil {
			return fmt.Errorf("waiting for the lease to expire: %w", err)
		}
	}
}

// refusals are the requests of the scene's workers that the guards fenced out, from
// their own logs.
func (s *System) refusals(scene Scene) []Refusal {
	var list []Refusal
	for _, guard := range s.guards {
		for _, e := range guard.Events("fenced_out") {
			if owner := e.Text("ownerId"); owner == scene.OwnerA || owner == scene.OwnerB {
				list = append(list, Refusal{
					Guard: e.Text("resource"), Owner: owner, Route: e.Text("route"),
					Presented: e.Int("presentedToken"), Highest: e.Int("highestToken"),
				})
			}
		}
	}
	return list
}
