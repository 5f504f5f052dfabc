package executor

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"fenceline/internal/sendonce"
	"fenceline/lockd/lock"
	"fenceline/paysvc/payapi"
	"fenceline/paysvc/payout"
	"fenceline/paysvc/railproxy/railapi"
)

func TestWhatIsLeftToDoFollowsFromStateAndRecordAlone(t *testing.T) {
	t.Parallel()
	all := []Step{StepClaim, StepSubmit, StepPost}
	post := []Step{StepPost}
	for _, c := range []struct {
		state   payout.State
		attempt string // outcome of the submission on record; "none" when there is none
		steps   []Step
		outcome Outcome
	}{
		{payout.Pending, "none", all, ""},
		{payout.Pending, "ACKED", nil, Ambiguous},
		{payout.Pending, "", nil, Ambiguous},
		{payout.Claimed, "none", all, ""},
		{payout.Claimed, "ACKED", post, ""},
		{payout.Claimed, "REJECTED", nil, Ambiguous},
		{payout.Claimed, "TIMEOUT", nil, Ambiguous},
		{payout.Claimed, "", nil, Ambiguous},
		{payout.RailSubmitted, "none", nil, Ambiguous},
		{payout.RailSubmitted, "", nil, Ambiguous},
		{payout.RailSubmitted, "TIMEOUT", nil, Ambiguous},
		{payout.RailSubmitted, "ACKED", post, ""},
		{payout.RailAcked, "ACKED", post, ""},
		{payout.RailAcked, "none", nil, Ambiguous},
		{payout.RailAmbiguous, "TIMEOUT", nil, Ambiguous},
		{payout.RailAmbiguous, "ACKED", nil, Ambiguous},
		{payout.Posted, "ACKED", nil, Posted},
		{payout.Failed, "REJECTED", nil, Failed},
		{payout.Failed, "none", nil, Failed},
		{payout.Abandoned, "none", nil, Abandoned},
		{payout.State("NEW_STATE"), "none", nil, Ambiguous},
	} {
		var attempt *payapi.Submission
		if c.attempt != "none" {
			attempt = &payapi.Submission{Outcome: c.attempt}
		}
		got := next(c.state, attempt)
		name := fmt.Sprintf("%s with %q", c.state, c.attempt)
		require.Equal(t, c.steps, got.steps, name)
		require.Equal(t, c.outcome, got.outcome, name)
		if attempt != nil {
			require.NotContains(t, got.steps, StepSubmit, "%s: never submitted again", name)
		}
	}
}

func TestFencedSubmissionsWereNeverPresented(t *testing.T) {
	t.Parallel()
	record := func(id, outcome string) railapi.Record {
		return railapi.Record{Submission: payapi.Submission{SubmissionID: id, Outcome: outcome}}
	}
	require.Nil(t, attemptOf(railapi.List{}))
	require.Nil(t, attemptOf(railapi.List{Submissions: []railapi.Record{record("1", "FENCED"), record("2", "FENCED")}}))
	require.Equal(t, "2", attemptOf(railapi.List{Submissions: []railapi.Record{record("1", "FENCED"), record("2", "ACKED")}}).SubmissionID)
	require.Equal(t, "1", attemptOf(railapi.List{Submissions: []railapi.Record{record("1", "")}}).SubmissionID)
}

func TestRefusalIsTakenAsNoEffectOnlyWhereItSaysSo(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status     int
		body       string
		step       Step
		expected   payout.State
		wantResult Outcome
	}{
		{409, `{"code":"FENCED_OUT"}`, StepSubmit, payout.Pending, FencedOut},
		{422, `{"code":"INSUFFICIENT_FUNDS"}`, StepClaim, payout.Pending, Failed},
		{422, `{"code":"INSUFFICIENT_FUNDS"}`, StepClaim, payout.Claimed, Aborted},
		{422, `{"code":"INSUFFICIENT_FUNDS"}`, StepPost, payout.Pending, Aborted},
		{422, `{"code":"RAIL_REJECTED"}`, StepSubmit, payout.Claimed, Failed},
		{409, `{"code":"PAYOUT_NOT_CLAIMABLE"}`, StepClaim, payout.Pending, Aborted},
		{409, `{"code":"DUPLICATE_SUBMISSION"}`, StepSubmit, payout.Pending, Aborted},
		{400, `{"code":"INVALID_TOKEN"}`, StepClaim, payout.Pending, Aborted},
		{409, `{"code":"RAIL_AMBIGUOUS"}`, StepSubmit, payout.Pending, Ambiguous},
		{408, `{"code":"REQUEST_TIMEOUT"}`, StepSubmit, payout.Pending, Ambiguous},
		{503, `{"code":"OUTCOME_UNKNOWN"}`, StepPost, payout.Pending, Ambiguous},
		{500, `{"code":"POSTING_INCOMPLETE"}`, StepPost, payout.Pending, Ambiguous},
		{500, `{"code":"INTERNAL"}`, StepPost, payout.Pending, Ambiguous},
		{503, `{"code":"STORE_UNAVAILABLE"}`, StepClaim, payout.Pending, Aborted},
		{503, `{"code":"RAIL_UNAVAILABLE"}`, StepSubmit, payout.Pending, Aborted},
		{503, `{"code":"FENCE_UNAVAILABLE"}`, StepSubmit, payout.Pending, Aborted},
		{503, `{"code":"FENCE_BUSY"}`, StepSubmit, payout.Pending, Aborted},
		{502, `{"code":"UPSTREAM_FAILED","details":{"outcome":"not_sent"}}`, StepSubmit, payout.Pending, Aborted},
		{502, `{"code":"UPSTREAM_FAILED","details":{"outcome":"unknown"}}`, StepSubmit, payout.Pending, Ambiguous},
		{504, `{"code":"UPSTREAM_TIMEOUT","details":{"outcome":"unknown"}}`, StepPost, payout.Pending, Ambiguous},
		{504, `{"code":"UPSTREAM_TIMEOUT"}`, StepPost, payout.Pending, Ambiguous},
		{503, `{"code":"SOMETHING_NEW"}`, StepPost, payout.Pending, Ambiguous},
		{404, `<html>not found</html>`, StepPost, payout.Pending, Ambiguous},
		{302, ``, StepPost, payout.Pending, Ambiguous},
		{202, `{}`, StepPost, payout.Pending, Ambiguous},
		{200, `fine`, StepPost, payout.Pending, Ambiguous},
	} {
		base, _ := rawServer(t, httpAnswer(c.status, c.body), false)
		client, err := NewClient("resource", base, ioTimeout)
		require.NoError(t, err)
		var into payapi.Posting
		err = client.write(t.Context(), "/v1/x", testWrite(), struct{}{}, &into)
		require.Error(t, err)
		got, refusal := outcomeOf(c.step, c.expected, err)
		require.Equal(t, c.wantResult, got, "%d %s at %s", c.status, c.body, c.step)
		if strings.HasPrefix(c.body, `{"code"`) {
			require.NotNil(t, refusal)
			require.Contains(t, c.body, refusal.Code)
		}
	}
}

