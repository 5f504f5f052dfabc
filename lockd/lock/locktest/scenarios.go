package locktest

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"

	"fenceline/lockd/lock"
)

func freeKeyIsGranted(ctx context.Context, s Store) error {
	a, err := newClient(ctx, s)
	if err != nil {
		return err
	}
	grant, err := a.must(ctx, newKey(), longTTL)
	if err != nil {
		return err
	}
	return wantHolder(ctx, s, grant)
}

func heldKeyIsContended(ctx context.Context, s Store) error {
	a, b, err := twoClients(ctx, s)
	if err != nil {
		return err
	}
	grant, err := a.must(ctx, newKey(), longTTL)
	if err != nil {
		return err
	}
	result, err := s.Insert(ctx, grant.Key, b.session.OwnerID, b.session.ID, longTTL)
	if err != nil {
		return fmt.Errorf("second acquire: %w", err)
	}
	if result.Granted || result.Holder.OwnerID != a.session.OwnerID {
		return fmt.Errorf("second acquire: %+v, want contended by %s", result, a.session.OwnerID)
	}
	return wantHolder(ctx, s, grant)
}

// taken sets the stage for a stale holder: A's lease has expired and B has taken over.
func taken(ctx context.Context, s Store) (stale, current lock.Grant, err error) {
	a, b, err := twoClients(ctx, s)
	if err != nil {
		return stale, current, err
	}
	if stale, err = a.must(ctx, newKey(), shortTTL); err != nil {
		return stale, current, err
	}
	current, err = b.takeOver(ctx, stale.Key)
	return stale, current, err
}

func expiredLeaseIsStolen(ctx context.Context, s Store) error {
	stale, current, err := taken(ctx, s)
	if err != nil {
		return err
	}
	if current.Token <= stale.Token {
		return fmt.Errorf("the new holder's token is %d, not above the old one's %d", current.Token, stale.Token)
	}
	_, err = s.Extend(ctx, stale.Key, stale.Token, longTTL)
	if err := wantError(err, lock.ErrLockLost, "stale renew"); err != nil {
		return err
	}
	released, err := s.Delete(ctx, stale.Key, stale.Token)
	if err != nil || !released.Stale {
		return fmt.Errorf("stale release: %+v, %w; want stale and no error", released, err)
	}
	return wantHolder(ctx, s, current)
}

func sameSessionReacquires(ctx context.Context, s Store) error {
	a, b, err := twoClients(ctx, s)
	if err != nil {
		return err
	}
	key := newKey()
	first, err := a.must(ctx, key, longTTL)
	if err != nil {
		return err
	}
	second, err := a.must(ctx, key, longTTL)
	if err != nil {
		return err
	}
	if second.Token <= first.Token {
		return fmt.Errorf("token %d after %d: a re-acquire gets a higher one", second.Token, first.Token)
	}
	if _, err := s.Extend(ctx, key, first.Token, longTTL); !errors.Is(err, lock.ErrLockLost) {
		return fmt.Errorf("renew of the first grant: %v, want lost", err) //nolint:errorlint // shown, not wrapped
	}
	result, err := s.Insert(ctx, key, b.session.OwnerID, b.session.ID, longTTL)
	if err != nil || result.Granted {
		return fmt.Errorf("another session's acquire: %+v, %w; want contended", result, err)
	}
	return wantHolder(ctx, s, second)
}

func staleReleaseLeavesTheNewHolder(ctx context.Context, s Store) error {
	stale, current, err := taken(ctx, s)
	if err != nil {
		return err
	}
	released, err := s.Delete(ctx, stale.Key, stale.Token)
	if err != nil || !released.Stale {
		return fmt.Errorf("stale release: %+v, %w; want stale and no error", released, err)
	}
	return wantHolder(ctx, s, current)
}

func renewAfterExpiryIsLost(ctx context.Context, s Store) error {
	a, err := newClient(ctx, s)
	if err != nil {
		return err
	}
	grant, err := a.must(ctx, newKey(), shortTTL)
	if err != nil {
		return err
	}
	for held := true; held; {
		if _, held, err = s.Read(ctx, grant.Key); err != nil {
			return err
		}
		if err := pause(ctx); err != nil {
			return fmt.Errorf("the lease doesn't expire: %w", err)
		}
	}
	_, err = s.Extend(ctx, grant.Key, grant.Token, longTTL)
	return wantError(err, lock.ErrLockLost, "renew after expiry")
}

