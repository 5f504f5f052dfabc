package executor_test

import (
	"context"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fenceline/paysvc/executor"
)

// The whole system is started once; each scenario has an account of its own, and all run side by side.
func TestExecutorAsARealProcess(t *testing.T) {
	t.Parallel()
	s := startSystem(t)
	for name, scenario := range map[string]func(*testing.T, *system){
		"pending payout ends posted":                                  pendingPayoutEndsPosted,
		"finished payout is left alone":                               finishedPayoutIsLeftAlone,
		"backlog of an account is worked off":                         backlogIsWorkedOff,
		"without once it works until it is told to stop":              worksUntilToldToStop,
		"contended lock is skipped":                                   contendedLockIsSkipped,
		"missing funds fail the payout":                               missingFundsFailThePayout,
		"decline of the rail fails the payout":                        declineFailsThePayout,
		"lost answer of the rail is never submitted again":            func(t *testing.T, s *system) { t.Helper(); lostAnswerIsNotRepeated(t, s, "lost", 1) },
		"dropped submission is never submitted again":                 func(t *testing.T, s *system) { t.Helper(); lostAnswerIsNotRepeated(t, s, "drop", 0) },
		"worker that wakes after its lease doesn't submit":            sleeperNoticesItsLoss("submit"),
		"worker that wakes after its lease doesn't post":              sleeperNoticesItsLoss("post"),
		"without lock check and sidecar a stale submit pays twice":    staleSubmitPaysTwice,
		"sidecar fences a stale submit out":                           sidecarFencesOut("submit", "rail"),
		"sidecar fences a stale post out":                             sidecarFencesOut("post", "account"),
		"killed before its submit, another worker starts over":        laterHolderRecovers("submit"),
		"killed before its post, another worker posts only":           laterHolderRecovers("post"),
		"lock service gone before the submit, nothing is submitted":   lockServiceGone,
		"end of input at a pause point sends nothing":                 endOfInputSendsNothing,
		"payment-resource that is down is an error and nothing moves": resourceDown,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			scenario(t, s)
		})
	}
}

func pendingPayoutEndsPosted(t *testing.T, s *system) {
	t.Helper()
	account := s.account(t, 10000)
	id := s.payout(t, account)
	e := s.ends(t, s.worker(t, "plain", "--once", "--payout", id), executor.ExitDone)
	require.Equal(t, "posted", e.Text("outcome"))
	require.Equal(t, id, e.Text("payoutId"))
	require.Positive(t, e.Int("token"))
	require.Equal(t, posted(7500), s.truth(t, id))
	require.False(t, s.held(t, account), "the lock is given back")
}

func finishedPayoutIsLeftAlone(t *testing.T, s *system) {
	t.Helper()
	id := s.payout(t, s.account(t, 10000))
	s.ends(t, s.worker(t, "first", "--once", "--payout", id), executor.ExitDone)
	e := s.ends(t, s.worker(t, "second", "--once", "--payout", id), executor.ExitDone)
	require.Equal(t, "posted", e.Text("outcome"))
	require.Equal(t, "read", e.Text("step"))
	require.Equal(t, posted(7500), s.truth(t, id))
}

func backlogIsWorkedOff(t *testing.T, s *system) {
	t.Helper()
	account, other := s.account(t, 10000), s.payout(t, s.account(t, 10000))
	ids := []string{s.payout(t, account), s.payout(t, account), s.payout(t, account)}
	p := s.worker(t, "backlog", "--once", "--account", account)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	code, err := p.Wait(ctx)
	require.NoError(t, err)
	require.Equal(t, executor.ExitDone, code, p.Tail())
	require.Len(t, p.Events("payout_outcome"), 3)
	for _, id := range ids {
		require.Equal(t, posted(2500), s.truth(t, id))
	}
	require.Equal(t, "PENDING", s.truth(t, other).State, "another account's")
}

