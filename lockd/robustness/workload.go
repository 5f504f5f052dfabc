package robustness

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"
)

// Workload says what the clients do. They take keys, renew, release, come too late, come with old tokens, revoke, close sessions and let
// them die.
type Workload struct {
	Clients int
	Keys    []string
	// For is how long clients begin new operations. It ends a little later, when all have been answered.
	For time.Duration
	// ShortTTL and LongTTL are what they lock for. What was locked shortly is left to expire now and then.
	ShortTTL, LongTTL time.Duration
	SessionTTL        time.Duration
	// Wait, when not 0, is how long an acquire may wait now and then.
	Wait time.Duration
	// Timeout is how long a client waits for an answer, beyond what it asked to wait; then the outcome is unknown.
	Timeout time.Duration
	// Think is the longest pause between two operations.
	Think time.Duration
	// Hot lets clients do nothing but take and release.
	Hot  bool
	Seed uint64
	// Above is a token that was granted before, Late how long after its time a grant may still be there for the store.
	Above int64
	Late  time.Duration
	// Target is asked for a replica's base URL before each operation.
	Target func(rng *rand.Rand) string
	// Since is the beginning of the run.
	Since time.Time
}

// Run lets the clients loose and returns what they saw.
func (w Workload) Run(ctx context.Context) *History {
	history := &History{Above: w.Above, Late: w.Late, Queued: w.Wait > 0}
	transport := &http.Transport{MaxIdleConnsPerHost: w.Clients, IdleConnTimeout: 5 * time.Second}
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, w.For)
	defer cancel()
	shared := &tokens{}
	var group sync.WaitGroup
	for i := range w.Clients {
		group.Go(func() {
			newClient(&w, i+1, &http.Client{Transport: transport}, history, shared).run(ctx)
		})
	}
	group.Wait()
	return history
}

// tokens are those that somebody was granted of late, for whoever wants to come too late with one.
type tokens struct {
	mu   sync.Mutex
	last map[string][]int64
}

const remembered = 4

func (t *tokens) add(key string, token int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.last == nil {
		t.last = map[string][]int64{}
	}
	t.last[key] = append(t.last[key], token)
	if over := len(t.last[key]) - remembered; over > 0 {
		t.last[key] = t.last[key][over:]
	}
}

func (t *tokens) pick(rng *rand.Rand, key string) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := len(t.last[key]); n > 0 {
		return t.last[key][rng.IntN(n)]
	}
	return 0
}

type session struct {
	id     string
	number int
	ttl    time.Duration
}

// client is one of the workload's clients.
type client struct {
	*caller
	w      *Workload
	rng    *rand.Rand
	shared *tokens

	session session
	beating func() // ends the heartbeats
}

func newClient(w *Workload, number int, httpClient *http.Client, history *History, shared *tokens) *client {
	rng := rand.New(rand.NewPCG(w.Seed, uint64(number))) //nolint:gosec // repeatable on purpose; a client number isn't negative
	return &client{
		caller: &caller{
			number: number, http: httpClient, history: history, since: w.Since, timeout: w.Timeout,
			target: func() string { return w.Target(rng) },
		},
		w: w, rng: rng, shared: shared,
	}
}

// run goes on until ctx ends.
func (c *client) run(ctx context.Context) {
	for ctx.Err() == nil {
		if c.session.id == "" && !c.begin(ctx) {
			c.pause(ctx, 20*time.Millisecond)
			continue
		}
		c.turn(ctx)
		if c.w.Think > 0 {
			c.pause(ctx, time.Duration(c.rng.Int64N(int64(c.w.Think))))
		}
	}
	c.forget()
}

func (c *client) pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// begin opens a session; three of four are kept alive by heartbeats, the rest will die.
func (c *client) begin(ctx context.Context) bool {
	id, op := c.open(ctx, c.w.SessionTTL)
	if op.Result != OK {
		return false
	}
	c.session = session{id: id, number: op.Session, ttl: op.TTL}
	if c.w.Hot || c.rng.IntN(4) > 0 {
		c.beat(ctx)
	}
	return true
}

// beat sends heartbeats three times in a session's time, on a connection of its own, until it is told to end or the session is over.
func (c *client) beat(ctx context.Context) {
	beatCtx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	rng := rand.New(rand.NewPCG(c.w.Seed, uint64(1000+c.session.number))) //nolint:gosec // repeatable on purpose
	s, beater := c.session, *c.caller
	beater.target = func() string { return c.w.Target(rng) }
	go func() {
		defer close(done)
		for c.pause(beatCtx, s.ttl/3); beatCtx.Err() == nil; c.pause(beatCtx, s.ttl/3) {
			if op := beater.heartbeat(beatCtx, s); op.sessionOver() {
				return
			}
		}
	}()
	c.beating = func() { cancel(); <-done }
}

