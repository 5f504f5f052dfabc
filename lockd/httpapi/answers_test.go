package httpapi_test

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"fenceline/lockd/httpapi"
	"fenceline/lockd/httpapi/apitest"
	"fenceline/lockd/lock"
	"fenceline/lockd/lockapi"
)

// everything are the calls of the contract and the document itself.
func everything() map[string]request {
	calls := contract()
	calls["openapi"] = request{"GET", "/openapi.json", "", 200}
	return calls
}

// raw writes bytes on a connection of their own, and reads the answer as one to the call.
func (s *server) raw(t *testing.T, r request, bytes string) answer {
	t.Helper()
	connection, err := s.listener.Dial()
	require.NoError(t, err)
	defer func() { _ = connection.Close() }()
	request, err := http.NewRequestWithContext(t.Context(), r.method, "http://lockd"+r.path, http.NoBody)
	require.NoError(t, err)
	go func() { _, _ = connection.Write([]byte(bytes)) }() // a server that has read enough answers before it has read all
	return s.read(t, request, func() (*http.Response, error) { return http.ReadResponse(bufio.NewReader(connection), request) })
}

func (r request) head() string {
	return r.method + " " + r.path + " HTTP/1.1\r\nHost: lockd\r\nX-Owner-Id: w\r\nX-Fencing-Token: 7\r\n"
}

// provocations make a call be refused with a code. Each answer is held against the document as it is read.
func provocations() map[string]func(t *testing.T, r request) answer {
	failing := func(err error) func(*testing.T, request) answer {
		return func(t *testing.T, r request) answer {
			t.Helper()
			return serve(t, &fakeStore{err: fmt.Errorf("doing: %w", err)}).call(t, r)
		}
	}
	return map[string]func(*testing.T, request) answer{
		"VALIDATION_FAILED": func(t *testing.T, r request) answer {
			t.Helper()
			path, _, _ := strings.Cut(r.path, "?")
			return serve(t, &fakeStore{}).call(t, request{r.method, path + "?unheardOf=1", r.body, 400})
		},
		"INVALID_TOKEN": func(t *testing.T, r request) answer {
			t.Helper()
			return serve(t, &fakeStore{}).send(t, r.method, r.path, r.body, "X-Owner-Id", "w")
		},
		"UNAUTHENTICATED": func(t *testing.T, r request) answer {
			t.Helper()
			return serveTo(t, &fakeStore{}, httpapi.Callers{Clients: tokens(t, clientToken)}).call(t, r)
		},
		"FORBIDDEN": func(t *testing.T, r request) answer {
			t.Helper()
			s := serveTo(t, &fakeStore{}, httpapi.Callers{Clients: tokens(t, clientToken), Operators: tokens(t, operatorToken)})
			return s.as(t, r, "Authorization", "Bearer "+clientToken)
		},
		"BODY_TOO_LARGE": func(t *testing.T, r request) answer {
			t.Helper()
			return serve(t, &fakeStore{}).raw(t, r, r.head()+"Content-Length: 65537\r\n\r\n"+strings.Repeat(" ", 65537))
		},
		"HEAD_TOO_LARGE": func(t *testing.T, r request) answer {
			t.Helper()
			return serve(t, &fakeStore{}).raw(t, r, r.head()+"X-Long: "+strings.Repeat("x", 16<<10)+"\r\n\r\n")
		},
		"OVERLOADED":          overloaded,
		"CONTENTION_EXCEEDED": tooManyWait,
		"LOCK_CONTENDED": func(t *testing.T, r request) answer {
			t.Helper()
			return serve(t, &fakeStore{holder: lock.Holder{OwnerID: "other", ExpiresAt: time.Now()}}).call(t, r)
		},
		"SESSION_UNKNOWN":                        failing(lock.ErrSessionUnknown),
		"SESSION_EXPIRED":                        failing(lock.ErrSessionExpired),
		"LOCK_LOST":                              failing(lock.ErrLockLost),
		"LOCK_NOT_HELD":                          failing(lock.ErrNotHeld),
		"TOKEN_MISMATCH":                         failing(lock.ErrTokenMismatch),
		"INTERNAL":                               failing(errors.New("a defect")),
		"BACKEND_UNAVAILABLE":                    failing(lock.ErrUnavailable),
		"BACKEND_UNAVAILABLE of unknown outcome": failing(lock.ErrUnknownOutcome),
	}
}

// overloaded sends the call to a server whose one connection is taken. It is turned away before it has said what it wants.
func overloaded(t *testing.T, r request) answer {
	t.Helper()
	s := serveBounded(t, &fakeStore{}, httpapi.Callers{}, lock.Limits{}, 1)
	s.call(t, contract()["inspect"])
	return s.raw(t, r, "")
}

