package lock

import (
	"container/list"
	"fmt"
	"math"
	"sync"
	"time"
)

// Limits bounds the clients that wait. A waiter over a bound is refused with ErrTooManyWaiters.
type Limits struct {
	Waiters       int // on this replica in all; 0 means 10 000
	WaitersPerKey int // 0 means 1 000, so that one hot key leaves room for the others
}

func (l Limits) orDefaults() Limits {
	if l.Waiters == 0 {
		l.Waiters = 10_000
	}
	if l.WaitersPerKey == 0 {
		l.WaitersPerKey = 1_000
	}
	return l
}

const (
	// pollUnwatched is how often the first waiter of a key looks at the store when nobody tells what other replicas do.
	pollUnwatched = time.Second
	// pollWatched is the same while a Watcher tells: hints can get lost, so this is how late a lost one is noticed.
	pollWatched = 5 * time.Second
	// firstBackoff is the first pause after a look that found a holder of whom it isn't known when its lease ends.
	firstBackoff = 20 * time.Millisecond
)

// waiting is everybody who waits on this replica. For each key there is a queue in the order of arrival, and only its first
// waiter looks at the store: when something hints that the key is free, when the holder's lease runs out, and now and then. So a
// release wakes one waiter and not all. It is a plain data structure under one mutex, without goroutines: waiters run it.
type waiting struct {
	limits Limits
	count  func(n int) // told how many wait

	mu      sync.Mutex
	queues  map[string]*queue
	n       int
	watched bool
}

// anyGrant as a hint means that it isn't known which grant has ended.
const anyGrant Token = math.MaxInt64

// queue is one key's waiters. It exists while there are any.
type queue struct {
	waiters list.List // of *waiter, in the order of arrival
	// hint, when not 0, says that something has happened since the first waiter last looked: the grant with this token has ended (or
	// anyGrant). It belongs to the queue, not to a waiter, so that it outlives a waiter who leaves.
	hint    Token
	look    time.Time     // when the first waiter looks next without a hint
	backoff time.Duration // 0 after anything that was learnt
	holder  Holder        // as last seen
	granted Token         // the newest grant through this replica; a hint about an older one is out of date
}

// waiter is one acquire that waits.
type waiter struct {
	key  string
	wake chan struct{} // holds one: "look at your queue again"
	at   *list.Element
	of   *queue
}

func newWaiting(limits Limits, count func(int)) *waiting {
	return &waiting{limits: limits.orDefaults(), count: count, queues: map[string]*queue{}}
}

// join appends a waiter to its key's queue. The first of a queue begins with a hint: it is registered before it looks, so nothing that happens
// after its look goes by unnoticed.
func (w *waiting) join(key string) (*waiter, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	q := w.queues[key]
	switch {
	case w.n >= w.limits.Waiters:
		return nil, fmt.Errorf("%w: %d wait for locks here", ErrTooManyWaiters, w.n)
	case q != nil && q.waiters.Len() >= w.limits.WaitersPerKey:
		return nil, fmt.Errorf("%w: %d wait for this lock", ErrTooManyWaiters, q.waiters.Len())
	case q == nil:
		q = &queue{hint: anyGrant}
		w.queues[key] = q
	}
	member := &waiter{key: key, wake: make(chan struct{}, 1), of: q}
	member.at = q.waiters.PushBack(member)
	w.changed(1)
	return member, nil
}

// leave takes a waiter out, whatever the reason. The next one becomes the first and looks at the queue's state, in which a hint that
// came meanwhile still stands.
func (w *waiting) leave(member *waiter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	q := member.of
	q.waiters.Remove(member.at)
	w.changed(-1)
	if q.waiters.Len() == 0 {
		delete(w.queues, member.key)
		return
	}
	q.wakeFirst()
}

func (w *waiting) changed(by int) {
	w.n += by
	w.count(w.n)
}

// turn says whether this waiter is to look at the store now, and if not, after which time; 0 means that it isn't the first and has nothing to do
// but wait for wake. Looking takes the hint: one that comes during the look counts for the next.
func (w *waiting) turn(member *waiter) (look bool, after time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	q := member.of
	if q.waiters.Front() != member.at {
		return false, 0
	}
	until := time.Until(q.look)
	if q.hint != 0 || until <= 0 {
		q.hint = 0
		return true, 0
	}
	return false, until
}

// wasContended notes what the first waiter saw. The holder's expiry is by the store's clock and is compared with ours: a wrong clock only makes the
// next look come late, by the poll at most, or early, slowed down by the backoff.
func (w *waiting) wasContended(member *waiter, holder Holder) {
	w.mu.Lock()
	defer w.mu.Unlock()
	q := member.of
	q.holder = holder
	pause := time.Until(holder.ExpiresAt) + time.Millisecond
	if holder.ExpiresAt.IsZero() || pause <= 0 {
		q.backoff = min(max(2*q.backoff, firstBackoff), w.poll())
		pause = q.backoff
	} else {
		q.backoff = 0
	}
	q.look = time.Now().Add(min(pause, w.poll()))
}

// wasGranted notes a grant to one of the queue's waiters; the next one looks when it ends.
func (w *waiting) wasGranted(member *waiter, grant Grant) {
	w.mu.Lock()
	defer w.mu.Unlock()
	q := member.of
	q.granted, q.backoff = grant.Token, 0
	if q.hint < grant.Token {
		q.hint = 0 // the end of a grant before this one, which came to be known during the look
	}
	q.holder = Holder{OwnerID: grant.OwnerID, ExpiresAt: grant.ExpiresAt}
	q.look = time.Now().Add(min(grant.TTL, w.poll()))
}

// failed puts the hint back that a look took which ended in an error: the next waiter has a look of its own.
func (w *waiting) failed(member *waiter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	member.of.hint = anyGrant
}

func (w *waiting) poll() time.Duration {
	if w.watched {
		return pollWatched
	}
	return pollUnwatched
}

// freed hints that the key's grant with this token has ended; token 0 means that it isn't known which one. It wakes one waiter.
func (w *waiting) freed(key string, token Token) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if token == 0 {
		token = anyGrant
	}
	if key == "" {
		for _, q := range w.queues {
			q.free(anyGrant)
		}
		return
	}
	if q := w.queues[key]; q != nil && token >= q.granted {
		q.free(token)
	}
}

func (q *queue) free(token Token) {
	q.hint, q.backoff = max(q.hint, token), 0
	q.wakeFirst()
}

func (q *queue) wakeFirst() {
	first, _ := q.waiters.Front().Value.(*waiter)
	select {
	case first.wake <- struct{}{}:
	default: // it is going to look anyway
	}
}

// watching sets whether a Watcher tells what other replicas do. From the moment it begins to, anything may have happened before.
func (w *waiting) watching(is bool) {
	w.mu.Lock()
	w.watched = is
	w.mu.Unlock()
	if is {
		w.freed("", 0)
	}
}

// waitersOf returns how many wait for a key, and the holder that they last saw.
func (w *waiting) waitersOf(key string) (n int, holder Holder) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if q := w.queues[key]; q != nil {
		return q.waiters.Len(), q.holder
	}
	return 0, Holder{}
}
