package main

import (
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// effectsConfig makes the file's sidecar order effects, and wait briefly.
func effectsConfig(unsettled string) string {
	c := strings.Replace(fileConfig, "order: admissions", "order: effects\n    unsettled: "+unsettled, 1)
	c = strings.Replace(c, "response_timeout: 10s", "connect_timeout: 1s, response_timeout: 1s", 1)
	return c + "limits: { wait: 300ms }\n"
}

// laggard is a resource in which a request can be stalled before it takes effect. It remembers the order of effects.
type laggard struct {
	mu      sync.Mutex
	landed  map[string][]int64 // path → tokens
	stalled chan struct{}      // a stalled request has come
	goOn    chan struct{}      // closed: it takes effect
}

func newLaggard() *laggard {
	return &laggard{landed: map[string][]int64{}, stalled: make(chan struct{}, 64), goOn: make(chan struct{})}
}

func (l *laggard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	token, _ := strconv.ParseInt(r.Header.Get("X-Fencing-Token"), 10, 64)
	if r.URL.Query().Has("stall") {
		l.stalled <- struct{}{}
		<-l.goOn
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.landed[r.URL.Path] = append(l.landed[r.URL.Path], token)
}

func (l *laggard) effects(path string) []int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]int64(nil), l.landed[path]...)
}

func newEffectsSidecar(t *testing.T, l *laggard, unsettled string) *fileSidecar {
	t.Helper()
	f := newFileSidecar(t, resource(t, l.ServeHTTP))
	f.config = write(t, effectsConfig(unsettled))
	return f
}

// stalledRequestOutlivesAKill: an older request hangs in the resource, the sidecar is killed and started again, and a newer one comes.
func stalledRequestOutlivesAKill(t *testing.T, f *fileSidecar, l *laggard) {
	t.Helper()
	f.start(t)
	f.eventually(t, "ready", func() bool { return f.ready(t) })
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		ask(t, http.MethodPut, "http://"+f.api+"/docs/a?stall=1", "5")
	}()
	<-l.stalled
	require.NoError(t, syscall.Kill(f.PID(), syscall.SIGKILL))
	<-gone
	f.start(t)
	f.eventually(t, "ready", func() bool { return f.ready(t) })
}

func TestFileKeepsTheOrderOfEffectsOverAKill(t *testing.T) {
	t.Parallel()
	l := newLaggard()
	f := newEffectsSidecar(t, l, "{ then: hold }")
	stalledRequestOutlivesAKill(t, f, l)
	status, body := f.put(t, "a", 6)
	require.Equal(t, http.StatusServiceUnavailable, status, body)
	require.Contains(t, body, "FENCE_BUSY")
	status, body = f.put(t, "b", 6)
	require.Equal(t, http.StatusOK, status, "another key: %s", body)
	close(l.goOn)
	f.eventually(t, "the older write lands", func() bool { return len(l.effects("/docs/a")) == 1 })
	status, body = f.put(t, "a", 7)
	require.Equal(t, http.StatusServiceUnavailable, status, "its answer went to the killed sidecar; nobody knows: %s", body)
	require.Equal(t, []int64{5}, l.effects("/docs/a"))
}

func TestFileReleasesByTimeWhereTheGuardSaysSo(t *testing.T) {
	t.Parallel()
	l := newLaggard()
	f := newEffectsSidecar(t, l, "{ then: release, after: 3500ms }")
	stalledRequestOutlivesAKill(t, f, l)
	began := time.Now()
	close(l.goOn)
	token := int64(6)
	f.eventually(t, "released", func() bool {
		status, _ := f.put(t, "a", token)
		token++
		return status == http.StatusOK
	})
	require.Greater(t, time.Since(began), 3400*time.Millisecond)
	landed := l.effects("/docs/a")
	require.Equal(t, int64(5), landed[0])
}

// With order: admissions the same story ends with the older write last: the stalled request, and this test, can tell the two apart.
func TestFileWithOrderOfAdmissionsLetsTheOlderWriteLandLast(t *testing.T) {
	t.Parallel()
	l := newLaggard()
	f := newFileSidecar(t, resource(t, l.ServeHTTP))
	stalledRequestOutlivesAKill(t, f, l)
	status, body := f.put(t, "a", 6)
	require.Equal(t, http.StatusOK, status, body)
	close(l.goOn)
	f.eventually(t, "the older write lands", func() bool { return len(l.effects("/docs/a")) == 2 })
	require.Equal(t, []int64{6, 5}, l.effects("/docs/a"))
}

// total is how many requests took effect.
func (l *laggard) total() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, tokens := range l.landed {
		n += len(tokens)
	}
	return n
}

// The process is killed at random moments under load; what the resource saw is in order for every key, whatever was in flight.
func TestEffectsBehindAFileStayInOrderWhenTheProcessIsKilled(t *testing.T) {
	t.Parallel()
	const keys, clients = 6, 3
	rounds := 4
	if text := os.Getenv("FENCELINE_KILLS"); text != "" { // make test-long
		var err error
		rounds, err = strconv.Atoi(text)
		require.NoError(t, err)
	}
	l := newLaggard()
	f := newEffectsSidecar(t, l, "{ then: hold }")
	var mu sync.Mutex
	next := map[int]int64{}
	for round := range rounds {
		f.start(t)
		f.eventually(t, "ready", func() bool { return f.ready(t) })
		enough := l.total() + 21
		var load sync.WaitGroup
		for c := range keys * clients {
			load.Go(func() {
				for i := 0; ; i++ {
					mu.Lock()
					next[c%keys]++
					token := next[c%keys]
					mu.Unlock()
					key := strconv.Itoa(c % keys) // what the kills before left in flight may block it
					if i > 2 {
						key += "-" + strconv.Itoa(round) + "-" + strconv.Itoa(i/20)
					}
					if _, err := putOnce(f.api, key, token); err != nil {
						return // it was killed
					}
				}
			})
		}
		f.eventually(t, "there is load", func() bool { return l.total() > enough })
		wait(t, time.Duration(rand.IntN(250))*time.Millisecond)
		require.NoError(t, syscall.Kill(f.PID(), syscall.SIGKILL))
		load.Wait()
	}
	total := l.total()
	l.mu.Lock()
	defer l.mu.Unlock()
	for path, tokens := range l.landed {
		for i := 1; i < len(tokens); i++ {
			require.Greater(t, tokens[i], tokens[i-1], "%s: %v", path, tokens)
		}
	}
	t.Logf("%d effects over %d kills", total, rounds)
}
