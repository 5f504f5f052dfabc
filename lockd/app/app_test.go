package app_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/lockd/app"
	"fenceline/lockd/lock"
	"fenceline/lockd/lockapi"
	"fenceline/lockd/lockclient"
	"fenceline/migrations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// start runs lockd in this process and returns its base URL and its admin's.
func start(t *testing.T, config app.Config) (base, adminBase string) {
	t.Helper()
	a := started(t, config)
	return "http://" + a.Address().String(), "http://" + a.AdminAddress().String()
}

func started(t *testing.T, config app.Config) *app.App {
	t.Helper()
	config.Listen, config.AdminListen = "127.0.0.1:0", "127.0.0.1:0"
	config.StoreTimeout, config.StartupTimeout = time.Second, time.Second
	a := app.New(config, hclog.NewNullLogger())
	require.NoError(t, a.Start(t.Context()))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		require.NoError(t, a.Stop(ctx))
	})
	return a
}

func onDatabase(t *testing.T) (base, adminBase string) {
	t.Helper()
	return start(t, databaseConfig(t))
}

func databaseConfig(t *testing.T) app.Config {
	t.Helper()
	return app.Config{DatabaseURL: pgtest.Login(t, pgtest.Database(t, migrations.LockDB()), "lockapp")}
}

func client(t *testing.T, base, owner string) *lockclient.Client {
	t.Helper()
	c, err := lockclient.New(base, owner, nil)
	require.NoError(t, err)
	return c
}

// send sends a raw request and returns status and the error envelope, if any.
func send(t *testing.T, method, url, body string, headers ...string) (int, lockapi.Error) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	require.NoError(t, err)
	for i := 0; i < len(headers); i += 2 {
		request.Header.Add(headers[i], headers[i+1])
	}
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer func() { require.NoError(t, response.Body.Close()) }()
	data, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	var envelope lockapi.Error
	if response.StatusCode >= 400 {
		require.Equal(t, "application/json; charset=utf-8", response.Header.Get("Content-Type"))
		require.NoError(t, json.Unmarshal(data, &envelope), "%s", data)
		require.NotEmpty(t, envelope.Code)
		require.NotEmpty(t, envelope.Message)
		require.Len(t, envelope.TraceID, 32)
	}
	return response.StatusCode, envelope
}

func TestGrantLivesFromAcquireToRelease(t *testing.T) {
	t.Parallel()
	base, _ := onDatabase(t)
	ctx := t.Context()
	a, b := client(t, base, "worker-a"), client(t, base, "worker-b")
	sa, err := a.OpenSession(ctx, 10*time.Second)
	require.NoError(t, err)
	sb, err := b.OpenSession(ctx, 10*time.Second)
	require.NoError(t, err)

	grant, err := a.Acquire(ctx, "payout:7", sa.SessionID, 5*time.Second)
	require.NoError(t, err)
	require.Equal(t, "worker-a", grant.OwnerID)
	require.Positive(t, grant.FencingToken)
	require.Equal(t, int64(5000), grant.TTLMillis)

	_, err = b.Acquire(ctx, "payout:7", sb.SessionID, 5*time.Second)
	require.ErrorIs(t, err, lockclient.ErrContended)
	var refusal *lockclient.Refusal
	require.ErrorAs(t, err, &refusal)
	require.Equal(t, "worker-a", refusal.Envelope.Details["holderOwnerId"])
	require.NotEmpty(t, refusal.Envelope.Details["expiresAt"])

	renewed, err := a.Renew(ctx, "payout:7", lock.Token(grant.FencingToken), 6*time.Second)
	require.NoError(t, err)
	require.Equal(t, grant.FencingToken, renewed.FencingToken, "a renewal keeps the token")

	info, err := b.Inspect(ctx, "payout:7")
	require.NoError(t, err)
	require.True(t, info.Held)
	require.Equal(t, grant.FencingToken, info.FencingToken)

	heartbeat, err := a.Heartbeat(ctx, sa.SessionID)
	require.NoError(t, err)
	require.Equal(t, 1, heartbeat.HeldLockCount)

	released, err := a.Release(ctx, "payout:7", lock.Token(grant.FencingToken))
	require.NoError(t, err)
	require.Equal(t, lockapi.ReleaseResult{Released: true}, released)
	released, err = a.Release(ctx, "payout:7", lock.Token(grant.FencingToken))
	require.NoError(t, err)
	require.Equal(t, lockapi.ReleaseResult{Stale: true}, released, "a second release is success, and stale")

	next, err := b.Acquire(ctx, "payout:7", sb.SessionID, 5*time.Second)
	require.NoError(t, err)
	require.Greater(t, next.FencingToken, grant.FencingToken)
	_, err = a.Renew(ctx, "payout:7", lock.Token(grant.FencingToken), 5*time.Second)
	require.ErrorIs(t, err, lock.ErrLockLost)

	revocation, err := a.Revoke(ctx, "payout:7", lockapi.RevokeRequest{Operator: "op", Reason: "stuck since noon"})
	require.NoError(t, err)
	require.Equal(t, next.FencingToken, revocation.RevokedToken)
	require.Greater(t, revocation.NewTokenFloor, next.FencingToken)
	require.NoError(t, a.CloseSession(ctx, sa.SessionID))
	require.ErrorIs(t, a.CloseSession(ctx, sa.SessionID), lock.ErrSessionUnknown)
}