func reapingIsIdempotent(ctx context.Context, s Store) error {
	a, err := newClient(ctx, s)
	if err != nil {
		return err
	}
	grant, err := a.must(ctx, newKey(), shortTTL)
	if err != nil {
		return err
	}
	count := func() (n int, err error) {
		expired, err := s.Reap(ctx, 1000)
		for _, e := range expired {
			if e.Key == grant.Key && e.Token == grant.Token {
				n++
			}
		}
		return n, err
	}
	for n := 0; n == 0; {
		if n, err = count(); err != nil {
			return fmt.Errorf("reap: %w", err)
		}
		if err := pause(ctx); err != nil {
			return fmt.Errorf("the reaper doesn't find the expired grant: %w", err)
		}
	}
	if n, err := count(); n != 0 || err != nil {
		return fmt.Errorf("second reap found it again (%d, %w)", n, err)
	}
	return nil
}

func revocationAdvancesTheToken(ctx context.Context, s Store) error {
	a, b, err := twoClients(ctx, s)
	if err != nil {
		return err
	}
	grant, err := a.must(ctx, newKey(), longTTL)
	if err != nil {
		return err
	}
	revocation, err := s.Revoke(ctx, lock.RevokeRequest{Key: grant.Key, Operator: "op", Reason: "it hangs since noon"})
	if err != nil {
		return fmt.Errorf("revoke: %w", err)
	}
	if revocation.RevokedToken != grant.Token || revocation.NewTokenFloor <= grant.Token || revocation.ID <= 0 {
		return fmt.Errorf("revocation of %d: %+v", grant.Token, revocation)
	}
	next, err := b.must(ctx, grant.Key, longTTL)
	if err != nil {
		return err
	}
	if next.Token <= revocation.NewTokenFloor {
		return fmt.Errorf("token %d after a floor of %d", next.Token, revocation.NewTokenFloor)
	}
	_, err = s.Extend(ctx, grant.Key, grant.Token, longTTL)
	return wantError(err, lock.ErrLockLost, "renew of the revoked grant")
}

func revocationChecksTheExpectedToken(ctx context.Context, s Store) error {
	a, err := newClient(ctx, s)
	if err != nil {
		return err
	}
	grant, err := a.must(ctx, newKey(), longTTL)
	if err != nil {
		return err
	}
	request := lock.RevokeRequest{Key: grant.Key, Operator: "op", Reason: "it hangs since noon", Expected: grant.Token + 1}
	_, err = s.Revoke(ctx, request)
	if err := wantError(err, lock.ErrTokenMismatch, "revoke of another token"); err != nil {
		return err
	}
	request.Key = newKey()
	_, err = s.Revoke(ctx, request)
	if err := wantError(err, lock.ErrNotHeld, "revoke of a free key"); err != nil {
		return err
	}
	return wantHolder(ctx, s, grant)
}

func deadSessionFreesItsKey(ctx context.Context, s Store) error {
	a, b, err := twoClients(ctx, s)
	if err != nil {
		return err
	}
	grant, err := a.must(ctx, newKey(), longTTL)
	if err != nil {
		return err
	}
	if err := s.ExpireSession(ctx, a.session.ID); err != nil {
		return err
	}
	_, err = s.Extend(ctx, grant.Key, grant.Token, longTTL)
	if err := wantError(err, lock.ErrLockLost, "renew under a dead session"); err != nil {
		return err
	}
	next, err := b.must(ctx, grant.Key, longTTL)
	if err != nil {
		return err
	}
	if next.Token <= grant.Token {
		return fmt.Errorf("token %d after %d", next.Token, grant.Token)
	}
	return nil
}