func TestFencedOutTellsGuardAndBothTokens(t *testing.T) {
	t.Parallel()
	refusal, err := parseRefusal(sendonce.Answer{Status: 409, Body: []byte(`{"code":"FENCED_OUT","message":"stale",
		"details":{"presentedToken":9007199254740993,"highestToken":"9223372036854775807","resourceType":"rail","resourceId":"a","ownerId":"w"}}`)})
	require.NoError(t, err)
	require.Equal(t, &Refusal{
		Status: 409, Code: "FENCED_OUT", Message: "stale", Resource: "rail", PresentedToken: 9007199254740993, HighestToken: 9223372036854775807,
	}, refusal)
}

func TestLostLockIsNotAFaultOfTheLockService(t *testing.T) {
	t.Parallel()
	got, _ := outcomeOf(StepClaim, payout.Pending, fmt.Errorf("check the lock: %w", lock.ErrLockLost))
	require.Equal(t, LockLost, got)
	got, _ = outcomeOf(StepClaim, payout.Pending, errors.New("check the lock: no answer"))
	require.Equal(t, Aborted, got)
}

func TestExitCodeIsTheMostSeriousOutcome(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		summary Summary
		want    int
	}{
		{Summary{}, ExitDone},
		{Summary{Posted: 3, Failed: 1, Abandoned: 1}, ExitDone},
		{Summary{Posted: 1, Skipped: 1}, ExitDone},
		{Summary{Skipped: 2}, ExitNotAcquired},
		{Summary{Posted: 1, Aborted: 1}, ExitError},
		{Summary{Aborted: 1, LockLost: 1}, ExitLockLost},
		{Summary{LockLost: 1, FencedOut: 1}, ExitFencedOut},
		{Summary{FencedOut: 1, Ambiguous: 1}, ExitAmbiguous},
	} {
		require.Equal(t, c.want, c.summary.ExitCode(), "%v", c.summary)
	}
}

func TestPauseHookNamesAStepWithARequest(t *testing.T) {
	t.Parallel()
	for _, step := range []Step{StepClaim, StepSubmit, StepPost} {
		got, err := ParsePause(string(step) + "=stdin")
		require.NoError(t, err)
		require.Equal(t, step, got)
	}
	for _, bad := range []string{"", "submit", "submit=", "submit=file", "acquire=stdin", "read=stdin", "Submit=stdin", "=stdin"} {
		_, err := ParsePause(bad)
		require.Error(t, err, bad)
	}
}

func TestPauseGoesOnWithALineAndNotAtTheEndOfInput(t *testing.T) {
	t.Parallel()
	logged := &bytes.Buffer{}
	logger := hclog.New(&hclog.LoggerOptions{Output: logged, JSONFormat: true})
	reader, writer := io.Pipe()
	p := newPauser(StepSubmit, reader, logger)
	require.NoError(t, p.at(t.Context(), StepClaim, "p", 7), "another step")
	done := make(chan error, 1)
	go func() { done <- p.at(t.Context(), StepSubmit, "p", 7) }()
	_, err := writer.Write([]byte("go\n"))
	require.NoError(t, err)
	require.NoError(t, <-done)
	for _, field := range []string{`"event":"pause_point"`, `"step":"submit"`, `"payoutId":"p"`, `"token":7`, `"pid":`} {
		require.Contains(t, logged.String(), field)
	}
	require.NoError(t, writer.Close())
	require.ErrorContains(t, p.at(t.Context(), StepSubmit, "p", 7), "ended before a line")
}