func TestBadInputIsRefusedWithItsName(t *testing.T) {
	t.Parallel()
	base, _ := onDatabase(t)
	owner := []string{"X-Owner-Id", "w"}
	token := func(values ...string) []string {
		headers := append([]string(nil), owner...)
		for _, v := range values {
			headers = append(headers, "X-Fencing-Token", v)
		}
		return headers
	}
	id := uuid.NewString()
	for name, c := range map[string]struct {
		method, path, body string
		headers            []string
		status             int
		code, says         string
	}{
		"no owner":             {"POST", "/v1/sessions", `{"ownerId":"w"}`, nil, 400, "VALIDATION_FAILED", "X-Owner-Id"},
		"owner too long":       {"POST", "/v1/sessions", `{}`, []string{"X-Owner-Id", strings.Repeat("x", 65)}, 400, "VALIDATION_FAILED", "X-Owner-Id"},
		"another owner":        {"POST", "/v1/sessions", `{"ownerId":"x"}`, owner, 400, "VALIDATION_FAILED", "ownerId"},
		"ttl too small":        {"POST", "/v1/sessions", `{"ownerId":"w","ttlMillis":999}`, owner, 400, "VALIDATION_FAILED", "ttlMillis"},
		"ttl negative":         {"POST", "/v1/sessions", `{"ownerId":"w","ttlMillis":-1}`, owner, 400, "VALIDATION_FAILED", "ttlMillis"},
		"ttl huge":             {"POST", "/v1/sessions", `{"ownerId":"w","ttlMillis":9223372036854775807}`, owner, 400, "VALIDATION_FAILED", "ttlMillis"},
		"ttl wrong type":       {"POST", "/v1/sessions", `{"ownerId":"w","ttlMillis":"5s"}`, owner, 400, "VALIDATION_FAILED", "ttlMillis"},
		"unknown member":       {"POST", "/v1/sessions", `{"ownerId":"w","ttl":5}`, owner, 400, "VALIDATION_FAILED", "ttl"},
		"member twice":         {"POST", "/v1/sessions", `{"ownerId":"w","ownerId":"w"}`, owner, 400, "VALIDATION_FAILED", "twice"},
		"not JSON":             {"POST", "/v1/sessions", `ownerId=w`, owner, 400, "VALIDATION_FAILED", "JSON"},
		"no body":              {"POST", "/v1/sessions", ``, owner, 400, "VALIDATION_FAILED", "empty"},
		"body too large":       {"POST", "/v1/sessions", strings.Repeat(" ", 65<<10), owner, 413, "BODY_TOO_LARGE", ""},
		"session not a uuid":   {"POST", "/v1/sessions/7/heartbeat", ``, owner, 400, "VALIDATION_FAILED", "sessionId"},
		"session unknown":      {"POST", "/v1/sessions/" + id + "/heartbeat", ``, owner, 404, "SESSION_UNKNOWN", ""},
		"close unknown":        {"DELETE", "/v1/sessions/" + id, ``, owner, 404, "SESSION_UNKNOWN", ""},
		"acquire unknown":      {"POST", "/v1/locks/k/acquire", `{"sessionId":"` + id + `"}`, owner, 404, "SESSION_UNKNOWN", ""},
		"key grammar":          {"POST", "/v1/locks/a%20b/acquire", `{"sessionId":"` + id + `"}`, owner, 400, "VALIDATION_FAILED", "key"},
		"key too long":         {"POST", "/v1/locks/" + strings.Repeat("k", 129) + "/acquire", `{"sessionId":"` + id + `"}`, owner, 400, "VALIDATION_FAILED", "key"},
		"lock ttl":             {"POST", "/v1/locks/k/acquire", `{"sessionId":"` + id + `","ttlMillis":300001}`, owner, 400, "VALIDATION_FAILED", "ttlMillis"},
		"wait too long":        {"POST", "/v1/locks/k/acquire", `{"sessionId":"` + id + `","waitMillis":30001}`, owner, 400, "VALIDATION_FAILED", "waitMillis"},
		"renew without token":  {"POST", "/v1/locks/k/renew", ``, owner, 400, "INVALID_TOKEN", "X-Fencing-Token"},
		"renew empty token":    {"POST", "/v1/locks/k/renew", ``, token(""), 400, "INVALID_TOKEN", "empty"},
		"renew zero token":     {"POST", "/v1/locks/k/renew", ``, token("0"), 400, "INVALID_TOKEN", "above zero"},
		"renew signed token":   {"POST", "/v1/locks/k/renew", ``, token("+5"), 400, "INVALID_TOKEN", "digits"},
		"renew 2^63":           {"POST", "/v1/locks/k/renew", ``, token("9223372036854775808"), 400, "INVALID_TOKEN", "above"},
		"renew two tokens":     {"POST", "/v1/locks/k/renew", ``, token("5", "6"), 400, "INVALID_TOKEN", "2 times"},
		"renew lost":           {"POST", "/v1/locks/k/renew", ``, token("5"), 409, "LOCK_LOST", ""},
		"release no token":     {"DELETE", "/v1/locks/k", ``, owner, 400, "INVALID_TOKEN", ""},
		"revoke free":          {"POST", "/v1/locks/k/revoke", `{"operator":"op","reason":"it is stuck"}`, owner, 404, "LOCK_NOT_HELD", ""},
		"revoke no reason":     {"POST", "/v1/locks/k/revoke", `{"operator":"op","reason":"short"}`, owner, 400, "VALIDATION_FAILED", "reason"},
		"revoke bad expected":  {"POST", "/v1/locks/k/revoke", `{"operator":"op","reason":"it is stuck","expectedToken":0}`, owner, 400, "VALIDATION_FAILED", "expectedToken"},
		"no such call":         {"GET", "/v1/nothing", ``, owner, 404, "NOT_FOUND", ""},
		"encoded slash":        {"POST", "/v1/locks/k%2Facquire", ``, owner, 405, "METHOD_NOT_ALLOWED", ""},
		"wrong method":         {"GET", "/v1/sessions", ``, owner, 405, "METHOD_NOT_ALLOWED", ""},
		"head of unknown size": {"GET", "/v1/locks/k", ``, []string{"X-Long", strings.Repeat("x", 17<<10)}, 431, "HEAD_TOO_LARGE", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			status, envelope := send(t, c.method, base+c.path, c.body, c.headers...)
			require.Equal(t, c.status, status, envelope)
			require.Equal(t, c.code, envelope.Code)
			require.Contains(t, envelope.Message, c.says)
		})
	}
}
