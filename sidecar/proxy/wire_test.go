package proxy

import (
	"fmt"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"fenceline/lockd/lock"
)

var date = regexp.MustCompile(`Date: [^\r]*\r\n`)

// What the client gets is what the resource sent, without what concerns the connection between resource and sidecar. The date is the
// sidecar's; header names come in their usual spelling, Server, Content-Type, Content-Encoding and Content-Length first.
func TestResponseReachesTheClientAsTheResourceSentIt(t *testing.T) {
	t.Parallel()
	const write = "POST /things/7 HTTP/1.1\r\nHost: a\r\nX-Fencing-Token: 5\r\nContent-Length: 0\r\n\r\n"
	const get, head = "GET /open/7 HTTP/1.1\r\nHost: a\r\n\r\n", "HEAD /open/7 HTTP/1.1\r\nHost: a\r\n\r\n"
	for name, c := range map[string]struct{ request, resource, client string }{
		"length of what HEAD doesn't send (H68)":    {head, "HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n"},
		"HEAD without a length":                     {head, "HTTP/1.1 200 OK\r\nX-A: 1\r\n\r\n", "HTTP/1.1 200 OK\r\nX-A: 1\r\n\r\n"},
		"length of what 304 doesn't send":           {get, "HTTP/1.1 304 Not Modified\r\nContent-Length: 500\r\n\r\n", "HTTP/1.1 304 Not Modified\r\nContent-Length: 500\r\n\r\n"},
		"304 to HEAD":                               {head, "HTTP/1.1 304 Not Modified\r\nContent-Length: 500\r\n\r\n", "HTTP/1.1 304 Not Modified\r\nContent-Length: 500\r\n\r\n"},
		"204 has no length":                         {get, "HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n", "HTTP/1.1 204 No Content\r\n\r\n"},
		"empty body":                                {get, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"},
		"nothing is added (H71)":                    {get, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"},
		"chunks become a length, on guarded routes": {write, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n1\r\no\r\n1;x=y\r\nk\r\n0\r\nX-T: 1\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"},
		"encoded bodies stay encoded": {
			get, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Encoding: gzip\r\nContent-Type: x/y\r\nServer: s\r\n\r\n\x1f\x8b",
			"HTTP/1.1 200 OK\r\nServer: s\r\nContent-Type: x/y\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n\x1f\x8b",
		},
		"every line of a header that stands often (H73)": {
			get, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nVia: a\r\nSet-Cookie: a=1; Path=/\r\nVia: b\r\nSet-Cookie: b=2\r\nSet-Cookie: a=3\r\n\r\n",
			"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nVia: a\r\nVia: b\r\nSet-Cookie: a=1; Path=/\r\nSet-Cookie: b=2\r\nSet-Cookie: a=3\r\n\r\n",
		},
		"headers of one connection, and those that it names, on any line (H31)": {
			get, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: keep-alive\r\nConnection: X-A, x-b\r\nX-A: 1\r\nX-B: 2\r\nX-C: 3\r\nKeep-Alive: timeout=5\r\n" +
				"Proxy-Connection: x\r\nProxy-Authenticate: x\r\nUpgrade: h2c\r\nTE: x\r\n\r\n",
			"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-C: 3\r\n\r\n",
		},
		"closing the resource's connection doesn't close the client's (H7)": {get, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok!", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"},
		"an own version (H67)":                        {get, "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok!", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"},
		"nobody else signs as the sidecar":            {get, "HTTP/1.1 409 Conflict\r\nX-Fence-Decision: fenced_out\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 409 Conflict\r\nContent-Length: 0\r\n\r\n"},
		"interim responses are dropped":               {get, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"},
		"redirects are answers, not orders":           {get, "HTTP/1.1 307 Temporary Redirect\r\nLocation: /a/../b\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 307 Temporary Redirect\r\nContent-Length: 0\r\nLocation: /a/../b\r\n\r\n"},
		"a status that nobody knows":                  {get, "HTTP/1.1 299 Fine\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 299 Unknown Status Code\r\nContent-Length: 0\r\n\r\n"},
		"ended by the connection, undetectably (H65)": {write, "HTTP/1.1 200 OK\r\n\r\nabc!", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"},
		"the same on a passed route":                  {get, "HTTP/1.1 200 OK\r\n\r\nabc!", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := startProxy(t, rawConfig, startUpstream(t, c.resource).addr(), &fakeStore{marks: map[string]lock.Token{}})
			answer, closed := exchangeRaw(t, address, c.request)
			require.Equal(t, c.client, date.ReplaceAllString(answer, ""))
			require.Contains(t, answer, "\r\nDate: ")
			require.False(t, closed)
		})
	}
}

// Multipart bodies, and any other bytes, are passed on as they are (H54).
func TestBodiesReachTheResourceByteForByte(t *testing.T) {
	t.Parallel()
	upstream := startUpstream(t, "ok")
	address := startProxy(t, rawConfig, upstream.addr(), &fakeStore{marks: map[string]lock.Token{}})
	body := "pre\r\n--b\r\nX-Part: 1\r\n\r\n\x00\xff\r\n--b--\r\nend"
	_, _ = exchangeRaw(t, address, fmt.Sprintf("POST /open/7 HTTP/1.1\r\nHost: a\r\nContent-Type: multipart/form-data; boundary=b\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
	requests := upstream.requests()
	require.Len(t, requests, 1)
	require.Contains(t, requests[0], "\r\n\r\n"+body)
}

// H36: nobody is believed about where a request came from, except the proxies that are listed; and nobody about its path.
func TestForwardingHeadersAreOurOwnUnlessThePeerIsTrusted(t *testing.T) {
	t.Parallel()
	const request = "GET /open/7 HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 1.2.3.4\r\nX-Forwarded-Proto: https\r\nX-Real-IP: 1.2.3.4\r\n" +
		"Forwarded: for=1.2.3.4\r\nX-Forwarded-For: 5.6.7.8\r\nX-Original-URL: /admin\r\nX-Rewrite-URL: /admin\r\n\r\n"
	for trusted, want := range map[string]string{
		"10.0.0.0/8": "X-Forwarded-For: 127.0.0.1\r\nX-Forwarded-Host: a\r\nX-Forwarded-Proto: http\r\n",
		"127.0.0.1": "X-Forwarded-Proto: https\r\nX-Real-IP: 1.2.3.4\r\nForwarded: for=1.2.3.4\r\n" +
			"X-Forwarded-For: 1.2.3.4, 5.6.7.8, 127.0.0.1\r\nX-Forwarded-Host: a\r\n",
	} {
		upstream := startUpstream(t, "ok")
		address := startProxy(t, rawConfig+"forwarded: { trusted_peers: [\""+trusted+"\"] }\n", upstream.addr(), &fakeStore{})
		_, _ = exchangeRaw(t, address, request)
		require.Equal(t, []string{"GET /open/7 HTTP/1.1\r\nHost: a\r\n" + want + "\r\n"}, upstream.requests(), trusted)
	}
}
