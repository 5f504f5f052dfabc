package daemon

import (
	"encoding/json"
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

// jsonLogger writes the lines that hclog would write, without a map and reflection for each of them: a busy lockd writes thousands a second. It
// knows texts, whole numbers and truth values, which is what events are made of; a line with anything else is left to hclog itself.
type jsonLogger struct {
	hclog.Logger // the same logger, for all but plain lines
	out          io.Writer
	mu           *sync.Mutex // shared with the hclog.Logger, so that lines stay whole
	implied      []any
	plain        []byte // implied, encoded
	isPlain      bool
	lines        *sync.Pool // of *[]byte, in which lines are put together
}

func newJSONLogger(options hclog.LoggerOptions) *jsonLogger {
	l := &jsonLogger{out: options.Output, mu: &sync.Mutex{}, isPlain: true, lines: &sync.Pool{New: func() any { return new(make([]byte, 0, 512)) }}}
	options.Mutex = l.mu
	l.Logger = hclog.New(&options)
	return l
}

// With returns a logger that adds fields to each line.
func (l *jsonLogger) With(args ...any) hclog.Logger {
	sub := *l
	sub.Logger = l.Logger.With(args...)
	sub.implied = append(l.implied[:len(l.implied):len(l.implied)], args...)
	sub.plain, sub.isPlain = appendFields(nil, nil, sub.implied)
	return &sub
}

// Named adds a part to the logger's name.
func (l *jsonLogger) Named(name string) hclog.Logger {
	sub := *l
	sub.Logger = l.Logger.Named(name)
	return &sub
}

// ResetNamed sets the logger's name.
func (l *jsonLogger) ResetNamed(name string) hclog.Logger {
	sub := *l
	sub.Logger = l.Logger.ResetNamed(name)
	return &sub
}

// Debug logs on its level.
func (l *jsonLogger) Debug(message string, args ...any) { l.Log(hclog.Debug, message, args...) }

// Info logs on its level.
func (l *jsonLogger) Info(message string, args ...any) { l.Log(hclog.Info, message, args...) }

// Warn logs on its level.
func (l *jsonLogger) Warn(message string, args ...any) { l.Log(hclog.Warn, message, args...) }

// Error logs on its level.
func (l *jsonLogger) Error(message string, args ...any) { l.Log(hclog.Error, message, args...) }

// Log logs on a level.
func (l *jsonLogger) Log(level hclog.Level, message string, args ...any) {
	if level < l.GetLevel() {
		return
	}
	buffer, _ := l.lines.Get().(*[]byte)
	defer l.lines.Put(buffer)
	line := append((*buffer)[:0], `{"@level":"`...)
	line = append(line, level.String()...)
	line = append(line, `","@message":`...)
	line = appendText(line, message)
	if name := l.Name(); name != "" {
		line = append(line, `,"@module":`...)
		line = appendText(line, name)
	}
	line = append(line, `,"@timestamp":"`...)
	line = time.Now().UTC().AppendFormat(line, timeFormat)
	line = append(line, '"')
	line = append(line, l.plain...)
	line, plain := appendFields(line, l.implied, args)
	if !plain || !l.isPlain {
		l.Logger.Log(level, message, args...)
		return
	}
	line = append(line, "}\n"...)
	*buffer = line
	l.mu.Lock()
	defer l.mu.Unlock()
	_, _ = l.out.Write(line) // there is nowhere to say so
}

// appendFields appends args, pairs of a name and a value. Not plain are values of other types, a name that isn't one, and a name that stands twice, here or in before.
func appendFields(line []byte, before, args []any) (_ []byte, plain bool) {
	if len(args)%2 != 0 {
		return line, false
	}
	for i := 0; i < len(args); i += 2 {
		name, ok := args[i].(string)
		if !ok || stands(name, before) || stands(name, args[:i]) || len(name) > 0 && name[0] == '@' {
			return line, false
		}
		line = append(line, ',')
		line = appendText(line, name)
		line = append(line, ':')
		switch v := args[i+1].(type) {
		case string:
			line = appendText(line, v)
		case int:
			line = strconv.AppendInt(line, int64(v), 10)
		case int64:
			line = strconv.AppendInt(line, v, 10)
		case bool:
			line = strconv.AppendBool(line, v)
		default:
			return line, false
		}
	}
	return line, true
}

func stands(name string, fields []any) bool {
	for i := 0; i < len(fields); i += 2 {
		if fields[i] == name {
			return true
		}
	}
	return false
}

// appendText appends a JSON string as encoding/json writes it.
func appendText(line []byte, text string) []byte {
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			encoded, _ := json.Marshal(text) // a string can always be encoded
			return append(line, encoded...)
		}
	}
	line = append(line, '"')
	line = append(line, text...)
	return append(line, '"')
}
