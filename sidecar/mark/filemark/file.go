// Package filemark keeps marks, and the requests in flight, in a file beside the sidecar: one sidecar, no database. The file is a bbolt database; admissions that arrive
// together are committed together, while one commit waits for the disk the next group forms.
//
// The file is made by Create alone, never by Open: an empty store would let every stale token pass. It is exclusive: whoever has it open
// holds its lock.
package filemark

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"

	"fenceline/sidecar/mark"
)

// Faults of a file, beside those of package mark.
var (
	// ErrMissing means that there is no file. It has to be made on purpose.
	ErrMissing = errors.New("the mark file isn't there")
	// ErrInUse means that another process has the file open.
	ErrInUse = errors.New("another process has the mark file open")
	// ErrDamaged means that the file isn't what was written to it.
	ErrDamaged = errors.New("the mark file is damaged")
	// ErrExists means that Create found a file already.
	ErrExists = errors.New("the file exists already")
)

// formatVersion is the version of what stands in the file.
const formatVersion = 2

// firstFormat is the version before requests in flight were kept. Open makes such a file one of formatVersion.
const firstFormat = 1

// The file's buckets. Each guard has one below bucketMarks.
var ( //nolint:gochecknoglobals // constants
	bucketFormat   = []byte("format")   // keyFormat, keyProof, keyRegister
	bucketMarks    = []byte("marks")    // guard → key → record
	bucketGuards   = []byte("guards")   // guard → guardInfo
	bucketResets   = []byte("changes")  // sequence → Change
	bucketInflight = []byte("inflight") // row → flightRecord, since format 2

	keyFormat   = []byte("format")
	keyProof    = []byte("proof")
	keyRegister = []byte("register") // census
)

// format is what a file says of itself.
type format struct {
	Version int       `json:"version"`
	Created time.Time `json:"created"`
	// Upgraded is when a file of an earlier format was made one of this.
	Upgraded time.Time `json:"upgraded,omitzero"`
}

// File is an open mark file.
type File struct {
	path   string
	db     *bbolt.DB
	opened os.FileInfo // of the file that we hold
	queue  queue
	// flights are the requests in flight.
	flights flights
	// unproven is set after a commit that failed, until one succeeds. Only the goroutine that commits sets it.
	unproven atomic.Bool

	mu     sync.Mutex
	failed error // why nothing can be trusted to this file any more, until a restart
}

// Options change how a file is opened.
type Options struct {
	// MaxSize bounds the file, in bytes; 0 means that the disk does.
	MaxSize int
}

// lockPatience is how long Open waits for a process that is just ending.
const lockPatience = 500 * time.Millisecond

// Create makes an empty mark file. It never replaces anything.
func Create(path string) error {
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		if err != nil {
			return fmt.Errorf("create mark file: %w", err)
		}
		return fmt.Errorf("create mark file %s: %w; its marks are kept", path, ErrExists)
	}
	dir := filepath.Dir(path)
	half, err := os.CreateTemp(dir, filepath.Base(path)+".new-*")
	if err != nil {
		return fmt.Errorf("create mark file: %w", err)
	}
	defer func() { _ = os.Remove(half.Name()) }() // the name only: the file stays under its own
	if err := errors.Join(half.Close(), fill(half.Name())); err != nil {
		return fmt.Errorf("create mark file: %w", err)
	}
	// A link fails when the name exists, so of two Creates one wins, and nobody ever sees a half-made file.
	if err := os.Link(half.Name(), path); errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("create mark file %s: %w; its marks are kept", path, ErrExists)
	} else if err != nil {
		return fmt.Errorf("create mark file: %w", err)
	}
	return syncDir(dir)
}

