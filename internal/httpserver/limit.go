package httpserver

import (
	"bufio"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/valyala/fasthttp"

	"fenceline/internal/httperr"
)

const (
	// otherFiles is how many of the process's files are kept for all else: pools, logs, the admin listener.
	otherFiles = 256
	// turningAway is how many connections are told at once that there are too many. Beyond that they are closed without words.
	turningAway = 64
	// turnAwayTimeout bounds how long one of them is kept for that.
	turnAwayTimeout = 500 * time.Millisecond
	// retryAfter is when a client that was turned away may sensibly come again.
	retryAfter = time.Second
	// acceptPause is how long a listener that can't accept waits before it tries again.
	acceptPause = 20 * time.Millisecond
	// logPause keeps a full server from filling its log.
	logPause = 10 * time.Second
)

// limited accepts at most max connections at once. A listener that fails for want of files or memory tries again,
// where fasthttp would stop serving for good.
type limited struct {
	net.Listener
	max      int64
	open     atomic.Int64
	logger   hclog.Logger
	metrics  *Metrics
	plain    bool // the client can read words before a handshake
	telling  chan struct{}
	lastWord time.Time // of the one goroutine that accepts
}

// Limit returns a listener that accepts at most config.MaxConnections at once and turns further ones away in words (plain HTTP only). Of the
// configuration it uses Logger, Metrics and TLS besides. The server behind it must take one connection more.
func Limit(l net.Listener, config Config) net.Listener {
	most := int64(config.MaxConnections)
	if files := fileLimit() - otherFiles; most > files {
		config.Logger.Warn("the process may not open as many files as connections are allowed; raise the limit (ulimit -n)",
			"event", "connections_limited", "wanted", most, "maxConnections", files)
		most = files
	}
	return &limited{
		Listener: l, max: most, logger: config.Logger, metrics: config.Metrics,
		plain: config.TLS == nil, telling: make(chan struct{}, turningAway),
	}
}

// fileLimit is how many files the process may have open; Go raises the soft limit to the hard one at start.
func fileLimit() int64 {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil || files.Cur > 1<<31 {
		return 1 << 31
	}
	return max(int64(files.Cur), 2*otherFiles)
}

// Accept returns the next connection that there is room for.
func (l *limited) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		switch {
		case err == nil && l.open.Add(1) <= l.max:
			return &counted{Conn: c, open: &l.open}, nil
		case err == nil:
			l.open.Add(-1)
			l.turnAway(c)
		case passes(err):
			l.say("can't accept a connection now", "accept_failed", "error", err)
			<-time.After(acceptPause)
		default:
			return nil, err
		}
	}
}

// passes says whether accepting may work again without a restart.
func passes(err error) bool {
	for _, passing := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED, syscall.EINTR} {
		if errors.Is(err, passing) {
			return true
		}
	}
	return false
}

// say logs, but not more often than every ten seconds.
func (l *limited) say(message, event string, args ...any) {
	if time.Since(l.lastWord) >= logPause {
		l.lastWord = time.Now()
		l.logger.Warn(message, append([]any{"event", event}, args...)...)
	}
}

func (l *limited) turnAway(c net.Conn) {
	l.say("too many connections; new ones are turned away", "connections_turned_away", "maxConnections", l.max)
	l.metrics.answered(NoRoute, fasthttp.StatusServiceUnavailable, 0)
	if !l.plain {
		_ = c.Close()
		return
	}
	select {
	case l.telling <- struct{}{}:
		go func() {
			defer func() { <-l.telling }()
			tellAndClose(c, httperr.New(fasthttp.StatusServiceUnavailable, CodeOverloaded, "too many connections; nothing has happened").Safe(retryAfter))
		}()
	default:
		_ = c.Close()
	}
}

// tellAndClose writes the refusal and reads on for a moment: closing with a request unread would reset the connection, and the client could
// lose the answer with it.
func tellAndClose(c net.Conn, answer *httperr.Error) {
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(turnAwayTimeout))
	var response fasthttp.Response
	response.Header.SetNoDefaultContentType(true)
	response.SetConnectionClose()
	answer.WriteTo(&response, httperr.NewTraceID())
	w := bufio.NewWriter(c)
	if response.Write(w) != nil || w.Flush() != nil {
		return
	}
	if half, ok := c.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		_, _ = io.CopyN(io.Discard, c, MaxHead+MaxBody)
	}
}

// counted gives its place back when it is closed, however often that happens.
type counted struct {
	net.Conn
	open *atomic.Int64
	once sync.Once
}

// Close closes the connection.
func (c *counted) Close() error {
	c.once.Do(func() { c.open.Add(-1) })
	return c.Conn.Close()
}

// CloseWrite tells the client that nothing more will come.
func (c *counted) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// SyscallConn is the socket, for whoever has to see that the client has hung up.
func (c *counted) SyscallConn() (syscall.RawConn, error) {
	if socket, ok := c.Conn.(syscall.Conn); ok {
		return socket.SyscallConn()
	}
	return nil, errors.ErrUnsupported
}
