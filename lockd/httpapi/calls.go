package httpapi

import (
	"fmt"
	"math"
	"time"

	"github.com/google/uuid"

	"fenceline/internal/httperr"
	"fenceline/internal/strictjson"
	"fenceline/lockd/lock"
	"fenceline/lockd/lockapi"
)

// openSession is L1.
func (a *API) openSession(c *call) error {
	var request lockapi.OpenSessionRequest
	if err := decode(c, &request); err != nil {
		return err
	}
	ttl := duration(request.TTLMillis, lock.DefaultSessionTTL)
	if request.OwnerID != c.owner {
		return fmt.Errorf("%w: ownerId: differs from %s", lock.ErrInvalid, lockapi.HeaderOwner)
	}
	session, err := a.service.OpenSession(c.ctx, request.OwnerID, ttl)
	if err != nil {
		return err
	}
	return httperr.WriteJSON(c.RequestCtx, 201, lockapi.Session{
		SessionID: session.ID.String(), OwnerID: session.OwnerID, TTLMillis: session.TTL.Milliseconds(), ExpiresAt: lockapi.Time{Time: session.ExpiresAt},
	})
}

// heartbeat is L2.
func (a *API) heartbeat(c *call) error {
	id, err := sessionID(c.id)
	if err != nil {
		return err
	}
	session, held, now, err := a.service.Heartbeat(c.ctx, id)
	if err != nil {
		return err
	}
	return httperr.WriteJSON(c.RequestCtx, 200, lockapi.Heartbeat{
		SessionID: id.String(), ExpiresAt: lockapi.Time{Time: session.ExpiresAt}, ServerTime: lockapi.Time{Time: now}, HeldLockCount: held,
	})
}

// closeSession is L3.
func (a *API) closeSession(c *call) error {
	id, err := sessionID(c.id)
	if err != nil {
		return err
	}
	if err := a.service.CloseSession(c.ctx, id); err != nil {
		return err
	}
	c.SetStatusCode(204)
	return nil
}

// acquire is L4.
func (a *API) acquire(c *call) error {
	var request lockapi.AcquireRequest
	if err := decode(c, &request); err != nil {
		return err
	}
	id, err := sessionID(request.SessionID)
	if err != nil {
		return err
	}
	ttl, wait := duration(request.TTLMillis, lock.DefaultLockTTL), duration(request.WaitMillis, 0)
	if err := lock.ValidDuration("waitMillis", wait, 0, lock.MaxWait); err != nil {
		return err
	}
	ctx, stop := c.whileConnected(wait)
	result, err := a.service.Acquire(ctx, lock.AcquireRequest{Key: c.id, OwnerID: c.owner, SessionID: id, TTL: ttl, Wait: wait})
	stop()
	if err != nil {
		return err
	}
	if !result.Granted {
		return contended(result.Holder)
	}
	if err := a.giveBackIfGone(c, result.Grant); err != nil {
		return err
	}
	return writeGrant(c, result.Grant, result.Waited)
}

func contended(holder lock.Holder) error {
	refusal := answer(lockapi.CodeLockContended, "another session holds the lock")
	if holder.OwnerID != "" {
		refusal.With("holderOwnerId", holder.OwnerID).With("expiresAt", lockapi.Time{Time: holder.ExpiresAt})
	}
	return refusal
}

// writeGrant answers with a grant. GrantedAfterMillis is how long the request was made to wait before the attempt began that was granted, for
// a client adds it to the time at which its lease began by its own clock. The time that the attempt itself took is never part of it: the lease
// counts from that attempt's beginning, and a client that added it would trust its lease for longer than it lasts. It is rounded down for the same reason.
func writeGrant(c *call, grant lock.Grant, waited time.Duration) error {
	c.Response.Header.Set(lockapi.HeaderToken, grant.Token.String())
	return httperr.WriteJSON(c.RequestCtx, 200, lockapi.LockGrant{
		Key: grant.Key, OwnerID: grant.OwnerID, SessionID: grant.SessionID.String(), FencingToken: int64(grant.Token),
		AcquiredAt: lockapi.Time{Time: grant.AcquiredAt}, ExpiresAt: lockapi.Time{Time: grant.ExpiresAt},
		TTLMillis: grant.TTL.Milliseconds(), GrantedAfterMillis: waited.Milliseconds(),
	})
}