func worksUntilToldToStop(t *testing.T, s *system) {
	t.Helper()
	account := s.account(t, 10000)
	first := s.payout(t, account)
	p := s.worker(t, "forever", "--account", account, "--poll-interval", "50ms", "--admin-listen", "127.0.0.1:0")
	state := func(id string) func() bool { return func() bool { return s.truth(t, id).State == "POSTED" } }
	require.Eventually(t, state(first), patience, 20*time.Millisecond)
	second := s.payout(t, account)
	require.Eventually(t, state(second), patience, 20*time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	admin, err := p.Address(ctx, "admin")
	require.NoError(t, err)
	// The table shows the posting a moment before its answer has reached the executor.
	require.Eventually(t, func() bool {
		return strings.Contains(get(t, "http://"+admin+"/metrics"), `payout_execute_seconds_count{outcome="posted"} 2`)
	}, patience, 20*time.Millisecond)
	require.Contains(t, get(t, "http://"+admin+"/metrics"), "payout_backlog_age_seconds")
	require.NoError(t, p.Stop(ctx))
	require.Equal(t, executor.ExitDone, p.ExitCode())
	require.Equal(t, posted(5000), s.truth(t, second))
}

func contendedLockIsSkipped(t *testing.T, s *system) {
	t.Helper()
	account := s.account(t, 10000)
	id := s.payout(t, account)
	holder := s.worker(t, "holder", "--once", "--payout", id, "--pause-before", "claim=stdin")
	s.paused(t, holder, "claim")
	e := s.ends(t, s.worker(t, "late", "--once", "--payout", id, "--acquire-wait", "100ms"), executor.ExitNotAcquired)
	require.Equal(t, "skipped", e.Text("outcome"))
	require.Equal(t, "acquire", e.Text("step"))
	require.Equal(t, "PENDING", s.truth(t, id).State)
	require.NoError(t, holder.Type("go"))
	s.ends(t, holder, executor.ExitDone)
	require.Equal(t, posted(7500), s.truth(t, id))
}

func missingFundsFailThePayout(t *testing.T, s *system) {
	t.Helper()
	id := s.payout(t, s.account(t, 2499))
	e := s.ends(t, s.worker(t, "poor", "--once", "--payout", id), executor.ExitDone)
	require.Equal(t, "failed", e.Text("outcome"))
	require.Equal(t, "claim", e.Text("step"))
	require.Equal(t, "INSUFFICIENT_FUNDS", e.Text("code"))
	require.Equal(t, truth{State: "FAILED", Balance: 2499}, s.truth(t, id))
}

func declineFailsThePayout(t *testing.T, s *system) {
	t.Helper()
	id := faultyPayout("decline")
	s.insertPayout(t, id, s.account(t, 10000))
	e := s.ends(t, s.worker(t, "declined", "--once", "--payout", id), executor.ExitDone)
	require.Equal(t, "failed", e.Text("outcome"))
	require.Equal(t, "RAIL_REJECTED", e.Text("code"))
	require.Equal(t, truth{State: "FAILED", Balance: 10000}, s.truth(t, id))
}

func lostAnswerIsNotRepeated(t *testing.T, s *system, kind string, transfers int) {
	t.Helper()
	id := faultyPayout(kind)
	s.insertPayout(t, id, s.account(t, 10000))
	want := truth{State: "RAIL_AMBIGUOUS", Transfers: transfers, Balance: 10000}
	e := s.ends(t, s.worker(t, kind+"-1", "--once", "--payout", id), executor.ExitAmbiguous)
	require.Equal(t, "ambiguous", e.Text("outcome"))
	require.Equal(t, "submit", e.Text("step"))
	require.Equal(t, "RAIL_AMBIGUOUS", e.Text("code"))
	require.Equal(t, want, s.truth(t, id))
	e = s.ends(t, s.worker(t, kind+"-2", "--once", "--payout", id), executor.ExitAmbiguous)
	require.Equal(t, "read", e.Text("step"))
	require.Equal(t, want, s.truth(t, id))
}

func sleeperNoticesItsLoss(step string) func(*testing.T, *system) {
	return func(t *testing.T, s *system) {
		t.Helper()
		account := s.account(t, 10000)
		id := s.payout(t, account)
		a := s.worker(t, "sleeper-"+step, "--once", "--payout", id, "--pause-before", step+"=stdin")
		s.paused(t, a, step)
		s.freeze(t, a, account)
		require.NoError(t, a.Type("go"))
		s.ends(t, s.worker(t, "heir-"+step, "--once", "--payout", id), executor.ExitDone)
		require.NoError(t, a.Resume())
		e := s.ends(t, a, executor.ExitLockLost)
		require.Equal(t, "lock_lost", e.Text("outcome"))
		require.Equal(t, step, e.Text("step"))
		require.Equal(t, posted(7500), s.truth(t, id))
	}
}

// The control for what follows: nothing but the sidecar keeps this from happening.
func staleSubmitPaysTwice(t *testing.T, s *system) {
	t.Helper()
	account := s.account(t, 10000)
	id := s.payout(t, account)
	a := s.worker(t, "blind", "--once", "--payout", id, "--pause-before", "submit=stdin", "--skip-lock-check")
	s.paused(t, a, "submit")
	require.Len(t, a.Events("lock_check_skipped"), 1, "said loudly at the start")
	s.freeze(t, a, account)
	require.NoError(t, a.Type("go"))
	s.ends(t, s.worker(t, "blind-heir", "--once", "--payout", id), executor.ExitDone)
	require.NoError(t, a.Resume())
	s.ends(t, a, executor.ExitDone)
	require.Equal(t, 2, s.truth(t, id).Transfers)
}

func sidecarFencesOut(step, guard string) func(*testing.T, *system) {
	return func(t *testing.T, s *system) {
		t.Helper()
		account := s.account(t, 10000)
		id := s.payout(t, account)
		flags := []string{"--once", "--payout", id, "--resource", s.guardedAccount, "--rail-proxy", s.guardedRail}
		a := s.worker(t, "fenced-"+step, append(flags, "--pause-before", step+"=stdin", "--skip-lock-check")...)
		old := s.paused(t, a, step).Int("token")
		s.freeze(t, a, account)
		require.NoError(t, a.Type("go"))
		b := s.ends(t, s.worker(t, "fenced-heir-"+step, flags...), executor.ExitDone)
		require.NoError(t, a.Resume())
		e := s.ends(t, a, executor.ExitFencedOut)
		require.Equal(t, "fenced_out", e.Text("outcome"))
		require.Equal(t, "FENCED_OUT", e.Text("code"))
		require.Equal(t, step, e.Text("step"))
		require.Equal(t, guard, e.Text("resource"))
		require.Equal(t, old, e.Int("presentedToken"))
		require.Equal(t, b.Int("token"), e.Int("highestToken"))
		require.Equal(t, posted(7500), s.truth(t, id))
	}
}

func laterHolderRecovers(step string) func(*testing.T, *system) {
	return func(t *testing.T, s *system) {
		t.Helper()
		account := s.account(t, 10000)
		id := s.payout(t, account)
		a := s.worker(t, "victim-"+step, "--once", "--payout", id, "--pause-before", step+"=stdin")
		s.paused(t, a, step)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		require.NoError(t, a.Kill(ctx))
		s.untilFree(t, account)
		e := s.ends(t, s.worker(t, "survivor-"+step, "--once", "--payout", id), executor.ExitDone)
		require.Equal(t, "posted", e.Text("outcome"))
		require.Equal(t, posted(7500), s.truth(t, id))
	}
}

func lockServiceGone(t *testing.T, s *system) {
	t.Helper()
	id := s.payout(t, s.account(t, 10000))
	lockd, p := s.daemon(t, "second-lockd", "lockd", []string{"serve"}, "LOCKD_DATABASE_URL="+s.lockdURL)
	a := s.worker(t, "orphan", "--once", "--payout", id, "--lockd", lockd, "--lock-ttl", "60s", "--pause-before", "claim=stdin")
	s.paused(t, a, "claim")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, p.Kill(ctx))
	require.NoError(t, a.Type("go"))
	e := s.ends(t, a, executor.ExitError)
	require.Equal(t, "aborted", e.Text("outcome"), "not knowing isn't having lost")
	require.Equal(t, "submit", e.Text("step"))
	require.Equal(t, truth{State: "CLAIMED", Balance: 10000}, s.truth(t, id))
}

func endOfInputSendsNothing(t *testing.T, s *system) {
	t.Helper()
	id := s.payout(t, s.account(t, 10000))
	command := exec.CommandContext(t.Context(), filepath.Join(s.bin, "paysvc"), "executor", "--owner", "eof", "--once", "--payout", id,
		"--lockd", s.lockd, "--resource", s.resource, "--rail-proxy", s.rail, "--pause-before", "claim=stdin")
	out, err := command.CombinedOutput() // standard input is /dev/null
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, executor.ExitError, exit.ExitCode())
	require.Contains(t, string(out), "ended before a line")
	require.Equal(t, "PENDING", s.truth(t, id).State)
}

func resourceDown(t *testing.T, s *system) {
	t.Helper()
	id := s.payout(t, s.account(t, 10000))
	p := s.worker(t, "alone", "--once", "--payout", id, "--resource", "http://127.0.0.1:1")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	code, err := p.Wait(ctx)
	require.NoError(t, err)
	require.Equal(t, executor.ExitError, code)
	require.Contains(t, p.Tail(), "connection refused")
	require.Equal(t, "PENDING", s.truth(t, id).State)
}

func get(t *testing.T, url string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return string(body)
}