// forget goes on without the session, which dies.
func (c *client) forget() {
	if c.beating != nil {
		c.beating()
	}
	c.session, c.beating = session{}, nil
}

func (c *client) key() string { return c.w.Keys[c.rng.IntN(len(c.w.Keys))] }

// turn is one thing that a client does, with all that follows from it.
func (c *client) turn(ctx context.Context) {
	key := c.key()
	if c.w.Hot {
		c.takeAndRelease(ctx, key)
		return
	}
	old := c.shared.pick(c.rng, key)
	switch n := c.rng.IntN(100); {
	case n < 5 && old != 0:
		c.renew(ctx, key, old, c.w.ShortTTL)
	case n < 10 && old != 0:
		c.release(ctx, key, old)
	case n < 12:
		c.revoke(ctx, key, 0)
	case n < 14 && old != 0:
		c.revoke(ctx, key, old)
	case n < 16:
		s := c.session
		c.forget()
		c.close(ctx, s)
	case n < 17:
		c.forget()
	default:
		c.take(ctx, key)
	}
}

func (c *client) takeAndRelease(ctx context.Context, key string) {
	op := c.acquire(ctx, c.session, key, c.w.LongTTL, 0)
	if op.Result == OK {
		c.release(ctx, key, op.Got)
	}
	if op.sessionOver() {
		c.forget()
	}
}

// take acquires the key, and does something with it when it gets it.
func (c *client) take(ctx context.Context, key string) {
	ttl := c.w.LongTTL
	if c.rng.IntN(2) == 0 {
		ttl = c.w.ShortTTL
	}
	var wait time.Duration
	if c.w.Wait > 0 && c.rng.IntN(2) == 0 {
		wait = time.Duration(c.rng.Int64N(int64(c.w.Wait)))
	}
	op := c.acquire(ctx, c.session, key, ttl, wait)
	if op.Result == OK {
		c.shared.add(key, op.Got)
		c.hold(ctx, key, op)
	}
	if op.sessionOver() {
		c.forget()
	}
}

// hold is what a holder does until it holds the key no more. What was locked for long is given back, unless the session is about to
// die, else the key would be blocked for long.
func (c *client) hold(ctx context.Context, key string, grant Op) {
	short, dying := grant.TTL <= c.w.ShortTTL, c.beating == nil
	for range 4 {
		switch n := c.rng.IntN(100); {
		case n < 30:
			c.giveBack(ctx, key, grant.Got)
			return
		case n < 50:
			if c.renew(ctx, key, grant.Got, grant.TTL).Result == Lost {
				return
			}
		case n < 60:
			c.pause(ctx, time.Duration(c.rng.Int64N(int64(20*time.Millisecond))))
		case n < 70:
			again := c.acquire(ctx, c.session, key, grant.TTL, 0)
			if again.Result == OK {
				c.shared.add(key, again.Got)
				grant = again
			}
		case n < 75:
			c.revoke(ctx, key, grant.Got)
			return
		case n < 90 && short:
			c.comeTooLate(ctx, key, grant, grant.TTL)
			return
		case n < 90 && dying:
			c.comeTooLate(ctx, key, grant, c.session.ttl)
			return
		case n < 95 && short:
			return // forgotten
		case dying:
			c.forget() // and with it the grant
			return
		}
	}
	c.giveBack(ctx, key, grant.Got)
}

// comeTooLate waits until the grant's time is over, its own or its session's, by a little or by a lot.
func (c *client) comeTooLate(ctx context.Context, key string, grant Op, after time.Duration) {
	c.pause(ctx, after+time.Duration(c.rng.Int64N(int64(after)))/2)
	if c.rng.IntN(2) == 0 {
		c.renew(ctx, key, grant.Got, grant.TTL)
	} else {
		c.release(ctx, key, grant.Got)
	}
}

// giveBack releases, and again when it isn't known whether that happened: else the key would be blocked for long.
func (c *client) giveBack(ctx context.Context, key string, token int64) {
	for range 3 {
		if op := c.release(ctx, key, token); op.Result == OK || op.Result == Stale {
			return
		}
	}
}

// Keys names n keys that no other window has.
func Keys(window, n int) []string {
	var keys []string
	for i := range n {
		keys = append(keys, fmt.Sprintf("w%d:k%d", window, i))
	}
	return keys
}
