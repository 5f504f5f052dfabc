// Package httperr is the error envelope that every Fenceline daemon answers
// with, and the writer that puts it on a fasthttp response. The codes
// themselves belong to the daemon that uses them; here is only what they share.
package httperr

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/valyala/fasthttp"
)

// ContentType is the media type of every JSON answer, errors included.
const ContentType = "application/json; charset=utf-8"

// Error is one refusal or failure as a client sees it. It is a value to build
// and to write; it also satisfies error, so that a handler may return it.
type Error struct {
	// Status is the HTTP status, 400 to 599. It is not part of the body.
	Status int `json:"-"`
	// Code is the stable identity of the error, in upper snake case. Programs
	// branch on it and never on Message.
	Code string `json:"code"`
	// Message is for people: what was wrong and, where there is one, the next step.
	Message string `json:"message"`
	// RetrySafe answers "may the identical request be sent again without risking
	// a second effect". It doesn't say whether the error is transient.
	RetrySafe bool `json:"retrySafe"`
	// RetryAfterMillis is the earliest sensible time for a retry, in milliseconds
	// from now; zero means that nothing is known and the field is left out.
	RetryAfterMillis int64 `json:"retryAfterMillis,omitempty"`
	// Details names the things involved; its keys are part of the contract of Code.
	Details map[string]any `json:"details,omitempty"`
	// TraceID ties the answer to the log lines of the same request.
	TraceID string `json:"traceId"`
}

// Error gives code and message; details stay out, since they can hold keys.
func (e *Error) Error() string { return e.Code + ": " + e.Message }

// New builds an error that must not be retried blindly (RetrySafe false).
func New(status int, code, format string, args ...any) *Error {
	return &Error{Status: status, Code: code, Message: fmt.Sprintf(format, args...)}
}

// Safe marks the error as safe to retry, no earlier than after. A zero after
// leaves the time to the client.
func (e *Error) Safe(after time.Duration) *Error {
	e.RetrySafe = true
	e.RetryAfterMillis = after.Milliseconds()
	return e
}

// With adds one detail.
func (e *Error) With(key string, value any) *Error {
	if e.Details == nil {
		e.Details = make(map[string]any, 4)
	}
	e.Details[key] = value
	return e
}

// Write puts the error on the response and replaces whatever body was there.
// Headers that the handler set before stay. A RetryAfterMillis is repeated as
// the Retry-After header in whole seconds, rounded up (RFC 9110, 10.2.3).
func (e *Error) Write(ctx *fasthttp.RequestCtx, traceID string) { e.WriteTo(&ctx.Response, traceID) }

// WriteTo does the same for a response without a request.
func (e *Error) WriteTo(response *fasthttp.Response, traceID string) {
	body := e.Body(traceID)
	response.ResetBody()
	response.SetStatusCode(e.Status)
	response.Header.SetContentType(ContentType)
	if e.RetryAfterMillis > 0 {
		response.Header.Set("Retry-After", fmt.Sprint((e.RetryAfterMillis+999)/1000))
	}
	response.SetBody(body)
}

// Body is the error as JSON, the same bytes for the same error and trace.
func (e *Error) Body(traceID string) []byte {
	out := *e
	out.TraceID = traceID
	body, err := json.Marshal(out)
	if err != nil { // a detail that can't be encoded must not hide the error itself
		out.Details = nil
		body, _ = json.Marshal(out)
	}
	return body
}

// WriteJSON answers with a status and a JSON body.
func WriteJSON(ctx *fasthttp.RequestCtx, status int, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode %T: %w", v, err)
	}
	WriteBody(ctx, status, body)
	return nil
}

// WriteBody answers with a status and a JSON body that is encoded already.
func WriteBody(ctx *fasthttp.RequestCtx, status int, body []byte) {
	ctx.SetStatusCode(status)
	ctx.SetContentType(ContentType)
	ctx.SetBody(body)
}
