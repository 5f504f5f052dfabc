// Package lockclient is the Go client of lockd. It imports the standard library and the two packages of the contract only.
//
// The token of a grant is an explicit value: put it on every request to the guarded resource as the header X-Fencing-Token.
package lockclient

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"fenceline/lockd/lock"
	"fenceline/lockd/lockapi"
)

// maxAnswer bounds an answer that is read into memory.
const maxAnswer = 64 << 10

// maxPage bounds a page of a listing.
const maxPage = 4 << 20

// Client talks to one lockd, call by call: each is sent once and nothing is kept alive. Most programs want Open instead. It is safe for
// concurrent use.
type Client struct {
	base           string
	owner          string
	timeout        time.Duration // of each call; 0 means none
	tokenFile      string
	http           *http.Client
	ownConnections bool // nobody else uses them
}

// CloseIdleConnections closes connections that no call uses, unless they belong to an HTTP client that was given.
func (c *Client) CloseIdleConnections() {
	if c.ownConnections {
		c.http.CloseIdleConnections()
	}
}

// OpenSession opens a session (L1) that lasts ttl without a heartbeat, 1 s to 60 s; 0 means the server's default.
func (c *Client) OpenSession(ctx context.Context, ttl time.Duration) (lockapi.Session, error) {
	var session lockapi.Session
	err := c.call(ctx, request{
		method: http.MethodPost, path: "/v1/sessions", status: http.StatusCreated,
		body: lockapi.OpenSessionRequest{OwnerID: c.owner, TTLMillis: millis(ttl)},
	}, &session)
	if err == nil && (session.SessionID == "" || !plausible(session.TTLMillis)) {
		err = fmt.Errorf("open session: %w: no session id, or no time to live that can be meant", ErrNoAnswer)
	}
	return session, err
}

// Heartbeat keeps a session alive (L2). It returns lock.ErrSessionUnknown or lock.ErrSessionExpired when the session is over.
func (c *Client) Heartbeat(ctx context.Context, sessionID string) (lockapi.Heartbeat, error) {
	var heartbeat lockapi.Heartbeat
	err := c.call(ctx, request{method: http.MethodPost, path: sessionPath(sessionID) + "/heartbeat", status: http.StatusOK}, &heartbeat)
	return heartbeat, err
}

// CloseSession ends a session and releases its grants (L3). It returns lock.ErrSessionUnknown when there is none.
func (c *Client) CloseSession(ctx context.Context, sessionID string) error {
	return c.call(ctx, request{method: http.MethodDelete, path: sessionPath(sessionID), status: http.StatusNoContent}, nil)
}

// Acquire tries once to get the key (L4) for ttl, 100 ms to 300 s; 0 means the server's default. It returns ErrContended when another session
// has it, and lock.ErrSessionUnknown or lock.ErrSessionExpired. After an error that leaves the outcome open, the same call again is
// safe: it ends with a newer token.
func (c *Client) Acquire(ctx context.Context, key, sessionID string, ttl time.Duration) (lockapi.LockGrant, error) {
	return c.AcquireWaiting(ctx, key, sessionID, ttl, 0)
}

// AcquireWaiting is Acquire, but lets lockd wait for the key until it is free, up to 30 s. The lease begins with the grant: the answer's
// GrantedAfterMillis says how long the request waited before.
func (c *Client) AcquireWaiting(ctx context.Context, key, sessionID string, ttl, wait time.Duration) (lockapi.LockGrant, error) {
	return c.grant(ctx, "acquire", key, 0, wait, lockapi.AcquireRequest{SessionID: sessionID, TTLMillis: millis(ttl), WaitMillis: millis(wait)})
}

// Renew prolongs a grant (L5): it lasts ttl from now on, 100 ms to 300 s; 0 means the server's default. It returns lock.ErrLockLost only when lockd
// has said so.
func (c *Client) Renew(ctx context.Context, key string, token lock.Token, ttl time.Duration) (lockapi.LockGrant, error) {
	return c.grant(ctx, "renew", key, token, 0, lockapi.RenewRequest{TTLMillis: millis(ttl)})
}

// grant sends a request whose answer is a grant, and believes only one that can be meant: for this key, with a
// token that stands in body and header alike, and unchanged by a renewal.
func (c *Client) grant(ctx context.Context, call, key string, token lock.Token, wait time.Duration, body any) (lockapi.LockGrant, error) {
	var grant lockapi.LockGrant
	var header http.Header
	err := c.call(ctx, request{
		method: http.MethodPost, path: lockPath(key) + "/" + call, status: http.StatusOK, token: token, wait: wait, body: body, header: &header,
	}, &grant)
	if err != nil {
		return lockapi.LockGrant{}, err
	}
	said, err := lock.ParseToken(header.Get(lockapi.HeaderToken))
	if err != nil || int64(said) != grant.FencingToken || grant.Key != key || (token != 0 && said != token) || !plausible(grant.TTLMillis) {
		return lockapi.LockGrant{}, fmt.Errorf("%s %s: %w: the grant doesn't fit the request", call, key, ErrNoAnswer)
	}
	return grant, nil
}

// Release gives a grant back (L6). One that is no longer ours is success, with Stale true.
func (c *Client) Release(ctx context.Context, key string, token lock.Token) (lockapi.ReleaseResult, error) {
	var result lockapi.ReleaseResult
	err := c.call(ctx, request{method: http.MethodDelete, path: lockPath(key), status: http.StatusOK, token: token}, &result)
	return result, err
}

