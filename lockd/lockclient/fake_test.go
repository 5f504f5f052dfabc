package lockclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fenceline/lockd/lock"
	"fenceline/lockd/lockapi"
)

// fakeLockd is a lockd in memory on the bubble's clock, behind a network that does as it is told.
type fakeLockd struct {
	mu       sync.Mutex
	sessions map[string]fakeLease
	grants   map[string]fakeGrant
	last     int64
	log      []string
	// to and back are how long a request and its answer take, by the request's name.
	to, back func(name string) time.Duration
	// fault, when it returns an error, is what comes of a request instead of an answer; done says whether lockd has done it all the same.
	fault func(name string) (err error, done bool)
	// speed is how fast lockd's clock runs against ours.
	speed float64
	// network is what is still on its way.
	network sync.WaitGroup
}

type fakeLease struct {
	ttl   time.Duration
	until time.Time
}

type fakeGrant struct {
	fakeLease
	token   int64
	session string
}

func newFake() *fakeLockd {
	zero := func(string) time.Duration { return 0 }
	return &fakeLockd{sessions: map[string]fakeLease{}, grants: map[string]fakeGrant{}, to: zero, back: zero, fault: func(string) (error, bool) { return nil, true }, speed: 1}
}

func (f *fakeLockd) set(change func()) { f.mu.Lock(); defer f.mu.Unlock(); change() }

// lease begins now, by lockd's clock.
func (f *fakeLockd) lease(ttl time.Duration) fakeLease {
	return fakeLease{ttl: ttl, until: time.Now().Add(time.Duration(float64(ttl) / f.speed))}
}

// valid is the truth: does this grant exclude everybody else now?
func (f *fakeLockd) valid(key string, token lock.Token) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	g, ok := f.live(key)
	return ok && g.token == int64(token)
}

func (f *fakeLockd) live(key string) (fakeGrant, bool) {
	g, ok := f.grants[key]
	s, alive := f.sessions[g.session]
	return g, ok && alive && time.Now().Before(g.until) && time.Now().Before(s.until)
}

// requests counts those of a name that have arrived.
func (f *fakeLockd) requests(name string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, entry := range f.log {
		if entry == name {
			n++
		}
	}
	return n
}

// name is what a request is about: open, heartbeat, close, acquire, renew or release.
func name(r *http.Request) string {
	switch last := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]; {
	case last == "sessions":
		return "open"
	case r.Method == http.MethodPost:
		return last
	case strings.HasPrefix(r.URL.Path, "/v1/sessions/"):
		return "close"
	}
	return "release"
}

// RoundTrip implements http.RoundTripper. A request on its way arrives whether or not its sender still waits.
func (f *fakeLockd) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	var body map[string]any
	if r.Body != nil {
		_ = json.NewDecoder(r.Body).Decode(&body)
		_ = r.Body.Close()
	}
	n := name(r)
	f.mu.Lock()
	to, back := f.to(n), f.back(n)
	fault, done := f.fault(n)
	f.mu.Unlock()
	answer := make(chan *http.Response, 1)
	f.network.Go(func() { //nolint:contextcheck // the network goes on when the sender has gone
		sleep(context.Background(), to)
		if done {
			response := f.serve(r, n, body) //nolint:bodyclose // the caller closes it
			sleep(context.Background(), back)
			answer <- response
		}
	})
	if fault != nil && !errors.Is(fault, errSilence) {
		return nil, fault
	}
	heard := answer
	if fault != nil {
		heard = nil
	}
	select {
	case response := <-heard:
		return response, nil
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

var (
	errSilence = errors.New("nothing ever comes back")
	errRefused = errors.New("connection refused")
)

func (f *fakeLockd) serve(r *http.Request, n string, body map[string]any) *http.Response {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.log = append(f.log, n)
	parts := strings.Split(r.URL.Path, "/") // /v1/sessions/{id}/…, /v1/locks/{key}/…
	id := append(parts, "")[3]
	token, _ := strconv.ParseInt(r.Header.Get(lockapi.HeaderToken), 10, 64)
	ttl := func(otherwise time.Duration) time.Duration {
		if millis, ok := body["ttlMillis"].(float64); ok {
			return time.Duration(millis) * time.Millisecond
		}
		return otherwise
	}
	switch n {
	case "open":
		f.last++
		id = fmt.Sprint("session-", f.last)
		f.sessions[id] = f.lease(ttl(lock.DefaultSessionTTL))
		return say(201, lockapi.Session{SessionID: id, TTLMillis: f.sessions[id].ttl.Milliseconds()}, 0)
	case "heartbeat":
		s, ok := f.sessions[id]
		if !ok || !time.Now().Before(s.until) {
			return refuse(410, lockapi.CodeSessionExpired)
		}
		f.sessions[id] = f.lease(s.ttl)
		return say(200, lockapi.Heartbeat{SessionID: id}, 0)
	case "close":
		delete(f.sessions, id)
		return say(204, nil, 0)
	case "acquire":
		session, _ := body["sessionId"].(string)
		g, held := f.live(id)
		if s, ok := f.sessions[session]; !ok || !time.Now().Before(s.until) {
			return refuse(410, lockapi.CodeSessionExpired)
		}
		if held && g.session != session {
			return refuse(409, lockapi.CodeLockContended)
		}
		f.last++
		f.grants[id] = fakeGrant{fakeLease: f.lease(ttl(lock.DefaultLockTTL)), token: f.last, session: session}
		return f.grant(id)
	case "renew":
		if g, ok := f.live(id); !ok || g.token != token {
			return refuse(409, lockapi.CodeLockLost)
		}
		g := f.grants[id]
		g.fakeLease = f.lease(ttl(lock.DefaultLockTTL))
		f.grants[id] = g
		return f.grant(id)
	case "release":
		g, ok := f.live(id)
		released := ok && g.token == token
		if released {
			delete(f.grants, id)
		}
		return say(200, lockapi.ReleaseResult{Released: released, Stale: !released}, 0)
	}
	return refuse(404, lockapi.CodeNotFound)
}

func (f *fakeLockd) grant(key string) *http.Response {
	g := f.grants[key]
	return say(200, lockapi.LockGrant{Key: key, FencingToken: g.token, SessionID: g.session, TTLMillis: g.ttl.Milliseconds()}, g.token)
}

func refuse(status int, code string) *http.Response {
	return say(status, lockapi.Error{Code: code, Message: "words", RetrySafe: status >= 500}, 0)
}

func say(status int, body any, token int64) *http.Response {
	data, _ := json.Marshal(body)
	header := http.Header{}
	if token != 0 {
		header.Set(lockapi.HeaderToken, strconv.FormatInt(token, 10))
	}
	return &http.Response{StatusCode: status, Header: header, Body: io.NopCloser(strings.NewReader(string(data)))}
}

const (
	testSessionTTL = 15 * time.Second
	testLockTTL    = 30 * time.Second
)

// events is an Observer that remembers.
type events struct {
	mu   sync.Mutex
	list []Event
}

func (e *events) Observe(event Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.list, event)
}

