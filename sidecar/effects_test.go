package main

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/migrations"
)

// effectsText is configText with an order of effects, and short times.
func effectsText(id, unsettled string) string {
	return strings.NewReplacer(
		"id: test", "id: "+id,
		"response_timeout: 10s", "connect_timeout: 500ms, response_timeout: 2s",
		"    order: admissions\n", "    order: effects\n    unsettled: { "+unsettled+" }\n",
	).Replace(configText) + "limits: { wait: 3s }\n"
}

// slowResource takes effect late: a request with a token that is held back stands still, before it does anything, until it is let go.
type slowResource struct {
	mu      sync.Mutex
	held    map[string]chan struct{}
	arrived map[string]chan struct{}
	effects []string
}

func newSlowResource(hold ...string) *slowResource {
	r := &slowResource{held: map[string]chan struct{}{}, arrived: map[string]chan struct{}{}}
	for _, token := range hold {
		r.held[token], r.arrived[token] = make(chan struct{}), make(chan struct{})
	}
	return r
}

func (r *slowResource) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	token := request.Header.Get("X-Fencing-Token")
	if gate := r.held[token]; gate != nil {
		close(r.arrived[token])
		<-gate
	}
	r.mu.Lock()
	r.effects = append(r.effects, token)
	r.mu.Unlock()
	_, _ = io.WriteString(w, "done")
}

func (r *slowResource) done() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.effects...)
}

// pair is two sidecars before one resource on one database.
type pair struct {
	one, two *sidecar
	resource *slowResource
	files    [2]string
	env      map[string]string
	database string
}

func startPair(t *testing.T, resource *slowResource, configs ...string) *pair {
	t.Helper()
	return startPairBefore(t, resource, resource, configs...)
}

func startPairBefore(t *testing.T, resource *slowResource, handler http.Handler, configs ...string) *pair {
	t.Helper()
	database := pgtest.Database(t, migrations.PayDB(), migrations.Fence())
	login, account := prepare(t, database)
	p := &pair{resource: resource, env: map[string]string{"PAYDB_URL": login, "UPSTREAM": upstreamOf(t, handler)}, database: database}
	for i, text := range configs {
		p.files[i] = write(t, text)
		s := &sidecar{Process: spawn(t, p.env, "run", "-c", p.files[i]), account: account, database: database}
		s.listening(t)
		s.eventually(t, "it is ready", func() bool { return s.ready(t) })
		if i == 0 {
			p.one = s
		} else {
			p.two = s
		}
	}
	return p
}

func upstreamOf(t *testing.T, handler http.Handler) string {
	t.Helper()
	return resource(t, handler.ServeHTTP)
}

// writeLater sends a request that isn't answered soon.
func (s *sidecar) writeLater(t *testing.T, token string) <-chan int {
	t.Helper()
	status := make(chan int, 1)
	go func() {
		got, _ := s.write(t, token)
		status <- got
	}()
	return status
}

// waits says whether a request with this token is registered and held back.
func (s *sidecar) waits(t *testing.T, token string) bool {
	t.Helper()
	_, body := s.adminPage(t, "/inflight")
	return strings.Contains(body, `"token":`+token+`,`) || strings.Contains(body, `"token":`+token+`}`)
}

// The claim of the product: an old request that stands still inside the resource takes effect before a newer one is forwarded, also behind another sidecar. With
// order: admissions it takes effect last.
func TestOlderRequestTakesEffectBeforeANewerOneIsForwarded(t *testing.T) {
	t.Parallel()
	resource := newSlowResource("5")
	p := startPair(t, resource, effectsText("one", "then: hold"), effectsText("two", "then: hold"))
	old := p.one.writeLater(t, "5")
	<-resource.arrived["5"]
	next := p.two.writeLater(t, "6")
	p.two.eventually(t, "6 is registered", func() bool { return p.two.waits(t, "6") })
	status, body := p.one.write(t, "4")
	require.Equal(t, http.StatusConflict, status, body)
	require.Empty(t, resource.done(), "nothing went past the one that stands still")
	close(resource.held["5"])
	require.Equal(t, http.StatusOK, <-old)
	require.Equal(t, http.StatusOK, <-next)
	require.Equal(t, []string{"5", "6"}, resource.done())
}

