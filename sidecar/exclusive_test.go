package main

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/migrations"
)

// exclusiveText is a configuration whose guard one sidecar serves alone.
func exclusiveText(id string) string {
	return strings.Replace(effectsText(id, "then: release, after: 7s"), "order: effects\n", "order: effects\n    ownership: exclusive\n", 1)
}

// startOwner starts the first sidecar and then the second, which stands by.
func startOwner(t *testing.T, resource *slowResource) *pair {
	t.Helper()
	database := pgtest.Database(t, migrations.PayDB(), migrations.Fence())
	login, account := prepare(t, database)
	p := &pair{resource: resource, env: map[string]string{"PAYDB_URL": login, "UPSTREAM": upstreamOf(t, resource)}, database: database}
	start := func(id string) *sidecar {
		s := &sidecar{Process: spawn(t, p.env, "run", "-c", write(t, exclusiveText(id))), account: account, database: database}
		s.listening(t)
		return s
	}
	p.one = start("one")
	p.one.eventually(t, "it owns the guard", func() bool { return p.one.ready(t) })
	p.two = start("two")
	p.two.eventually(t, "it stands by", func() bool { return len(p.two.Events("guard_standby")) == 1 })
	return p
}

func TestStandbyIsNotReadyAndForwardsNothing(t *testing.T) {
	t.Parallel()
	resource := newSlowResource()
	p := startOwner(t, resource)
	status, body := p.two.adminPage(t, "/readyz")
	require.Equal(t, http.StatusServiceUnavailable, status, body)
	require.Contains(t, body, "is served by one")
	status, body = p.two.write(t, "5")
	require.Equal(t, http.StatusServiceUnavailable, status, body)
	require.Contains(t, body, "FENCE_UNAVAILABLE")
	for range 3 {
		status, body = p.one.write(t, "5")
		require.Equal(t, http.StatusOK, status, body)
	}
	status, body = p.one.write(t, "4")
	require.Equal(t, http.StatusConflict, status, body)

	// It ends in order with nothing in flight, so the next one serves at once.
	require.NoError(t, p.one.Stop(t.Context()))
	p.two.eventually(t, "it takes over", func() bool { return p.two.ready(t) })
	claims := p.two.Events("guard_claimed")
	require.Len(t, claims, 1)
	require.Equal(t, []int64{2, 0}, []int64{claims[0].Int("epoch"), claims[0].Int("waitMillis")})
	status, body = p.two.write(t, "6")
	require.Equal(t, http.StatusOK, status, body)
	require.Equal(t, []string{"5", "5", "5", "6"}, resource.done())
}

// The owner is killed while a request of its stands still inside the resource. Nobody knows of it any more, so the next owner lets unsettled.after pass, for every key.
func TestNextOwnerAfterAKillWaitsForWhatMayBeInFlight(t *testing.T) {
	t.Parallel()
	resource := newSlowResource("5")
	p := startOwner(t, resource)
	p.one.writeLater(t, "5")
	<-resource.arrived["5"]
	require.NoError(t, p.one.Kill(t.Context()))
	p.two.eventually(t, "it takes over", func() bool { return p.two.ready(t) })
	tookOver := time.Now()
	require.Equal(t, int64(7000), p.two.Events("guard_claimed")[0].Int("waitMillis"))
	status, body := p.two.write(t, "6")
	require.Equal(t, http.StatusServiceUnavailable, status, body)
	require.Contains(t, body, "FENCE_BUSY")
	require.Empty(t, resource.done(), "nothing went past the one that stands still")
	close(resource.held["5"])
	p.two.eventually(t, "the time is over", func() bool {
		status, _ := p.two.write(t, "6")
		return status == http.StatusOK
	})
	require.Greater(t, time.Since(tookOver), 6*time.Second, "it took over at most a second before it was seen to")
	require.Equal(t, []string{"5", "6"}, resource.done())
}

// The owner is stopped for so long that it is declared dead, while a request of its waits to be sent. It wakes after somebody else has taken over: it sends nothing.
func TestOwnerThatWasStoppedForLongSendsNothingMore(t *testing.T) {
	t.Parallel()
	resource := newSlowResource("5")
	p := startOwner(t, resource)
	old := p.one.writeLater(t, "5")
	<-resource.arrived["5"]
	waiting := p.one.writeLater(t, "6")
	p.one.eventually(t, "6 waits", func() bool { return p.one.waits(t, "6") })
	require.NoError(t, p.one.Suspend(t.Context()))
	p.two.eventually(t, "the other takes over", func() bool { return p.two.ready(t) })
	close(resource.held["5"])
	require.Eventually(t, func() bool { return len(resource.done()) == 1 }, patience, time.Millisecond)
	require.NoError(t, p.one.Resume())
	<-old // whatever it was told
	require.NotEqual(t, http.StatusOK, <-waiting)
	p.two.eventually(t, "newer ones go on", func() bool {
		status, _ := p.two.write(t, "7")
		return status == http.StatusOK
	})
	require.Equal(t, []string{"5", "7"}, resource.done())
	status, body := p.one.write(t, "8")
	require.Equal(t, http.StatusServiceUnavailable, status, body)
	p.one.eventually(t, "it stands by", func() bool { return len(p.one.Events("guard_standby")) == 1 })
	require.False(t, p.one.ready(t))
}

// What the wait is for: an owner that was killed, and of which the claim says that nothing was in flight, isn't waited for. The older write lands last.
func TestNextOwnerThatDoesNotWaitLetsTheOlderLandLast(t *testing.T) {
	t.Parallel()
	resource := newSlowResource("5")
	p := startOwner(t, resource)
	p.one.writeLater(t, "5")
	<-resource.arrived["5"]
	_, err := pgtest.Connect(t, p.database).Exec(t.Context(), "UPDATE fence.claim SET settled = true")
	require.NoError(t, err)
	require.NoError(t, p.one.Kill(t.Context()))
	p.two.eventually(t, "it takes over and lets 6 pass", func() bool {
		status, _ := p.two.write(t, "6")
		return status == http.StatusOK
	})
	close(resource.held["5"])
	require.Eventually(t, func() bool { return len(resource.done()) == 2 }, patience, time.Millisecond)
	require.Equal(t, []string{"6", "5"}, resource.done())
}