// tooManyWait lets one client wait for a lock where one may, and another one come.
func tooManyWait(t *testing.T, r request) answer {
	t.Helper()
	s := serveBounded(t, &fakeStore{holder: lock.Holder{OwnerID: "other"}}, httpapi.Callers{}, lock.Limits{Waiters: 1}, 0)
	r.body = `{"sessionId":"` + sessionID + `","waitMillis":30000}`
	var first errgroup.Group
	t.Cleanup(func() { _ = first.Wait() })
	connection, err := s.listener.Dial()
	require.NoError(t, err)
	t.Cleanup(func() { _ = connection.Close() })
	first.Go(func() error {
		_, err := fmt.Fprintf(connection, "%sContent-Length: %d\r\n\r\n%s", r.head(), len(r.body), r.body)
		return err
	})
	require.Eventually(t, func() bool { return s.service.Waiters("k") == 1 }, 30*time.Second, time.Millisecond)
	defer s.service.Drain()
	return s.call(t, r)
}

// slow sends a part of each call at once, and waits for all of them to be refused. It takes a real connection: those in memory don't say that their time is over.
func slow(t *testing.T, note func(name string, got answer)) {
	t.Helper()
	s := serve(t, &fakeStore{})
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() { _ = s.api.Server().Serve(listener) }() // until the server is shut down
	connections := map[string]net.Conn{}
	for name, r := range everything() {
		connection, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", listener.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { _ = connection.Close() })
		_, err = connection.Write([]byte(r.head())) // and nothing more
		require.NoError(t, err)
		connections[name] = connection
	}
	for name, connection := range connections {
		r := everything()[name]
		request, err := http.NewRequestWithContext(t.Context(), r.method, "http://lockd"+r.path, http.NoBody)
		require.NoError(t, err)
		note(name, s.read(t, request, func() (*http.Response, error) { return http.ReadResponse(bufio.NewReader(connection), request) }))
	}
}

// unprovoked are the answers that no call gets to see here, each with the reason.
func unprovoked() map[string]string {
	return map[string]string{
		"acquire 499 CLIENT_CLOSED_REQUEST": "the client has gone, so nobody reads it",
		"openapi 500 INTERNAL":              "nothing is asked of a store",
		"openapi 503 BACKEND_UNAVAILABLE":   "nothing is asked of a store",
	}
}

// Each call is answered in each way that the document names, by the real handlers, and each answer is as its schema says. So the document neither
// leaves out what there is nor promises what there isn't.
func TestEveryDocumentedAnswerIsGivenAndIsAsDocumented(t *testing.T) {
	t.Parallel()
	s := serve(t, &fakeStore{})
	document := served(t, s)
	file, err := os.ReadFile("openapi.json")
	require.NoError(t, err)
	require.Equal(t, string(file), s.send(t, "GET", "/openapi.json", "").body, "every answer of these tests is held against this file")

	var mu sync.Mutex
	var given []string
	note := func(name string, got answer) {
		mu.Lock()
		defer mu.Unlock()
		given = append(given, strings.TrimSpace(fmt.Sprintf("%s %d %s", name, got.status, got.envelope.Code)))
	}
	var want []string
	codes := documented(t, document)
	t.Run("all", func(t *testing.T) {
		t.Run("REQUEST_TIMEOUT", func(t *testing.T) {
			t.Parallel()
			slow(t, note)
		})
		for name, r := range everything() {
			want = append(want, fmt.Sprintf("%s %d", name, r.status))
			note(name, serve(t, &fakeStore{keys: []string{"a", "k"}, ended: 9}).call(t, r))
			for provoked, provoke := range provocations() {
				code, _, _ := strings.Cut(provoked, " ")
				if !slices.Contains(codes[name], code) || unprovoked()[entry(t, name, code)] != "" {
					continue
				}
				t.Run(name+"/"+provoked, func(t *testing.T) {
					t.Parallel()
					got := provoke(t, r)
					require.Equal(t, code, got.envelope.Code)
					note(name, got)
				})
			}
			for _, code := range codes[name] {
				if documented := entry(t, name, code); unprovoked()[documented] == "" {
					want = append(want, documented)
				}
			}
		}
	})
	slices.Sort(given)
	slices.Sort(want)
	require.Equal(t, want, slices.Compact(given))
	for _, other := range []request{{"GET", "/nowhere", "", 404}, {"PUT", "/v1/locks/k", "", 405}} {
		require.Equal(t, other.status, s.call(t, other).status, "what is no call has an envelope too")
	}
}

func entry(t *testing.T, name, code string) string {
	t.Helper()
	info, known := lockapi.Lookup(code)
	require.True(t, known, code)
	return fmt.Sprintf("%s %d %s", name, info.Status, code)
}

// documented are the codes of each call.
func documented(t *testing.T, document object) map[string][]string {
	t.Helper()
	codes := map[string][]string{}
	for _, methods := range at(t, document, "paths").(object) {
		for _, call := range methods.(object) {
			name := at(t, call, "operationId").(string)
			for status, response := range at(t, call, "responses").(object) {
				if status < "400" {
					continue
				}
				reference := strings.TrimPrefix(response.(object)["$ref"].(string), "#/components/responses/")
				schema := at(t, document, "components", "responses", reference, "content", "application/json", "schema", "allOf").([]any)[1]
				for _, code := range at(t, schema, "properties", "code", "enum").([]any) {
					codes[name] = append(codes[name], code.(string))
				}
			}
		}
	}
	return codes
}

