package tracing

import (
	"crypto/rand"

	"go.opentelemetry.io/otel/trace"
)

// random fills b with something other than zeros, which would mean "none".
func random(b []byte) {
	for all := byte(0); all == 0; {
		_, _ = rand.Read(b) // never fails: crypto/rand ends the program instead
		for _, one := range b {
			all |= one
		}
	}
}

func newSpanID() (id trace.SpanID) {
	random(id[:])
	return id
}
