package proxy

import (
	"net"
	"strconv"
	"strings"

	"github.com/valyala/fasthttp"

	"fenceline/sidecar/httpcheck"
)

// buildRequest writes the request for the resource from checked parts: the very target that was matched, the headers in their order and
// spelling, the body with its length. Nothing of the received bytes is passed on unseen. A body that is still arriving is announced as the client announced
// it, and follows.
func buildRequest(r httpcheck.Request, body []byte, streamed bool, from []httpcheck.Header) []byte {
	var b strings.Builder
	b.Grow(512 + len(body))
	line := func(name, value string) { b.WriteString(name + ": " + value + "\r\n") }

	b.WriteString(r.Method + " " + r.Target + " HTTP/1.1\r\n")
	line("Host", r.Host)
	for _, h := range r.Headers {
		line(h.Name, h.Value)
	}
	for _, h := range from {
		line(h.Name, h.Value)
	}
	switch {
	case streamed && r.Chunked:
		line("Transfer-Encoding", "chunked")
	case streamed:
		line("Content-Length", strconv.FormatInt(r.ContentLength, 10))
	case r.Framed:
		line("Content-Length", strconv.Itoa(len(body)))
	}
	b.WriteString("\r\n")
	return append([]byte(b.String()), body...)
}

// forwardedFor says where a request came from: from this peer. What a trusted peer says is kept, and the peer added to the addresses.
func forwardedFor(r httpcheck.Request, peer net.Addr, trusted, secured bool) []httpcheck.Header {
	var addresses []string
	var out []httpcheck.Header
	said := map[string]bool{}
	if trusted {
		for _, h := range r.Forwarded {
			said[strings.ToLower(h.Name)] = true
			if strings.EqualFold(h.Name, "X-Forwarded-For") {
				addresses = append(addresses, h.Value)
				continue
			}
			out = append(out, h)
		}
	}
	if host, _, err := net.SplitHostPort(peer.String()); err == nil {
		addresses = append(addresses, host)
	}
	if len(addresses) > 0 {
		out = append(out, httpcheck.Header{Name: "X-Forwarded-For", Value: strings.Join(addresses, ", ")})
	}
	proto := "http"
	if secured {
		proto = "https"
	}
	for _, ours := range []httpcheck.Header{{Name: "X-Forwarded-Host", Value: r.Host}, {Name: "X-Forwarded-Proto", Value: proto}} {
		if !said[strings.ToLower(ours.Name)] {
			out = append(out, ours)
		}
	}
	return out
}

// copyHead begins the client's response with the resource's status and its headers, without those of the connection.
func copyHead(from, to *fasthttp.Response, head bool) {
	to.Header.SetNoDefaultContentType(true)
	status, length := from.StatusCode(), from.Header.ContentLength()
	if (head || status == fasthttp.StatusNotModified) && length >= 0 {
		// The length of what isn't sent (RFC 9110, 8.6); 204 has none.
		to.SkipBody = true
		to.Header.SetContentLength(length) // before the status: 304 ignores it afterwards
	}
	to.SetStatusCode(status)
	dropped := map[string]bool{
		"connection": true, "keep-alive": true, "proxy-connection": true, "proxy-authenticate": true, "te": true,
		"trailer": true, "transfer-encoding": true, "upgrade": true, "content-length": true, "date": true, strings.ToLower(headerDecision): true,
	}
	for _, line := range from.Header.PeekAll("Connection") {
		for option := range strings.SplitSeq(string(line), ",") {
			dropped[strings.ToLower(strings.TrimSpace(option))] = true
		}
	}
	for name, value := range from.Header.All() {
		if !dropped[strings.ToLower(string(name))] {
			to.Header.AddBytesKV(name, value)
		}
	}
}
