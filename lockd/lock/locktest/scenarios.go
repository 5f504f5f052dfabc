package locktest

import (
	"context"
	"errors"
	"fmt"

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
	if _, err := a.must(ctx, newKey(), longTTL); err != nil {
		return err
	}
	ended, err := s.CloseSession(ctx, a.session.ID)
	if err != nil {
		return fmt.Errorf("close: %w", err)
	}
	if len(ended) != 2 {
		return fmt.Errorf("close ended %+v, want both grants", ended)
	}
	for _, e := range ended {
		if e.Expired || e.OwnerID != a.session.OwnerID || e.Key == grant.Key && e.Token != grant.Token {
			return fmt.Errorf("close ended %+v, want a grant of %s that it released", e, a.session.OwnerID)
		}
	}
	_, err = s.CloseSession(ctx, a.session.ID)
	if err := wantError(err, lock.ErrSessionUnknown, "second close"); err != nil {
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
