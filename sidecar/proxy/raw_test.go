package proxy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"github.com/valyala/fasthttp"

	"fenceline/lockd/lock"
	"fenceline/sidecar/config"
	"fenceline/sidecar/mark"
	"fenceline/sidecar/policy"
)

// rawConfig is the configuration of the raw cases.
const rawConfig = `
version: 1
id: raw
listen: 127.0.0.1:0
upstream: { url: "http://UPSTREAM", connect_timeout: 500ms, response_timeout: 300ms }
store: { postgres: { url: "postgres://nobody@127.0.0.1:1/none" } }
guards:
  - name: thing
    mark: { table: thing, key: id, key_type: text, token: fence }
    order: admissions
routes:
  - { name: write, match: { methods: [POST, PUT, PATCH, DELETE, GET, HEAD], path: "/things/{id}" }, guard: thing, admit: newer_or_same, key: { path: id } }
  - { name: json, match: { methods: [POST], path: /json }, guard: thing, admit: newer, key: { json: /id } }
  - { name: open, match: { methods: [GET, POST, PUT, HEAD], path: "/open/{id}" }, pass: true }
headers: { allow: [X_Legacy_Id, X_Fencing_Token] } # the second stays refused
limits: { body: 64B, head: 4KiB, response: 1KiB }
`

// fakeStore admits in memory. The proxy's own rules are tested here; real stores have their own suite, and integration_test.go puts both
// together.
type fakeStore struct {
	mu    sync.Mutex
	marks map[string]lock.Token
	fault error
}

func (s *fakeStore) Admit(_ context.Context, a mark.Admission) (mark.Decision, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fault != nil {
		return mark.Decision{}, s.fault
	}
	if highest := s.marks[a.Key]; highest > a.Token || highest == a.Token && a.Newer {
		return mark.Decision{Verdict: mark.FencedOut, Highest: highest}, nil
	}
	s.marks[a.Key] = a.Token
	return mark.Decision{Verdict: mark.Admitted}, nil
}

func (s *fakeStore) Lookup(context.Context, string, []string) (string, bool, error) {
	return "", false, nil
}

func (s *fakeStore) Read(_ context.Context, _, key string) (lock.Token, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	token, found := s.marks[key]
	return token, found, nil
}

// startProxy serves a proxy on loopback before the given upstream.
func startProxy(t *testing.T, text, upstream string, store mark.Store, change ...func(*Proxy)) string {
	t.Helper()
	cfg, err := config.Load([]byte(strings.ReplaceAll(text, "UPSTREAM", upstream)), "test.yaml", os.LookupEnv)
	require.NoError(t, err)
	rules, err := policy.New(cfg)
	require.NoError(t, err)
	p := New(Parts{Config: cfg, Rules: rules, Store: store}, prometheus.NewRegistry(), hclog.NewNullLogger())
	for _, c := range change {
		c(p)
	}
	server := NewServer(p, cfg.Limits, hclog.NewNullLogger())
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(l) // it ends with its listener
	}()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		defer cancel()
		_ = server.ShutdownWithContext(ctx) // silent connections of a case may still be open
		p.Close()
		_ = l.Close() // a shutdown before the server had begun to serve doesn't reach it
		<-served
	})
	return l.Addr().String()
}

// rawUpstream is a resource that follows a script and keeps every byte that it got.
type rawUpstream struct {
	listener net.Listener
	script   string

	mu       sync.Mutex
	received []string // one element a request
}

func startUpstream(t *testing.T, script string) *rawUpstream {
	t.Helper()
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	u := &rawUpstream{listener: l, script: script}
	var conns sync.WaitGroup
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns.Go(func() { u.serve(c) })
		}
	}()
	t.Cleanup(func() { _ = l.Close(); conns.Wait() })
	return u
}

func (u *rawUpstream) addr() string { return u.listener.Addr().String() }

func (u *rawUpstream) requests() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return append([]string(nil), u.received...)
}

// serve answers requests by the script: "ok", "close", "silent", or the bytes to send, after which "!" closes the connection.
func (u *rawUpstream) serve(c net.Conn) {
	defer func() { _ = c.Close() }()
	r := bufio.NewReader(c)
	for {
		_ = c.SetDeadline(time.Now().Add(5 * time.Second))
		var copied bytes.Buffer
		var request fasthttp.Request
		request.Header.DisableNormalizing()
		if err := request.Read(bufio.NewReader(io.TeeReader(oneAtATime{r}, &copied))); err != nil {
			return
		}
		u.mu.Lock()
		u.received = append(u.received, copied.String())
		u.mu.Unlock()
		answer, closes := strings.CutSuffix(u.script, "!")
		switch answer {
		case "ok":
			answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
		case "close":
			return
		case "silent":
			_, _ = io.Copy(io.Discard, r) // until the other side gives up
			return
		}
		if _, err := io.WriteString(c, answer); err != nil || closes {
			return
		}
	}
}

// oneAtATime gives a reader byte by byte, so that nothing beyond one request is taken.
type oneAtATime struct{ r io.Reader }

