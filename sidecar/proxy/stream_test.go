package proxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fenceline/lockd/lock"
)

// streamConfig adds a guarded route that streams.
var streamConfig = strings.Replace(rawConfig, "  - { name: json",
	`  - { name: stream, match: { methods: [PUT], path: "/files/{id}" }, guard: thing, admit: newer_or_same, key: { path: id }, stream: true }
  - { name: json`, 1)

// behindProxy serves a resource behind a proxy and returns the proxy's address.
func behindProxy(t *testing.T, resource http.HandlerFunc) (address string, store *fakeStore) {
	t.Helper()
	server := httptest.NewServer(resource)
	t.Cleanup(server.Close)
	store = &fakeStore{marks: map[string]lock.Token{}}
	return startProxy(t, strings.ReplaceAll(streamConfig, "response_timeout: 300ms", "response_timeout: 5s"), strings.TrimPrefix(server.URL, "http://"), store), store
}

func dial(t *testing.T, address string) net.Conn {
	t.Helper()
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(20*time.Second)))
	return c
}

// Each event arrives before the next one is even made (H61, H62).
func TestServerSentEventsArriveOneByOne(t *testing.T) {
	t.Parallel()
	next := make(chan struct{})
	address, _ := behindProxy(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.WriteHeader(http.StatusOK)
		for i := range 5 {
			_ = http.NewResponseController(w).Flush()
			select {
			case <-next:
			case <-r.Context().Done():
				return
			}
			_, _ = fmt.Fprintf(w, "data: %d\n\n", i)
		}
	})
	c := dial(t, address)
	_, err := io.WriteString(c, "GET /open/events HTTP/1.1\r\nHost: a\r\n\r\n")
	require.NoError(t, err)
	response, err := http.ReadResponse(bufio.NewReader(c), nil)
	require.NoError(t, err, "the head comes before the first event")
	defer func() { _ = response.Body.Close() }()
	require.Equal(t, "text/event-stream", response.Header.Get("Content-Type"))
	events := bufio.NewReader(response.Body)
	for i := range 5 {
		next <- struct{}{}
		line, err := events.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("data: %d\n", i), line)
		_, err = events.ReadString('\n')
		require.NoError(t, err)
	}
	_, err = events.ReadByte()
	require.ErrorIs(t, err, io.EOF)
}

// An upload's pieces reach the resource while the client still has the next one.
func TestUploadArrivesPieceByPiece(t *testing.T) {
	t.Parallel()
	for name, framing := range map[string]struct{ head, piece, end string }{
		"with a length": {"Content-Length: 300003\r\n\r\n", "%s", ""},
		"in chunks":     {"Transfer-Encoding: chunked\r\n\r\n", "186a1\r\n%s\r\n", "0\r\n\r\n"},
	} {
		for _, route := range []string{"/open/7", "/files/7"} {
			t.Run(name+route, func(t *testing.T) {
				t.Parallel()
				arrived := make(chan int)
				address, _ := behindProxy(t, func(w http.ResponseWriter, r *http.Request) {
					piece := make([]byte, 100_001)
					for {
						n, err := io.ReadFull(r.Body, piece)
						if err != nil {
							_, _ = fmt.Fprintf(w, "%v %d %q", err, r.ContentLength, r.TransferEncoding)
							return
						}
						arrived <- n
					}
				})
				c := dial(t, address)
				_, err := io.WriteString(c, "PUT "+route+" HTTP/1.1\r\nHost: a\r\nX-Fencing-Token: 5\r\n"+framing.head)
				require.NoError(t, err)
				for range 3 {
					_, err = fmt.Fprintf(c, framing.piece, strings.Repeat("x", 100_001))
					require.NoError(t, err)
					require.Equal(t, 100_001, <-arrived)
				}
				_, err = io.WriteString(c, framing.end)
				require.NoError(t, err)
				response, err := http.ReadResponse(bufio.NewReader(c), nil)
				require.NoError(t, err)
				defer func() { _ = response.Body.Close() }()
				require.Equal(t, 200, response.StatusCode)
				got, err := io.ReadAll(response.Body)
				require.NoError(t, err)
				if framing.end == "" {
					require.Equal(t, "EOF 300003 []", string(got))
				} else {
					require.Equal(t, `EOF -1 ["chunked"]`, string(got))
				}
			})
		}
	}
}

// A body that breaks off must never look whole to the resource (H21, H23).
func TestBrokenUploadNeverLooksWholeToTheResource(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ head, body, status string }{
		"length, closed":      {"Content-Length: 100000", strings.Repeat("x", 20_000), "400"},
		"chunk, closed":       {"Transfer-Encoding: chunked", "4e20\r\n" + strings.Repeat("x", 20_000), "400"},
		"no last chunk":       {"Transfer-Encoding: chunked", "5\r\nabcde\r\n", "400"},
		"bad chunk size":      {"Transfer-Encoding: chunked", "5\r\nabcde\r\n0x1\r\na\r\n0\r\n\r\n", "400"},
		"negative chunk size": {"Transfer-Encoding: chunked", "5\r\nabcde\r\n-1\r\na\r\n0\r\n\r\n", "400"},
		"bare LF":             {"Transfer-Encoding: chunked", "5\r\nabcde\r\n1\na\r\n0\r\n\r\n", "400"},
		"chunk too long":      {"Transfer-Encoding: chunked", "5\r\nabcdefgh\r\n0\r\n\r\n", "400"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ended := make(chan error, 1)
			address, _ := behindProxy(t, func(_ http.ResponseWriter, r *http.Request) {
				_, err := io.Copy(io.Discard, r.Body)
				ended <- err
			})
			conn := dial(t, address)
			_, err := io.WriteString(conn, "PUT /files/7 HTTP/1.1\r\nHost: a\r\nX-Fencing-Token: 5\r\n"+c.head+"\r\n\r\n"+c.body)
			require.NoError(t, err)
			tcp, ok := conn.(*net.TCPConn)
			require.True(t, ok)
			require.NoError(t, tcp.CloseWrite())
			answer, err := io.ReadAll(conn)
			require.NoError(t, err)
			require.Contains(t, string(answer), "HTTP/1.1 "+c.status)
			require.Contains(t, string(answer), `"outcome":"unknown"`, "a part of it was sent")
			require.Contains(t, string(answer), `"retrySafe":false`)
			require.Error(t, <-ended)
		})
	}
}