// fill writes the empty buckets into a new file.
func fill(path string) error {
	db, err := bbolt.Open(path, 0o600, options(nil, Options{}))
	if err != nil {
		return err
	}
	return errors.Join(db.Update(func(tx *bbolt.Tx) error {
		for _, name := range [][]byte{bucketFormat, bucketMarks, bucketGuards, bucketResets, bucketInflight} {
			if _, err := tx.CreateBucket(name); err != nil {
				return err
			}
		}
		text, err := json.Marshal(format{Version: formatVersion, Created: time.Now().UTC()})
		if err != nil {
			return err
		}
		return errors.Join(tx.Bucket(bucketFormat).Put(keyFormat, text), tx.Bucket(bucketFormat).Put(keyRegister, census{}.encode()))
	}), db.Close())
}

// syncDir makes the name itself durable.
func syncDir(path string) error {
	dir, err := os.Open(path) //nolint:gosec // the operator's own folder
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// options: NoSync stays off, always: a mark that a crash loses lets stale tokens pass.
func options(opened *os.FileInfo, o Options) *bbolt.Options {
	return &bbolt.Options{
		Timeout: lockPatience, FreelistType: bbolt.FreelistMapType, MaxSize: o.MaxSize,
		OpenFile: func(name string, flag int, mode os.FileMode) (*os.File, error) {
			file, err := os.OpenFile(name, flag&^os.O_CREATE, mode) //nolint:gosec // the operator's own file
			if err == nil && opened != nil {
				*opened, err = file.Stat()
			}
			return file, err
		},
	}
}

// Open opens an existing file and looks through all of it: a damaged one is refused. It takes about a second for a million keys.
func Open(path string, o Options) (*File, error) {
	if err := inspect(path); err != nil {
		return nil, err
	}
	f := &File{path: path, flights: flights{begun: map[string]struct{}{}, settled: map[mark.Row]struct{}{}}}
	err := guarded(func() (err error) {
		f.db, err = bbolt.Open(path, 0o600, options(&f.opened, o))
		return err
	})
	switch {
	case errors.Is(err, bbolterrors.ErrTimeout):
		return nil, fmt.Errorf("%w: %s; stop that process first", ErrInUse, path)
	case errors.Is(err, ErrDamaged):
		return nil, fmt.Errorf("open %s: %w", path, err)
	case err != nil:
		return nil, fmt.Errorf("open mark file: %w", err)
	}
	for _, step := range []func() error{f.verify, f.upgrade, func() error { return f.reload(true) }} {
		if err := step(); err != nil {
			return nil, errors.Join(fmt.Errorf("open %s: %w", path, err), f.db.Close())
		}
	}
	f.queue.start(f.commit)
	return f, nil
}

// guarded runs fn and turns a panic, and a read past the file's end, into ErrDamaged: bbolt trusts what it reads.
func guarded(fn func() error) (err error) {
	before := debug.SetPanicOnFault(true)
	defer debug.SetPanicOnFault(before)
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", ErrDamaged, p)
		}
	}()
	return fn()
}

// Close ends the file's use. Admissions that wait are told that the store is unavailable.
func (f *File) Close() error {
	if f.queue.stop() {
		f.commit([]*operation{{ctx: context.Background(), flush: true}}) // if it fails, those rows are unsettled after the next start
	}
	if err := f.db.Close(); err != nil {
		return fmt.Errorf("close mark file: %w", err)
	}
	return nil
}

// Path is the file's path.
func (f *File) Path() string { return f.path }

// usable says whether marks may be trusted to the file now. It must still be the one under its name: marks in a file that was removed or
// replaced are gone after a restart.
func (f *File) usable() error {
	f.mu.Lock()
	failed := f.failed
	f.mu.Unlock()
	if failed != nil {
		return failed
	}
	now, err := os.Stat(f.path)
	if err != nil {
		return fmt.Errorf("the mark file was removed or can't be reached: %w", err)
	}
	if !os.SameFile(now, f.opened) {
		return fmt.Errorf("%s isn't the file any more that was opened at the start", f.path)
	}
	return nil
}

func (f *File) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failed == nil {
		f.failed = fmt.Errorf("%w (restart the sidecar when the disk is in order)", err)
	}
}
