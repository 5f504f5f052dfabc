// Package lockclient is the Go client of lockd. It imports the standard library and the two packages of the contract only.
//
// The token of a grant is an explicit value: put it on every request to the guarded resource as the header X-Fencing-Token.
package lockclient

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"fenceline/lockd/lock"
	"fenceline/lockd/lockapi"
)

// maxAnswer bounds an answer that is read into memory.
const maxAnswer = 64 << 10

// Client talks to one lockd. It is safe for concurrent use.
type Client struct {
	base  string
	owner string
	http  *http.Client
}

// New returns a client for the lockd at base (such as http://127.0.0.1:7400) that acts as owner, 1 to 64 characters.
// The HTTP client's time limit bounds each call; nil means one with 10 s.
func New(base, owner string, httpClient *http.Client) (*Client, error) {
	parsed, err := url.Parse(base)
	if err != nil || parsed.Host == "" || (parsed.Scheme != "http" && parsed.Scheme != "https") {
		return nil, fmt.Errorf("lockd's address %q: want a URL such as http://127.0.0.1:7400", base)
	}
	if err := lock.ValidOwner("owner", owner); err != nil {
		return nil, err
	}
	if httpClient == nil {
		httpClient = &http.Client{Timeout: 10 * time.Second}
	}
	return &Client{base: strings.TrimSuffix(base, "/"), owner: owner, http: httpClient}, nil
}

// Refusal is an answer of lockd that isn't success. errors.Is finds the domain's error behind it, such as
// lock.ErrLockLost. A call that got no answer gives another error, never a Refusal: not knowing
// whether a lock is lost isn't the same as having lost it.
type Refusal struct {
	Status   int
	Envelope lockapi.Error
}

// Error gives code and message.
func (r *Refusal) Error() string {
	return fmt.Sprintf("lockd: %s: %s", r.Envelope.Code, r.Envelope.Message)
}

// Unwrap returns the domain's error for the code, or nil.
func (r *Refusal) Unwrap() error {
	switch r.Envelope.Code {
	case lockapi.CodeLockLost:
		return lock.ErrLockLost
	case lockapi.CodeSessionUnknown:
		return lock.ErrSessionUnknown
	case lockapi.CodeSessionExpired:
		return lock.ErrSessionExpired
	case lockapi.CodeLockContended:
		return ErrContended
	case lockapi.CodeLockNotHeld:
		return lock.ErrNotHeld
	case lockapi.CodeTokenMismatch:
		return lock.ErrTokenMismatch
	case lockapi.CodeBackendUnavailable:
		return lock.ErrUnavailable
	case lockapi.CodeInvalidToken:
		return lock.ErrInvalidToken
	case lockapi.CodeValidationFailed:
		return lock.ErrInvalid
	}
	return nil
}

// ErrContended means that another session holds the lock.
var ErrContended = errors.New("lock is held by another session")

// OpenSession opens a session (L1).
func (c *Client) OpenSession(ctx context.Context, ttl time.Duration) (lockapi.Session, error) {
	var session lockapi.Session
	err := c.call(ctx, http.MethodPost, "/v1/sessions", 0, lockapi.OpenSessionRequest{OwnerID: c.owner, TTLMillis: millis(ttl)}, &session)
	return session, err
}

// Heartbeat keeps a session alive (L2).
func (c *Client) Heartbeat(ctx context.Context, sessionID string) (lockapi.Heartbeat, error) {
	var heartbeat lockapi.Heartbeat
	err := c.call(ctx, http.MethodPost, "/v1/sessions/"+url.PathEscape(sessionID)+"/heartbeat", 0, nil, &heartbeat)
	return heartbeat, err
}

// CloseSession ends a session and releases its grants (L3).
func (c *Client) CloseSession(ctx context.Context, sessionID string) error {
	return c.call(ctx, http.MethodDelete, "/v1/sessions/"+url.PathEscape(sessionID), 0, nil, nil)
}

// Acquire tries once to get the key (L4). ErrContended means that another session has it.
func (c *Client) Acquire(ctx context.Context, key, sessionID string, ttl time.Duration) (lockapi.LockGrant, error) {
	var grant lockapi.LockGrant
	err := c.call(ctx, http.MethodPost, lockPath(key)+"/acquire", 0, lockapi.AcquireRequest{SessionID: sessionID, TTLMillis: millis(ttl)}, &grant)
	return grant, err
}

// Renew prolongs a grant (L5). lock.ErrLockLost means that lockd has said so.
func (c *Client) Renew(ctx context.Context, key string, token lock.Token, ttl time.Duration) (lockapi.LockGrant, error) {
	var grant lockapi.LockGrant
	err := c.call(ctx, http.MethodPost, lockPath(key)+"/renew", token, lockapi.RenewRequest{TTLMillis: millis(ttl)}, &grant)
	return grant, err
}

// Release gives a grant back (L6).
func (c *Client) Release(ctx context.Context, key string, token lock.Token) (lockapi.ReleaseResult, error) {
	var result lockapi.ReleaseResult
	err := c.call(ctx, http.MethodDelete, lockPath(key), token, nil, &result)
	return result, err
}

// Inspect says who holds the key (L7). It is advisory: never a basis for acting.
func (c *Client) Inspect(ctx context.Context, key string) (lockapi.LockInfo, error) {
	var info lockapi.LockInfo
	err := c.call(ctx, http.MethodGet, lockPath(key), 0, nil, &info)
	return info, err
}

// Revoke ends the holder's grant on an operator's word (L8).
func (c *Client) Revoke(ctx context.Context, key string, request lockapi.RevokeRequest) (lockapi.Revocation, error) {
	var result lockapi.Revocation
	err := c.call(ctx, http.MethodPost, lockPath(key)+"/revoke", 0, request, &result)
	return result, err
}

func lockPath(key string) string { return "/v1/locks/" + url.PathEscape(key) }

func millis(d time.Duration) *int64 {
	n := d.Milliseconds()
	return &n
}

// call sends one request, once, and reads its answer.
func (c *Client) call(ctx context.Context, method, path string, token lock.Token, body, into any) error {
	doing := method + " " + path
	request, err := c.newRequest(ctx, method, path, token, body)
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return fmt.Errorf("%s: no answer: %w", doing, err)
	}
	defer func() { _ = response.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("%s: answer cut off: %w", doing, err)
	}
	if response.StatusCode >= http.StatusBadRequest {
		refusal := &Refusal{Status: response.StatusCode}
		if err := json.Unmarshal(answer, &refusal.Envelope); err != nil || refusal.Envelope.Code == "" {
			return fmt.Errorf("%s: status %d without an error envelope: is this lockd?", doing, response.StatusCode)
		}
		return refusal
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(answer, into); err != nil {
		return fmt.Errorf("%s: unreadable answer: %w", doing, err)
	}
	return nil
}

func (c *Client) newRequest(ctx context.Context, method, path string, token lock.Token, body any) (*http.Request, error) {
	var content io.Reader
	if body != nil {
		encoded, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		content = bytes.NewReader(encoded)
	}
	request, err := http.NewRequestWithContext(ctx, method, c.base+path, content)
	if err != nil {
		return nil, err
	}
	request.Header.Set(lockapi.HeaderOwner, c.owner)
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if token != 0 {
		request.Header.Set(lockapi.HeaderToken, token.String())
	}
	return request, nil
}
