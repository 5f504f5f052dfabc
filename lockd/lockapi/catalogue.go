package lockapi

import "slices"

// CodeInfo is one entry of the error catalogue.
type CodeInfo struct {
	Code   string
	Status int
	// RetrySafe says whether the identical request may be sent again without risking a second effect. The one exception stands with
	// BACKEND_UNAVAILABLE.
	RetrySafe bool
	Meaning   string
}

var catalogue = [...]CodeInfo{
	{CodeValidationFailed, 400, false, "The request isn't well-formed, or an argument is out of its bounds; the message names it. Nothing has happened."},
	{CodeInvalidToken, 400, false, "`X-Fencing-Token` is missing, stands twice, or isn't a token. Nothing has happened."},
	{CodeUnauthenticated, 401, false, "lockd asks who calls, and the bearer token or the client certificate is missing, wrong or over."},
	{CodeForbidden, 403, false, "The caller is known and may not do this: the call needs the operator's token or the admin listener."},
	{CodeNotFound, 404, false, "There is no such call."},
	{CodeSessionUnknown, 404, false, "No session has this id (any more). Open a new one."},
	{CodeLockNotHeld, 404, false, "Revoke: nobody holds the lock."},
	{CodeMethodNotAllowed, 405, false, "The path exists, without this method; the header `Allow` has those that there are."},
	{CodeRequestTimeout, 408, false, "The request didn't arrive whole within ten seconds."},
	{CodeLockContended, 409, true, "Another session holds the lock. `details` has `holderOwnerId` and `expiresAt` while they are known."},
	{CodeLockLost, 409, false, "The grant with this token is over: expired, taken over, revoked or released. Stop working under it. It is never said because the store couldn't be asked."},
	{CodeTokenMismatch, 409, false, "Revoke: the holder has another token than `expectedToken`."},
	{CodeSessionExpired, 410, false, "The session has expired, and its grants with it. Open a new one."},
	{CodeBodyTooLarge, 413, false, "The body is above 64 KiB."},
	{CodeContentionExceeded, 429, true, "Too many clients wait for locks. Come back after `retryAfterMillis`."},
	{CodeHeadTooLarge, 431, false, "Request line and headers are above 16 KiB."},
	{CodeClientClosedRequest, 499, true, "The client has hung up while it waited; what it had been granted is released. Only metrics ever see it."},
	{CodeInternal, 500, false, "A defect of lockd or of its deployment; its log has the details under the `traceId`."},
	{CodeBackendUnavailable, 503, true, "The store can't be asked now. Nothing has happened, unless `details.outcome` is `unknown`: then the change may or may not have happened, and a revocation must not be sent again blindly (`retrySafe` is false)."},
	{CodeOverloaded, 503, true, "lockd serves as many connections as it may. Nothing has happened; come back after `retryAfterMillis`."},
}

// Catalogue returns every code that lockd can answer with, ordered by status.
func Catalogue() []CodeInfo { return slices.Clone(catalogue[:]) }

// Lookup returns the catalogue's entry for a code, and whether there is one.
func Lookup(code string) (CodeInfo, bool) {
	for _, info := range catalogue {
		if info.Code == code {
			return info, true
		}
	}
	return CodeInfo{}, false
}