func (e *events) named(name string) (found []Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, event := range e.list {
		if event.Name == name {
			found = append(found, event)
		}
	}
	return found
}

// bubble is a test's world: a fake lockd, a session, and clocks that can be told to jump.
type bubble struct {
	*testing.T
	lockd   *fakeLockd
	session *Session
	events  *events
	skew    struct {
		mu         sync.Mutex
		mono, wall time.Duration
	}
}

// jump sets the clocks forward (or back) as this process sees them.
func (b *bubble) jump(mono, wall time.Duration) {
	b.skew.mu.Lock()
	defer b.skew.mu.Unlock()
	b.skew.mono += mono
	b.skew.wall += wall
}

// inBubble runs fn in a bubble with its own clock, under a session.
func inBubble(t *testing.T, fn func(b *bubble)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { fn(newBubble(t, testSessionTTL, trust)) })
}

type trustRule func(sent, answered moment, waited, ttl time.Duration) lease

func newBubble(t *testing.T, sessionTTL time.Duration, rule trustRule) *bubble {
	t.Helper()
	b := &bubble{T: t, lockd: newFake(), events: &events{}}
	t.Cleanup(b.lockd.network.Wait)
	system := systemClock()
	now := func() moment {
		b.skew.mu.Lock()
		defer b.skew.mu.Unlock()
		m := system()
		return moment{mono: m.mono + b.skew.mono, wall: m.wall + b.skew.wall}
	}
	o := Options{
		HTTPClient: &http.Client{Transport: b.lockd}, Timeout: defaultTimeout, SessionTTL: sessionTTL, Observer: b.events,
		Lock: AcquireOptions{TTL: testLockTTL},
	}
	client, err := Connect("worker", o)
	require.NoError(t, err)
	b.session, err = open(t.Context(), client, o, rules{now: now, trust: rule})
	require.NoError(t, err)
	t.Cleanup(func() { _ = b.session.Close(context.Background()) })
	return b
}

// acquire gets the key k.
func (b *bubble) acquire() *Held {
	b.Helper()
	h, err := b.session.Acquire(b.Context(), "k", AcquireOptions{TTL: testLockTTL})
	require.NoError(b, err)
	return h
}

// pass lets time pass.
func (b *bubble) pass(d time.Duration) {
	sleep(context.Background(), d)
	synctest.Wait()
}

// fail makes requests of these names fail like this; done says whether they have their effect all the same.
func (b *bubble) fail(err error, done bool, names ...string) {
	b.lockd.set(func() {
		b.lockd.fault = func(n string) (error, bool) {
			if slices.Contains(names, n) {
				return err, done
			}
			return nil, true
		}
	})
}
