package httpapi

import (
	"context"
	"errors"
	"net"
	"syscall"
	"time"

	"fenceline/lockd/lock"
)

// errHungUp means that the client has closed its connection while its request was being worked on.
var errHungUp = errors.New("the client has hung up")

// whileConnected returns a context for work that waits for up to wait: it ends with errHungUp when the client closes its connection. The caller
// must call stop before it answers.
func (c *call) whileConnected(wait time.Duration) (ctx context.Context, stop func()) {
	if wait == 0 {
		return c.ctx, func() {}
	}
	ctx, timeUp := context.WithTimeout(context.WithoutCancel(c.ctx), wait+callTimeout)
	ctx, hangUp := context.WithCancelCause(ctx)
	unwatch := onHangUp(c.Conn(), func() { hangUp(errHungUp) })
	return ctx, func() {
		unwatch()
		hangUp(nil)
		timeUp()
	}
}

// giveBackIfGone releases a grant that can't reach its client any more.
func (a *API) giveBackIfGone(c *call, grant lock.Grant) error {
	if raw := rawConn(c.Conn()); raw == nil || !hungUp(raw) {
		return nil
	}
	a.service.GiveBack(c.ctx, grant)
	return errHungUp
}

// rawConn is the socket of a connection; nil for one that has none, as in tests.
func rawConn(conn net.Conn) syscall.RawConn {
	if secured, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = secured.NetConn()
	}
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return nil
	}
	return raw
}

// onHangUp calls gone when the peer closes the connection, unless stop was called before. It reads nothing from it: what a client sends
// meanwhile stays for the next request. Nobody else may read from the connection, or set its read deadline, before stop has returned.
func onHangUp(conn net.Conn, gone func()) (stop func()) {
	raw := rawConn(conn)
	if raw == nil {
		return func() {}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		// Each event on the socket wakes this up (the runtime's poller is edge-triggered), until the function returns true or the deadline that stop sets has passed.
		err := raw.Read(func(fd uintptr) bool { return peerClosed(fd) })
		if err == nil {
			gone()
		}
	}()
	return func() {
		_ = conn.SetReadDeadline(time.Unix(1, 0))
		<-done
		_ = conn.SetReadDeadline(time.Time{}) // the server sets its own before the next request
	}
}

func hungUp(raw syscall.RawConn) (is bool) {
	err := raw.Control(func(fd uintptr) { is = peerClosed(fd) })
	return is || err != nil
}
