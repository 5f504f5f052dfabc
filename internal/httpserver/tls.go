package httpserver

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"

	"github.com/valyala/fasthttp"

	"fenceline/internal/httperr"
)

// tlsListener lets every connection begin with a handshake, which fasthttp runs in the connection's own goroutine and within its
// read time-out: a client that dawdles keeps nobody waiting.
type tlsListener struct {
	net.Listener
	config Config
}

// Accept returns a connection whose handshake is still to come.
func (l *tlsListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &TLSConn{Conn: tls.Server(c, l.config.TLS), below: c, config: l.config}, nil
}

// TLSConn is a connection of a server with TLS, as a handler finds it in RequestCtx.Conn.
type TLSConn struct {
	*tls.Conn
	below  net.Conn
	config Config
	failed bool
	// Memo is for the handler, to remember what it found out about the connection. One request at a time uses it.
	Memo any
}

// Handshake is tls.Conn's, except that a failure is reported, and answered when plain HTTP came instead.
func (c *TLSConn) Handshake() error {
	err := c.HandshakeContext(context.Background()) // fasthttp has set the connection's deadlines
	if err == nil {
		return nil
	}
	c.failed = true
	if c.config.HandshakeFailed != nil {
		c.config.HandshakeFailed(c.RemoteAddr(), err)
	}
	c.config.Metrics.answered(NoRoute, fasthttp.StatusBadRequest, 0)
	header, ok := errors.AsType[tls.RecordHeaderError](err)
	if ok && header.Conn != nil && looksLikeHTTP(header.RecordHeader[:]) {
		tellAndClose(c.below, httperr.New(fasthttp.StatusBadRequest, CodeMalformed, "this port speaks TLS; use https"))
	}
	return err
}

// Read says "closed" after a failed handshake, which fasthttp would else answer as an unreadable request.
func (c *TLSConn) Read(b []byte) (int, error) {
	if c.failed {
		return 0, net.ErrClosed
	}
	return c.Conn.Read(b)
}

func looksLikeHTTP(head []byte) bool {
	for _, method := range []string{"GET /", "HEAD ", "POST ", "PUT /", "DELET", "OPTIO", "PATCH"} {
		if bytes.HasPrefix(head, []byte(method)) {
			return true
		}
	}
	return false
}