// What the test above would see without the order of effects.
func TestOlderRequestTakesEffectLastWhereOnlyAdmissionsAreOrdered(t *testing.T) {
	t.Parallel()
	resource := newSlowResource("5")
	p := startPair(t, resource, strings.Replace(configText, "id: test", "id: one", 1), strings.Replace(configText, "id: test", "id: two", 1))
	old := p.one.writeLater(t, "5")
	<-resource.arrived["5"]
	status, body := p.two.write(t, "6")
	require.Equal(t, http.StatusOK, status, body)
	close(resource.held["5"])
	require.Equal(t, http.StatusOK, <-old)
	require.Equal(t, []string{"6", "5"}, resource.done())
}

func TestRequestOfAKilledSidecarBlocksUntilAnOperatorSettlesIt(t *testing.T) {
	t.Parallel()
	resource := newSlowResource("5")
	p := startPair(t, resource, effectsText("one", "then: hold"), effectsText("two", "then: hold"))
	p.one.writeLater(t, "5")
	<-resource.arrived["5"]
	require.NoError(t, p.one.Kill(t.Context()))
	status, body := p.two.write(t, "6")
	require.Equal(t, http.StatusServiceUnavailable, status, body)
	require.Contains(t, body, "FENCE_BUSY")
	var row string
	p.two.eventually(t, "the killed one's request is called unsettled", func() bool {
		_, output := run(t, p.env, "inflight", "-c", p.files[1])
		for line := range strings.Lines(output) {
			if fields := strings.Fields(line); len(fields) == 8 && fields[3] == "5" && fields[7] != "-" {
				row = fields[0]
			}
		}
		return row != ""
	})
	status, body = p.two.write(t, "6")
	require.Equal(t, http.StatusServiceUnavailable, status, "time alone settles nothing: %s", body)
	require.Empty(t, resource.done())
	close(resource.held["5"]) // the resource comes to its end, and the operator sees that
	require.Eventually(t, func() bool { return len(resource.done()) == 1 }, patience, time.Millisecond)
	code, output := run(t, p.env, "settle", "-c", p.files[1], "--row", row, "--operator", "carol", "--reason", "the resource's log shows its end")
	require.Equal(t, 0, code, output)
	status, body = p.two.write(t, "7")
	require.Equal(t, http.StatusOK, status, body)
	require.Equal(t, []string{"5", "7"}, resource.done())
}

func TestRequestOfAKilledSidecarIsReleasedByTimeWhereTheGuardSaysSo(t *testing.T) {
	t.Parallel()
	resource := newSlowResource("5")
	release := "then: release, after: 7s"
	p := startPair(t, resource, effectsText("one", release), effectsText("two", release))
	p.one.writeLater(t, "5")
	<-resource.arrived["5"]
	killed := time.Now()
	require.NoError(t, p.one.Kill(t.Context()))
	close(resource.held["5"])
	p.two.eventually(t, "the key is free again", func() bool {
		status, _ := p.two.write(t, "6")
		return status == http.StatusOK
	})
	require.Greater(t, time.Since(killed), 7*time.Second)
	require.Equal(t, []string{"5", "6"}, resource.done())
}

func TestLateResponseSettlesARequestWhoseOutcomeWasUnknown(t *testing.T) {
	t.Parallel()
	resource := newSlowResource("5")
	p := startPair(t, resource, effectsText("one", "then: hold"), effectsText("two", "then: hold"))
	status, body := p.one.write(t, "5")
	require.Equal(t, http.StatusGatewayTimeout, status, body)
	require.Contains(t, body, `"outcome":"unknown"`)
	status, body = p.two.write(t, "6")
	require.Equal(t, http.StatusServiceUnavailable, status, body)
	require.Contains(t, body, "FENCE_BUSY")
	close(resource.held["5"])
	p.two.eventually(t, "the late response lets newer ones go on", func() bool {
		status, _ := p.two.write(t, "6")
		return status == http.StatusOK
	})
	require.Equal(t, []string{"5", "6"}, resource.done())
	p.one.eventually(t, "it says so", func() bool { return len(p.one.Events("request_settled")) > 0 })
}