func expiredSessionCannotAcquire(ctx context.Context, s Store) error {
	a, b, err := twoClients(ctx, s)
	if err != nil {
		return err
	}
	own, err := a.must(ctx, newKey(), longTTL)
	if err != nil {
		return err
	}
	held, err := b.must(ctx, newKey(), longTTL)
	if err != nil {
		return err
	}
	if err := s.ExpireSession(ctx, a.session.ID); err != nil {
		return err
	}
	for _, key := range []string{newKey(), own.Key, held.Key} { // free, its own, another's
		_, err := s.Insert(ctx, key, a.session.OwnerID, a.session.ID, longTTL)
		if err := wantError(err, lock.ErrSessionExpired, "acquire under an expired session"); err != nil {
			return err
		}
	}
	_, _, _, err = s.Heartbeat(ctx, a.session.ID)
	return errors.Join(wantError(err, lock.ErrSessionExpired, "heartbeat of an expired session"), wantHolder(ctx, s, held))
}

func closingASessionReleases(ctx context.Context, s Store) error {
	a, b, err := twoClients(ctx, s)
	if err != nil {
		return err
	}
	grant, err := a.must(ctx, newKey(), longTTL)
	if err != nil {
		return err
	}
	if err := s.CloseSession(ctx, a.session.ID); err != nil {
		return fmt.Errorf("close: %w", err)
	}
	if err := wantError(s.CloseSession(ctx, a.session.ID), lock.ErrSessionUnknown, "second close"); err != nil {
		return err
	}
	_, err = s.Insert(ctx, newKey(), a.session.OwnerID, a.session.ID, longTTL)
	if err := wantError(err, lock.ErrSessionUnknown, "acquire under a closed session"); err != nil {
		return err
	}
	_, err = b.must(ctx, grant.Key, longTTL)
	return err
}

func heartbeatKeepsAlive(ctx context.Context, s Store) error {
	a, err := newClient(ctx, s)
	if err != nil {
		return err
	}
	if _, err := a.must(ctx, newKey(), longTTL); err != nil {
		return err
	}
	session, held, now, err := s.Heartbeat(ctx, a.session.ID)
	if err != nil {
		return fmt.Errorf("heartbeat: %w", err)
	}
	if held != 1 || session.TTL != longTTL || !session.ExpiresAt.After(now) || session.ExpiresAt.Before(a.session.ExpiresAt) {
		return fmt.Errorf("heartbeat: %+v, %d held, now %s; opened with %+v", session, held, now, a.session)
	}
	return nil
}

const (
	hotClients = 200
	hotRounds  = 3
	// hotAttempts bounds the acquires under way, so that the holder's release needn't queue behind two hundred of them.
	hotAttempts = 8
)

// TokensIncreaseOnAHotKey lets many clients fight for one key. Whoever is granted writes its token down while it holds the
// key: one at a time, each higher than the one before. It finds a token that was drawn early and granted late.
func TokensIncreaseOnAHotKey(ctx context.Context, s Store) error {
	hot := &hotKey{store: s, key: newKey(), attempts: make(chan struct{}, hotAttempts)}
	group, ctx := errgroup.WithContext(ctx)
	for range hotClients {
		group.Go(func() error {
			c, err := newClient(ctx, s)
			if err != nil {
				return err
			}
			for granted := 0; granted < hotRounds; {
				got, err := hot.once(ctx, c)
				if err != nil {
					return err
				}
				if got {
					granted++
				} else if err := pause(ctx); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// hotKey is the key that everybody wants, with what its holders wrote down.
type hotKey struct {
	store    Store
	key      string
	attempts chan struct{}
	inside   sync.Mutex
	last     lock.Token
}

// once tries once to get the key, and gives it back.
func (h *hotKey) once(ctx context.Context, c *client) (granted bool, err error) {
	h.attempts <- struct{}{}
	result, err := h.store.Insert(ctx, h.key, c.session.OwnerID, c.session.ID, longTTL)
	<-h.attempts
	if err != nil || !result.Granted {
		return false, err
	}
	if !h.inside.TryLock() {
		return false, errors.New("two holders at once")
	}
	before := h.last
	h.last = result.Grant.Token
	h.inside.Unlock()
	if result.Grant.Token <= before {
		return false, fmt.Errorf("token %d was granted after %d", result.Grant.Token, before)
	}
	_, err = h.store.Delete(ctx, h.key, result.Grant.Token)
	return true, err
}