// renew is L5. Its body is optional.
func (a *API) renew(c *call) error {
	token, err := tokenOf(c)
	if err != nil {
		return err
	}
	var request lockapi.RenewRequest
	if len(c.PostBody()) > 0 {
		if err := decode(c, &request); err != nil {
			return err
		}
	}
	ttl := duration(request.TTLMillis, lock.DefaultLockTTL)
	grant, err := a.service.Renew(c.ctx, c.id, token, ttl)
	if err != nil {
		return err
	}
	return writeGrant(c, grant, 0)
}

// release is L6.
func (a *API) release(c *call) error {
	token, err := tokenOf(c)
	if err != nil {
		return err
	}
	result, err := a.service.Release(c.ctx, c.id, c.owner, token)
	if err != nil {
		return err
	}
	return httperr.WriteJSON(c.RequestCtx, 200, lockapi.ReleaseResult{Released: !result.Stale, Stale: result.Stale})
}

// inspect is L7.
func (a *API) inspect(c *call) error {
	grant, held, err := a.service.Inspect(c.ctx, c.id)
	if err != nil {
		return err
	}
	info := lockapi.LockInfo{Key: c.id, Held: held}
	if held {
		waiters := a.service.Waiters(c.id)
		info.OwnerID, info.FencingToken, info.WaiterCount = grant.OwnerID, int64(grant.Token), &waiters
		info.AcquiredAt, info.ExpiresAt = &lockapi.Time{Time: grant.AcquiredAt}, &lockapi.Time{Time: grant.ExpiresAt}
	}
	return httperr.WriteJSON(c.RequestCtx, 200, info)
}

// revoke is L8.
func (a *API) revoke(c *call) error {
	c.revocation = true
	var request lockapi.RevokeRequest
	if err := decode(c, &request); err != nil {
		return err
	}
	domain := lock.RevokeRequest{Key: c.id, Operator: request.Operator, Reason: request.Reason}
	if request.ExpectedToken != nil {
		if *request.ExpectedToken < 1 {
			return fmt.Errorf("%w: expectedToken: want 1 or more", lock.ErrInvalid)
		}
		domain.Expected = lock.Token(*request.ExpectedToken)
	}
	result, err := a.service.Revoke(c.ctx, domain)
	if err != nil {
		return err
	}
	return httperr.WriteJSON(c.RequestCtx, 200, lockapi.Revocation{
		RevokedToken: int64(result.RevokedToken), NewTokenFloor: int64(result.NewTokenFloor), RevocationID: result.ID,
	})
}

func decode(c *call, v any) error {
	if err := strictjson.Decode(c.PostBody(), v); err != nil {
		return fmt.Errorf("%w: %w", lock.ErrInvalid, err)
	}
	return nil
}

// sessionID reads the one spelling of a session id: a UUID with hyphens.
func sessionID(text string) (uuid.UUID, error) {
	id, err := uuid.Parse(text)
	if err != nil || len(text) != 36 {
		return uuid.UUID{}, fmt.Errorf("%w: sessionId: want a UUID", lock.ErrInvalid)
	}
	return id, nil
}

// tokenOf reads the token header, which must stand there exactly once.
func tokenOf(c *call) (lock.Token, error) {
	values := c.Request.Header.PeekAll(lockapi.HeaderToken)
	if len(values) != 1 {
		return 0, fmt.Errorf("%w: the header %s stands %d times, want once", lock.ErrInvalidToken, lockapi.HeaderToken, len(values))
	}
	return lock.ParseToken(string(values[0]))
}

// duration turns whole milliseconds into a duration. What doesn't fit becomes the longest one: it is out of every bound all the same.
func duration(millis *int64, otherwise time.Duration) time.Duration {
	switch {
	case millis == nil:
		return otherwise
	case *millis > math.MaxInt64/int64(time.Millisecond):
		return math.MaxInt64
	case *millis < math.MinInt64/int64(time.Millisecond):
		return math.MinInt64
	}
	return time.Duration(*millis) * time.Millisecond
}