// Whoever reads past the barrier reads what older requests have left, and nothing older comes after.
func TestBarrierWaitsForOlderRequestsAndKeepsThemOut(t *testing.T) {
	t.Parallel()
	resource := newSlowResource("5")
	p := startPair(t, resource, effectsText("one", "then: hold"), effectsText("two", "then: hold"))
	barrier := func(s *sidecar, token string) (int, string) {
		return ask(t, http.MethodPost, "http://"+s.api+"/.fence/barrier?guard=account&key="+s.account, token)
	}
	p.one.writeLater(t, "5")
	<-resource.arrived["5"]
	passed := make(chan int, 1)
	go func() {
		status, _ := barrier(p.two, "6")
		passed <- status
	}()
	p.two.eventually(t, "the barrier is registered", func() bool { return p.two.waits(t, "6") })
	require.Empty(t, resource.done())
	close(resource.held["5"])
	require.Equal(t, http.StatusNoContent, <-passed)
	require.Equal(t, []string{"5"}, resource.done(), "the barrier itself forwards nothing")
	status, body := p.one.write(t, "5")
	require.Equal(t, http.StatusConflict, status, body)
	status, body = barrier(p.one, "5")
	require.Equal(t, http.StatusConflict, status, body)
	status, body = p.one.write(t, "6")
	require.Equal(t, http.StatusOK, status, body)
	for query, want := range map[string]int{
		"": http.StatusBadRequest, "?guard=account": http.StatusBadRequest, "?guard=none&key=1": http.StatusForbidden, "?guard=account&key=1": http.StatusBadRequest,
		"?guard=account&key=" + p.one.account + "&key=" + p.one.account: http.StatusBadRequest,
	} {
		status, body = ask(t, http.MethodPost, "http://"+p.one.api+"/.fence/barrier"+query, "7")
		require.Equal(t, want, status, query+body)
	}
	status, _ = ask(t, http.MethodGet, "http://"+p.one.api+"/.fence/barrier?guard=account&key="+p.one.account, "7")
	require.Equal(t, http.StatusMethodNotAllowed, status)
	status, _ = barrier(p.one, "")
	require.Equal(t, http.StatusBadRequest, status)
}

// A sidecar is stopped while a request of its waits, for so long that it is declared dead. What was in the way ends meanwhile, and an operator settles what the dead one
// left. When it goes on it must not send that request: for everybody else it is over.
func TestSidecarThatWasStoppedForLongSendsNothingMore(t *testing.T) {
	t.Parallel()
	resource := newSlowResource("5")
	patient := strings.Replace(effectsText("two", "then: hold"), "wait: 3s", "wait: 30s", 1)
	p := startPair(t, resource, effectsText("one", "then: hold"), patient)
	old := p.one.writeLater(t, "5")
	<-resource.arrived["5"]
	next := p.two.writeLater(t, "6")
	p.one.eventually(t, "6 is registered", func() bool { return p.one.waits(t, "6") })
	require.NoError(t, p.two.Suspend(t.Context()))
	var row string
	p.one.eventually(t, "the stopped one is declared dead", func() bool {
		err := pgtest.Connect(t, p.database).QueryRow(t.Context(), "SELECT id::text FROM fence.inflight WHERE token = 6 AND unsettled_at IS NOT NULL").Scan(&row)
		return err == nil
	})
	close(resource.held["5"])
	<-old // whatever it was told: the response time may be over
	require.Eventually(t, func() bool { return len(resource.done()) == 1 }, patience, time.Millisecond)
	code, output := run(t, p.env, "settle", "-c", p.files[0], "--row", row, "--operator", "carol", "--reason", "its sidecar never sent it")
	require.Equal(t, 0, code, output)
	p.one.eventually(t, "newer ones go on", func() bool {
		status, _ := p.one.write(t, "7")
		return status == http.StatusOK
	})
	require.NoError(t, p.two.Resume())
	require.NotEqual(t, http.StatusOK, <-next)
	require.Equal(t, []string{"5", "7"}, resource.done())
	p.two.eventually(t, "it has a new life", func() bool {
		status, _ := p.two.write(t, "8")
		return status == http.StatusOK
	})
	require.NotEmpty(t, p.two.Events("life_missing"))
}
