package filemark

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"

	"fenceline/lockd/lock"
	"fenceline/sidecar/mark"
)

// filled makes a file with some marks in it, closed.
func filled(t *testing.T, keys int) string {
	t.Helper()
	path := create(t)
	f, err := Open(path, Options{})
	require.NoError(t, err)
	s, err := f.Store("test", effectGuards(), patience, maxJump)
	require.NoError(t, err)
	require.NoError(t, s.Begin(t.Context()))
	for i := range keys {
		register(t, s, entry("holds", "key-"+strconv.Itoa(i), lock.Token(i+1)))
		if i == 20 {
			break
		}
	}
	ops := make([]*operation, 0, keys)
	for i := range keys {
		op := &operation{ctx: t.Context(), done: make(chan struct{}), maxJump: maxJump, admission: mark.Admission{Guard: "any-key", Key: "key-" + strconv.Itoa(i), Token: lock.Token(i + 1)}}
		require.NoError(t, f.queue.add(op))
		ops = append(ops, op)
	}
	for _, op := range ops {
		<-op.done
		require.NoError(t, op.err)
	}
	_, err = s.Raise(t.Context(), "known", "k", 77)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	return path
}

func TestFileThatIsNotThereIsNeverMadeByOpening(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "marks.db")
	_, err := Open(path, Options{})
	require.ErrorIs(t, err, ErrMissing)
	require.ErrorContains(t, err, "sidecar init")
	require.NoFileExists(t, path)
}

func TestCreateReplacesNothing(t *testing.T) {
	t.Parallel()
	path := filled(t, 3)
	before, err := os.ReadFile(path)
	require.NoError(t, err)
	require.ErrorIs(t, Create(path), ErrExists)
	after, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, before, after)
	left, err := filepath.Glob(filepath.Join(filepath.Dir(path), "*.new-*"))
	require.NoError(t, err)
	require.Empty(t, left)
	require.Error(t, Create(filepath.Join(t.TempDir(), "no", "such", "folder")))
}

func TestFileThatIsOpenElsewhereIsRefused(t *testing.T) {
	t.Parallel()
	path := create(t)
	open(t, path, Options{})
	_, err := Open(path, Options{})
	require.ErrorIs(t, err, ErrInUse)
	require.ErrorContains(t, err, "stop that process first")
}

// Whatever happens to the bytes: the file is refused, or it holds exactly what was written. It is never believed with other marks in it.
func TestDamagedFilesAreRefused(t *testing.T) {
	t.Parallel()
	whole, err := os.ReadFile(filled(t, 400))
	require.NoError(t, err)
	page := os.Getpagesize()
	damage := map[string]func([]byte) []byte{
		"empty":                   func([]byte) []byte { return nil },
		"cut after the heads":     func(b []byte) []byte { return b[:2*page] },
		"cut in the middle":       func(b []byte) []byte { return b[:len(b)/3] },
		"first head overwritten":  func(b []byte) []byte { clear(b[:page]); return b },
		"second head overwritten": func(b []byte) []byte { clear(b[page : 2*page]); return b },
		"not a mark file":         func([]byte) []byte { return []byte("SQLite format 3\x00" + string(make([]byte, 8192))) },
		"older head is stale":     func(b []byte) []byte { return staleHead(b, page) },
	}
	for i := 2; i < len(whole)/page; i++ {
		damage["page "+strconv.Itoa(i)+" zeroed"] = func(b []byte) []byte { clear(b[i*page : (i+1)*page]); return b }
		damage["page "+strconv.Itoa(i)+" random"] = func(b []byte) []byte {
			for j := i * page; j < (i+1)*page; j++ {
				b[j] = byte(j*7 + i)
			}
			return b
		}
		for offset := i % 7 * 211; offset < page; offset += 2411 {
			damage["bit "+strconv.Itoa(i*page+offset)] = func(b []byte) []byte { b[i*page+offset] ^= 0x10; return b }
		}
	}
	refused := 0
	for name, spoil := range damage {
		path := filepath.Join(t.TempDir(), "marks.db")
		require.NoError(t, os.WriteFile(path, spoil(append([]byte(nil), whole...)), 0o600))
		f, err := Open(path, Options{})
		if err != nil {
			require.ErrorIs(t, err, ErrDamaged, name)
			refused++
			continue
		}
		// It hit a page that isn't in use.
		s, err := f.Store("test", guards(), patience, maxJump)
		require.NoError(t, err, name)
		for i := range 400 {
			token, _, err := s.Read(t.Context(), "any-key", "key-"+strconv.Itoa(i))
			require.NoError(t, err, name)
			require.Equal(t, lock.Token(i+1), token, name)
		}
		require.Len(t, standing(t, s), 21, name)
		for i, one := range standing(t, s) {
			require.Equal(t, "key-"+strconv.Itoa(i), one.Key, name)
			require.Equal(t, lock.Token(i+1), one.Token, name)
		}
		require.NoError(t, f.Close(), name)
	}
	require.Greater(t, refused, 15, "of %d", len(damage))
}