func (o oneAtATime) Read(p []byte) (int, error) { return o.r.Read(p[:min(1, len(p))]) }

// exchangeRaw sends bytes on one connection and returns everything that comes back until the proxy closes it or falls silent.
func exchangeRaw(t *testing.T, address, input string) (answer string, closed bool) {
	t.Helper()
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
	require.NoError(t, err)
	defer func() { _ = c.Close() }()
	_, err = io.WriteString(c, input)
	require.NoError(t, err)
	var out bytes.Buffer
	for {
		quiet := 3 * time.Second
		if complete(out.String(), strings.HasPrefix(input, "HEAD ")) {
			quiet = 150 * time.Millisecond // whether it closes, or answers something more
		}
		require.NoError(t, c.SetReadDeadline(time.Now().Add(quiet)))
		var b [4096]byte
		n, err := c.Read(b[:])
		out.Write(b[:n])
		var netErr net.Error
		switch {
		case errors.As(err, &netErr) && netErr.Timeout():
			return out.String(), false
		case err != nil:
			return out.String(), true
		}
	}
}

// complete says whether the text ends with a whole response.
func complete(text string, head bool) bool {
	r := bufio.NewReader(strings.NewReader(text))
	for n := 0; ; n++ {
		response := fasthttp.Response{SkipBody: head}
		if err := response.Read(r); err != nil {
			return n > 0 && errors.Is(err, io.EOF)
		}
	}
}

// rawCase is one file: sections that begin with "== name".
type rawCase struct{ sections map[string]string }

func loadCase(t *testing.T, path string) rawCase {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	c := rawCase{sections: map[string]string{}}
	for part := range strings.SplitSeq("\n"+string(data), "\n== ") {
		name, content, _ := strings.Cut(part, "\n")
		c.sections[strings.TrimSpace(name)] = strings.TrimSuffix(content, "\n")
	}
	return c
}

// bytesOf makes a section's exact bytes: line breaks of the file are nothing, \r \n \t \0 \x.. are what they say.
func (c rawCase) bytesOf(t *testing.T, name string) string {
	t.Helper()
	var out strings.Builder
	text := strings.ReplaceAll(c.sections[name], "\n", "")
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' || i+1 == len(text) {
			out.WriteByte(text[i])
			continue
		}
		i++
		switch text[i] {
		case 'r':
			out.WriteByte('\r')
		case 'n':
			out.WriteByte('\n')
		case 't':
			out.WriteByte('\t')
		case '0':
			out.WriteByte(0)
		case '\\':
			out.WriteByte('\\')
		default:
			require.Failf(t, "unknown escape", "\\%c in %s", text[i], name)
		}
	}
	return out.String()
}

// TestRawCases drives every file of testdata/raw: bytes in, what the resource may see, what comes back.
//
//	== input      the client's bytes on one connection
//	== upstream   the resource's script (default ok)
//	== status     the statuses that come back, in order
//	== code       the error code of the last answer, or none
//	== forwarded  the exact bytes that the resource saw, or nothing; left out: not compared
//	== sends      how many requests the resource saw
//	== connection kept or closed
func TestRawCases(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/raw/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			t.Parallel()
			runCase(t, loadCase(t, file))
		})
	}
}

func runCase(t *testing.T, c rawCase) {
	t.Helper()
	script := "ok"
	if _, given := c.sections["upstream"]; given {
		script = c.bytesOf(t, "upstream")
	}
	upstream := startUpstream(t, script)
	address := startProxy(t, rawConfig, upstream.addr(), &fakeStore{marks: map[string]lock.Token{"stale": 100}})
	input := c.bytesOf(t, "input")
	answer, closed := exchangeRaw(t, address, input)

	var statuses []string
	code := "none"
	for r := bufio.NewReader(strings.NewReader(answer)); ; {
		response := fasthttp.Response{SkipBody: strings.HasPrefix(input, "HEAD ")}
		if err := response.Read(r); err != nil {
			break
		}
		statuses = append(statuses, fmt.Sprint(response.StatusCode()))
		code = "none"
		if _, after, found := strings.Cut(string(response.Body()), `"code":"`); found {
			code, _, _ = strings.Cut(after, `"`)
		}
	}
	require.Equal(t, strings.TrimSpace(c.sections["status"]), strings.Join(statuses, " "), "answer: %q", answer)
	require.Equal(t, strings.TrimSpace(c.sections["code"]), code, "answer: %q", answer)
	require.Equal(t, strings.TrimSpace(c.sections["connection"]), map[bool]string{true: "closed", false: "kept"}[closed], "answer: %q", answer)
	seen := upstream.requests()
	require.Equal(t, strings.TrimSpace(c.sections["sends"]), fmt.Sprint(len(seen)), "the resource saw %q", seen)
	if want, given := c.sections["forwarded"]; given && strings.TrimSpace(want) != "nothing" {
		require.Equal(t, c.bytesOf(t, "forwarded"), strings.Join(seen, ""))
	}
}
