package httperr

import (
	"crypto/rand"
	"encoding/hex"
	"strings"

	"github.com/valyala/fasthttp"
)

// TraceID returns the trace id of the request: the one in a well-formed
// traceparent header (W3C Trace Context, 3.2.2), else a new random one. It is 32 lower-case
// hexadecimal digits.
func TraceID(ctx *fasthttp.RequestCtx) string {
	parts := strings.Split(string(ctx.Request.Header.Peek("traceparent")), "-")
	if len(parts) >= 4 && validTraceID(parts[1]) {
		return parts[1]
	}
	return NewTraceID()
}

// NewTraceID returns a fresh random trace id.
func NewTraceID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand ends the program instead
	return hex.EncodeToString(b[:])
}

func validTraceID(s string) bool {
	return len(s) == 32 && strings.Trim(s, "0123456789abcdef") == "" && strings.Trim(s, "0") != ""
}