// staleHead gives the older head a transaction of long ago.
func staleHead(b []byte, page int) []byte {
	older := 0
	if binary.NativeEndian.Uint64(b[metaAt+metaTx:]) > binary.NativeEndian.Uint64(b[page+metaAt+metaTx:]) {
		older = page
	}
	at := b[older+metaAt:]
	binary.NativeEndian.PutUint64(at[metaTx:], binary.NativeEndian.Uint64(at[metaTx:])-2)
	var hash uint64 = 14695981039346656037 // FNV-1a
	for _, c := range at[:metaChecksum] {
		hash = (hash ^ uint64(c)) * 1099511628211
	}
	binary.NativeEndian.PutUint64(at[metaChecksum:], hash)
	return b
}

func TestRecordsThatAreMissingOrOfAnotherFormatAreNoticed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(tx *bbolt.Tx) error
		want   string
	}{
		"a mark is gone":        {func(tx *bbolt.Tx) error { return tx.Bucket(bucketMarks).Bucket([]byte("known")).Delete([]byte("k")) }, "has 0 marks, 1 were written"},
		"a guard is gone":       {func(tx *bbolt.Tx) error { return tx.Bucket(bucketMarks).DeleteBucket([]byte("known")) }, "are gone"},
		"a mark of another key": {swap, "wrong checksum"},
		"a later format": {func(tx *bbolt.Tx) error {
			return tx.Bucket(bucketFormat).Put(keyFormat, []byte(`{"version":3}`))
		}, "format 3, this program works with 2"},
		"a request in flight is gone": {func(tx *bbolt.Tx) error { return tx.Bucket(bucketInflight).Delete(rowKey(2)) }, "has 2 requests in flight, 3 were written"},
		"a request in flight under another row": {func(tx *bbolt.Tx) error {
			b := tx.Bucket(bucketInflight)
			value := append([]byte(nil), b.Get(rowKey(2))...)
			return errors.Join(b.Delete(rowKey(2)), b.Put(rowKey(9), value))
		}, "wrong checksum"},
		"rows that would be used again": {func(tx *bbolt.Tx) error {
			return tx.Bucket(bucketFormat).Put(keyRegister, census{last: 2, count: 3}.encode())
		}, "has row 3, the highest that was given away is 2"},
		"no number of requests":        {func(tx *bbolt.Tx) error { return tx.Bucket(bucketFormat).Delete(keyRegister) }, "number of its requests in flight can't be read"},
		"all requests are gone":        {func(tx *bbolt.Tx) error { return tx.DeleteBucket(bucketInflight) }, "doesn't go with its parts"},
		"a first format with requests": {func(tx *bbolt.Tx) error { return tx.Bucket(bucketFormat).Put(keyFormat, []byte(`{"version":1}`)) }, "doesn't go with its parts"},
		"a guard with another key type": {func(tx *bbolt.Tx) error {
			return tx.Bucket(bucketGuards).Put([]byte("holds"), []byte(`{"keyType":"uuid","count":3}`))
		}, "wrong checksum"},
		"another program's file": {func(tx *bbolt.Tx) error { return tx.DeleteBucket(bucketGuards) }, "isn't a mark file"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filled(t, 3)
			db, err := bbolt.Open(path, 0o600, nil)
			require.NoError(t, err)
			require.NoError(t, db.Update(c.change))
			require.NoError(t, db.Close())
			_, err = Open(path, Options{})
			require.ErrorContains(t, err, c.want)
		})
	}
}

func swap(tx *bbolt.Tx) error {
	b := tx.Bucket(bucketMarks).Bucket([]byte("any-key"))
	a, z := append([]byte(nil), b.Get([]byte("key-0"))...), append([]byte(nil), b.Get([]byte("key-2"))...)
	return errors.Join(b.Put([]byte("key-0"), z), b.Put([]byte("key-2"), a))
}

