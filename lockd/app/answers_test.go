package app_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fenceline/internal/etcdtest"
	"fenceline/lockd/app"
	"fenceline/lockd/httpapi/apitest"
	"fenceline/lockd/lockapi"
)

// documented sends calls to a running lockd and holds each answer against the OpenAPI document that this very lockd serves.
type documented struct {
	base     string
	document *apitest.Document
}

func (d *documented) send(t *testing.T, method, path, body string, headers ...string) (status int, answer map[string]any) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, d.base+path, strings.NewReader(body))
	require.NoError(t, err)
	request.Header.Set("X-Owner-Id", "worker")
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	data, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	if d.document == nil {
		d.document, err = apitest.Open(data)
		require.NoError(t, err)
	}
	require.NoError(t, d.document.Check(apitest.Answer{
		Method: method, Path: request.URL.EscapedPath(), Status: response.StatusCode, Header: response.Header, Body: data,
	}))
	if len(data) > 0 {
		require.NoError(t, json.Unmarshal(data, &answer))
	}
	return response.StatusCode, answer
}

// is sends a call and wants it to be answered with the status, and with the code if it is refused.
func (d *documented) is(t *testing.T, status int, code any, method, path, body string, headers ...string) map[string]any {
	t.Helper()
	got, answer := d.send(t, method, path, body, headers...)
	require.Equal(t, status, got, "%s %s: %v", method, path, answer)
	require.Equal(t, code, answer["code"], "%s %s: %v", method, path, answer)
	return answer
}

func (d *documented) session(t *testing.T, ttl int) string {
	t.Helper()
	return d.is(t, 201, nil, "POST", "/v1/sessions", fmt.Sprintf(`{"ownerId":"worker","ttlMillis":%d}`, ttl))["sessionId"].(string)
}

// What the stores decide goes out as the document says, whatever they fill in: every success and every decision, from either.
func TestAnswersOfBothStoresAreAsTheServedDocumentSays(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]func(*testing.T) app.Config{
		"pg": databaseConfig,
		"etcd": func(t *testing.T) app.Config {
			t.Helper()
			return app.Config{Backend: "etcd", Etcd: app.EtcdConfig{Endpoints: []string{etcdtest.Start(t).Endpoint()}}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			base, _ := start(t, config(t))
			d := &documented{base: base}
			d.is(t, 200, nil, "GET", "/openapi.json", "")

			a, b, unknown := d.session(t, 60_000), d.session(t, 60_000), uuid.NewString()
			want := func(session, more string) string { return `{"sessionId":"` + session + `"` + more + `}` }
			d.is(t, 200, nil, "POST", "/v1/sessions/"+a+"/heartbeat", "")
			d.is(t, 404, lockapi.CodeSessionUnknown, "POST", "/v1/sessions/"+unknown+"/heartbeat", "")
			d.is(t, 404, lockapi.CodeSessionUnknown, "DELETE", "/v1/sessions/"+unknown, "")
			d.is(t, 404, lockapi.CodeSessionUnknown, "POST", "/v1/locks/k/acquire", want(unknown, ""))
			d.is(t, 200, nil, "GET", "/v1/locks/k", "")
			d.is(t, 404, lockapi.CodeLockNotHeld, "POST", "/v1/locks/k/revoke", `{"operator":"op","reason":"it is stuck"}`)

			grant := d.is(t, 200, nil, "POST", "/v1/locks/k/acquire", want(a, `,"ttlMillis":60000`))
			token := fmt.Sprintf("%.0f", grant["fencingToken"])
			d.is(t, 409, lockapi.CodeLockContended, "POST", "/v1/locks/k/acquire", want(b, ""))
			d.is(t, 409, lockapi.CodeLockContended, "POST", "/v1/locks/k/acquire", want(b, `,"waitMillis":50`))
			d.is(t, 200, nil, "POST", "/v1/locks/k/renew", "", "X-Fencing-Token", token)
			d.is(t, 400, lockapi.CodeInvalidToken, "POST", "/v1/locks/k/renew", "")
			d.is(t, 409, lockapi.CodeLockLost, "POST", "/v1/locks/k/renew", "", "X-Fencing-Token", "9007199254740991")
			require.Equal(t, true, d.is(t, 200, nil, "GET", "/v1/locks/k", "")["held"])
			require.Len(t, d.is(t, 200, nil, "GET", "/v1/locks?limit=1", "")["locks"], 1)
			d.is(t, 409, lockapi.CodeTokenMismatch, "POST", "/v1/locks/k/revoke", `{"operator":"op","reason":"it is stuck","expectedToken":9007199254740991}`)
			d.is(t, 200, nil, "POST", "/v1/locks/k/revoke", `{"operator":"op","reason":"it is stuck"}`)
			require.Len(t, d.is(t, 200, nil, "GET", "/v1/revocations", "")["revocations"], 1)
			require.Equal(t, true, d.is(t, 200, nil, "DELETE", "/v1/locks/k", "", "X-Fencing-Token", token)["stale"])
			grant = d.is(t, 200, nil, "POST", "/v1/locks/k/acquire", want(a, `,"waitMillis":1000`))
			require.Equal(t, true, d.is(t, 200, nil, "DELETE", "/v1/locks/k", "", "X-Fencing-Token", fmt.Sprintf("%.0f", grant["fencingToken"]))["released"])
			d.is(t, 204, nil, "DELETE", "/v1/sessions/"+b, "")

			// A session that has expired is called so until it is reaped, a moment later.
			deadline := time.Now().Add(time.Minute)
			for expired := false; !expired; {
				require.True(t, time.Now().Before(deadline), "no session was seen to expire")
				short := d.session(t, 1000)
				for status := 200; status == 200; {
					status, _ = d.send(t, "POST", "/v1/locks/short/acquire", want(short, ""))
					expired = status == 410
				}
			}
		})
	}
}
