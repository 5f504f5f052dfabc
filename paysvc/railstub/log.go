package railstub

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
)

// maxLine bounds one line of the log; a transfer with the longest references is far below it.
const maxLine = 4 << 10

// Log is the rail's record of transfers: a file of JSON lines that only grows. The rail's memory holds none of it, so that
// it stays bounded however long the log gets.
type Log struct {
	mu     sync.Mutex
	file   *os.File
	size   int64 // everything below is whole lines, on disk
	broken error // set when the file's end is no longer known; nothing is accepted from then on
}

// OpenLog opens the log at path, or makes it. It reads the whole file: a line in it that isn't a transfer is an error that
// names the line. Dropped is the length of an unfinished last line, which is what a crash during a write leaves; it
// is cut off, since its transfer was never confirmed to anybody.
func OpenLog(path string) (log *Log, dropped int64, err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600) //nolint:gosec // the file that the operator named
	if err != nil {
		return nil, 0, fmt.Errorf("open transfer log: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, file.Close())
		}
	}()
	size, err := wholeLines(file)
	if err != nil {
		return nil, 0, fmt.Errorf("read transfer log %s: %w", path, err)
	}
	info, err := file.Stat()
	if err != nil {
		return nil, 0, fmt.Errorf("read transfer log: %w", err)
	}
	if dropped = info.Size() - size; dropped > 0 {
		if err := errors.Join(file.Truncate(size), file.Sync()); err != nil {
			return nil, 0, fmt.Errorf("cut off the unfinished last line of %s: %w", path, err)
		}
	}
	return &Log{file: file, size: size}, dropped, nil
}

// wholeLines returns how many bytes of the file are whole lines, each of them a transfer.
func wholeLines(file io.Reader) (int64, error) {
	lines := newLineReader(file, 0)
	for number := 1; ; number++ {
		line, err := lines.next()
		if errors.Is(err, io.EOF) {
			return lines.offset, nil
		}
		if err == nil {
			_, err = decode(line)
		}
		if err != nil {
			return 0, fmt.Errorf("line %d: %w", number, err)
		}
	}
}

// Append writes the transfer and returns when it is on disk. After an error the transfer isn't recorded, unless
// the disk itself failed: then nobody knows, and the log accepts nothing more.
func (l *Log) Append(t Transfer) error {
	line, err := json.Marshal(t)
	if err != nil {
		return fmt.Errorf("encode transfer: %w", err)
	}
	line = append(line, '\n')
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken != nil {
		return fmt.Errorf("the transfer log is broken: %w", l.broken)
	}
	if _, err := l.file.WriteAt(line, l.size); err != nil {
		if undo := l.file.Truncate(l.size); undo != nil {
			l.broken = undo
		}
		return fmt.Errorf("write transfer: %w", err)
	}
	// After a failed sync the kernel may have dropped the page: a second sync that succeeds proves nothing.
	if err := l.file.Sync(); err != nil {
		l.broken = err
		return fmt.Errorf("sync transfer log: %w", err)
	}
	l.size += int64(len(line))
	return nil
}

// errBadCursor means that a cursor isn't one that Page gave out.
var errBadCursor = errors.New("cursor: not one of this log's")

// Page returns up to limit transfers from cursor on ("" is the beginning), in the order in which they were accepted: those with
// that client reference, or all when it is empty. next is "" when there are no more.
func (l *Log) Page(reference, cursor string, limit int) (transfers []Transfer, next string, err error) {
	l.mu.Lock()
	size := l.size
	l.mu.Unlock()
	start, err := l.startOf(cursor, size)
	if err != nil {
		return nil, "", err
	}
	lines := newLineReader(io.NewSectionReader(l.file, start, size-start), start)
	transfers = []Transfer{}
	for {
		from := lines.offset
		line, err := lines.next()
		if errors.Is(err, io.EOF) {
			return transfers, "", nil
		}
		if err != nil {
			return nil, "", fmt.Errorf("read transfer log: %w", err)
		}
		transfer, err := decode(line)
		if err != nil {
			return nil, "", fmt.Errorf("read transfer log: %w", err)
		}
		if reference != "" && transfer.ClientReference != reference {
			continue
		}
		if len(transfers) == limit {
			return transfers, strconv.FormatInt(from, 10), nil
		}
		transfers = append(transfers, transfer)
	}
}

// startOf turns a cursor, the position of a line, into that position.
func (l *Log) startOf(cursor string, size int64) (int64, error) {
	if cursor == "" {
		return 0, nil
	}
	start, err := strconv.ParseInt(cursor, 10, 64)
	if err != nil || start <= 0 || start >= size {
		return 0, errBadCursor
	}
	var before [1]byte
	if _, err := l.file.ReadAt(before[:], start-1); err != nil {
		return 0, fmt.Errorf("read transfer log: %w", err)
	}
	if before[0] != '\n' {
		return 0, errBadCursor
	}
	return start, nil
}

// Close closes the file.
func (l *Log) Close() error { return l.file.Close() }

// lineReader reads whole lines and knows where it is in the file.
type lineReader struct {
	buffered *bufio.Reader
	offset   int64 // of the next line
}

func newLineReader(r io.Reader, offset int64) *lineReader {
	return &lineReader{buffered: bufio.NewReaderSize(r, maxLine), offset: offset}
}

// next returns the next whole line, valid until the next call. An unfinished last line counts as the end.
func (r *lineReader) next() ([]byte, error) {
	line, err := r.buffered.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return nil, fmt.Errorf("longer than %d bytes", maxLine)
	}
	if err != nil {
		return nil, err
	}
	r.offset += int64(len(line))
	return line, nil
}

func decode(line []byte) (Transfer, error) {
	var t Transfer
	decoder := json.NewDecoder(bytes.NewReader(line))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&t); err != nil {
		return t, fmt.Errorf("not a transfer: %w", err)
	}
	if t.RailReference == "" || t.AmountMinor <= 0 {
		return t, errors.New("not a transfer")
	}
	return t, nil
}
