package httpapi

import (
	"errors"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/valyala/fasthttp"

	"fenceline/internal/httperr"
	"fenceline/internal/httpserver"
	"fenceline/lockd/lockapi"
)

// Operators serves the operators' calls on the admin listener, which is net/http's: the way in when an operator's token isn't at hand.
func (a *API) Operators() http.Handler {
	handler := a.server.Wrap(func(ctx *fasthttp.RequestCtx) { a.serve(ctx, true) })
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var request fasthttp.Request
		request.Header.SetMethod(r.Method)
		request.SetRequestURI(r.RequestURI)
		request.Header.SetHost(r.Host)
		for name, values := range r.Header {
			for _, value := range values {
				request.Header.Add(name, value)
			}
		}
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(httpserver.ReadTimeout)) // one that can't be set isn't a connection
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, httpserver.MaxBody))
		request.SetBody(body)
		var ctx fasthttp.RequestCtx
		ctx.Init(&request, address(r.RemoteAddr), nil)
		tooLarge, isTooLarge := errors.AsType[*http.MaxBytesError](err)
		switch {
		case isTooLarge:
			answer(lockapi.CodeBodyTooLarge, "the body is above %d bytes", tooLarge.Limit).Write(&ctx, httperr.NewTraceID())
		case err != nil:
			return // the client has gone
		default:
			handler(&ctx)
		}
		for name, value := range ctx.Response.Header.All() {
			if string(name) != fasthttp.HeaderContentLength {
				w.Header().Add(string(name), string(value))
			}
		}
		w.WriteHeader(ctx.Response.StatusCode())
		_, _ = w.Write(ctx.Response.Body()) // the client may be gone; there is nobody to tell
	})
}

// address is a client's address on the admin listener. One on a unix socket has none.
func address(text string) net.Addr {
	if tcp, err := net.ResolveTCPAddr("tcp", text); err == nil {
		return tcp
	}
	return &net.UnixAddr{Net: "unix"}
}
