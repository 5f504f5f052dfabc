package locktest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"fenceline/lockd/lock"
)

const (
	hotClients = 200
	hotRounds  = 3
	// revokeEvery says how many grants end before one is revoked.
	revokeEvery = 5
	// hotAttempts bounds the acquires under way, so that the holder's release needn't queue behind two hundred of them.
	hotAttempts = 8
	// hotHeartbeat keeps sessions alive when a busy machine makes the fight a long one.
	hotHeartbeat = 15 * time.Second
)

// TokensIncreaseOnAHotKey lets many clients fight for one key. Whoever is granted writes its token down while it holds the
// key: one at a time, each higher than the one before. It finds a token that was drawn early and granted late.
func TokensIncreaseOnAHotKey(ctx context.Context, s Store) error {
	hot := &hotKey{store: s, key: newKey(), attempts: make(chan struct{}, hotAttempts)}
	group, ctx := errgroup.WithContext(ctx)
	for range hotClients {
		group.Go(func() error {
			c, err := newClientFor(ctx, s, lock.MaxSessionTTL)
			if err != nil {
				return err
			}
			for granted, beat := 0, time.Now(); granted < hotRounds; {
				if time.Since(beat) > hotHeartbeat {
					if _, _, _, err := s.Heartbeat(ctx, c.session.ID); err != nil {
						return fmt.Errorf("heartbeat: %w", err)
					}
					beat = time.Now()
				}
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
	return errors.Join(group.Wait(), hot.floorsHeld())
}

// hotKey is the key that everybody wants, with what its holders wrote down.
type hotKey struct {
	store    Store
	key      string
	attempts chan struct{}
	inside   sync.Mutex
	last     lock.Token

	mu     sync.Mutex
	tokens []lock.Token
	floors []lock.Revocation
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
	return true, h.giveBack(ctx, result.Grant.Token)
}

// giveBack ends the grant: mostly by a release, now and then by a revocation.
func (h *hotKey) giveBack(ctx context.Context, token lock.Token) error {
	h.mu.Lock()
	h.tokens = append(h.tokens, token)
	revoke := len(h.tokens)%revokeEvery == 0
	h.mu.Unlock()
	if !revoke {
		_, err := h.store.Delete(ctx, h.key, token)
		return err
	}
	revocation, err := h.store.Revoke(ctx, lock.RevokeRequest{Key: h.key, Operator: "op", Reason: "it is its turn", Expected: token})
	h.mu.Lock()
	defer h.mu.Unlock()
	h.floors = append(h.floors, revocation)
	return err
}

// floorsHeld wants every grant after a revocation to be above its floor.
func (h *hotKey) floorsHeld() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.floors {
		for _, token := range h.tokens {
			if token > r.RevokedToken && token <= r.NewTokenFloor {
				return fmt.Errorf("token %d was granted after the revocation of %d with the floor %d", token, r.RevokedToken, r.NewTokenFloor)
			}
		}
	}
	return nil
}
