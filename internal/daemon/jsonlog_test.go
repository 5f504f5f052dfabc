package daemon

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
)

// logged parses the one line that log writes.
func logged(t *testing.T, output *bytes.Buffer) map[string]any {
	t.Helper()
	require.Equal(t, 1, strings.Count(output.String(), "\n"), output.String())
	var line map[string]any
	require.NoError(t, json.Unmarshal(output.Bytes(), &line))
	_, err := time.Parse(timeFormat, line["@timestamp"].(string))
	require.NoError(t, err)
	delete(line, "@timestamp")
	return line
}

// Whatever is logged, the line says what hclog's own would say.
func TestLinesSayWhatTheLibrarysWouldSay(t *testing.T) {
	t.Parallel()
	var ours, theirs bytes.Buffer
	options := func(w *bytes.Buffer) hclog.LoggerOptions {
		return hclog.LoggerOptions{Level: hclog.Debug, Output: w, JSONFormat: true, TimeFormat: timeFormat, TimeFn: func() time.Time { return time.Now().UTC() }}
	}
	plain := options(&theirs)
	pair := []hclog.Logger{newJSONLogger(options(&ours)), hclog.New(&plain)}
	for name, derive := range map[string]func(hclog.Logger) hclog.Logger{
		"itself":        func(l hclog.Logger) hclog.Logger { return l },
		"with":          func(l hclog.Logger) hclog.Logger { return l.With("service", "lockd", "n", 1) },
		"with twice":    func(l hclog.Logger) hclog.Logger { return l.With("service", "a").With("service", "b") },
		"with an error": func(l hclog.Logger) hclog.Logger { return l.With("why", errors.New("that")) },
		"named":         func(l hclog.Logger) hclog.Logger { return l.Named("lock").With("x", true).Named("api") },
		"renamed":       func(l hclog.Logger) hclog.Logger { return l.Named("lock").ResetNamed("other") },
	} {
		for _, args := range [][]any{
			nil,
			{"event", "lock_granted", "token", int64(9007199254740993), "n", -3, "stale", false},
			{"text", "\"quoted\" \\ <a&b> \n ü \u2028 \xff"},
			{"error", errors.New("it \"broke\"")},
			{"took", 3 * time.Second, "list", []string{"a"}, "nothing", nil, "ratio", 0.5, "small", uint8(3)},
			{"odd"},
			{7, "a name that isn't one"},
			{"twice", 1, "twice", 2},
			{"service", "another"},
			{"@level", "mine"},
			{"format", hclog.Fmt("%d of %d", 1, 2)},
			{"unencodable", make(chan int)},
		} {
			for level, message := range map[hclog.Level]string{hclog.Trace: "hidden", hclog.Debug: "a <message>", hclog.Info: "plain", hclog.Warn: "", hclog.Error: "ü"} {
				ours.Reset()
				theirs.Reset()
				for _, l := range pair {
					derive(l).Log(level, message, args...)
				}
				if level == hclog.Trace {
					require.Empty(t, ours.String()+theirs.String())
					continue
				}
				require.Equal(t, logged(t, &theirs), logged(t, &ours), "%s: %v", name, args)
			}
		}
	}
	for _, l := range pair {
		l.SetLevel(hclog.Error)
		l.Info("not wanted any more")
	}
	require.NotContains(t, ours.String()+theirs.String(), "not wanted")
}

// Lines of both kinds, written at once, stay whole.
func TestLinesStayWhole(t *testing.T) {
	t.Parallel()
	var output bytes.Buffer
	logger, err := NewLogger("lockd", "info", &output)
	require.NoError(t, err)
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			for range 50 {
				if i%2 == 0 {
					logger.Info("plain", "event", "a", "n", i)
				} else {
					logger.Named("other").Warn("not plain", "event", "b", "error", errors.New("x"))
				}
			}
		})
	}
	group.Wait()
	lines := strings.Split(strings.TrimSuffix(output.String(), "\n"), "\n")
	require.Len(t, lines, 400)
	for _, line := range lines {
		var fields map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &fields), line)
		require.Equal(t, "lockd", fields["service"])
	}
}

// BenchmarkLogger compares a line of ours with the library's.
func BenchmarkLogger(b *testing.B) {
	options := hclog.LoggerOptions{Level: hclog.Info, Output: io.Discard, JSONFormat: true, TimeFormat: timeFormat, TimeFn: func() time.Time { return time.Now().UTC() }}
	for name, logger := range map[string]hclog.Logger{"ours": newJSONLogger(options), "library": hclog.New(&options)} {
		logger = logger.With("service", "lockd").Named("lock")
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				logger.Info("lock granted", "event", "lock_granted", "lockKey", "bench:12", "token", int64(123456), "backend", "pg",
					"leaseMillis", int64(30000), "waitMillis", int64(0), "ownerId", "bench", "traceId", "0123456789abcdef0123456789abcdef")
			}
		})
	}
}
