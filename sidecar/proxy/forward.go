package proxy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"time"

	"github.com/valyala/fasthttp"

	"fenceline/sidecar/config"
	"fenceline/sidecar/gate"
)

// forward sends the request once and passes the response on.
func (p *Proxy) forward(ctx context.Context, e *exchange, as decision) *refusal {
	done := p.underWay(e, as)
	e.forwarding = p.span(e, "fence.forward")
	response := fasthttp.AcquireResponse()
	start := time.Now()
	end, rest, err := p.upstream.exchange(ctx, p.trip(e), response)
	p.metrics.upstream.WithLabelValues(e.routeName()).Observe(time.Since(start).Seconds())
	if rest != nil {
		p.handOn(e, as, end, rest, response, done)
		return nil
	}
	defer done()
	outcome := p.settle(e, as, end, err)
	if err != nil {
		fasthttp.ReleaseResponse(response)
		if why, refused := errors.AsType[*gate.Refusal](err); refused {
			return p.notAdmitted(ctx, e, why)
		}
		return p.upstreamFault(e, as, outcome, err)
	}
	p.count(e, as)
	p.handOver(e, response)
	return nil
}

// trip describes the request to the upstream.
func (p *Proxy) trip(e *exchange) trip {
	streamed := e.streamed() && e.request.Framed
	peer := e.fast.RemoteAddr()
	t := trip{
		request: buildRequest(e.request, e.body, streamed, forwardedFor(e.request, peer, p.cfg.Forwarded.Trusts(peer), e.fast.IsTLS())),
		head:    e.request.Method == fasthttp.MethodHead,
		begin:   e.begin, mayContinue: e.mayContinue,
		whole: func(r *fasthttp.Response) bool {
			if e.match.Route != nil && e.match.Route.Guarded() && !e.match.Route.Stream {
				return true // read to its end at the resource's speed, whatever the client does
			}
			length := r.Header.ContentLength()
			return length >= 0 && length <= smallBody
		},
	}
	if streamed {
		t.body = newUpload(e)
	}
	if e.pass != nil {
		late := &lateRequest{pass: e.pass, unfinished: e.unfinished(), route: e.routeName(), key: e.key, token: e.token, traceID: e.traceID}
		t.late = func(end gate.End) { p.settleLate(late, end) }
	}
	return t
}

// underWay counts an admitted request until the returned function is called.
func (p *Proxy) underWay(e *exchange, as decision) (done func()) {
	if as != admitted || e.pass != nil { // the gate counts its own
		return func() {}
	}
	inflight := p.metrics.inflight.WithLabelValues(e.match.Route.Guard.Name)
	inflight.Inc()
	return inflight.Dec
}

// settle judges the end of an exchange and makes an unknown one known to the operator.
func (p *Proxy) settle(e *exchange, as decision, end gate.End, err error) gate.Outcome {
	outcome := gate.Settle(end, e.unfinished())
	e.end(outcome)
	e.forwarded(outcome, end.Status)
	if outcome == gate.OutcomeUnknown && as == admitted {
		p.logger.Warn("the outcome of an admitted request is unknown", "event", "request_unsettled", "route", e.routeName(),
			"resourceId", e.key, "token", int64(e.token), "status", end.Status, "error", err, "traceId", e.traceID)
	}
	if outcome == gate.OutcomeUnknown || err != nil {
		p.metrics.failures.WithLabelValues(string(outcome)).Inc()
	}
	return outcome
}

// handOver gives a response that was read whole to the server. It keeps the request's place among limits.in_flight until it has been written.
func (p *Proxy) handOver(e *exchange, response *fasthttp.Response) {
	copyHead(response, &e.fast.Response, e.request.Method == fasthttp.MethodHead)
	body := response.Body()
	if len(body) == 0 || e.request.Method == fasthttp.MethodHead {
		fasthttp.ReleaseResponse(response)
		return
	}
	e.handed = true
	e.fast.Response.SetBodyStream(&heldBody{Reader: bytes.NewReader(body), release: func() {
		fasthttp.ReleaseResponse(response)
		e.finish()
	}}, len(body))
}

// heldBody is a response body on its way to the client. The server closes it once it has been written or can't be any more.
type heldBody struct {
	*bytes.Reader
	release func()
}

// Close gives back what the body held.
func (h *heldBody) Close() error {
	if h.release != nil {
		h.release()
		h.release = nil
	}
	return nil
}

// handOn lets the server write the response while it arrives. Its end, and with it the request's outcome, is known when the server closes it.
func (p *Proxy) handOn(e *exchange, as decision, end gate.End, rest *download, response *fasthttp.Response, done func()) {
	p.count(e, as)
	copyHead(response, &e.fast.Response, false)
	length := response.Header.ContentLength()
	fasthttp.ReleaseResponse(response)
	giveBack := rest.finish
	rest.finish = func(whole bool) {
		giveBack(whole)
		end.Answered = whole
		p.settle(e, as, end, nil)
		done()
		e.finish()
	}
	e.handed = true
	e.fast.Response.ImmediateHeaderFlush = true
	e.fast.Response.SetBodyStream(&streamedBody{
		download: rest, client: e.fast.Conn(), drain: as == admitted, within: p.cfg.Upstream.ResponseTimeout,
	}, max(length, -1))
}

// streamedBody is a download with the client at its other end.
type streamedBody struct {
	*download
	client net.Conn
	drain  bool // the response is read to its end even if the client has gone: only then is the outcome known
	within time.Duration
}

// Read gives the client time for the next piece: the server's own limit would cover the whole body.
func (s *streamedBody) Read(p []byte) (int, error) {
	n, err := s.download.Read(p)
	_ = s.client.SetWriteDeadline(time.Now().Add(writeTimeout))
	return n, err
}

// Close is called when the body has been written or can't be any more.
func (s *streamedBody) Close() error {
	if s.drain && !s.ended {
		s.timeout = s.within
		deadline := time.Now().Add(s.within)
		_, _ = io.Copy(io.Discard, readerFunc(func(p []byte) (int, error) {
			if time.Now().After(deadline) {
				return 0, context.DeadlineExceeded
			}
			return s.download.Read(p)
		}))
	}
	return s.download.Close()
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// upstreamFault answers a failed exchange with what is known of its effect.
func (p *Proxy) upstreamFault(e *exchange, as decision, outcome gate.Outcome, err error) *refusal {
	p.logger.Warn("exchange with the resource failed", "event", "upstream_failed", "route", e.routeName(), "outcome", outcome, "error", err, "traceId", e.traceID)
	if errors.As(err, new(clientFault)) {
		r := brokenBody(e, err).with("outcome", outcome) // a part of it was sent
		r.decision, r.RetrySafe = as, false
		return r
	}
	code := "UPSTREAM_FAILED"
	var netErr net.Error
	if outcome == gate.OutcomeUnknown && errors.As(err, &netErr) && netErr.Timeout() {
		code = "UPSTREAM_TIMEOUT"
	}
	text := "the resource gave no usable answer; the request may have taken effect, now or later"
	if outcome == gate.OutcomeNotSent {
		text = "the resource can't be reached; nothing was sent"
	}
	r := refuse(code, "%s", text).with("outcome", outcome)
	r.decision = as
	// Where each token is admitted once, this request's token is used up, sent or not.
	once := as == admitted && e.match.Route.Admit == config.AdmitNewer
	if outcome == gate.OutcomeNotSent && !once {
		r.Safe(0)
	}
	return r
}
