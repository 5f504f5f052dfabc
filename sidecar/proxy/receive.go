package proxy

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http/httputil"
	"time"

	"github.com/valyala/fasthttp"

	"fenceline/sidecar/httpcheck"
)

// errTooLarge means that the response's body is above the limit.
var errTooLarge = errors.New("response body is above limits.response")

// receiveHead reads response heads up to the first that isn't an interim one.
func (u *upstream) receiveHead(r *bufio.Reader, response *fasthttp.Response) error {
	response.Header.SetNoDefaultContentType(true)
	for i := 0; ; i++ {
		if err := readHead(r, &response.Header); err != nil {
			return err
		}
		status := response.StatusCode()
		if status >= 200 {
			return nil
		}
		if status == fasthttp.StatusSwitchingProtocols || i >= maxInterim {
			return fmt.Errorf("unexpected status %d", status)
		}
	}
}

// receiveBody reads the whole body. It is delimited when its end was marked; a response that ends with the connection may have been cut off
// without anybody noticing.
func (u *upstream) receiveBody(r *bufio.Reader, response *fasthttp.Response) (delimited bool, err error) {
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

// download is a response body on its way from the resource to the client. Whoever reads it must close it.
type download struct {
	conn    *upstreamConn
	body    io.Reader
	length  int // as in fasthttp: -1 chunked, -2 to the end of the connection
	left    int
	timeout time.Duration
	ended   bool
	err     error // the first one stays: a reader that gets bytes along with it may come again
	// finish is told once how it ended: whole means that the marked end was reached.
	finish func(whole bool)
}

func newDownload(conn *upstreamConn, length int, timeout time.Duration) *download {
	d := &download{conn: conn, length: length, left: length, timeout: timeout, body: conn.reader}
	if length == -1 {
		d.body = httputil.NewChunkedReader(conn.reader)
	}
	return d
}

// Read gives what has arrived; it doesn't wait for more than the first bytes of it, so that events pass one by one.
func (d *download) Read(p []byte) (n int, err error) {
	if d.err == nil {
		n, d.err = d.read(p)
	}
	return n, d.err
}

func (d *download) read(p []byte) (int, error) {
	if d.ended || d.length >= 0 && d.left == 0 {
		d.ended = true
		return 0, io.EOF
	}
	if d.length >= 0 {
		p = p[:min(len(p), d.left)]
	}
	if err := d.conn.SetReadDeadline(time.Now().Add(d.timeout)); err != nil {
		return 0, err
	}
	n, err := d.body.Read(p)
	if d.length >= 0 {
		d.left -= n
	}
	if !errors.Is(err, io.EOF) {
		return n, err
	}
	switch {
	case d.length >= 0 && d.left > 0:
		return n, io.ErrUnexpectedEOF
	case d.length == -1:
		if err := d.trailer(); err != nil {
			return n, err
		}
	}
	d.ended = true
	return n, io.EOF
}

// trailer reads the lines after the last chunk, up to the empty one. They aren't passed on.
func (d *download) trailer() error {
	for {
		line, err := d.conn.reader.ReadSlice('\n') // bounded by the reader's buffer
		switch {
		case err != nil:
			return unexpectedEnd(err)
		case bytes.Equal(line, []byte("\r\n")):
			return nil
		case !bytes.HasSuffix(line, []byte("\r\n")):
			return httpcheck.ErrResponse
		}
	}
}

// Close ends the reading. A body that was read to its marked end leaves a connection that can be used again.
func (d *download) Close() error {
	if d.finish != nil {
		d.finish(d.ended && d.length >= -1)
		d.finish = nil
	}
	return nil
}
