package executor

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"fenceline/internal/sendonce"
	"fenceline/lockd/lockclient"
	"fenceline/paysvc/payapi"
	"fenceline/paysvc/payout"
	"fenceline/paysvc/railproxy/railapi"
)

const (
	testSessionTTL = 15 * time.Second
	testLockTTL    = 30 * time.Second
)

// fakePayments is resource and rail-proxy in one. Writes give the scripted errors and otherwise move the payout.
type fakePayments struct {
	mu       sync.Mutex
	payouts  []payapi.Payout
	writes   []string // "step payoutId", in order
	claimErr error
	postErr  error
	listErr  error
}

func (f *fakePayments) set(change func()) { f.mu.Lock(); defer f.mu.Unlock(); change() }

func (f *fakePayments) Payouts(_ context.Context, q Query) (page payapi.PayoutPage, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, p := range f.payouts {
		if p.State == string(q.State) && fmt.Sprintf("%03d", i) > q.Cursor {
			if len(page.Payouts) == 2 { // small pages, so that paging is met
				page.NextCursor = fmt.Sprintf("%03d", i-1)
				break
			}
			page.Payouts = append(page.Payouts, p)
		}
	}
	return page, f.listErr
}

func (f *fakePayments) find(id string) int {
	return slices.IndexFunc(f.payouts, func(p payapi.Payout) bool { return p.PayoutID == id })
}

func (f *fakePayments) Payout(_ context.Context, id string) (payapi.Payout, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.payouts[f.find(id)], nil
}

func (f *fakePayments) write(step Step, w Write, state payout.State, err error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.writes = append(f.writes, string(step)+" "+w.Payout.PayoutID)
	if err == nil {
		f.payouts[f.find(w.Payout.PayoutID)].State = string(state)
	}
	return err
}

func (f *fakePayments) Claim(_ context.Context, w Write, _ payout.State) error {
	return f.write(StepClaim, w, payout.Claimed, f.claimErr)
}

func (f *fakePayments) Post(_ context.Context, w Write, _ payapi.Submission) error {
	return f.write(StepPost, w, payout.Posted, f.postErr)
}

func (f *fakePayments) Submissions(context.Context, string) (railapi.List, error) {
	return railapi.List{}, nil
}

func (f *fakePayments) Submit(_ context.Context, w Write) (payapi.Submission, error) {
	return payapi.Submission{Outcome: "ACKED"}, f.write(StepSubmit, w, payout.RailAcked, nil)
}

type fakeRecorder struct {
	mu       sync.Mutex
	outcomes map[Outcome]int
	age      time.Duration
	lost     int
}

func (r *fakeRecorder) Executed(o Outcome, _ time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.outcomes[o]++
}

func (r *fakeRecorder) LockLost() { r.mu.Lock(); defer r.mu.Unlock(); r.lost++ }

func (r *fakeRecorder) BacklogAge(age time.Duration) { r.mu.Lock(); defer r.mu.Unlock(); r.age = age }

func pending(n int, created time.Time) (list []payapi.Payout) {
	for i := range n {
		list = append(list, payapi.Payout{
			PayoutID: fmt.Sprint("p", i), AccountID: fmt.Sprint("a", i), State: "PENDING", CreatedAt: payapi.Time{Time: created},
		})
	}
	return list
}

// inRun runs an executor over the payments for some seconds of a bubble's own time, polling once a second.
func inRun(t *testing.T, payments *fakePayments, locks *fakeLocks, seconds int) (Summary, *fakeRecorder) {
	t.Helper()
	recorder := &fakeRecorder{outcomes: map[Outcome]int{}}
	e := New(Options{Owner: "w", SessionTTL: testSessionTTL, LockTTL: testLockTTL, PollInterval: time.Second},
		lockclient.Options{HTTPClient: &http.Client{Transport: locks}}, payments, payments, hclog.NewNullLogger(), recorder)
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(seconds)*time.Second+time.Second/2)
	defer cancel()
	return e.Run(ctx), recorder
}

func TestWorkThatMustNotBeRepeatedIsNotTakenUpAgain(t *testing.T) {
	t.Parallel()
	for outcome, err := range map[Outcome]error{
		FencedOut: &Refusal{Status: 409, Code: payapi.CodeFencedOut},
		Ambiguous: fmt.Errorf("%w: no answer", errUnknown),
		LockLost:  nil, // by the lock service, below
	} {
		t.Run(string(outcome), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				payments, locks := &fakePayments{payouts: pending(1, time.Now()), claimErr: err}, &fakeLocks{}
				locks.lost = err == nil
				summary, recorder := inRun(t, payments, locks, 5)
				require.Equal(t, Summary{outcome: 1}, summary)
				require.Equal(t, 1, locks.acquires, "not under a fresh token either")
				require.LessOrEqual(t, len(payments.writes), 1)
				require.Equal(t, outcome == LockLost, recorder.lost == 1)
			})
		})
	}
}

func TestWorkThatHadNoEffectIsTakenUpAgain(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{
		"not sent": fmt.Errorf("claim: %w", sendonce.ErrNotSent),
		"refused":  &Refusal{Status: 503, Code: payapi.CodeStoreUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				payments := &fakePayments{payouts: pending(1, time.Now()), claimErr: err}
				go func() {
					sleep(t.Context(), 2500*time.Millisecond)
					payments.set(func() { payments.claimErr = nil })
				}()
				summary, recorder := inRun(t, payments, &fakeLocks{}, 5)
				require.Equal(t, Summary{Aborted: 3, Posted: 1}, summary)
				require.Equal(t, 1, recorder.outcomes[Posted])
			})
		})
	}
}

func TestEveryPayoutOfABacklogIsWorkedOnOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		created := time.Now()
		sleep(t.Context(), time.Minute)
		payments, locks := &fakePayments{payouts: pending(7, created)}, &fakeLocks{}
		summary, recorder := inRun(t, payments, locks, 0)
		require.Equal(t, Summary{Posted: 7}, summary)
		require.Len(t, payments.writes, 3*7)
		require.Equal(t, []string{"claim p0", "submit p0", "post p0", "claim p1"}, payments.writes[:4])
		require.Equal(t, 7, locks.released)
		require.Equal(t, time.Minute, recorder.age)
		require.Equal(t, 1, locks.ended, "one session for the pass")
	})
}

func TestFailedListEndsThePassAndNothingElse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		payments := &fakePayments{payouts: pending(1, time.Now()), listErr: errors.New("no answer")}
		go func() {
			sleep(t.Context(), 1500*time.Millisecond)
			payments.set(func() { payments.listErr = nil })
		}()
		summary, _ := inRun(t, payments, &fakeLocks{}, 3)
		require.Equal(t, Summary{Posted: 1}, summary)
	})
}

func TestUnknownOutcomeOfAPostingIsNotRepeated(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		payments := &fakePayments{payouts: pending(1, time.Now()), postErr: fmt.Errorf("%w: cut off", errUnknown)}
		summary, _ := inRun(t, payments, &fakeLocks{}, 5)
		require.Equal(t, Summary{Ambiguous: 1}, summary)
		require.Equal(t, []string{"claim p0", "submit p0", "post p0"}, payments.writes)
	})
}
