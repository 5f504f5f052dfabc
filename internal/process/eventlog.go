package process

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"sync"
)

// Event is one JSON line of a daemon's log.
type Event map[string]any

// Name is the event's name, empty for a line without one.
func (e Event) Name() string { return e.Text("event") }

// Text returns a field as text: strings as they are, whole numbers in decimal, "" when absent.
func (e Event) Text(field string) string {
	switch v := e[field].(type) {
	case string:
		return v
	case json.Number:
		return v.String()
	case nil:
		return ""
	default:
		return fmt.Sprint(v)
	}
}

// Int returns a whole-number field, 0 when absent or something else.
func (e Event) Int(field string) int64 {
	n, _ := strconv.ParseInt(e.Text(field), 10, 64)
	return n
}

const (
	// tailBytes is how much of a log an error shows.
	tailBytes = 2048
	// maxLine bounds a partial line held in memory; a longer one is kept in the file only.
	maxLine = 1 << 20
)

// eventLog writes a process's output to a file and keeps its JSON lines for
// whoever waits on them.
type eventLog struct {
	path string

	mu      sync.Mutex
	file    *os.File
	partial []byte
	last    []byte // the newest output, for error messages
	events  []Event
	more    chan struct{} // closed and renewed with each write
}

func newEventLog(path string) (*eventLog, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600) //nolint:gosec // the caller's own folder
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	return &eventLog{path: path, file: file, more: make(chan struct{})}, nil
}

// Write takes a piece of the process's output.
func (l *eventLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, err := l.file.Write(p)
	l.last = append(l.last, p...)
	if over := len(l.last) - tailBytes; over > 0 {
		l.last = append([]byte(nil), l.last[over:]...)
	}
	l.partial = append(l.partial, p...)
	for {
		line, rest, found := bytes.Cut(l.partial, []byte("\n"))
		if !found {
			break
		}
		l.partial = append([]byte(nil), rest...)
		if e := parseEvent(line); e != nil {
			l.events = append(l.events, e)
		}
	}
	if len(l.partial) > maxLine {
		l.partial = nil
	}
	close(l.more)
	l.more = make(chan struct{})
	return n, err
}

func parseEvent(line []byte) Event {
	decoder := json.NewDecoder(bytes.NewReader(line))
	decoder.UseNumber() // tokens are 64-bit
	var e Event
	if decoder.Decode(&e) != nil {
		return nil
	}
	return e
}

// find looks at the events from index from on; next is where to look from later, and more is
// closed when there is something new to look at.
func (l *eventLog) find(from int, match func(Event) bool) (found Event, next int, more <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := from; i < len(l.events); i++ {
		if match(l.events[i]) {
			return l.events[i], i + 1, l.more
		}
	}
	return nil, len(l.events), l.more
}

func (l *eventLog) all(name string) []Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []Event
	for _, e := range l.events {
		if e.Name() == name {
			out = append(out, e)
		}
	}
	return out
}

func (l *eventLog) tail() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.last)
}

// Close closes the file; the events stay.
func (l *eventLog) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.file.Close()
}
