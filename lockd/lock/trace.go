package lock

import (
	"context"
	"encoding/hex"

	"github.com/google/uuid"
)

type traceKey struct{}

// WithTraceID returns a context whose work is logged under the trace id.
func WithTraceID(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, traceKey{}, id)
}

// newTraceID is for work that no request asked for, so that its lines can be told from others.
func newTraceID() string {
	id := uuid.New()
	return hex.EncodeToString(id[:])
}

// traceID returns the context's trace id, or "".
func traceID(ctx context.Context) string {
	id, _ := ctx.Value(traceKey{}).(string)
	return id
}
