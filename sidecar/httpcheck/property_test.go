package httpcheck

import (
	"bufio"
	"fmt"
	"net/http"
	"net/textproto"
	"strings"
	"testing"

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
	for _, bad := range []string{"//", "\\", ";", "#", "/../", "/./", "%00", "%2f", "%5c", "%2e"} {
		if strings.Contains(strings.ToLower(r.Path)+"/", bad) && !strings.HasSuffix(r.Path, "/") {
			return "the path has " + bad
		}
	}
	if len(r.Values(rules.TokenHeader)) != len(r.Tokens) {
		return "other tokens are forwarded than were read"
	}
	return ""
}

// piece draws text that is likely to be near the limits of the grammar.
func piece(parts ...string) *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(rapid.SampledFrom(parts), 0, 6).Draw(t, "parts"), "")
	})
}

func TestAcceptedHeadIsReadAlikeByAnotherReader(t *testing.T) {
	t.Parallel()
	accepted := 0
	rapid.Check(t, func(t *rapid.T) {
		path := piece("/", "a", "v1", "..", ".", "%2e", "%2F", "%C3%A9", "%c3", ";", "//", "\\", "*", "é", " ", "%", "@", ":", "?", "#", "=", "&", "%00", "[").Draw(t, "path")
		method := rapid.SampledFrom([]string{"GET", "POST", "OPTIONS", "get", "PURGE", "A B", "TRACE"}).Draw(t, "method")
		var fields strings.Builder
		fields.WriteString("Host: a\r\n")
		for range rapid.IntRange(0, 4).Draw(t, "lines") {
			fields.WriteString(piece("X-A", "x-fencing-token", "X_A", "Connection", "TE", "X-B", "close", ":", ": ", " ", "\t", "5", ",", "é", "\x00", "\r", "\n", "Cookie: a=b", "(").Draw(t, "line"))
			fields.WriteString(rapid.SampledFrom([]string{"\r\n", "\r\n", "\r\n", "\n", ""}).Draw(t, "end"))
		}
		fields.WriteString("\r\n")
		r, violation := Check(Head{Method: method, Target: "/" + path, Protocol: "HTTP/1.1", Fields: []byte(fields.String())}, rules)
		if violation != nil {
			return
		}
		accepted++
		if problem := agrees(r) + unsafe(r); problem != "" {
			t.Fatal(problem)
		}
	})
	t.Logf("%d heads were accepted and compared", accepted)
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
