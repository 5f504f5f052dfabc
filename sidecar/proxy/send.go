package proxy

import (
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"fenceline/sidecar/gate"
)

// earlyAnswerTime is how long a resource that stopped taking a request may take to say why.
const earlyAnswerTime = time.Second

// send hands a request over, once. How much of it may have arrived is in sent, whatever the error. A resource that answers before it has the whole request (413, 401) isn't
// sent the rest: then answered is true, and what it received is part of a request.
func (u *upstream) send(conn *upstreamConn, t trip) (sent gate.Sent, answered bool, err error) {
	if err := conn.SetDeadline(time.Now().Add(u.answerTimeout)); err != nil {
		return gate.NotSent, false, fmt.Errorf("set deadline: %w", err)
	}
	n, err := writePieces(conn, t)
	switch {
	case n == 0 && err != nil:
		return gate.NotSent, false, fmt.Errorf("send: %w", err) // the kernel took nothing
	case err != nil:
		return gate.PartlySent, conn.hasAnswer(), fmt.Errorf("send: %w", err)
	case t.body == nil:
		return gate.WhollySent, false, nil
	}
	early := conn.watchForAnswer()
	err = u.sendBody(conn, t)
	answered = early.stop()
	switch {
	case err == nil:
		return gate.WhollySent, false, nil
	case errors.As(err, new(clientFault)):
		return gate.PartlySent, false, err
	}
	return gate.PartlySent, answered || conn.hasAnswer(), fmt.Errorf("send: %w", err)
}

// sendBody passes the pieces on as they come. A body in chunks is sent in chunks, one with a length exactly as long: a truncated one must never look whole.
func (u *upstream) sendBody(conn *upstreamConn, t trip) error {
	body := t.body
	buffer := make([]byte, 32<<10)
	for {
		n, readErr := body.next(buffer)
		if n > 0 {
			if err := conn.SetWriteDeadline(time.Now().Add(u.answerTimeout)); err != nil {
				return err
			}
			if conn.early.Load() {
				return errAnsweredEarly // set before the deadline that would have ended the write
			}
			if !t.mayContinue() {
				return errReleased
			}
			if err := writePiece(conn, buffer[:n], body.length < 0); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(readErr, io.EOF):
			if body.length < 0 {
				_, err := io.WriteString(conn, "0\r\n\r\n")
				return err
			}
			return nil
		case readErr != nil:
			return readErr
		}
	}
}

// pieceSize bounds what is handed to the kernel at once: a process that is stopped in the middle of a write goes on with it whatever has happened meanwhile.
const pieceSize = 64 << 10

// writePieces hands over what is there of a request.
func writePieces(conn net.Conn, t trip) (n int, err error) {
	for n < len(t.request) {
		if n > 0 && !t.mayContinue() {
			return n, errReleased
		}
		wrote, err := conn.Write(t.request[n:min(n+pieceSize, len(t.request))])
		if n += wrote; err != nil {
			return n, err
		}
	}
	return n, nil
}

// errReleased ends a request in the middle: newer ones may have been let go on.
var errReleased = errors.New("this sidecar may have been declared dead while it was sending, so it sends no more of the request")

func writePiece(conn net.Conn, piece []byte, chunked bool) error {
	if !chunked {
		_, err := conn.Write(piece)
		return err
	}
	pieces := net.Buffers{fmt.Appendf(nil, "%x\r\n", len(piece)), piece, []byte("\r\n")}
	_, err := pieces.WriteTo(conn)
	return err
}

// errAnsweredEarly ends an upload whose answer is there.
var errAnsweredEarly = errors.New("the resource answered before the request was sent whole")

// hasAnswer says whether a response waits, or comes soon: a resource that closes its side while a request is being sent often says why.
func (c *upstreamConn) hasAnswer() bool {
	if err := c.SetReadDeadline(time.Now().Add(earlyAnswerTime)); err != nil {
		return false
	}
	_, err := c.reader.Peek(1)
	return err == nil
}

// earlyAnswer watches a connection for an answer while a body is being sent.
type earlyAnswer struct {
	conn *upstreamConn
	done chan bool
}

// watchForAnswer peeks at the connection. A response that begins and isn't one of success (or an interim one) ends the writing. A
// success is left where it is until the body has been sent: the resource may be answering while it still reads.
func (c *upstreamConn) watchForAnswer() *earlyAnswer {
	e := &earlyAnswer{conn: c, done: make(chan bool, 1)}
	c.early.Store(false)
	_ = c.SetReadDeadline(time.Time{})
	go func() {
		const status = len("HTTP/1.1 ")
		head, err := c.reader.Peek(status + 1)
		is := err == nil && head[status] >= '3'
		if is {
			c.early.Store(true)
			_ = c.SetWriteDeadline(time.Unix(1, 0))
		}
		e.done <- is
	}()
	return e
}

// stop ends the watching and says whether an answer had begun.
func (e *earlyAnswer) stop() bool {
	_ = e.conn.SetReadDeadline(time.Unix(1, 0))
	is := <-e.done
	e.conn.readErr = nil // the one that ended the watching
	_ = e.conn.SetReadDeadline(time.Time{})
	return is
}