// A resource that refuses an upload without reading it is heard (H56), and the rest isn't sent.
func TestEarlyAnswerToAnUploadReachesTheClient(t *testing.T) {
	t.Parallel()
	address, _ := behindProxy(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusRequestEntityTooLarge)
		_, _ = io.WriteString(w, "too large for me")
	})
	conn := dial(t, address)
	_, err := io.WriteString(conn, "PUT /open/7 HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n")
	require.NoError(t, err)
	var sending sync.WaitGroup
	sending.Go(func() {
		for range 1000 {
			if _, err := conn.Write(make([]byte, 1_000_000)); err != nil {
				return
			}
		}
	})
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	require.Equal(t, 413, response.StatusCode)
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.Equal(t, "too large for me", string(body))
	_ = conn.Close()
	sending.Wait()
}

// A response that breaks off is seen to be broken by the client (H64).
func TestBrokenDownloadIsSeenByTheClient(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"length":       "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nabc!",
		"chunks":       "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n!",
		"half a chunk": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nabc!",
		"bad chunk":    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\nx\r\n0\r\n\r\n",
		"bare LF":      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1\nx\r\n0\r\n\r\n",
		"bad trailer":  "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX: 1\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			upstream := startUpstream(t, script)
			address := startProxy(t, rawConfig, upstream.addr(), &fakeStore{marks: map[string]lock.Token{}})
			c := dial(t, address)
			_, err := io.WriteString(c, "GET /open/7 HTTP/1.1\r\nHost: a\r\n\r\n")
			require.NoError(t, err)
			response, err := http.ReadResponse(bufio.NewReader(c), nil)
			require.NoError(t, err)
			defer func() { _ = response.Body.Close() }()
			_, err = io.ReadAll(response.Body)
			require.ErrorIs(t, err, io.ErrUnexpectedEOF)
			require.Len(t, upstream.requests(), 1)
		})
	}
}

// The client of an admitted, streamed request goes away in the middle of the response: it is read to its end all the same, since only then its outcome is known.
func TestAdmittedStreamIsReadToItsEndWithoutItsClient(t *testing.T) {
	t.Parallel()
	gone, ended := make(chan struct{}), make(chan error, 1)
	address, _ := behindProxy(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		piece := make([]byte, 100_000)
		_, _ = w.Write(piece)
		_ = http.NewResponseController(w).Flush()
		<-gone
		for range 50 {
			if _, err := w.Write(piece); err != nil {
				ended <- err
				return
			}
		}
		ended <- nil
	})
	c := dial(t, address)
	_, err := io.WriteString(c, "PUT /files/7 HTTP/1.1\r\nHost: a\r\nX-Fencing-Token: 5\r\nContent-Length: 0\r\n\r\n")
	require.NoError(t, err)
	response, err := http.ReadResponse(bufio.NewReader(c), nil)
	require.NoError(t, err)
	require.NoError(t, c.Close())
	_ = response.Body.Close()
	close(gone)
	require.NoError(t, <-ended, "the resource could write all of it")
}

// Connections of streamed exchanges are used again when their end was marked.
func TestConnectionIsUsedAgainAfterAStream(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	conns := map[string]int{}
	address, _ := behindProxy(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		mu.Lock()
		conns[r.RemoteAddr]++
		mu.Unlock()
		_, _ = w.Write(make([]byte, 200_000))
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for range 5 {
		request, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://"+address+"/open/7", strings.NewReader(strings.Repeat("x", 200_000)))
		require.NoError(t, err)
		response, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		n, err := io.Copy(io.Discard, response.Body)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, int64(200_000), n)
	}
	mu.Lock()
	defer mu.Unlock()
	require.Len(t, conns, 1, "%v", conns)
}

// A resource on a unix socket gets the same bytes, and its dead connections are found in the same way.
func TestResourceMayListenOnAUnixSocket(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "app.sock")
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
	require.NoError(t, err)
	var requests atomic.Int64
	server := &http.Server{ReadHeaderTimeout: 5 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if requests.Add(1)%3 == 0 {
			w.Header().Set("Connection", "close")
		}
		_, _ = fmt.Fprintf(w, "%s %s", r.Host, r.RequestURI)
	})}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	address := startProxy(t, strings.Replace(rawConfig, "http://UPSTREAM", "unix:"+path, 1), "", &fakeStore{marks: map[string]lock.Token{}})
	for range 10 {
		answer, _ := exchangeRaw(t, address, "POST /things/7 HTTP/1.1\r\nHost: h\r\nX-Fencing-Token: 5\r\nContent-Length: 0\r\n\r\n")
		require.Contains(t, answer, "200 OK")
		require.True(t, strings.HasSuffix(answer, "\r\n\r\nh /things/7"), answer)
	}
	require.Equal(t, int64(10), requests.Load())
}
