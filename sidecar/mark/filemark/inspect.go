package filemark

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"os"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// bbolt's two meta pages: a header of 16 bytes, then the fields below. They are looked at here before bbolt sees the file, because bbolt takes the older
// one silently when the newer can't be read: every mark of the last group would go back.
const (
	metaAt       = 16
	metaMagic    = 0xED0CDAED
	metaSize     = 64
	metaPageSize = 8  // offset of uint32
	metaHighest  = 40 // offset of uint64: the first page that isn't used
	metaTx       = 48 // offset of uint64
	metaChecksum = 56 // offset of uint64: FNV-1a of all before it
)

type meta struct{ pageSize, highest, tx uint64 }

// inspect looks at the file as bytes, under its lock.
func inspect(path string) error {
	file, err := os.Open(path) //nolint:gosec // the operator's own file
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %s; if this is a new sidecar, make it with: sidecar init", ErrMissing, path)
	}
	if err != nil {
		return fmt.Errorf("open mark file: %w", err)
	}
	defer func() { _ = file.Close() }() // the lock goes with it
	if err := takeLock(file); err != nil {
		return fmt.Errorf("%w: %s; stop that process first", err, path)
	}
	info, err := file.Stat()
	if err != nil {
		return fmt.Errorf("open mark file: %w", err)
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("open mark file: %s isn't a file", path)
	}
	if err := inspectMetas(file, info.Size()); err != nil {
		return fmt.Errorf("%s: %w: %w", path, ErrDamaged, err)
	}
	return nil
}

// takeLock takes the lock that bbolt takes too.
func takeLock(file *os.File) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	var flockErr error
	if err := raw.Control(func(fd uintptr) { flockErr = unix.Flock(int(fd), unix.LOCK_EX|unix.LOCK_NB) }); err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	if errors.Is(flockErr, unix.EWOULDBLOCK) {
		return ErrInUse
	}
	return flockErr
}

func inspectMetas(file io.ReaderAt, size int64) error {
	first, err := readMeta(file, 0)
	if err != nil {
		return err
	}
	second, err := readMeta(file, int64(first.pageSize)) //nolint:gosec // bounded by readMeta
	if err != nil {
		return err
	}
	newer, older := max(first.tx, second.tx), min(first.tx, second.tx)
	highest := max(first.highest, second.highest)
	switch {
	case first.pageSize != second.pageSize || newer != older+1:
		return errors.New("its two heads don't belong together")
	case highest > 1<<40 || int64(highest*first.pageSize) > size: //nolint:gosec // bounded
		return fmt.Errorf("it was cut off: %d bytes, and %d pages are in use", size, highest)
	}
	return nil
}

func readMeta(file io.ReaderAt, at int64) (meta, error) {
	var b [metaSize]byte
	if _, err := file.ReadAt(b[:], at+metaAt); err != nil {
		return meta{}, fmt.Errorf("no head at byte %d (an empty or cut off file)", at)
	}
	sum := fnv.New64a()
	_, _ = sum.Write(b[:metaChecksum]) // a hash takes everything
	order := binary.NativeEndian       // as bbolt writes it
	if order.Uint32(b[:]) != metaMagic || order.Uint64(b[metaChecksum:]) != sum.Sum64() {
		return meta{}, fmt.Errorf("the head at byte %d isn't one of a mark file, or its checksum is wrong", at)
	}
	m := meta{pageSize: uint64(order.Uint32(b[metaPageSize:])), highest: order.Uint64(b[metaHighest:]), tx: order.Uint64(b[metaTx:])}
	if m.pageSize < 512 || m.pageSize > 1<<20 {
		return meta{}, fmt.Errorf("the head at byte %d gives an impossible page size", at)
	}
	return m, nil
}

// verify reads everything: the format, each record with its checksum, how many records each guard has, and bbolt's own structure. The
// records come first, in a way that survives wild page numbers; bbolt's own check doesn't.
func (f *File) verify() error {
	if err := guarded(func() error { return f.db.View(verifyRecords) }); err != nil {
		return err
	}
	return guarded(func() error {
		return f.db.View(func(tx *bbolt.Tx) error {
			var first error
			for err := range tx.Check() { // to its end, else its goroutine waits for ever
				if first == nil {
					first = fmt.Errorf("%w: %w", ErrDamaged, err)
				}
			}
			return first
		})
	})
}

func verifyRecords(tx *bbolt.Tx) error {
	for _, name := range [][]byte{bucketFormat, bucketMarks, bucketGuards, bucketResets} {
		if tx.Bucket(name) == nil {
			return fmt.Errorf("%w: it has no part %s, so it isn't a mark file", ErrDamaged, name)
		}
	}
	var said format
	if err := json.Unmarshal(tx.Bucket(bucketFormat).Get(keyFormat), &said); err != nil {
		return fmt.Errorf("%w: its format can't be read", ErrDamaged)
	}
	switch hasFlights := tx.Bucket(bucketInflight) != nil; {
	case said.Version != formatVersion && said.Version != firstFormat:
		return fmt.Errorf("the mark file has format %d, this program works with %d", said.Version, formatVersion)
	case hasFlights != (said.Version == formatVersion):
		return fmt.Errorf("%w: it says that its format is %d, which doesn't go with its parts", ErrDamaged, said.Version)
	case hasFlights:
		if _, err := readFlights(tx); err != nil {
			return err
		}
	}
	info := readInfo
	if said.Version == firstFormat {
		info = readFirstInfo
	}
	return verifyMarks(tx, info)
}

func verifyMarks(tx *bbolt.Tx, readInfo func(*bbolt.Bucket, string) (guardInfo, error)) error {
	marks, guards := tx.Bucket(bucketMarks), tx.Bucket(bucketGuards)
	err := marks.ForEachBucket(func(name []byte) error {
		info, err := readInfo(guards, string(name))
		if err != nil {
			return err
		}
		var count uint64
		err = marks.Bucket(name).ForEach(func(key, value []byte) error {
			count++
			_, err := decode(string(name), key, value)
			return err
		})
		if err == nil && count != info.Count {
			err = fmt.Errorf("%w: guard %s has %d marks, %d were written", ErrDamaged, name, count, info.Count)
		}
		return err
	})
	if err != nil {
		return err
	}
	return guards.ForEach(func(name, _ []byte) error {
		if _, err := readInfo(guards, string(name)); err != nil {
			return err
		}
		if marks.Bucket(name) == nil {
			return fmt.Errorf("%w: the marks of guard %s are gone", ErrDamaged, name)
		}
		return nil
	})
}
