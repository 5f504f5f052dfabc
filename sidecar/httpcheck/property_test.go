package httpcheck

import (
	"bufio"
	"fmt"
	"net/http"
	"net/textproto"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// rebuild writes a checked request the way that a resource gets it.
func rebuild(r Request) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\n", r.Method, r.Target, r.Host)
	for _, h := range r.Headers {
		fmt.Fprintf(&b, "%s: %s\r\n", h.Name, h.Value)
	}
	b.WriteString("\r\n")
	return b.String()
}

// agrees says how an independent reader (net/http) reads a rebuilt head otherwise than Check did; "" when it doesn't.
func agrees(r Request) string {
	raw := rebuild(r)
	reader := bufio.NewReader(strings.NewReader(raw))
	got, err := http.ReadRequest(reader)
	switch {
	case err != nil:
		return fmt.Sprintf("%q: %v", raw, err)
	case reader.Buffered() > 0:
		return fmt.Sprintf("%q: something is left over", raw)
	case got.Method != r.Method || got.RequestURI != r.Target || got.Host != r.Host:
		return fmt.Sprintf("%q: read as %q %q for %q", raw, got.Method, got.RequestURI, got.Host)
	case r.Path != "*" && (got.URL.EscapedPath() != r.Path && got.URL.Path != r.Path || got.URL.RawQuery != r.Query):
		return fmt.Sprintf("%q: read as path %q, query %q", raw, got.URL.EscapedPath(), got.URL.RawQuery)
	}
	want := http.Header{}
	for _, h := range r.Headers {
		name := textproto.CanonicalMIMEHeaderKey(h.Name)
		want[name] = append(want[name], h.Value)
	}
	if len(want) != len(got.Header) {
		return fmt.Sprintf("%q: %d header names, want %d", raw, len(got.Header), len(want))
	}
	for name, values := range want {
		if strings.Join(got.Header[name], "\x00") != strings.Join(values, "\x00") {
			return fmt.Sprintf("%q: %s is %q, want %q", raw, name, got.Header[name], values)
		}
	}
	return ""
}

// unsafe says which promise about forwarded parts is broken; "" when none is.
func unsafe(r Request) string {
	for _, h := range r.Headers {
		folded := fold(h.Name)
		switch {
		case strings.ContainsAny(h.Name+h.Value, "\r\n\x00"):
			return "a line break or NUL in a header"
		case isHopByHop(folded), isForwarding(folded), folded == "host", folded == "content-length", folded == "expect":
			return h.Name + " isn't ours to forward"
		}
	}
	for _, bad := range []string{"//", "\\", ";", "#", "%00", "%2f", "%5c", "%2e"} {
		if strings.Contains(strings.ToLower(r.Path), bad) {
			return "the path has " + bad
		}
	}
	for segment := range strings.SplitSeq(r.Path, "/") {
		if segment == "." || segment == ".." {
			return "the path has a dot segment"
		}
	}
	if len(r.Values(rules.TokenHeader)) != len(r.Tokens) {
		return "other tokens are forwarded than were read"
	}
	return ""
}

// heads draws heads of mostly admissible pieces, so that many are accepted and many are refused by one piece only.
func heads(t *rapid.T) (method, target string, fields []byte) {
	oneOf := func(label string, texts ...string) string { return rapid.SampledFrom(texts).Draw(t, label) }
	target = "/"
	for range rapid.IntRange(0, 3).Draw(t, "segments") {
		target += oneOf("segment", "a", "v1", "%C3%A9", "%c3", "a@b:c", "..a", "X*", "payouts", "7f-1~_.", "%252e", "a=b&c", "..", "%2e", "é", "a%2Fb") + oneOf("slash", "/", "/", "/", "/", "//", "")
	}
	target += oneOf("query", "", "", "?", "?a=b", "?a=%2F&b[]=;", "?x=é", "#f")
	lines := "Host: a\r\n"
	for range rapid.IntRange(0, 5).Draw(t, "lines") {
		lines += oneOf("name", "X-A", "x-fencing-token", "X-Fencing-Token", "Connection", "TE", "X-B", "Cookie", "Accept", "x-b", "X-Owner-Id", "X_A", "X-A ", "")
		lines += oneOf("colon", ":", ": ", ":\t", ": ", ":  ") + oneOf("value", "5", "close", "x-b, close", "a, b", "caf\xe9", "", "a\tb", "a:b", "1\x00", "1\r2") + oneOf("space", "", "", " ", "\t")
		lines += oneOf("end", "\r\n", "\r\n", "\r\n", "\r\n", "\r\n", "\r\n", "\r\n ", "\n")
	}
	return oneOf("method", "GET", "POST", "OPTIONS", "get", "PURGE", "A B", "TRACE"), target, []byte(lines + "\r\n")
}

func TestAcceptedHeadIsReadAlikeByAnotherReader(t *testing.T) {
	t.Parallel()
	accepted, refused := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		for range 20 {
			method, target, fields := heads(t)
			r, violation := Check(Head{Method: method, Target: target, Protocol: "HTTP/1.1", Fields: fields}, rules)
			if violation != nil {
				refused++
				continue
			}
			accepted++
			if problem := agrees(r) + unsafe(r); problem != "" {
				t.Fatal(problem)
			}
		}
	})
	require.Greater(t, accepted, 200, "the drawn heads are worth comparing")
	require.Greater(t, refused, 200)
}

func FuzzAcceptedHeadIsReadAlikeByAnotherReader(f *testing.F) {
	for _, group := range refused {
		for _, head := range group.heads {
			seed(f, head)
		}
	}
	for _, head := range []string{get("X-Fencing-Token: 5"), target("/a%C3%A9?x=1"), request("POST /v1/payouts/7/claim HTTP/1.1", "Content-Length: 2", "Connection: close, X-A", "X-A: 1")} {
		seed(f, head)
	}
	f.Fuzz(func(t *testing.T, method, target string, fields []byte) {
		r, violation := Check(Head{Method: method, Target: target, Protocol: "HTTP/1.1", Fields: fields}, rules)
		if violation != nil {
			return
		}
		if problem := agrees(r) + unsafe(r); problem != "" {
			t.Fatal(problem)
		}
	})
}

func seed(f *testing.F, head string) {
	line, fields, _ := strings.Cut(head, "\r\n")
	parts := append(strings.SplitN(line, " ", 3), "", "")
	f.Add(parts[0], parts[1], []byte(fields))
}
