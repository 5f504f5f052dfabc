package lockclient

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"fenceline/lockd/lock"
)

// Held is one grant, renewed until it is released.
//
// It may be relied on until its local deadline: the time at which the newest granted request was sent, plus how long the server made it wait, plus 0.7 × its
// time to live, by the monotonic or the wall clock, whichever ran further; and no longer than the session, whose deadline counts likewise from the newest
// answered heartbeat. When the deadline passes the lock is lost, whether or not lockd can be reached, and stays lost. A jump of the wall clock
// is noticed within a 20th of the lease (a second at most), and at once by Err and by Check.
//
// A program that is stopped, or a machine whose two clocks stand still, notices nothing while it lasts: only the resource can refuse what it sends
// afterwards, by the token. So put Token on every request that writes.
type Held struct {
	session *Session
	place   *use
	key     string
	token   lock.Token
	ttl     time.Duration

	ctx    context.Context // ends with the grant; its cause says why
	cancel context.CancelCauseFunc
	work   sync.WaitGroup // renewals and watching

	mu       sync.Mutex
	lease    lease
	over     error         // nil while it is held
	lost     chan struct{} // closed when it is lost
	done     chan struct{} // closed when Release has done everything
	ending   bool          // Release was called
	released error         // its result
}

// Key is the lock's key.
func (h *Held) Key() string { return h.key }

// Token is the grant's fencing token. It goes with every request to the guarded resource, as the header X-Fencing-Token (see Transport).
func (h *Held) Token() lock.Token { return h.token }

// Context ends when the lock is lost, with a cause that is ErrLockLost, or released, with ErrReleased. It has the values of the context given to
// Acquire, but doesn't end with it.
func (h *Held) Context() context.Context { return h.ctx }

// Lost is closed when the lock is lost. A release doesn't close it.
func (h *Held) Lost() <-chan struct{} { return h.lost }

// Err is nil while the grant may be relied on, and otherwise why not: ErrLockLost or ErrReleased. It looks at the clocks and asks nobody, so it
// can stand right before each request.
func (h *Held) Err() error {
	if err := h.session.Err(); err != nil {
		h.lose(fmt.Errorf("%w: %w", ErrLockLost, err))
	} else if h.Left() <= 0 {
		h.lose(fmt.Errorf("%w: no answer of lockd's has prolonged it in time", ErrLockLost))
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.over
}

// Left is how long the grant may be relied on unless it is renewed before; 0 when it is over.
func (h *Held) Left() time.Duration {
	session := h.session.left()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over != nil {
		return 0
	}
	return max(min(session, h.lease.left(h.session.rules.now())), 0)
}

// Check asks lockd whether the grant is still ours, which renews it. Nil means that it was when lockd answered, and may be relied on now;
// ErrLockLost that it is over; any other error that nobody can tell, which is no better for whoever is about to write. It is repeated up to five times.
func (h *Held) Check(ctx context.Context) error { return h.Renew(ctx) }

// Renew prolongs the grant by its time to live from now on. There is no need to call it: it happens three times and more within the lease. The
// errors are those of Check.
func (h *Held) Renew(ctx context.Context) error {
	return retry(ctx, h.renewOnce)
}

// renewOnce sends one renewal, unless the grant is over. Renewals may run side by side: each asks for the same time to live, so the one
// that lockd meets last only gives more time.
func (h *Held) renewOnce(ctx context.Context) error {
	if err := h.Err(); err != nil {
		return err
	}
	h.mu.Lock()
	over := h.over
	if over == nil {
		h.work.Add(1) // with mu held: Release waits for it, or it isn't sent
	}
	h.mu.Unlock()
	if over != nil {
		return over
	}
	defer h.work.Done()

	callCtx, cancel := within(ctx, h.ctx)
	defer cancel()
	sent := h.session.rules.now()
	grant, err := h.session.client.Renew(callCtx, h.key, h.token, h.ttl)
	switch {
	case err == nil:
		h.extend(h.session.rules.trust(sent, h.session.rules.now(), 0, time.Duration(grant.TTLMillis)*time.Millisecond))
	case errors.Is(err, lock.ErrLockLost):
		h.lose(fmt.Errorf("lockd says: %w", err))
	}
	if over := h.Err(); over != nil {
		return over
	}
	if err != nil {
		return fmt.Errorf("renew %s: %w", h.key, err)
	}
	return nil
}

// extend takes over what a renewal gave, unless one that was sent later has given more.
func (h *Held) extend(l lease) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over == nil && l.sent.mono >= h.lease.sent.mono {
		h.lease = l
	}
}

// lose notes the loss, once, and tells everybody.
func (h *Held) lose(cause error) {
	h.mu.Lock()
	if h.over != nil {
		h.mu.Unlock()
		return
	}
	h.over = cause
	h.cancel(cause)
	close(h.lost)
	h.mu.Unlock()
	h.session.observe(Event{Name: EventSessionLost, Key: h.key, Token: h.token, Err: cause})
}

// Release gives the grant back. When it returns no renewal is under way and none will be. A grant that was lost is released all the same, so
// that whoever waits needn't wait for its end; that it isn't ours any more is success. An error means that lockd couldn't be told: the
// grant ends by its time. ctx may be over already. A second call returns what the first did.
func (h *Held) Release(ctx context.Context) error {
	h.mu.Lock()
	if h.ending {
		h.mu.Unlock()
		<-h.done
		return h.released
	}
	h.ending = true
	if h.over == nil {
		h.over = ErrReleased
		h.cancel(ErrReleased)
	}
	h.mu.Unlock()
	defer close(h.done)
	h.work.Wait()
	defer h.session.leave(h.key, h.place)
	if h.session.closed.Load() {
		return nil // its end has released the grant, or that ends by its time
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	err := retry(ctx, func(ctx context.Context) error {
		_, err := h.session.client.Release(ctx, h.key, h.token)
		return err
	})
	if err != nil {
		h.released = fmt.Errorf("release %s: %w", h.key, err)
		h.session.observe(Event{Name: EventReleaseFailed, Key: h.key, Token: h.token, Err: err})
	}
	return h.released
}
