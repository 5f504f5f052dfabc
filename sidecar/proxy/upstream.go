package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/valyala/fasthttp"
	"golang.org/x/sys/unix"

	"fenceline/sidecar/gate"
)

// upstream sends requests to the resource, each at most once. It has connections of its own, because it must know as a fact how much
// of a request was handed over: a client library that repeats a request by itself, for whatever reason, can't be used here.
type upstream struct {
	network        string // tcp or unix
	address        string
	connectTimeout time.Duration
	answerTimeout  time.Duration // from the last byte sent to the last byte received, or to the head of a response that is streamed
	idleTimeout    time.Duration // between two pieces of a response that is streamed
	headLimit      int
	bodyLimit      int

	tls *tls.Config // nil: plain

	mu     sync.Mutex
	idle   []*upstreamConn // newest last
	late   map[*upstreamConn]struct{}
	closed bool
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
	early   atomic.Bool
}

// Read is what the reader reads through.
func (c *upstreamConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.readErr = err
	return n, err
}

// trip is one request on its way and what is known of it.
type trip struct {
	request []byte  // the head, with the body when that was received whole
	body    *upload // the rest of it, else nil
	head    bool    // the method is HEAD: the response has no body
	// begin is asked right before the first byte; its error means that nothing may be sent. mayContinue is asked before every further piece.
	begin       func(ctx context.Context) error
	mayContinue func() bool
	// late is told when a response comes after the time for it was over, as far as it is known how it ended. Nil: nobody waits.
	late func(gate.End)
	// whole says whether the response's body is to be read whole. One that isn't comes as a download.
	whole func(*fasthttp.Response) bool
}

// exchange sends the request's bytes once and reads the response. The end says how far it came; it is
// meaningful whatever the error. Nothing here tries a second time once a byte has been handed over: only a connection that was found dead before
// that is replaced. With a download the end is the state before its body: its finish tells the rest.
func (u *upstream) exchange(ctx context.Context, t trip, response *fasthttp.Response) (end gate.End, rest *download, err error) {
	conn, err := u.connect(ctx)
	if err != nil {
		return gate.End{Sent: gate.NotSent}, nil, err
	}
	keep := false
	defer func() {
		if !keep {
			_ = conn.Close()
		}
	}()
	// After everything that takes time: dialling, TLS, looking for a connection that lives.
	if err := t.begin(ctx); err != nil {
		keep = u.putBack(conn, true)
		return gate.End{Sent: gate.NotSent}, nil, err
	}
	sent, answered, err := u.send(conn, t)
	end.Sent = sent
	if err != nil && !answered {
		return end, nil, err
	}
	if err := conn.SetDeadline(time.Now().Add(u.answerTimeout)); err != nil {
		return end, nil, fmt.Errorf("set deadline: %w", err)
	}
	if err := u.receiveHead(conn.reader, response); err != nil {
		if t.late != nil && sent == gate.WhollySent && errors.Is(conn.readErr, os.ErrDeadlineExceeded) {
			keep = u.awaitLate(conn, t)
		}
		return end, nil, fmt.Errorf("receive: %w", errors.Join(err, conn.readErr))
	}
	end.Status = response.StatusCode()
	length := response.Header.ContentLength()
	switch {
	case t.head || noBody(end.Status):
		end.Answered = true
	case t.whole(response):
		if end.Answered, err = u.receiveBody(conn.reader, response); err != nil {
			return end, nil, fmt.Errorf("receive: %w", errors.Join(err, conn.readErr))
		}
	default:
		keep = true
		rest = newDownload(conn, length, u.idleTimeout)
		reusable := sent == gate.WhollySent && !response.ConnectionClose()
		rest.finish = func(whole bool) { u.putBack(conn, whole && reusable) }
		return end, rest, nil
	}
	keep = u.putBack(conn, end.Answered && sent == gate.WhollySent && !response.ConnectionClose())
	return end, nil, nil
}

// putBack keeps a connection for the next request, or closes it.
func (u *upstream) putBack(conn *upstreamConn, reusable bool) bool {
	if !reusable || conn.holdsMore() {
		_ = conn.Close()
		return false
	}
	u.putIdle(conn)
	return true
}

// connect returns an idle connection that is alive, else a new one.
func (u *upstream) connect(ctx context.Context) (*upstreamConn, error) {
	for conn := u.takeIdle(); conn != nil; conn = u.takeIdle() {
		if time.Since(conn.since) < maxIdleTime && quiet(conn.Conn) {
			return conn, nil
		}
		_ = conn.Close()
	}
	conn, err := u.dial(ctx)
	if err != nil {
		return nil, err
	}
	c := &upstreamConn{Conn: conn}
	c.reader = bufio.NewReaderSize(c, u.headLimit)
	return c, nil
}

// dial opens a connection; with TLS its handshake is done.
func (u *upstream) dial(ctx context.Context) (net.Conn, error) {
	dialer := net.Dialer{Timeout: u.connectTimeout}
	conn, err := dialer.DialContext(ctx, u.network, u.address)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	if u.tls == nil {
		return conn, nil
	}
	return u.handshake(ctx, conn)
}

// Reachable says whether the resource takes a connection now, which is closed at once.
func (p *Proxy) Reachable(ctx context.Context) error {
	conn, err := p.upstream.dial(ctx)
	if err != nil {
		return fmt.Errorf("the resource can't be reached: %w", err)
	}
	return conn.Close()
}

// handshake begins TLS. Until it has succeeded nothing of a request has been sent.
func (u *upstream) handshake(ctx context.Context, conn net.Conn) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, u.connectTimeout)
	defer cancel()
	secured := tls.Client(conn, u.tls)
	if err := secured.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("connect: TLS: %w", err)
	}
	return secured, nil
}

// holdsMore says whether something came after the response that was read. With TLS it may have been decrypted already, where a look at the socket doesn't
// find it: a read that may not wait does.
func (c *upstreamConn) holdsMore() bool {
	if c.reader.Buffered() > 0 {
		return true
	}
	if _, secured := c.Conn.(*tls.Conn); !secured {
		return false
	}
	if err := c.SetReadDeadline(time.Unix(1, 0)); err != nil {
		return true
	}
	_, err := c.reader.Peek(1)
	return !errors.Is(err, os.ErrDeadlineExceeded)
}

// quiet looks at an idle connection without taking anything from it: it must be open and have nothing to read. Bytes that wait there are a
// response that nobody asked for, and would be taken for the answer to the next request.
func quiet(conn net.Conn) bool {
	if secured, is := conn.(*tls.Conn); is {
		conn = secured.NetConn()
	}
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := socket.SyscallConn()
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
	if u.closed { // a response that was still being passed on when the configuration changed
		_ = conn.Close()
		return
	}
	if len(u.idle) >= maxIdle {
		_ = u.idle[0].Close()
		u.idle = append(u.idle[:0], u.idle[1:]...)
	}
	u.idle = append(u.idle, conn)
}

// close closes every idle connection, and those that become idle later. Nobody waits for late responses any more.
func (u *upstream) close() {
	u.mu.Lock()
	u.closed = true
	for conn := range u.late {
		_ = conn.Close()
	}
	u.mu.Unlock()
	for conn := u.takeIdle(); conn != nil; conn = u.takeIdle() {
		_ = conn.Close()
	}
}
