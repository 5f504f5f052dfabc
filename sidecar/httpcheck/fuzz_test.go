package httpcheck

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"net/textproto"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/valyala/fasthttp"
)

// reading is what one reader makes of a request.
type reading struct {
	method, target, host string
	headers              map[string][]string // by canonical name, without framing and what concerns the connection
	body                 string
}

// readAsSidecar takes a request as the proxy does: fasthttp reads it, Check judges and takes it apart.
func readAsSidecar(raw string) (reading, bool) {
	r := bufio.NewReaderSize(strings.NewReader(raw), 16<<10)
	var request fasthttp.Request
	if request.Header.Read(r) != nil {
		return reading{}, false
	}
	checked, violation := Check(Head{
		Method: string(request.Header.Method()), Target: string(request.Header.RequestURI()),
		Protocol: string(request.Header.Protocol()), Fields: request.Header.RawHeaders(),
	}, rules)
	if violation != nil {
		return reading{}, false
	}
	if checked.Framed {
		if checked.Chunked != (request.Header.ContentLength() == -1) || !checked.Chunked && int64(request.Header.ContentLength()) != checked.ContentLength {
			return reading{}, false // the proxy refuses this
		}
		if request.ContinueReadBody(r, 1<<20, false) != nil {
			return reading{}, false
		}
	}
	got := reading{method: checked.Method, target: checked.Target, host: checked.Host, headers: map[string][]string{}, body: string(request.Body())}
	for _, h := range checked.Headers {
		name := textproto.CanonicalMIMEHeaderKey(h.Name)
		got.headers[name] = append(got.headers[name], h.Value)
	}
	return got, true
}

// readAsNetHTTP takes it as Go's own server does.
func readAsNetHTTP(raw string) (reading, bool) {
	request, err := http.ReadRequest(bufio.NewReaderSize(strings.NewReader(raw), 16<<10))
	if err != nil {
		return reading{}, false
	}
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return reading{}, false
	}
	return reading{method: request.Method, target: request.RequestURI, host: request.Host, headers: request.Header, body: string(body)}, true
}

// notForwarded says whether a header of net/http's list rightly isn't in ours: it concerns one connection, is ours to set, or is nominated.
func notForwarded(name string, all map[string][]string) bool {
	lower := strings.ToLower(name)
	if isHopByHop(lower) || isForwarding(lower) || lower == "content-length" || lower == "expect" {
		return true
	}
	for _, line := range all["Connection"] {
		for option := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(strings.Trim(option, " \t"), name) {
				return true
			}
		}
	}
	return false
}

// FuzzTwoReadersAgree feeds the same bytes to the sidecar's check and to net/http's parser. A request that both accept must be the same one
// to both: else what was matched and fenced isn't what a resource acts on.
func FuzzTwoReadersAgree(f *testing.F) {
	for _, group := range refused {
		for _, head := range group.heads {
			f.Add([]byte(head))
		}
	}
	for _, head := range admitted() {
		f.Add([]byte(head + "hello"))
	}
	for _, seed := range []string{
		"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
		"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n0\r\nX-T: 1\r\n\r\n",
		"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: X-Fencing-Token\r\n\r\n0\r\nX-Fencing-Token: 9\r\n\r\n",
		"PUT /%41?q=%zz&a;b HTTP/1.1\r\nHost: [::1]:80\r\nConnection: X-A, close\r\nX-A: 1\r\nX-Fencing-Token: 5\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a\r\nCookie: a=1\r\nCookie: b=2\r\nX-Forwarded-For: 1.2.3.4\r\nExpect: 100-continue\r\n\r\n",
		"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
		"\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 00\r\n\r\n",
		"GET /\xc3\xa4 HTTP/1.1\r\nHost: a\r\nX-A: \xe4\r\n\r\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		ours, accepted := readAsSidecar(string(raw))
		if !accepted {
			return
		}
		theirs, accepted := readAsNetHTTP(string(raw))
		if !accepted {
			return
		}
		require.Equal(t, theirs.method, ours.method)
		require.Equal(t, theirs.target, ours.target)
		require.Equal(t, theirs.host, ours.host)
		require.Equal(t, theirs.body, ours.body)
		for name, values := range ours.headers {
			require.Equal(t, theirs.headers[name], values, "%q", name)
		}
		for name := range theirs.headers {
			if _, forwarded := ours.headers[name]; !forwarded {
				require.True(t, notForwarded(name, connectionsOf(raw)), "%q is lost", name)
			}
		}
	})
}

// connectionsOf reads the Connection lines, which net/http takes out of its list in some versions.
func connectionsOf(raw []byte) map[string][]string {
	out := map[string][]string{}
	for line := range bytes.SplitSeq(raw, []byte("\r\n")) {
		name, value, found := strings.Cut(string(line), ":")
		if found && strings.EqualFold(name, "Connection") {
			out["Connection"] = append(out["Connection"], value)
		}
	}
	return out
}