// Answers and documents that are wrong on purpose are found, so the check can fail.
func TestWrongAnswerAndWrongDocumentAreFound(t *testing.T) {
	t.Parallel()
	s := serve(t, &fakeStore{})
	r := contract()["acquire"]
	got := s.call(t, r)
	header := func(name, value string) http.Header {
		changed := got.header.Clone()
		changed.Del(name)
		if value != "" {
			changed.Set(name, value)
		}
		return changed
	}
	whole := apitest.Answer{Method: r.method, Path: r.path, Status: got.status, Header: got.header, Body: []byte(got.body)}
	body := func(old, replacement string) apitest.Answer {
		a := whole
		require.Contains(t, got.body, old)
		a.Body = []byte(strings.Replace(got.body, old, replacement, 1))
		return a
	}
	require.NoError(t, s.document.Check(whole))
	for what, wrong := range map[string]apitest.Answer{
		"a member is missing":       body(`"fencingToken":7,`, ""),
		"a member is of its own":    body(`{`, `{"unheardOf":1,`),
		"a number is text":          body(`"fencingToken":7`, `"fencingToken":"7"`),
		"a token is 0":              body(`"fencingToken":7`, `"fencingToken":0`),
		"a time is a number":        body(`"acquiredAt":"0001-01-01T00:00:00.000Z"`, `"acquiredAt":0`),
		"a time is in no zone":      body(`"acquiredAt":"0001-01-01T00:00:00.000Z"`, `"acquiredAt":"0001-01-01T00:00:00"`),
		"a session is no UUID":      body(sessionID, "7"),
		"a key is out of grammar":   body(`"key":"k"`, `"key":"k/7"`),
		"it isn't JSON":             body(`{`, ``),
		"the token's header is out": {Method: r.method, Path: r.path, Status: 200, Header: header("X-Fencing-Token", ""), Body: []byte(got.body)},
		"the token's header is 0":   {Method: r.method, Path: r.path, Status: 200, Header: header("X-Fencing-Token", "0"), Body: []byte(got.body)},
		"the media type is another": {Method: r.method, Path: r.path, Status: 200, Header: header("Content-Type", "text/plain"), Body: []byte(got.body)},
		"the status isn't there":    {Method: r.method, Path: r.path, Status: 202, Header: got.header, Body: []byte(got.body)},
		"the path is no call":       {Method: r.method, Path: "/v2", Status: 200, Header: got.header, Body: []byte(got.body)},
		"a code of another call":    refusalOf(got, r, 409, `"LOCK_LOST"`),
		"a code that isn't there":   refusalOf(got, r, 409, `"NOBODY"`),
		"a code of another status":  refusalOf(got, r, 410, `"LOCK_CONTENDED"`),
	} {
		require.ErrorIs(t, s.document.Check(wrong), apitest.ErrMismatch, what)
	}
	require.NoError(t, s.document.Check(refusalOf(got, r, 409, `"LOCK_CONTENDED"`)), "the same refusal, with its code")

	for what, breaks := range map[string]func(schemas, call object){
		"a member is named otherwise": func(schemas, _ object) {
			properties := schemas["LockGrant"].(object)["properties"].(object)
			properties["waitedMillis"] = properties["grantedAfterMillis"]
			delete(properties, "grantedAfterMillis")
		},
		"a member more is wanted": func(schemas, _ object) { schemas["LockGrant"].(object)["required"] = []any{"unheardOf"} },
		"tokens begin at 8":       func(schemas, _ object) { schemas["Token"].(object)["minimum"] = 8 },
		"keys are numbers":        func(schemas, _ object) { schemas["Key"].(object)["pattern"] = "^[0-9]{1,128}$" },
		"the status is another": func(_, call object) {
			call["responses"].(object)["201"] = call["responses"].(object)["200"]
			delete(call["responses"].(object), "200")
		},
		"it answers a session": func(_, call object) {
			call["responses"].(object)["200"].(object)["content"].(object)["application/json"] = object{"schema": object{"$ref": "#/components/schemas/Session"}}
		},
		"nothing is answered": func(_, call object) { delete(call["responses"].(object)["200"].(object), "content") },
		"a header more is sent": func(_, call object) {
			call["responses"].(object)["200"].(object)["headers"].(object)["X-Unheard-Of"] = object{"schema": object{"type": "integer"}}
		},
	} {
		document := served(t, s)
		breaks(at(t, document, "components", "schemas").(object), at(t, document, "paths", "/v1/locks/{key}/acquire", "post").(object))
		wrong, err := apitest.Open([]byte(jsonOf(t, document)))
		require.NoError(t, err)
		require.ErrorIs(t, wrong.Check(whole), apitest.ErrMismatch, what)
	}
}

func refusalOf(got answer, r request, status int, code string) apitest.Answer {
	body := `{"code":` + code + `,"message":"m","retrySafe":true,"traceId":"t"}`
	return apitest.Answer{Method: r.method, Path: r.path, Status: status, Header: got.header, Body: []byte(body)}
}