// A mark that was written to a file which nobody will open again is lost at the next start.
func TestFileThatIsRemovedOrReplacedAdmitsNothing(t *testing.T) {
	t.Parallel()
	path := create(t)
	s := open(t, path, Options{})
	admit := func() error {
		_, err := s.Admit(t.Context(), mark.Admission{Guard: "any-key", Key: "k", Token: 5})
		return err
	}
	require.NoError(t, admit())
	require.NoError(t, os.Rename(path, path+".away"))
	require.ErrorIs(t, admit(), mark.ErrUnavailable)
	require.ErrorContains(t, s.Check(t.Context()), "removed")
	require.NoError(t, Create(path))
	require.ErrorIs(t, admit(), mark.ErrUnavailable)
	require.ErrorContains(t, s.Check(t.Context()), "isn't the file any more")
	require.NoError(t, os.Rename(path+".away", path))
	require.NoError(t, admit(), "the file itself is in order")
}

func TestFullDiskAdmitsNothingAndRecovers(t *testing.T) {
	t.Parallel()
	dir, o := smallDisk(t)
	path := filepath.Join(dir, "marks.db")
	require.NoError(t, Create(path))
	f, err := Open(path, o)
	require.NoError(t, err)
	s, err := f.Store("test", guards(), patience, maxJump)
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() }) // before the disk goes; a second time it does nothing
	var admitted []string
	faults := 0
	for i := 0; faults < 40 && i < 20_000; i++ {
		key := strings.Repeat("long ", 80) + strconv.Itoa(i)
		d, err := s.Admit(t.Context(), mark.Admission{Guard: "any-key", Key: key, Token: 5})
		if err != nil {
			require.ErrorIs(t, err, mark.ErrUnavailable)
			faults++
			continue
		}
		require.Equal(t, mark.Admitted, d.Verdict)
		admitted = append(admitted, key)
	}
	require.Equal(t, 40, faults, "%d were admitted", len(admitted))
	require.Greater(t, len(admitted), 50)
	require.NoError(t, f.Close())

	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	roomy := filepath.Join(t.TempDir(), "marks.db")
	require.NoError(t, os.WriteFile(roomy, whole, 0o600))
	again := open(t, roomy, Options{})
	for _, key := range admitted {
		token, _, err := again.Read(t.Context(), "any-key", key)
		require.NoError(t, err)
		require.Equal(t, lock.Token(5), token, "%s of %d", key, len(admitted))
	}
	_, err = again.Admit(t.Context(), mark.Admission{Guard: "any-key", Key: "one-more", Token: 5})
	require.NoError(t, err, "with room it goes on")
}

// After a commit that failed nothing is admitted without a later one that succeeded, not even an equal token.
func TestAfterAFailedCommitEqualTokensWaitForAProof(t *testing.T) {
	t.Parallel()
	s := open(t, create(t), Options{})
	admit := func() error {
		_, err := s.Admit(t.Context(), mark.Admission{Guard: "any-key", Key: "k", Token: 5})
		return err
	}
	require.NoError(t, admit())
	s.file.afterFailure(syscall.ENOSPC)
	writes := pagesWritten(s)
	require.NoError(t, admit())
	require.Greater(t, pagesWritten(s), writes, "the proof was written")
	require.False(t, s.file.unproven.Load())
	s.file.afterFailure(syscall.ENOSPC)
	writes = pagesWritten(s)
	require.NoError(t, s.Check(t.Context()), "nor does readiness wait for a request")
	require.Greater(t, pagesWritten(s), writes)
	s.file.afterFailure(errors.New("input/output error"))
	require.ErrorIs(t, admit(), mark.ErrUnavailable)
	require.ErrorContains(t, s.Check(t.Context()), "restart the sidecar")
}

func TestDiskThatDoesNotAnswerInTimeAdmitsNothing(t *testing.T) {
	t.Parallel()
	f, err := Open(create(t), Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	s, err := f.Store("test", guards(), 50*time.Millisecond, maxJump)
	require.NoError(t, err)
	tx, err := f.db.Begin(true) // as a disk that hangs would, nothing else can be committed
	require.NoError(t, err)
	_, err = s.Admit(t.Context(), mark.Admission{Guard: "any-key", Key: "k", Token: 5})
	require.ErrorIs(t, err, mark.ErrUnavailable)
	require.NoError(t, tx.Rollback())
}
