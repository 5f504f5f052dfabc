package proxy

import (
	"bytes"
	"errors"
	"io"
	"net"
	"time"
)

// smallBody is up to which length a body on a passed route is received whole before anything is sent: a slow client then holds neither a
// connection to the resource nor a place among limits.in_flight.
const smallBody = 64 << 10

// streamed says whether the request's body goes on while it arrives. On guarded routes that must be asked for: the request is admitted before its
// body is there, and a client that is slow with it keeps an admitted request open.
func (e *exchange) streamed() bool {
	if e.match.Route != nil && e.match.Route.Guarded() {
		return e.match.Route.Stream
	}
	if e.request.Chunked || e.request.ContentLength > smallBody {
		return !e.judgedByBody()
	}
	return false
}

// sameLength wants fasthttp and Check to agree on where the body ends: two readers of one head that don't would take a part of the body for the
// next request.
func (e *exchange) sameLength() bool {
	length := int64(e.fast.Request.Header.ContentLength())
	switch {
	case e.request.Chunked:
		return length == -1
	case e.request.Framed:
		return length == e.request.ContentLength
	}
	return length == 0 || length == -2 // none announced
}

// readBody receives the whole body, at most limits.body bytes.
func (p *Proxy) readBody(e *exchange) *refusal {
	limit := p.cfg.Limits.Body
	if e.request.ContentLength > limit {
		e.fast.SetConnectionClose() // what comes isn't read
		return refuse("BODY_TOO_LARGE", "the body is above limits.body")
	}
	stream := e.fast.RequestBodyStream()
	if stream == nil || !e.request.Framed {
		return nil
	}
	var body bytes.Buffer // grows with what arrives, not with what is announced
	n, err := body.ReadFrom(io.LimitReader(stream, limit+1))
	switch {
	case n > limit:
		e.fast.SetConnectionClose()
		return refuse("BODY_TOO_LARGE", "the body is above limits.body")
	case err != nil:
		return brokenBody(e, err)
	case !e.request.Chunked && n != e.request.ContentLength:
		return brokenBody(e, io.ErrUnexpectedEOF)
	}
	e.body = body.Bytes()
	return nil
}

// brokenBody answers a body that didn't come to its end. Nobody knows where the next request would begin, so the connection is closed.
func brokenBody(e *exchange, err error) *refusal {
	e.fast.SetConnectionClose()
	var netErr net.Error
	if errors.As(err, &netErr) && netErr.Timeout() {
		return refuse("REQUEST_TIMEOUT", "the request didn't arrive in time")
	}
	return refuse("MALFORMED_REQUEST", "the body ends early or isn't well-formed")
}

// upload is a body on its way from the client to the resource.
type upload struct {
	body   io.Reader
	length int64 // -1 for one in chunks
	// extend gives the client time for the next piece.
	extend func()
	read   int64
}

// clientFault is a fault of the client's side of an upload, as opposed to the resource's.
type clientFault struct{ error }

func (f clientFault) Unwrap() error { return f.error }

// newUpload streams the request's body. Each piece must come within readTimeout of the one before.
func newUpload(e *exchange) *upload {
	u := &upload{body: e.fast.RequestBodyStream(), length: e.request.ContentLength}
	conn := e.fast.Conn()
	u.extend = func() { _ = conn.SetReadDeadline(time.Now().Add(readTimeout)) }
	if e.request.Chunked {
		u.length = -1
	}
	if u.body == nil {
		u.body = bytes.NewReader(nil)
	}
	return u
}

// next reads the next piece into buffer. At the end it returns io.EOF, and only when the body was whole.
func (u *upload) next(buffer []byte) (int, error) {
	u.extend()
	n, err := u.body.Read(buffer)
	u.read += int64(n)
	switch {
	case errors.Is(err, io.EOF) && u.length >= 0 && u.read != u.length:
		return n, clientFault{io.ErrUnexpectedEOF} // fasthttp's reader calls this a plain end
	case err == nil || errors.Is(err, io.EOF):
		return n, err
	}
	return n, clientFault{err}
}
