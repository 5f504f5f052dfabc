package daemon

import (
	"fmt"
	"io"
	"time"

	"github.com/hashicorp/go-hclog"
)

// NewLogger returns the JSON logger of a daemon. Each line carries @timestamp,
// @level, @message and service; callers add event and the event's own fields
// (docs/observability.md). Level is one of trace, debug, info, warn, error.
func NewLogger(service, level string, w io.Writer) (hclog.Logger, error) {
	parsed := hclog.LevelFromString(level)
	if parsed == hclog.NoLevel {
		return nil, fmt.Errorf("log level %q: want trace, debug, info, warn or error", level)
	}
	return hclog.New(&hclog.LoggerOptions{
		Level:           parsed,
		Output:          w,
		JSONFormat:      true,
		TimeFormat:      "2006-01-02T15:04:05.000Z",
		TimeFn:          func() time.Time { return time.Now().UTC() },
		IncludeLocation: false,
	}).With("service", service), nil
}
