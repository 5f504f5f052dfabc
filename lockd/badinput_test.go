package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/lockd/lockapi"
	"fenceline/migrations"
)

// reader hides a text's length, so that it is sent in chunks.
type reader struct{ io.Reader }

// answered sends a request and returns the answer. A server that refuses a head in the middle closes the connection with the rest unread, and the
// kernel may then reset it before the client has read why; such a client asks again.
func answered(t *testing.T, url string, body io.ReadSeeker, chunked bool) *http.Response {
	t.Helper()
	for range 20 {
		_, err := body.Seek(0, io.SeekStart)
		require.NoError(t, err)
		var content io.Reader = body
		if chunked {
			content = reader{body}
		}
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, content)
		require.NoError(t, err)
		request.Header.Set("X-Owner-Id", "w")
		response, err := http.DefaultClient.Do(request)
		if errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
			continue
		}
		require.NoError(t, err)
		return response
	}
	require.Fail(t, "every answer was lost")
	return nil
}

// Whatever a client sends, it gets one clear refusal, nothing is granted, and lockd is as before.
func TestBadInputIsRefusedByNameAndGrantsNothing(t *testing.T) {
	t.Parallel()
	p, base, admin := serve(t, pgtest.Login(t, pgtest.Database(t, migrations.LockDB()), "lockapp"))
	session, err := client(t, base).OpenSession(t.Context(), time.Minute)
	require.NoError(t, err)
	acquire := func(members string) string { return `{"sessionId":"` + session.SessionID + `"` + members + `}` }
	long := strings.Repeat("x", 64<<10)
	const path = "/v1/locks/k/acquire"
	type refusal struct {
		path, body string
		status     int
		says       string
	}
	cases := []refusal{
		{"/v1/locks//acquire", acquire(""), 404, "no such call"},
		{"/v1/locks/a%20b/acquire", acquire(""), 400, "key: want 1 to 128"},
		{"/v1/locks/a%2Fb/acquire", acquire(""), 400, "key: want 1 to 128"},
		{"/v1/locks/..%2f..%2fetc/acquire", acquire(""), 400, "key: want 1 to 128"},
		{"/v1/locks/%F0%9F%94%92/acquire", acquire(""), 400, "key: want 1 to 128"},
		{"/v1/locks/%00/acquire", acquire(""), 400, "key: want 1 to 128"},
		{"/v1/locks/" + strings.Repeat("k", 129) + "/acquire", acquire(""), 400, "key: want 1 to 128"},
		{"/v1/locks/" + strings.Repeat("k", 15<<10) + "/acquire", acquire(""), 400, "key: want 1 to 128"},
		{"/v1/locks/" + strings.Repeat("k", 17<<10) + "/acquire", acquire(""), 431, "above 16384 bytes"},
		{path, `{"sessionId":"1"}`, 400, "sessionId: want a UUID"},
		{path, `{"sessionId":"{` + session.SessionID + `}"}`, 400, "sessionId: want a UUID"},
		{path, `{"sessionId":"urn:uuid:` + session.SessionID + `"}`, 400, "sessionId: want a UUID"},
		{path, `{"sessionId":"` + strings.ReplaceAll(session.SessionID, "-", "") + `"}`, 400, "sessionId: want a UUID"},
		{path, `{"sessionId":"' OR 1=1; --"}`, 400, "sessionId: want a UUID"},
		{path, `{"sessionId":null}`, 400, "sessionId"},
		{path, `{"sessionId":7}`, 400, `"sessionId": want a string`},
		{path, `{}`, 400, "sessionId: want a UUID"},
		{path, acquire(`,"unheardOf":1`), 400, `unknown member "unheardOf"`},
		{path, acquire(`,"TTLMillis":1000`), 400, `unknown member "TTLMillis"`},
		{path, acquire(`,"ttlMillis":1000,"ttlMillis":2000`), 400, "a member twice"},
		{path, acquire(`,"ttlMillis":1000,"ttl\u004dillis":2000`), 400, "a member twice"},
		{path, acquire(`,"sessionId":"` + session.SessionID + `"`), 400, "a member twice"},
		{path, acquire(`,"ttlMillis":` + strings.Repeat("[", 9_000) + strings.Repeat("]", 9_000)), 400, "ttlMillis"},
		{path, acquire(`,"ttlMillis":` + strings.Repeat("[", 60_000)), 400, "body isn't one valid JSON object"},
		{path, strings.Repeat(`{"sessionId":`, 4_900), 400, ""},
		{path, acquire("") + acquire(""), 400, "one valid JSON object"},
		{path, "\xff\xfe" + acquire(""), 400, "JSON object"},
		{path, acquire(",\"ttlMillis\":\x00"), 400, "one valid JSON object"},
		{path, `null`, 400, "JSON object"},
		{path, ``, 400, "the body is empty"},
		{path, acquire(`,"ttlMillis":1` + long), 413, "above 65536 bytes"},
	}
	for _, ttl := range []string{"-1", "0", "99", "300001", "9223372036854775807", "-9223372036854775808"} {
		cases = append(cases, refusal{path, acquire(`,"ttlMillis":` + ttl), 400, "ttlMillis: want 100 to 300000"})
		cases = append(cases, refusal{"/v1/sessions", `{"ownerId":"w","ttlMillis":` + ttl + `}`, 400, "ttlMillis: want 1000 to 60000"})
	}
	for _, number := range []string{"9223372036854775808", "1e400", "1.5", "1e3", `"30000"`, "true", "[30000]", "{}", "1_000", "0x10", "NaN", "-0.0", "00", "+1"} {
		cases = append(cases, refusal{path, acquire(`,"ttlMillis":` + number), 400, ""}, refusal{path, acquire(`,"waitMillis":` + number), 400, ""})
	}
	for _, c := range cases {
		for _, chunked := range []bool{false, true} {
			response := answered(t, base+c.path, strings.NewReader(c.body), chunked)
			var envelope lockapi.Error
			require.NoError(t, json.NewDecoder(response.Body).Decode(&envelope), "%.80s", c.body)
			require.NoError(t, response.Body.Close())
			require.Equal(t, c.status, response.StatusCode, "%.80s: %s", c.body, envelope.Message)
			require.Contains(t, envelope.Message, c.says, "%.80s", c.body)
			require.Less(t, len(envelope.Message), 300, "a refusal doesn't repeat what was sent")
			require.Len(t, envelope.TraceID, 32)
			info, known := lockapi.Lookup(envelope.Code)
			require.True(t, known)
			require.Equal(t, info.Status, response.StatusCode)
		}
	}
	_, metrics := page(t, admin+"/metrics", "")
	require.Contains(t, metrics, `lock_acquire_seconds_count{backend="pg",outcome="granted"} 0`+"\n")
	require.Contains(t, metrics, `lock_acquire_seconds_count{backend="pg",outcome="error"} 0`+"\n", "nothing of it came as far as the store")
	require.Contains(t, metrics, fmt.Sprintf(`http_requests_total{route="acquire",status="5xx"} %d`, 0))
	require.NotContains(t, written(t, p), "handler_panic")
	_, err = client(t, base).Acquire(t.Context(), "k", session.SessionID, time.Minute)
	require.NoError(t, err, "the session and the server are as before")
}
