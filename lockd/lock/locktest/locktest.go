// Package locktest is the conformance matrix that every lock store passes: the same scenarios, the same
// assertions, whatever the technology behind. Each scenario returns an error instead of failing a test, so that a broken store can be
// shown to fail it.
package locktest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"fenceline/lockd/lock"
)

// Store is what is tested, with the one thing that a scenario can't do through the interface.
type Store struct {
	lock.Store
	// ExpireSession makes a session's time run out now, by the store's own clock, without removing it.
	ExpireSession func(ctx context.Context, id uuid.UUID) error
}

// Scenario is one row of the matrix.
type Scenario struct {
	Name string
	Run  func(ctx context.Context, s Store) error
}

// Scenarios is the matrix. The first six and the two after them are those of the reference matrix; tokens are compared by
// order, never with a value.
func Scenarios() []Scenario {
	return []Scenario{
		{"freeKeyIsGrantedWithAPositiveToken", freeKeyIsGranted},
		{"heldKeyIsContendedAndStaysWithItsHolder", heldKeyIsContended},
		{"expiredLeaseIsStolenWithHigherToken", expiredLeaseIsStolen},
		{"sameSessionReacquiresWithHigherToken", sameSessionReacquires},
		{"staleReleaseLeavesTheNewHolderUntouched", staleReleaseLeavesTheNewHolder},
		{"renewAfterExpiryIsLostEvenIfNobodyTookTheKey", renewAfterExpiryIsLost},
		{"reapingTwiceFindsNothingTheSecondTime", reapingIsIdempotent},
		{"everyExpiredGrantIsReapedOnceByManyReapers", everyExpiredGrantIsReapedOnce},
		{"takeoverTellsWhichGrantItEnded", takeoverTellsWhatItEnded},
		{"tokenAfterARevocationExceedsTheRevokedOne", revocationAdvancesTheToken},
		{"keyOfADeadSessionIsTakenOverWithoutAReaper", deadSessionFreesItsKey},
		{"expiredSessionCannotAcquireEvenBeforeItIsReaped", expiredSessionCannotAcquire},
		{"closingASessionReleasesItsGrants", closingASessionReleases},
		{"everyGrantOfAClosedSessionIsToldOnce", everyGrantOfAClosedSessionIsToldOnce},
		{"heartbeatKeepsASessionAndItsGrantsAlive", heartbeatKeepsAlive},
		{"revocationWithAnotherExpectedTokenChangesNothing", revocationChecksTheExpectedToken},
		{"waitersAreServedInTheOrderOfArrival", waitersAreServedInOrder},
		{"waiterIsWokenThroughAnotherReplica", waiterIsWokenThroughAnotherReplica},
		{"waiterIsGrantedWhenTheLeaseRunsOut", waiterIsGrantedWhenTheLeaseRunsOut},
		{"cancelledWaiterLeavesNoGrant", cancelledWaiterLeavesNoGrant},
		{"tokensIncreaseInTheOrderOfGrantsOnAHotKey", TokensIncreaseOnAHotKey},
	}
}

const (
	longTTL  = 30 * time.Second
	shortTTL = 100 * time.Millisecond
	// pollEvery paces looks at a store whose clock decides.
	pollEvery = 10 * time.Millisecond
)

// client is one session of its own.
type client struct {
	store   Store
	session lock.Session
}

func newClient(ctx context.Context, s Store) (*client, error) { return newClientFor(ctx, s, longTTL) }

// newClientFor opens a session that lives for ttl; only the fight for the hot key sends heartbeats.
func newClientFor(ctx context.Context, s Store, ttl time.Duration) (*client, error) {
	session, err := s.OpenSession(ctx, "owner-"+uuid.NewString()[:8], ttl)
	if err != nil {
		return nil, fmt.Errorf("open session: %w", err)
	}
	return &client{store: s, session: session}, nil
}

func twoClients(ctx context.Context, s Store) (a, b *client, err error) {
	a, errA := newClient(ctx, s)
	b, errB := newClient(ctx, s)
	return a, b, errors.Join(errA, errB)
}

// must acquires and wants a grant.
func (c *client) must(ctx context.Context, key string, ttl time.Duration) (lock.Grant, error) {
	result, err := c.store.Insert(ctx, key, c.session.OwnerID, c.session.ID, ttl)
	if err != nil {
		return lock.Grant{}, fmt.Errorf("acquire: %w", err)
	}
	if !result.Granted {
		return lock.Grant{}, errors.New("acquire: contended, want a grant")
	}
	if result.Grant.Token <= 0 {
		return lock.Grant{}, fmt.Errorf("token %d isn't positive", result.Grant.Token)
	}
	return result.Grant, nil
}

// takeOver acquires again and again until the holder's lease has expired by the store's clock.
func (c *client) takeOver(ctx context.Context, key string) (lock.Grant, error) {
	for {
		result, err := c.store.Insert(ctx, key, c.session.OwnerID, c.session.ID, longTTL)
		if err != nil {
			return lock.Grant{}, fmt.Errorf("take over: %w", err)
		}
		if result.Granted {
			return result.Grant, nil
		}
		if err := pause(ctx); err != nil {
			return lock.Grant{}, fmt.Errorf("take over: the lease doesn't expire: %w", err)
		}
	}
}

func pause(ctx context.Context) error {
	timer := time.NewTimer(pollEvery)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func newKey() string { return "key:" + uuid.NewString() }

// wantHolder wants the key to be held by this very grant.
func wantHolder(ctx context.Context, s Store, want lock.Grant) error {
	got, held, err := s.Read(ctx, want.Key)
	if err != nil {
		return fmt.Errorf("read: %w", err)
	}
	if !held || got.Token != want.Token || got.OwnerID != want.OwnerID || got.SessionID != want.SessionID || !got.ExpiresAt.Equal(want.ExpiresAt) {
		return fmt.Errorf("holder is %+v (held %t), want %+v", got, held, want)
	}
	return nil
}

func wantError(got, want error, doing string) error {
	if !errors.Is(got, want) {
		return fmt.Errorf("%s: got %v, want %v", doing, got, want) //nolint:errorlint // two errors compared, none to wrap
	}
	return nil
}
