package httpcheck

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var rules = Rules{TokenHeader: "X-Fencing-Token", OwnerHeader: "X-Owner-Id"}

// check runs a whole raw head, request line included.
func check(t *testing.T, raw string, rules Rules) (Request, *Violation) {
	t.Helper()
	line, fields, found := strings.Cut(raw, "\r\n")
	require.True(t, found, "a case has a request line")
	parts := strings.SplitN(line, " ", 3)
	require.Len(t, parts, 3)
	return Check(Head{Method: parts[0], Target: parts[1], Protocol: parts[2], Fields: []byte(fields)}, rules)
}

// get is a GET of / with these further header lines; target is one of a path alone.
func get(lines ...string) string { return request("GET / HTTP/1.1", lines...) }

func target(text string) string { return request("GET " + text + " HTTP/1.1") }

func request(line string, lines ...string) string {
	return line + "\r\nHost: a\r\n" + strings.Join(append(lines, "", ""), "\r\n")
}

// refused are the inputs of docs/http-hazards that a head alone condemns, by hazard, with others of each kind.
var refused = []struct {
	hazard, code string
	heads        []string
}{
	{"H9 length and encoding", CodeMalformed, []string{
		request("POST / HTTP/1.1", "Content-Length: 4", "Transfer-Encoding: chunked"),
		request("POST / HTTP/1.1", "Transfer-Encoding: chunked", "Content-Length: 0"),
		request("POST / HTTP/1.1", "transfer-ENCODING: chunked", "content-LENGTH: 4"),
	}},
	{"H10 two lengths", CodeMalformed, []string{
		request("POST / HTTP/1.1", "Content-Length: 2", "Content-Length: 2"),
		request("POST / HTTP/1.1", "Content-Length: 2", "X-A: 1", "content-length: 3"),
	}},
	{"H11 length grammar", CodeMalformed, []string{
		request("POST / HTTP/1.1", "Content-Length: 2, 2"), request("POST / HTTP/1.1", "Content-Length: +2"),
		request("POST / HTTP/1.1", "Content-Length: -1"), request("POST / HTTP/1.1", "Content-Length: 0x2"),
		request("POST / HTTP/1.1", "Content-Length: "), request("POST / HTTP/1.1", "Content-Length:"),
		request("POST / HTTP/1.1", "Content-Length: 18446744073709551618"), request("POST / HTTP/1.1", "Content-Length: 9223372036854775808"),
		request("POST / HTTP/1.1", "Content-Length: 2 2"), request("POST / HTTP/1.1", "Content-Length: 1_0"),
		request("POST / HTTP/1.1", "Content-Length: 2.0"), request("POST / HTTP/1.1", "Content-Length: ٢"),
	}},
	{"H12 identity", CodeMalformed, []string{
		request("POST / HTTP/1.1", "Transfer-Encoding: identity"),
		request("POST / HTTP/1.1", "Transfer-Encoding: identity", "Content-Length: 2"),
	}},
	{"H13 encoding junk", CodeMalformed, []string{
		request("POST / HTTP/1.1", "Transfer-Encoding: xchunked"), request("POST / HTTP/1.1", "Transfer-Encoding: gzip, chunked"),
		request("POST / HTTP/1.1", "Transfer-Encoding: \x0bchunked"), request("POST / HTTP/1.1", "Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
		request("POST / HTTP/1.1", "Transfer-Encoding: chunked, chunked"), request("POST / HTTP/1.1", "Transfer-Encoding: chunked;q=1"),
		request("POST / HTTP/1.1", "Transfer-Encoding: "), request("POST / HTTP/1.1", "Transfer-Encoding: \"chunked\""),
		request("POST / HTTP/1.1", "Transfer-Encoding: chunked\x00"), request("POST / HTTP/1.1", "Transfer-Encoding: chunked,"),
		request("POST / HTTP/1.1", "Transfer-Encoding: gzip"),
	}},
	{"H14 encoding on HTTP/1.0", CodeMalformed, []string{request("POST / HTTP/1.0", "Transfer-Encoding: chunked")}},
	{"H15 alias of the encoding", CodeMalformed, []string{
		request("POST / HTTP/1.1", "Transfer_Encoding: chunked", "Content-Length: 5"),
		request("POST / HTTP/1.1", "Transfer.Encoding: chunked", "Content-Length: 5"),
		request("POST / HTTP/1.1", "Content_Length: 5"),
	}},
	{"H16 bare LF", CodeMalformed, []string{
		"GET / HTTP/1.1\r\nHost: a\r\nX-A: 1\nX-Fencing-Token: 5\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a\nX-A: 1\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a\r\nX-A: 1\n",
		"GET / HTTP/1.1\r\nHost: a\n\n",
	}},
	{"H17 head that ends early", CodeMalformed, []string{
		"GET / HTTP/1.1\r\nHost: a\r\nX-A: 1\n\nGET /smug HTTP/1.1\r\nHost: b\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a\r\nX-A: 1\r\n\nX-B: 1\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET /smug HTTP/1.1\r\nHost: b\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a\r\n\n",
	}},
	{"H18 folded line", CodeMalformed, []string{
		get("X-Fencing-Token: 5", " 6"), get("X-Fencing-Token: 5", "\t6"), get("X-Fencing-Token:", " 5"), get("X-A: 1", "  "),
		"GET / HTTP/1.1\r\n Host: a\r\n\r\n",
	}},
	{"H19 control characters in values", CodeMalformed, []string{
		get("X-A: 1\rB: 2"), get("X-A: 1\x00"), get("X-A: \x01"), get("X-A: 1\x7f"), get("X-A: \x1b[0m"), get("X-Fencing-Token: 5\r"), get("X-A: a\x0cb"),
		"GET / HTTP/1.1\r\nHost: a\r\r\n\r\n",
	}},
	{"H20 names", CodeMalformed, []string{
		get("X-Fencing-Token : 9"), get("X-Fencing-Token\t: 9"), get("X Fencing Token: 9"), get(": 9"), get("X-A"), get("X-(A): 1"), get("X-A\x00: 1"),
		get("X-\xc3\xa9: 1"), get("\"X\": 1"), get("X/A: 1"), get("X-A\r: 1"), get("X-Fencing-Token\x0b: 9"), get("{}: 1"),
	}},
	{"H25 aliases of protected names", CodeMalformed, []string{
		get("X-Fencing-Token: 5", "X_Fencing_Token: 9"), get("X_Fencing_Token: 9"), get("X.Fencing.Token: 9"), get("x-fencing_TOKEN: 9"),
		get("X_Owner_Id: me"), get("X_Forwarded_For: 1.2.3.4"), get("X~Fencing~Token: 9"), get("X_Real_IP: 1.2.3.4"), get("X_HTTP_Method_Override: PUT"),
	}},
	{"H25 other names outside letters, digits and hyphens", CodeMalformed, []string{get("X_Custom: 1"), get("X.Custom: 1"), get("X!: 1"), get("X'A: 1")}},
	{"H30 nominated protected names", CodeMalformed, []string{
		get("Connection: X-Fencing-Token"), get("Connection: close, x-fencing-token"), get("Connection: close", "Connection: keep-alive, X-Owner-Id"),
		get("Connection: X_Fencing_Token"), get("Connection: Host"), get("Connection: Content-Length"), get("Connection: \tX-FENCING-TOKEN ,"),
		get("Connection: transfer-encoding"), get("Connection: a b"), get("Connection: \"close\""), get("Connection: Expect"),
	}},
	{"H33 host", CodeMalformed, []string{
		"GET / HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\r\nX-A: 1\r\n\r\n", get("Host: a"), get("host: b"), "GET / HTTP/1.1\r\nHost: \r\n\r\n", "GET / HTTP/1.1\r\nHost:\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", "GET / HTTP/1.1\r\nHost: a b\r\n\r\n", "GET / HTTP/1.1\r\nHost: a,b\r\n\r\n", "GET / HTTP/1.1\r\nHost: user@a\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a:80:81\r\n\r\n", "GET / HTTP/1.1\r\nHost: a:x\r\n\r\n", "GET / HTTP/1.1\r\nHost: a:65536\r\n\r\n", "GET / HTTP/1.1\r\nHost: :80\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: [::1\r\n\r\n", "GET / HTTP/1.1\r\nHost: [::1]80\r\n\r\n", "GET / HTTP/1.1\r\nHost: [a]\r\n\r\n", "GET / HTTP/1.1\r\nHost: [fe80::1%eth0]\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a?b\r\n\r\n", "GET / HTTP/1.1\r\nHost: a#b\r\n\r\n", "GET / HTTP/1.1\r\nHost: http://a\r\n\r\n", "GET / HTTP/1.1\r\nHost: a%2fb\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: \xc3\xa9\r\n\r\n", "GET / HTTP/1.0\r\n\r\n", "GET / HTTP/1.1\r\nHost: [1.2.3.4]\r\n\r\n", "GET / HTTP/1.1\r\nHost: a:+80\r\n\r\n",
	}},
	{"H37 method override", CodeMalformed, []string{
		request("POST / HTTP/1.1", "X-HTTP-Method-Override: DELETE"), request("POST / HTTP/1.1", "X-HTTP-Method: put"),
		request("POST / HTTP/1.1", "X-Method-Override: PATCH"), get("X-HTTP-Method-Override: POST"), get("x-http-method-override: "),
		request("POST / HTTP/1.1", "X-HTTP-Method-Override: POST", "X-HTTP-Method-Override: DELETE"), request("POST / HTTP/1.1", "X-HTTP-Method-Override: POST, DELETE"),
	}},
	{"H38 methods that are no tokens", CodeMalformed, []string{
		request("G(T / HTTP/1.1"), request("G\x00T / HTTP/1.1"), request("G\xc3\xa9T / HTTP/1.1"), request(" / HTTP/1.1"), request(strings.Repeat("G", 33) + " / HTTP/1.1"),
	}},
	{"H40 dot segments", CodeMalformed, []string{
		target("/public/../admin"), target("/public/%2e%2e/admin"), target("/a/."), target("/a/./b"), target("/.."), target("/."), target("/a/.."),
		target("/a/%2E"), target("/a/.%2e/b"), target("/a/%2e./b"), target("/../a"),
	}},
	{"H41 encoded and other slashes", CodeMalformed, []string{
		target("/public%2Fadmin"), target("/public%2fadmin"), target("/a%5Cb"), target("/a%5cb"), target(`/a\..\admin`), target(`\a`), target(`/\evil`),
	}},
	{"H42 path parameters", CodeMalformed, []string{target("/admin;x=1/../y"), target("/user/..;a=b/admin"), target("/a;"), target("/;/a"), target("/a%3Bb"), target("/a%3bb")}},
	{"H43 empty segments", CodeMalformed, []string{target("//evil/x"), target("/a//b"), target("/a//"), target("//")}},
	{"H45 fragment", CodeMalformed, []string{target("/a#frag?x=1"), target("/a?x#y"), target("/#")}},
	{"H46 bad encoding and control characters", CodeMalformed, []string{
		target("/a%00b"), target("/a%zz"), target("/a%"), target("/a%4"), target("/a%4g"), target("/a%0a"), target("/a%0D%0AX"), target("/a%7f"), target("/a%1B"),
		target("/a?x=%zz"), target("/a?x=%"), target("/a?x=%00"), target("/a\x00b"), target("/a\x01"), target("/a\x7f"), target("/a\tb"),
	}},
	{"H47 encoded unreserved characters", CodeMalformed, []string{target("/%61dmin"), target("/%41"), target("/a%2Db"), target("/a%7Eb"), target("/a%5f"), target("/%30")}},
	{"paths with characters that must be encoded", CodeMalformed, []string{
		target("/\xc3\xa9"), target("/a|b"), target("/a{b}"), target("/a^b"), target("/a`b"), target(`/a"b`), target("/<a>"), target("/a[0]"),
	}},
	{"queries with characters that must be encoded", CodeMalformed, []string{target("/a?\xc3\xa9"), target(`/a?"`), target("/a?<x>"), target("/a?\x7f")}},
	{"H50 absolute form", CodeMalformed, []string{
		request("GET http://evil.example/p HTTP/1.1"), request("GET https://evil.example HTTP/1.1"), request("GET a HTTP/1.1"), request("GET ?a HTTP/1.1"), request("GET  HTTP/1.1"),
	}},
	{"H51 asterisk of other methods", CodeMalformed, []string{request("GET * HTTP/1.1"), request("POST * HTTP/1.1"), request("OPTIONS *a HTTP/1.1"), request("options * HTTP/1.1")}},
	{"H51 CONNECT", CodeUpgrade, []string{request("CONNECT evil:443 HTTP/1.1"), request("CONNECT / HTTP/1.1"), request("connect / HTTP/1.1")}},
	{"H51 TRACE", CodeMethod, []string{request("TRACE / HTTP/1.1"), request("Trace / HTTP/1.1")}},
	{"H55 expectations", CodeExpectation, []string{
		request("POST / HTTP/1.1", "Expect: banana"), request("POST / HTTP/1.1", "Expect: "), request("POST / HTTP/1.1", "Expect: 100-continue, x"),
		request("POST / HTTP/1.1", "Expect: 100-continue", "expect: y"), request("POST / HTTP/1.1", "Expect: 200-ok"),
	}},
	{"upgrades", CodeUpgrade, []string{
		get("Upgrade: websocket"), get("Connection: Upgrade", "Upgrade: websocket"), get("Connection: upgrade"), get("Upgrade: h2c"),
		get("HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA"), get("Connection: keep-alive", "Connection: UPGRADE"),
	}},
	{"other versions", CodeVersion, []string{
		request("GET / HTTP/1.0"), request("GET / HTTP/2.0"), request("GET / HTTP/1.2"), request("GET / HTTP/0.9"), request("GET / HTTP/9.9"),
	}},
	{"no versions", CodeMalformed, []string{
		request("GET / "), request("GET / http/1.1"), request("GET / HTTP/1.1 "), request("GET / HTTP/11"), request("GET / HTTP/1,1"), request("GET / HTTP/1.1.1"), request("GET / HTTPS/1.1"),
		request("GET / HTTP/+1.1"), request("GET /  HTTP/1.1"),
	}},
	{"two owners", CodeMalformed, []string{get("X-Owner-Id: a", "X-Owner-Id: b"), get("X-Owner-Id:", "x-owner-id: b")}},
}

func TestMalformedAndAmbiguousHeadsAreRefused(t *testing.T) {
	t.Parallel()
	for _, group := range refused {
		t.Run(group.hazard, func(t *testing.T) {
			t.Parallel()
			for _, head := range group.heads {
				_, violation := check(t, head, rules)
				require.NotNil(t, violation, "%q is refused", head)
				require.Equal(t, group.code, violation.Code, "%q: %s", head, violation.Reason)
				require.NotEmpty(t, violation.Reason)
			}
		})
	}
}

// admitted are heads near the refused ones that have no fault.
func admitted() []string {
	return []string{
		get(), target("/"), target("/a?"), target("/a?x=1&&y;z"), target("/a/"), target("/ADMIN"), target("/%252e"), target("/a%C3%A9"), target("/a%c3%a9"),
		target("/a...b/..c/d.."), target("/a!$&'()*+,=:@b"), target("/a?filter[x]={1}|^`\\"), target("/a?u=http://b/../c%2F"),
		get("X-A: caf\xc3\xa9"), get("X-A: \xff"), get("X-A:"), get("X-A: a\tb"), get("X-A:1"), get("1: 1"), get("-: 1"),
		request("POST / HTTP/1.1", "Content-Length: 0000000002"), request("POST / HTTP/1.1", "Content-Length: 0"), request("POST / HTTP/1.1", "Transfer-Encoding: Chunked"),
		request("GET / HTTP/1.1", "Content-Length: 2"), request("POST / HTTP/1.1", "X-HTTP-Method-Override: post"), request("POST / HTTP/1.1", "Expect: 100-Continue"),
		get("Connection: close"), get("Connection: , keep-alive ,"), get("Upgrade-Insecure-Requests: 1"), request("get / HTTP/1.1"), request("PuRgE / HTTP/1.1"),
		request("M-SEARCH / HTTP/1.1"), get("X-Fencing-Token: 05"), get("X-Fencing-Token: 5", "X-Fencing-Token: 9"),
		"GET / HTTP/1.1\r\nHost: a\r\n", // as fasthttp gives it or without the empty line
		"GET / HTTP/1.1\r\nHost: EXAMPLE.com:80\r\n\r\n", "GET / HTTP/1.1\r\nHost: [::1]:8081\r\n\r\n", "GET / HTTP/1.1\r\nHost: [2001:db8::1]\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n", "GET / HTTP/1.1\r\nHost: payment_resource\r\n\r\n", "GET / HTTP/1.1\r\nHost: a.b.\r\n\r\n",
	}
}

// The negative control: what is refused above is refused for its fault only.
func TestTheSameHeadsWithoutTheirFaultAreAdmitted(t *testing.T) {
	t.Parallel()
	for _, head := range admitted() {
		_, violation := check(t, head, rules)
		require.Nil(t, violation, "%q", head)
	}
}

func TestViolationsQuoteNothingOfTheRequest(t *testing.T) {
	t.Parallel()
	const secret = "hunter2"
	for _, head := range []string{
		get("X-A: " + secret + "\x00"), get(secret + "(: 1"), target("/" + secret + "//"), target("/?" + secret + "%"), request(secret + "( / HTTP/1.1"),
		request("GET / HTTP/" + secret), "GET / HTTP/1.1\r\nHost: " + secret + "/\r\n\r\n", get("Connection: " + secret + " x"), get(secret + "_: 1"),
		request("POST / HTTP/1.1", "Content-Length: "+secret), request("POST / HTTP/1.1", "Expect: "+secret), request("POST / HTTP/1.1", "X-HTTP-Method: "+secret),
	} {
		_, violation := check(t, head, rules)
		require.NotNil(t, violation, "%q", head)
		require.NotContains(t, violation.Error(), secret)
	}
}

func TestPartsAreTheBytesThatWereSent(t *testing.T) {
	t.Parallel()
	r, violation := check(t, request("POST /v1/a%C3%A9/b?x=%2F&y HTTP/1.1", "Content-Length: 007", "x-fencing-token:  5\t", "X-OWNER-ID: worker-a", "Cookie: a=1", "b-hdr: x", "Cookie: b=2", "A-hdr:"), rules)
	require.Nil(t, violation)
	require.Equal(t, Request{
		Method: "POST", Path: "/v1/a%C3%A9/b", Query: "x=%2F&y", Target: "/v1/a%C3%A9/b?x=%2F&y", Host: "a",
		Headers: []Header{{"x-fencing-token", "5"}, {"X-OWNER-ID", "worker-a"}, {"Cookie", "a=1"}, {"b-hdr", "x"}, {"Cookie", "b=2"}, {"A-hdr", ""}},
		Tokens:  []string{"5"}, Owner: "worker-a", Framed: true, ContentLength: 7,
	}, r)

	r, violation = check(t, target("/a?"), rules)
	require.Nil(t, violation)
	require.Equal(t, "/a?", r.Target, "the empty query isn't lost")

	r, violation = check(t, request("OPTIONS * HTTP/1.1"), rules)
	require.Nil(t, violation)
	require.Equal(t, "*", r.Path)
	require.Equal(t, "*", r.Target)
}

func TestRequestKeepsNothingOfTheHeadsMemory(t *testing.T) {
	t.Parallel()
	fields := []byte("Host: a\r\nX-Fencing-Token: 5\r\nX-A: before\r\n\r\n")
	r, violation := Check(Head{Method: "GET", Target: "/", Protocol: "HTTP/1.1", Fields: fields}, rules)
	require.Nil(t, violation)
	for i := range fields {
		fields[i] = '#'
	}
	require.Equal(t, []string{"before"}, r.Values("x-a"))
	require.Equal(t, []string{"5"}, r.Tokens)
	require.Equal(t, "a", r.Host)
}

// H26, H27 and H29: every line of the token header is seen, in any case; what it must look like is the token's grammar (lock.ParseToken).
func TestEveryTokenLineIsSeen(t *testing.T) {
	t.Parallel()
	for head, want := range map[string][]string{
		get():                        nil,
		get("x-FENCING-token: 9"):    {"9"},
		get("X-Fencing-Token: 5, 6"): {"5, 6"},
		get("X-Fencing-Token: 5\t"):  {"5"},
		get("X-Fencing-Token:"):      {""},
		get("X-Fencing-Token:\xa05"): {"\xa05"},
		get("X-Fencing-Token: +5"):   {"+5"},
		get("X-Fencing-Token: 5", "X-A: 1", "x-fencing-token: 9"): {"5", "9"},
	} {
		r, violation := check(t, head, rules)
		require.Nil(t, violation, "%q", head)
		require.Equal(t, want, r.Tokens, "%q", head)
	}
}

// H31, H36 and H55: what concerns one connection, and what is ours to say, isn't forwarded.
func TestHopByHopAndForwardingHeadersAreDropped(t *testing.T) {
	t.Parallel()
	r, violation := check(t, request("POST / HTTP/1.1",
		"Keep-Alive: timeout=5", "Proxy-Connection: keep-alive", "Proxy-Authorization: Basic eA==", "Proxy-Authenticate: Basic", "TE: trailers", "Trailer: X-T",
		"Transfer-Encoding: chunked", "Expect: 100-continue", "Connection: close, X-Private", "connection: X-Other,x-absent", "X-Private: 1", "x-other: 2",
		"X-Forwarded-For: 1.2.3.4", "X-Forwarded-Host: evil", "x-forwarded-PROTO: https", "X-Forwarded-Prefix: /x", "Forwarded: for=1.2.3.4", "X-Real-IP: 1.2.3.4",
		"X-Original-URL: /admin", "X-Rewrite-URL: /admin", "X-Kept: 3", "Authorization: Bearer t",
	), rules)
	require.Nil(t, violation)
	require.Equal(t, []Header{{"X-Kept", "3"}, {"Authorization", "Bearer t"}}, r.Headers)
	require.True(t, r.Chunked)
	require.True(t, r.Framed)
}

func TestAllowedNameIsForwardedAsSent(t *testing.T) {
	t.Parallel()
	with := rules
	with.AllowedNames = []string{"X_Custom", "X_Fencing_Token"}
	r, violation := check(t, get("x_custom: 1"), with)
	require.Nil(t, violation)
	require.Equal(t, []Header{{"x_custom", "1"}}, r.Headers)

	_, violation = check(t, get("X_Fencing_Token: 9"), with)
	require.NotNil(t, violation, "a name that can be mistaken for the token's can't be allowed")
	_, violation = check(t, get("X.Custom: 1"), with)
	require.NotNil(t, violation)
}

func TestOnlyHeadersThatReachTheResourceMayHoldKeys(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"X-Account": true, "account": true, "Host": false, "Content-Length": false, "TE": false, "X-Forwarded-For": false, "Connection": false,
		"X-HTTP-Method-Override": false, "Expect": false, "X_Account": false,
	} {
		require.Equal(t, want, Reaches(name), name)
	}
}
