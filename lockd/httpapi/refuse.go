package httpapi

import (
	"errors"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"fenceline/internal/httperr"
	"fenceline/lockd/lock"
	"fenceline/lockd/lockapi"
)

// retryAfter is when a client may sensibly ask an unavailable backend again.
const retryAfter = 500 * time.Millisecond

// waitersRetryAfter is when one who found the queue full may sensibly come back.
const waitersRetryAfter = 2 * time.Second

// refuse answers with the error's place in the catalogue. LOCK_LOST is said only when the store has said so; a store that
// can't be asked is always BACKEND_UNAVAILABLE.
func (a *API) refuse(c *call, err error) {
	var refusal *httperr.Error
	if !errors.As(err, &refusal) {
		refusal = a.catalogue(c, err)
	}
	refusal.Write(c.RequestCtx, c.traceID)
}

// answer is a refusal with the catalogue's status and whether it is safe to retry.
func answer(code, format string, args ...any) *httperr.Error {
	info, known := lockapi.Lookup(code)
	if !known {
		info.Status = fasthttp.StatusInternalServerError
	}
	refusal := httperr.New(info.Status, code, format, args...)
	refusal.RetrySafe = info.RetrySafe
	return refusal
}

func (a *API) catalogue(c *call, err error) *httperr.Error {
	switch {
	case errors.Is(err, lock.ErrInvalidToken):
		return answer(lockapi.CodeInvalidToken, "%s: %s", lockapi.HeaderToken, reason(err, lock.ErrInvalidToken))
	case errors.Is(err, lock.ErrInvalid):
		return answer(lockapi.CodeValidationFailed, "%s", reason(err, lock.ErrInvalid))
	case errors.Is(err, lock.ErrSessionUnknown):
		return answer(lockapi.CodeSessionUnknown, "no session has this id; open a new one")
	case errors.Is(err, lock.ErrSessionExpired):
		return answer(lockapi.CodeSessionExpired, "the session has expired and so have its grants; open a new one")
	case errors.Is(err, lock.ErrLockLost):
		return answer(lockapi.CodeLockLost, "the grant with this token is over; stop working under it")
	case errors.Is(err, lock.ErrTooManyWaiters):
		return answer(lockapi.CodeContentionExceeded, "too many clients wait for locks; come back later").Safe(waitersRetryAfter)
	case errors.Is(err, errHungUp):
		c.SetConnectionClose()
		return answer(lockapi.CodeClientClosedRequest, "the client has closed the connection; what it had been granted is released")
	case errors.Is(err, lock.ErrNotHeld):
		return answer(lockapi.CodeLockNotHeld, "nobody holds this lock")
	case errors.Is(err, lock.ErrTokenMismatch):
		return answer(lockapi.CodeTokenMismatch, "the holder has another token than the one expected; inspect and decide again")
	}
	return a.fault(c, err)
}

// fault answers what isn't the store's decision. After a lost answer every call but a
// revocation may be sent again: an acquire ends with a newer token and the older one is dead at the resource, the rest
// change nothing the second time. A revocation might end the next holder's grant.
func (a *API) fault(c *call, err error) *httperr.Error {
	a.logger.Error("request failed", "event", "request_failed", "path", string(c.Path()), "error", err, "traceId", c.traceID, "ownerId", c.owner)
	switch {
	case errors.Is(err, lock.ErrUnknownOutcome):
		refusal := answer(lockapi.CodeBackendUnavailable, "the store's answer was lost: the change may or may not have happened").
			Safe(retryAfter).With("outcome", lockapi.OutcomeUnknown)
		if c.revocation {
			refusal.RetrySafe, refusal.RetryAfterMillis = false, 0
		}
		return refusal
	case errors.Is(err, lock.ErrUnavailable):
		return answer(lockapi.CodeBackendUnavailable, "the lock store can't be used now; nothing has happened").Safe(retryAfter)
	}
	return answer(lockapi.CodeInternal, "a defect of this deployment; the log of lockd has the details under this trace id")
}

// reason is the error's text from the sentinel's own words on, without them; several faults at once stand in one line.
func reason(err, sentinel error) string {
	_, after, found := strings.Cut(err.Error(), sentinel.Error()+": ")
	if !found {
		return err.Error()
	}
	return strings.ReplaceAll(after, "\n"+sentinel.Error()+": ", "; ")
}
