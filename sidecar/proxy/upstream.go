package proxy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/valyala/fasthttp"
	"golang.org/x/sys/unix"

	"fenceline/sidecar/gate"
	"fenceline/sidecar/httpcheck"
)

// upstream sends requests to the resource, each at most once. It has connections of its own, because it must know as a fact how much
// of a request was handed over: a client library that repeats a request by itself, for whatever reason, can't be used here.
type upstream struct {
	address        string
	connectTimeout time.Duration
	answerTimeout  time.Duration // from the last byte sent to the last byte received
	headLimit      int
	bodyLimit      int

	mu   sync.Mutex
	idle []*upstreamConn // newest last
}

const (
	maxIdle     = 256
	maxIdleTime = 30 * time.Second
	maxInterim  = 20 // 1xx responses before the real one
)

type upstreamConn struct {
	net.Conn
	reader  *bufio.Reader
	readErr error     // what the connection itself said last; fasthttp's errors hide it
	since   time.Time // idle since
}

// Read is what the reader reads through.
func (c *upstreamConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.readErr = err
	return n, err
}

// errTooLarge means that the response's body is above the limit.
var errTooLarge = errors.New("response body is above limits.response")

// exchange sends the request's bytes once and reads the response. The end says how far it came; it is
// meaningful whatever the error. Nothing here tries a second time once a byte has been handed over: only a connection that was found dead before
// that is replaced.
func (u *upstream) exchange(ctx context.Context, request []byte, head bool, response *fasthttp.Response) (end gate.End, err error) {
	conn, err := u.connect(ctx)
	if err != nil {
		return gate.End{Sent: gate.NotSent}, err
	}
	reusable := false
	defer func() {
		if !reusable {
			_ = conn.Close()
		}
	}()
	if err := conn.SetDeadline(time.Now().Add(u.answerTimeout)); err != nil {
		return gate.End{Sent: gate.NotSent}, fmt.Errorf("set deadline: %w", err)
	}
	n, err := conn.Write(request)
	switch {
	case n == 0 && err != nil:
		return gate.End{Sent: gate.NotSent}, fmt.Errorf("send: %w", err) // the kernel took nothing
	case err != nil:
		return gate.End{Sent: gate.PartlySent}, fmt.Errorf("send: %w", err)
	}
	end.Sent = gate.WhollySent
	delimited, err := u.receive(conn.reader, head, response)
	if err != nil {
		return end, fmt.Errorf("receive: %w", errors.Join(err, conn.readErr))
	}
	end.Answered, end.Status = delimited, response.StatusCode()
	if delimited && !response.ConnectionClose() && conn.reader.Buffered() == 0 {
		reusable = true
		u.putIdle(conn)
	}
	return end, nil
}

// receive reads one response. It is delimited when its end was marked; a response that ends with the connection may have been cut off
// without anybody noticing.
func (u *upstream) receive(r *bufio.Reader, head bool, response *fasthttp.Response) (delimited bool, err error) {
	response.Header.SetNoDefaultContentType(true)
	for i := 0; ; i++ {
		if err := readHead(r, &response.Header); err != nil {
			return false, err
		}
		status := response.StatusCode()
		if status >= 200 {
			break
		}
		if status == fasthttp.StatusSwitchingProtocols || i >= maxInterim {
			return false, fmt.Errorf("unexpected status %d", status)
		}
	}
	if head || noBody(response.StatusCode()) {
		return true, nil
	}
	length := response.Header.ContentLength()
	if err := response.ReadBody(r, u.bodyLimit); err != nil {
		if errors.Is(err, fasthttp.ErrBodyTooLarge) {
			return false, errTooLarge
		}
		return false, unexpectedEnd(err)
	}
	if length == -1 { // chunked: the trailers end it
		if err := response.Header.ReadTrailer(r); err != nil {
			return false, unexpectedEnd(err)
		}
	}
	return length >= -1, nil
}

// readHead reads one response head. It is judged as it came, before fasthttp's lenient reader repairs it. The reader's buffer, limits.head, bounds it.
func readHead(r *bufio.Reader, header *fasthttp.ResponseHeader) error {
	for start, seen := 0, 0; ; {
		head, err := r.Peek(max(seen+1, r.Buffered()))
		if err != nil {
			return unexpectedEnd(err)
		}
		seen = len(head)
		for {
			i := bytes.IndexByte(head[start:], '\n')
			if i < 0 {
				break // the line isn't whole yet
			}
			line := head[start : start+i+1]
			start += i + 1
			if last := bytes.Equal(line, []byte("\r\n")); last || !bytes.HasSuffix(line, []byte("\r\n")) {
				if err := httpcheck.CheckResponse(head[:start]); err != nil {
					return err
				}
				return header.Read(r)
			}
		}
	}
}

func noBody(status int) bool { return status == 204 || status == 304 }

func unexpectedEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// connect returns an idle connection that is alive, else a new one.
func (u *upstream) connect(ctx context.Context) (*upstreamConn, error) {
	for conn := u.takeIdle(); conn != nil; conn = u.takeIdle() {
		if time.Since(conn.since) < maxIdleTime && quiet(conn.Conn) {
			return conn, nil
		}
		_ = conn.Close()
	}
	dialer := net.Dialer{Timeout: u.connectTimeout}
	conn, err := dialer.DialContext(ctx, "tcp", u.address)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	c := &upstreamConn{Conn: conn}
	c.reader = bufio.NewReaderSize(c, u.headLimit)
	return c, nil
}

// quiet looks at an idle connection without taking anything from it: it must be open and have nothing to read. Bytes that wait there are a
// response that nobody asked for, and would be taken for the answer to the next request.
func quiet(conn net.Conn) bool {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return false
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return false
	}
	alive := false
	err = raw.Control(func(fd uintptr) {
		var b [1]byte
		_, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		alive = errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EWOULDBLOCK)
	})
	return err == nil && alive
}

func (u *upstream) takeIdle() *upstreamConn {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.idle) == 0 {
		return nil
	}
	conn := u.idle[len(u.idle)-1]
	u.idle = u.idle[:len(u.idle)-1]
	return conn
}

func (u *upstream) putIdle(conn *upstreamConn) {
	conn.since = time.Now()
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.idle) >= maxIdle {
		_ = u.idle[0].Close()
		u.idle = append(u.idle[:0], u.idle[1:]...)
	}
	u.idle = append(u.idle, conn)
}

// closeIdle closes every idle connection.
func (u *upstream) closeIdle() {
	for conn := u.takeIdle(); conn != nil; conn = u.takeIdle() {
		_ = conn.Close()
	}
}
