// Package sendonce sends an HTTP request at most once, whatever fails. It is for requests whose second arrival costs
// money.
//
// net/http doesn't promise that: its Transport sends a request again when a reused connection dies under it, if the method is
// idempotent by definition or the request carries an Idempotency-Key or X-Idempotency-Key header and its body can be read
// again; its Client follows a 307 or 308 by sending the body to another place. Here each request has a connection of its own,
// which the Transport never considers for a second try, its body can't be read again, and redirects are answers like any other.
package sendonce

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"
)

// ErrNotSent means that no byte of the request left: there was no connection to send it on. Any other error of Do
// means that the request may have taken effect, or may still do.
var ErrNotSent = errors.New("nothing was sent")

const (
	// maxAnswer bounds a response's body in memory, in bytes.
	maxAnswer = 1 << 20
	// maxAnswerHead bounds a response's header, in bytes.
	maxAnswerHead = 64 << 10
)

// Client sends requests. It is safe for concurrent use and keeps nothing between requests.
type Client struct {
	transport *http.Transport
	timeout   time.Duration
}

// New returns a client. Connecting takes at most connectTimeout, the whole exchange at most timeout.
func New(connectTimeout, timeout time.Duration) *Client {
	dialer := &net.Dialer{Timeout: connectTimeout}
	// HTTP/2 shares a connection among requests and has second tries of its own.
	var http1 http.Protocols
	http1.SetHTTP1(true)
	return &Client{timeout: timeout, transport: &http.Transport{
		Proxy:                  nil, // a proxy might send twice
		Protocols:              &http1,
		DialContext:            dialer.DialContext,
		TLSHandshakeTimeout:    connectTimeout,
		DisableKeepAlives:      true, // a connection used for the first time is never replaced by another
		MaxResponseHeaderBytes: maxAnswerHead,
	}}
}

// Answer is a response that arrived whole.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// Do sends the request at most once and reads the answer to its end; the request's own context is replaced by ctx. An answer
// that is cut off or longer than 1 MiB is an error: it says nothing for certain.
func (c *Client) Do(ctx context.Context, request *http.Request) (Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	// The Transport reports a connection before it writes the first byte to it. Without this report nothing was sent.
	var connected atomic.Bool
	request = request.WithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
	}))
	request.GetBody = nil
	response, err := c.transport.RoundTrip(request)
	if err != nil {
		if !connected.Load() {
			err = fmt.Errorf("%w: %w", ErrNotSent, err)
		}
		return Answer{}, fmt.Errorf("%s %s: %w", request.Method, request.URL.Path, err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	if err == nil && len(body) > maxAnswer {
		err = fmt.Errorf("longer than %d bytes", maxAnswer)
	}
	if err != nil {
		return Answer{}, fmt.Errorf("%s %s: answer: %w", request.Method, request.URL.Path, err)
	}
	return Answer{Status: response.StatusCode, Header: response.Header, Body: body}, nil
}
