package lock

import "context"

type traceKey struct{}

// WithTraceID returns a context whose work is logged under the trace id.
func WithTraceID(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, traceKey{}, id)
}

// traceID returns the context's trace id, or "".
func traceID(ctx context.Context) string {
	id, _ := ctx.Value(traceKey{}).(string)
	return id
}
