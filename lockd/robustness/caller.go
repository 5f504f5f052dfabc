package robustness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"fenceline/lockd/lock"
	"fenceline/lockd/lockapi"
)

// caller sends one request at a time and records what came of it.
type caller struct {
	number  int
	http    *http.Client
	target  func() string // base URL of the replica to ask next
	history *History
	since   time.Time // the run's beginning; its monotonic part is the clock
	timeout time.Duration
}

// caller's owner id, one for each client.
func (c *caller) owner() string { return fmt.Sprintf("client-%d", c.number) }

// call sends the request and completes op by the answer. The answer's body is decoded into out when it is a success.
func (c *caller) call(ctx context.Context, op Op, method, path string, token int64, body, out any) Op {
	op.Client = c.number
	payload := []byte(nil)
	if body != nil {
		payload, _ = json.Marshal(body) // structs of strings and numbers
	}
	// An operation that has begun is waited for also when the run ends, so that its end makes none unknown.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.timeout+op.Waited)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, c.target()+path, bytes.NewReader(payload))
	if err != nil {
		op.Result, op.Detail = Nothing, err.Error()
		return op
	}
	request.Header.Set(lockapi.HeaderOwner, c.owner())
	if token != 0 {
		request.Header.Set(lockapi.HeaderToken, lock.Token(token).String())
	}
	op.Waited = 0
	op.Call = time.Since(c.since)
	status, answer, err := c.exchange(request)
	op.Return = time.Since(c.since)
	op.Result, op.Detail = read(status, answer, err)
	if op.Result == OK && len(answer) > 0 && out != nil {
		if err := json.Unmarshal(answer, out); err != nil {
			op.Result, op.Detail = Unknown, err.Error()
		}
	}
	return op
}

// exchange sends the request. net/http sends one again only when nothing of it had left on a connection that turned out to be dead: no
// call of lockd's is idempotent for it.
func (c *caller) exchange(request *http.Request) (int, []byte, error) {
	response, err := c.http.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = response.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	return response.StatusCode, answer, err
}

// read says what an answer means. Whatever is in doubt is unknown.
func read(status int, answer []byte, err error) (Result, string) {
	if err != nil {
		if dial, ok := errors.AsType[*net.OpError](err); ok && dial.Op == "dial" {
			return Nothing, err.Error() // there was no connection to send it on
		}
		return Unknown, err.Error()
	}
	if status/100 == 2 {
		return OK, ""
	}
	var refusal lockapi.Error
	if err := json.Unmarshal(answer, &refusal); err != nil {
		return Unknown, fmt.Sprintf("status %d: %v", status, err)
	}
	detail := fmt.Sprintf("%s: %s", refusal.Code, refusal.Message)
	switch refusal.Code {
	case lockapi.CodeLockContended:
		return Contended, ""
	case lockapi.CodeLockLost:
		return Lost, ""
	case lockapi.CodeLockNotHeld:
		return NotHeld, ""
	case lockapi.CodeTokenMismatch:
		return Mismatch, ""
	case lockapi.CodeSessionExpired:
		return Expired, ""
	case lockapi.CodeSessionUnknown:
		return Gone, ""
	case lockapi.CodeBackendUnavailable:
		if refusal.Details["outcome"] == lockapi.OutcomeUnknown {
			return Unknown, detail
		}
		return Nothing, detail // lockd says so, and the history tells whether it is true
	case lockapi.CodeContentionExceeded, lockapi.CodeOverloaded, lockapi.CodeRequestTimeout:
		return Nothing, detail
	}
	if status/100 == 4 {
		return Unexpected, detail
	}
	return Unknown, detail
}

// finish records the operation.
func (c *caller) finish(op Op) Op {
	c.history.Add(op)
	return op
}

func (c *caller) open(ctx context.Context, ttl time.Duration) (id string, op Op) {
	var session lockapi.Session
	op = c.call(ctx, Op{Kind: Open, TTL: ttl}, http.MethodPost, "/v1/sessions", 0,
		lockapi.OpenSessionRequest{OwnerID: c.owner(), TTLMillis: new(ttl.Milliseconds())}, &session)
	if op.Result != OK { // without its id nobody can use it
		return "", op
	}
	op.Session, op.TTL = c.history.NewSession(), time.Duration(session.TTLMillis)*time.Millisecond
	return session.SessionID, c.finish(op)
}

func (c *caller) heartbeat(ctx context.Context, s session) Op {
	op := c.call(ctx, Op{Kind: Heartbeat, Session: s.number, TTL: s.ttl}, http.MethodPost, "/v1/sessions/"+s.id+"/heartbeat", 0, nil, nil)
	return c.finish(op)
}

func (c *caller) close(ctx context.Context, s session) Op {
	return c.finish(c.call(ctx, Op{Kind: Close, Session: s.number}, http.MethodDelete, "/v1/sessions/"+s.id, 0, nil, nil))
}

func (c *caller) acquire(ctx context.Context, s session, key string, ttl, wait time.Duration) Op {
	var got lockapi.LockGrant
	request := lockapi.AcquireRequest{SessionID: s.id, TTLMillis: new(ttl.Milliseconds())}
	if wait > 0 {
		request.WaitMillis = new(wait.Milliseconds())
	}
	op := c.call(ctx, Op{Kind: Acquire, Key: key, Session: s.number, TTL: ttl, Waited: wait}, http.MethodPost, "/v1/locks/"+key+"/acquire", 0, request, &got)
	if op.Result == OK {
		op.Got, op.TTL = got.FencingToken, time.Duration(got.TTLMillis)*time.Millisecond
		op.Waited = time.Duration(got.GrantedAfterMillis) * time.Millisecond
	}
	return c.finish(op)
}

func (c *caller) renew(ctx context.Context, key string, token int64, ttl time.Duration) Op {
	var got lockapi.LockGrant
	op := c.call(ctx, Op{Kind: Renew, Key: key, Token: token, TTL: ttl}, http.MethodPost, "/v1/locks/"+key+"/renew", token,
		lockapi.RenewRequest{TTLMillis: new(ttl.Milliseconds())}, &got)
	if op.Result == OK {
		op.TTL = time.Duration(got.TTLMillis) * time.Millisecond
	}
	return c.finish(op)
}

func (c *caller) release(ctx context.Context, key string, token int64) Op {
	var got lockapi.ReleaseResult
	op := c.call(ctx, Op{Kind: Release, Key: key, Token: token}, http.MethodDelete, "/v1/locks/"+key, token, nil, &got)
	if op.Result == OK && got.Stale {
		op.Result = Stale
	}
	return c.finish(op)
}

func (c *caller) revoke(ctx context.Context, key string, expected int64) {
	var got lockapi.Revocation
	request := lockapi.RevokeRequest{Operator: c.owner(), Reason: "the workload wants it"}
	if expected != 0 {
		request.ExpectedToken = &expected
	}
	op := c.call(ctx, Op{Kind: Revoke, Key: key, Token: expected}, http.MethodPost, "/v1/locks/"+key+"/revoke", 0, request, &got)
	op.Got, op.Floor = got.RevokedToken, got.NewTokenFloor
	c.finish(op)
}
