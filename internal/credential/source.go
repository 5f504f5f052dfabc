// Package credential reads secrets and certificates from files and follows their changes, so that rotating one needs no restart. A change is taken over
// only when it can be used as a whole; until then, and when a file has gone, the last good one stays.
package credential

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

// maxFile bounds what is read of one file, in bytes.
const maxFile = 1 << 20

// File is one file of a Source.
type File struct {
	Path string
	// Private files must not be accessible to other users of the machine than owner and group.
	Private bool
}

// Source is a value of type T that is made from files.
type Source[T any] struct {
	name    string
	files   []File
	parse   func(contents [][]byte) (T, error)
	current atomic.Pointer[T]
	// What was seen at the last look; only Follow's goroutine uses it after Open.
	accepted, pending, refused string
}

// Open reads the files for the first time. Parse gets their contents in the files' order; its errors must not quote them. Name says what this is, in
// events and metrics.
func Open[T any](name string, parse func(contents [][]byte) (T, error), files ...File) (*Source[T], error) {
	s := &Source[T]{name: name, files: files, parse: parse}
	contents, seen, err := s.read()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	value, err := parse(contents)
	if err != nil {
		return nil, fmt.Errorf("%s: %s: %w", name, files[0].Path, err)
	}
	s.accepted = seen
	s.current.Store(&value)
	return s, nil
}

// Get returns the value as it is now.
func (s *Source[T]) Get() T { return *s.current.Load() }

// Current returns a pointer to the value as it is now, whose identity changes with every change of the files.
func (s *Source[T]) Current() *T { return s.current.Load() }

// Report is told of every change that was taken over, with a nil error, and of every one that couldn't be, once.
type Report func(name string, err error)

// Follow looks at the files every interval until ctx ends. Contents are taken over when two looks in a row have seen them, so that a file that is
// just being written isn't read half.
func (s *Source[T]) Follow(ctx context.Context, interval time.Duration, report Report) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			s.look(report)
		}
	}
}

func (s *Source[T]) look(report Report) {
	contents, seen, err := s.read()
	if err != nil {
		s.refuse(err, report)
		return
	}
	if seen == s.accepted {
		s.pending, s.refused = "", ""
		return
	}
	if seen != s.pending {
		s.pending = seen
		return
	}
	value, err := s.parse(contents)
	if err != nil {
		s.refuse(fmt.Errorf("%s: %w", s.files[0].Path, err), report)
		return
	}
	s.accepted, s.refused = seen, ""
	s.current.Store(&value)
	report(s.name, nil)
}

// refuse reports a fault when it is a new one.
func (s *Source[T]) refuse(err error, report Report) {
	if err.Error() != s.refused {
		s.refused = err.Error()
		report(s.name, err)
	}
}

// read returns the files' contents and a digest of them all.
func (s *Source[T]) read() (contents [][]byte, seen string, err error) {
	digest := sha256.New()
	for _, file := range s.files {
		content, err := file.read()
		if err != nil {
			return nil, "", err
		}
		contents = append(contents, content)
		_, _ = fmt.Fprintf(digest, "%d:", len(content)) // a hash takes everything
		_, _ = digest.Write(content)
	}
	return contents, string(digest.Sum(nil)), nil
}

func (f File) read() (content []byte, err error) {
	opened, err := os.OpenFile(f.Path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe must not keep the look waiting
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, opened.Close()) }()
	info, err := opened.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s: not a regular file", f.Path)
	case f.Private && info.Mode().Perm()&0o007 != 0:
		return nil, fmt.Errorf("%s: everybody on this machine may use this file (mode %04o); take that away, for example with chmod 0640", f.Path, info.Mode().Perm())
	}
	content, err = io.ReadAll(io.LimitReader(opened, maxFile+1))
	if err == nil && len(content) > maxFile {
		err = fmt.Errorf("%s: more than %d bytes", f.Path, maxFile)
	}
	return content, err
}
