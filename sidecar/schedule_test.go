package main

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fenceline/internal/faultnet"
	"fenceline/internal/pgserver/pgtest"
	"fenceline/migrations"
)

// The schedules of the model check on a real store: between each two steps of a request's life its sidecar is killed, or loses the database, or is stopped until others call it
// dead. What another sidecar's requests meet before and afterwards must be what the step says, and the resource must have seen everything in order.

// moment is between two steps of the life of the request with token 5.
type moment struct {
	name string
	// At the store: the message before which the pipeline stands still; or behind which answers are lost.
	before, behind func(faultnet.Message) bool
	blocked        bool        // the resource holds the mark's row meanwhile
	inside         insideStage // where in the resource the request stands still
	// What is so at this moment, if everything that the server was sent is done.
	registered, forwarded, settled bool
}

type insideStage int

const (
	arrived insideStage = iota + 1 // its head is there
	halfAnswered
)

func sends(text string) func(faultnet.Message) bool {
	return func(m faultnet.Message) bool { return m.Kind == 'P' && strings.Contains(m.Sent[len(m.Sent)-1], text) }
}

func commits(text string) func(faultnet.Message) bool {
	return func(m faultnet.Message) bool {
		return m.Kind == 'S' && strings.Contains(strings.Join(m.Sent, "\n"), text)
	}
}

const (
	lockStatement   = "pg_try_advisory_xact_lock(" // before it: nothing is done
	rowsStatement   = "set_config('fence.free'"
	raiseStatement  = "INSERT INTO fence.inflight"
	lookStatement   = "FROM fence.inflight AS f WHERE f.guard"
	aloneStatement  = "(SELECT pg_advisory_xact_lock("
	settleStatement = "DELETE FROM fence.inflight WHERE id = ANY"
)

func moments() []moment {
	return []moment{
		{name: "before the key's lock", before: sends(lockStatement)},
		{name: "locked, before the rows", before: sends(rowsStatement)},
		{name: "before it is raised and registered", before: sends(raiseStatement)},
		{name: "registered, before the look", before: sends(lookStatement)},
		{name: "looked, before the commit", before: commits(lookStatement)},
		{name: "committed, before it knows", behind: commits(lookStatement), registered: true},
		{name: "everything sent, the row is held by the resource", behind: commits(aloneStatement), blocked: true, registered: true},
		{name: "inside the resource", inside: arrived, registered: true, forwarded: true},
		{name: "half of the answer has come", inside: halfAnswered, registered: true, forwarded: true},
		{name: "answered, before it is settled", before: sends(settleStatement), registered: true, forwarded: true},
		{name: "settled, before the commit", before: commits(settleStatement), registered: true, forwarded: true},
		{name: "settled and committed, before it knows", behind: commits(settleStatement), registered: true, forwarded: true, settled: true},
	}
}

// act is what happens to the sidecar at that moment.
type act string

const (
	killed  act = "killed"
	cut     act = "cut off from the store"
	stopped act = "stopped for long"
)

// schedules are all of them, or those in which most can go wrong.
func schedules() []schedule {
	var out []schedule
	for i, m := range moments() {
		for _, a := range []act{killed, cut, stopped} {
			for _, meanwhile := range []bool{false, true} {
				quick := a == killed && (i == 4 || i == 5 || i == 6 || i == 7 || i == 10) || i == 5
				if os.Getenv("FENCELINE_SCHEDULES") == "all" || quick && meanwhile == (i%2 == 0) {
					out = append(out, schedule{moment: m, act: a, meanwhile: meanwhile})
				}
			}
		}
	}
	return out
}

type schedule struct {
	moment
	act       act
	meanwhile bool // 6 arrives at the other sidecar before it happens, else afterwards
}

func (s schedule) String() string {
	return fmt.Sprintf("%s: %s (6 at the same time: %t)", s.name, s.act, s.meanwhile)
}

const pollPause = 20 * time.Millisecond

func scheduleText(id string) string {
	return strings.NewReplacer(
		"id: test", "id: "+id,
		"timeout: 1s }", "timeout: 2s, query_mode: exec, max_conns: 4 }",
		"response_timeout: 10s", "connect_timeout: 500ms, response_timeout: 20s",
		"    order: admissions\n", "    order: effects\n    unsettled: { then: hold }\n",
	).Replace(configText) + "limits: { wait: 1s }\n"
}

// TestKillsAndCutsBetweenEachTwoStepsBreakNothing runs the schedules side by side, each on an account of its own with a victim of its own, and one other sidecar for all.
func TestKillsAndCutsBetweenEachTwoStepsBreakNothing(t *testing.T) {
	t.Parallel()
	stage := newStage(t, scheduleText)
	var wg sync.WaitGroup
	places := make(chan struct{}, 8)
	var mu sync.Mutex
	var failed []string
	all := schedules()
	for i, s := range all {
		wg.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			began := time.Now()
			err := (&play{stage: stage, schedule: s, id: fmt.Sprintf("victim-%d", i)}).run(t)
			mu.Lock()
			defer mu.Unlock()
			t.Logf("%6.1f s  %s", time.Since(began).Seconds(), s)
			if err != nil {
				failed = append(failed, fmt.Sprintf("%s: %v", s, err))
			}
		})
	}
	wg.Wait()
	require.Empty(t, failed)
	require.Empty(t, stage.resource.violations())
	t.Logf("%d schedules", len(all))
}

// Without the order of effects the resource sees what the schedules must never show.
func TestKillWithOrderOfAdmissionsShowsTheResourceAnOlderRequestUnderWay(t *testing.T) {
	t.Parallel()
	stage := newStage(t, func(id string) string {
		return strings.Replace(scheduleText(id), "    order: effects\n    unsettled: { then: hold }\n", "    order: admissions\n", 1)
	})
	login, account := prepare(t, stage.database)
	victim := stage.start(t, "victim", login)
	hold := stage.resource.hold(account, "5", arrived)
	defer hold.release()
	go ask(t, http.MethodPost, "http://"+victim.api+"/accounts/"+account, "5")
	<-hold.reached
	require.NoError(t, victim.Kill(t.Context()))
	status, body := ask(t, http.MethodPost, "http://"+stage.other.api+"/accounts/"+account, "6")
	require.Equal(t, http.StatusOK, status, body)
	require.Equal(t, []string{"account " + account + ": 6 came while 5 was under way"}, stage.resource.violations())
}

// stage is what all schedules share.
type stage struct {
	database, upstream string
	text               func(id string) string
	other              *sidecar
	resource           *orderedResource
}

func newStage(t *testing.T, text func(id string) string) *stage {
	t.Helper()
	s := &stage{text: text, database: pgtest.Database(t, migrations.PayDB(), migrations.Fence()), resource: newOrderedResource()}
	s.upstream = resource(t, s.resource.ServeHTTP)
	login, _ := prepare(t, s.database)
	s.other = s.start(t, "other", login)
	return s
}

func (s *stage) start(t *testing.T, id, login string) *sidecar {
	t.Helper()
	c := &sidecar{Process: spawn(t, map[string]string{"PAYDB_URL": login, "UPSTREAM": s.upstream}, "run", "-c", write(t, s.text(id)))}
	c.listening(t)
	c.eventually(t, "it is ready", func() bool { return c.ready(t) })
	return c
}