// Inspect says who holds the key (L7). It is advisory: never a basis for acting.
func (c *Client) Inspect(ctx context.Context, key string) (lockapi.LockInfo, error) {
	var info lockapi.LockInfo
	err := c.call(ctx, request{method: http.MethodGet, path: lockPath(key), status: http.StatusOK}, &info)
	return info, err
}

// Revoke ends the holder's grant on an operator's word (L8). It returns lock.ErrNotHeld or lock.ErrTokenMismatch. After an error that leaves
// the outcome open, Inspect before sending it again: it might end the next holder's grant.
func (c *Client) Revoke(ctx context.Context, key string, body lockapi.RevokeRequest) (lockapi.Revocation, error) {
	var result lockapi.Revocation
	err := c.call(ctx, request{method: http.MethodPost, path: lockPath(key) + "/revoke", status: http.StatusOK, body: body}, &result)
	return result, err
}

// ListLocks returns a page of at most limit held locks whose keys begin with prefix (L9), in the order of their keys. cursor is the NextCursor
// of the page before, "" for the first; limit is 1 to 500, 0 for the server's default. For operators, and advisory.
func (c *Client) ListLocks(ctx context.Context, prefix, cursor string, limit int) (lockapi.LockPage, error) {
	var page lockapi.LockPage
	err := c.call(ctx, request{method: http.MethodGet, path: listPath("/v1/locks", limit, url.Values{"prefix": {prefix}, "cursor": {cursor}}), status: http.StatusOK, most: maxPage}, &page)
	return page, err
}

// ListRevocations returns a page of at most limit revocations (L9), the oldest first. after is the NextCursor of the page before, "" for the first; limit
// is as in ListLocks.
func (c *Client) ListRevocations(ctx context.Context, after string, limit int) (lockapi.RevocationPage, error) {
	var page lockapi.RevocationPage
	err := c.call(ctx, request{method: http.MethodGet, path: listPath("/v1/revocations", limit, url.Values{"after": {after}}), status: http.StatusOK, most: maxPage}, &page)
	return page, err
}

// listPath leaves out what is empty.
func listPath(path string, limit int, query url.Values) string {
	for name := range query {
		if query.Get(name) == "" {
			query.Del(name)
		}
	}
	if limit != 0 {
		query.Set("limit", strconv.Itoa(limit))
	}
	if len(query) == 0 {
		return path
	}
	return path + "?" + query.Encode()
}

func sessionPath(id string) string { return "/v1/sessions/" + url.PathEscape(id) }
func lockPath(key string) string   { return "/v1/locks/" + url.PathEscape(key) }

// plausible says whether a time to live can be meant. The upper bound only keeps the arithmetic of deadlines from overflowing.
func plausible(ttlMillis int64) bool {
	return ttlMillis > 0 && ttlMillis <= (24*time.Hour).Milliseconds()
}

// millis is nil, hence left out, for 0.
func millis(d time.Duration) *int64 {
	if d == 0 {
		return nil
	}
	n := d.Milliseconds()
	return &n
}

// request is one call of the contract.
type request struct {
	method, path string
	status       int // of success
	token        lock.Token
	wait         time.Duration // that lockd is asked to take
	body         any
	most         int64        // bytes of the answer; 0 means maxAnswer
	header       *http.Header // where the answer's headers go, if anywhere
}

// call sends one request, once, and reads its answer.
func (c *Client) call(ctx context.Context, r request, into any) error {
	doing := r.method + " " + r.path
	if c.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.timeout+r.wait)
		defer cancel()
	}
	sent, err := c.build(ctx, r)
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	response, err := c.http.Do(sent)
	if err != nil {
		return fmt.Errorf("%s: %w: %w", doing, ErrNoAnswer, err)
	}
	defer func() { _ = response.Body.Close() }()
	most := cmp.Or(r.most, maxAnswer)
	answer, err := io.ReadAll(io.LimitReader(response.Body, most+1))
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w: cut off: %w", doing, ErrNoAnswer, err)
	case int64(len(answer)) > most:
		return fmt.Errorf("%s: %w: more than %d bytes", doing, ErrNoAnswer, most)
	case response.StatusCode != r.status:
		return refused(doing, response.StatusCode, answer)
	case r.header != nil:
		*r.header = response.Header
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(answer, into); err != nil {
		return fmt.Errorf("%s: %w: unreadable: %w", doing, ErrNoAnswer, err)
	}
	return nil
}

func (c *Client) build(ctx context.Context, r request) (*http.Request, error) {
	var content io.Reader
	if r.body != nil {
		encoded, err := json.Marshal(r.body)
		if err != nil {
			return nil, err
		}
		content = bytes.NewReader(encoded)
	}
	built, err := http.NewRequestWithContext(ctx, r.method, c.base+r.path, content)
	if err != nil {
		return nil, err
	}
	bearer, err := c.bearer()
	if err != nil {
		return nil, err
	}
	if bearer != "" {
		built.Header.Set("Authorization", "Bearer "+bearer)
	}
	built.Header.Set(lockapi.HeaderOwner, c.owner)
	if r.body != nil {
		built.Header.Set("Content-Type", "application/json")
	}
	if r.token != 0 {
		built.Header.Set(lockapi.HeaderToken, r.token.String())
	}
	return built, nil
}
