package lockapi_test

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/valyala/fasthttp"

	"fenceline/internal/httperr"
	"fenceline/lockd/lockapi"
)

// The envelope that clients decode is the one that the server writes, member for member.
func TestEnvelopeIsTheServersOwn(t *testing.T) {
	t.Parallel()
	var ctx fasthttp.RequestCtx
	httperr.New(503, lockapi.CodeBackendUnavailable, "words").Safe(1500*time.Millisecond).With("outcome", lockapi.OutcomeUnknown).Write(&ctx, "trace")
	var read lockapi.Error
	require.NoError(t, json.Unmarshal(ctx.Response.Body(), &read))
	require.Equal(t, lockapi.Error{
		Code: "BACKEND_UNAVAILABLE", Message: "words", RetrySafe: true, RetryAfterMillis: 1500, Details: map[string]any{"outcome": "unknown"}, TraceID: "trace",
	}, read)
	again, err := json.Marshal(read)
	require.NoError(t, err)
	require.JSONEq(t, string(ctx.Response.Body()), string(again))

	tags := func(v any) (all []string) {
		for field := range reflect.TypeOf(v).Fields() {
			if tag := field.Tag.Get("json"); tag != "-" {
				all = append(all, tag)
			}
		}
		return all
	}
	require.Equal(t, tags(httperr.Error{}), tags(lockapi.Error{}))
}

// The bodies' members are the contract; renaming a field in Go must not change them.
func TestBodiesHaveTheContractsMembers(t *testing.T) {
	t.Parallel()
	at := lockapi.Time{Time: time.Date(2026, 3, 1, 13, 0, 0, 1_999_999, time.FixedZone("CET", 3600))}
	millis, waiters := int64(5), 0
	for want, body := range map[string]any{
		`{"ownerId":"o"}`:                 lockapi.OpenSessionRequest{OwnerID: "o"},
		`{"ownerId":"o","ttlMillis":5}`:   lockapi.OpenSessionRequest{OwnerID: "o", TTLMillis: &millis},
		`{"sessionId":"s"}`:               lockapi.AcquireRequest{SessionID: "s"},
		`{"released":true,"stale":false}`: lockapi.ReleaseResult{Released: true},
		`{"key":"k","held":false}`:        lockapi.LockInfo{Key: "k"},
		`{"sessionId":"s","ownerId":"o","ttlMillis":5,"expiresAt":"2026-03-01T12:00:00.001Z"}`:                               lockapi.Session{SessionID: "s", OwnerID: "o", TTLMillis: 5, ExpiresAt: at},
		`{"sessionId":"s","expiresAt":"2026-03-01T12:00:00.001Z","serverTime":"2026-03-01T12:00:00.001Z","heldLockCount":0}`: lockapi.Heartbeat{SessionID: "s", ExpiresAt: at, ServerTime: at},
		`{"key":"k","ownerId":"o","sessionId":"s","fencingToken":7,"acquiredAt":"2026-03-01T12:00:00.001Z","expiresAt":"2026-03-01T12:00:00.001Z","ttlMillis":5,"grantedAfterMillis":0}`: lockapi.LockGrant{
			Key: "k", OwnerID: "o", SessionID: "s", FencingToken: 7, AcquiredAt: at, ExpiresAt: at, TTLMillis: 5,
		},
		`{"key":"k","held":true,"ownerId":"o","fencingToken":7,"acquiredAt":"2026-03-01T12:00:00.001Z","expiresAt":"2026-03-01T12:00:00.001Z","waiterCount":0}`: lockapi.LockInfo{
			Key: "k", Held: true, OwnerID: "o", FencingToken: 7, AcquiredAt: &at, ExpiresAt: &at, WaiterCount: &waiters,
		},
		`{"revokedToken":7,"newTokenFloor":8,"revocationId":1}`: lockapi.Revocation{RevokedToken: 7, NewTokenFloor: 8, RevocationID: 1},
		`{"operator":"o","reason":"r","expectedToken":5}`:       lockapi.RevokeRequest{Operator: "o", Reason: "r", ExpectedToken: &millis},
	} {
		encoded, err := json.Marshal(body)
		require.NoError(t, err)
		require.JSONEq(t, want, string(encoded))
	}
	var back lockapi.Time
	require.NoError(t, json.Unmarshal([]byte(`"2026-03-01T13:00:00.001+01:00"`), &back))
	require.True(t, back.Equal(at.Truncate(time.Millisecond)))
	require.Error(t, json.Unmarshal([]byte(`"yesterday"`), &back))
}
