package httperr

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/valyala/fasthttp"
)

func TestErrorIsWrittenAsTheEnvelope(t *testing.T) {
	t.Parallel()
	var ctx fasthttp.RequestCtx
	ctx.SetBodyString("half an answer")

	New(503, "BACKEND_UNAVAILABLE", "the store at %s does not answer", "lockdb").
		Safe(1500*time.Millisecond).With("store", "lockdb").Write(&ctx, "abc")

	require.Equal(t, 503, ctx.Response.StatusCode())
	require.Equal(t, ContentType, string(ctx.Response.Header.ContentType()))
	require.Equal(t, "2", string(ctx.Response.Header.Peek("Retry-After")), "rounded up to whole seconds")
	require.JSONEq(t, `{"code":"BACKEND_UNAVAILABLE","message":"the store at lockdb does not answer",
		"retrySafe":true,"retryAfterMillis":1500,"details":{"store":"lockdb"},"traceId":"abc"}`, string(ctx.Response.Body()))
}

func TestRetrySafeIsAlwaysSaid(t *testing.T) {
	t.Parallel()
	var ctx fasthttp.RequestCtx
	New(409, "FENCED_OUT", "stale").Write(&ctx, "t")
	var fields map[string]any
	require.NoError(t, json.Unmarshal(ctx.Response.Body(), &fields))
	require.Contains(t, fields, "retrySafe")
	require.NotContains(t, fields, "retryAfterMillis")
	require.NotContains(t, fields, "details")
}

func TestDetailThatCannotBeEncodedDoesNotHideTheError(t *testing.T) {
	t.Parallel()
	var ctx fasthttp.RequestCtx
	New(409, "FENCED_OUT", "stale").With("bad", make(chan int)).Write(&ctx, "t")
	require.Contains(t, string(ctx.Response.Body()), "FENCED_OUT")
}

func TestTraceIDComesFromTraceparentOnlyWhenWellFormed(t *testing.T) {
	t.Parallel()
	const given = "4bf92f3577b34da6a3ce929d0e0e4736"
	for header, want := range map[string]string{
		"00-" + given + "-00f067aa0ba902b7-01":                    given,
		"00-00000000000000000000000000000000-00f067aa0ba902b7-01": "",
		"00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01": "",
		"": "", "garbage": "", "00-" + given: "",
	} {
		var ctx fasthttp.RequestCtx
		ctx.Request.Header.Set("traceparent", header)
		got := TraceID(&ctx)
		require.Len(t, got, 32)
		if want == "" {
			require.NotEqual(t, given, got, header)
		} else {
			require.Equal(t, want, got)
		}
	}
}
