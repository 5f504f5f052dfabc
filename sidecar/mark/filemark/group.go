package filemark

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"

	"fenceline/sidecar/mark"
)

// operation is one admission or raise on its way.
type operation struct {
	ctx       context.Context //nolint:containedctx // so that what nobody waits for any more isn't done
	admission mark.Admission
	probe     bool // decides nothing; it only proves that the file can be written
	flush     bool // decides nothing; it has written what was settled in memory
	// work is anything else that is done to the register. Its error spoils the whole transaction; a refusal of its own it puts into err before it has written anything.
	work     func(*staged) error
	reject   bool // a key without a mark isn't known
	maxJump  int64
	decision mark.Decision
	err      error
	done     chan struct{}

	entry      *mark.Entry // is registered too
	sidecar    string
	definition string // of the entry's guard
	row        mark.Row
	older      []mark.Row
	fate       atomic.Int32 // whether the caller has gone before the answer was sure to reach it
}

const (
	answered  = 1
	abandoned = 2
)

// answer says whether the caller still takes the answer. From then on it does.
func (op *operation) answer() bool {
	return op.fate.CompareAndSwap(0, answered) || op.fate.Load() == answered
}

// abandon says whether the caller may go without the answer, which nobody gets then.
func (op *operation) abandon() bool { return op.fate.CompareAndSwap(0, abandoned) }

// maxGroup bounds one commit.
const maxGroup = 4096

// queue gathers operations while a group is at the disk.
type queue struct {
	mu      sync.Mutex
	waiting []*operation
	closed  bool
	wake    chan struct{}
	ended   chan struct{}
}

var errClosed = errors.New("the mark file is closed")

// start runs commit for one group after the other, until stop.
func (q *queue) start(commit func([]*operation)) {
	q.wake, q.ended = make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(q.ended)
		for range q.wake {
			for group := q.take(); len(group) > 0; group = q.take() {
				commit(group)
				for _, op := range group {
					close(op.done)
				}
			}
		}
	}()
}

func (q *queue) take() []*operation {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(len(q.waiting), maxGroup)
	group := q.waiting[:n:n]
	q.waiting = q.waiting[n:]
	return group
}

func (q *queue) add(op *operation) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return errClosed
	}
	q.waiting = append(q.waiting, op)
	select {
	case q.wake <- struct{}{}:
	default: // it is awake, and takes ours too
	}
	return nil
}

// stop finishes what was added and takes nothing more. It says whether this is the first stop.
func (q *queue) stop() bool {
	q.mu.Lock()
	already := q.closed
	q.closed = true
	if !already {
		close(q.wake)
	}
	q.mu.Unlock()
	<-q.ended
	return !already
}

// do has an operation decided. When ctx ends first the mark may be raised all the same; nobody was admitted.
func (f *File) do(ctx context.Context, op *operation) (mark.Decision, error) {
	op.ctx, op.done = ctx, make(chan struct{})
	if err := f.queue.add(op); err != nil {
		return mark.Decision{}, fmt.Errorf("%w: %w", mark.ErrUnavailable, err)
	}
	select {
	case <-op.done:
		return op.decision, op.err
	case <-ctx.Done():
		if !op.abandon() {
			<-op.done // it was committed a moment ago
			return op.decision, op.err
		}
		return mark.Decision{}, fmt.Errorf("%w: the disk didn't answer in time: %w", mark.ErrUnavailable, ctx.Err())
	}
}

// errNothingToWrite ends a group in which no mark rises.
var errNothingToWrite = errors.New("nothing to write")

// commit decides a group in one transaction. Its decisions count only when the commit has succeeded. Within a group operations are decided in the order
// in which they came; nobody learns of one before all of them are durable.
func (f *File) commit(group []*operation) {
	err := f.usable()
	var changes *staged
	if err == nil {
		err = guarded(func() error {
			return f.db.Update(func(tx *bbolt.Tx) error {
				changes = f.stage(tx, time.Now())
				return f.decideGroup(changes, group)
			})
		})
	}
	switch {
	case errors.Is(err, errNothingToWrite):
		err = nil
		changes.apply(group)
	case err != nil:
		f.afterFailure(err)
		if changes != nil {
			f.afterLostChanges()
		}
	default:
		f.unproven.Store(false)
		changes.apply(group)
	}
	for _, op := range group {
		if err != nil {
			op.row, op.older = 0, nil
			op.decision, op.err = mark.Decision{}, fmt.Errorf("%w: %w", mark.ErrUnavailable, err)
		}
	}
}

// afterFailure: after a commit that failed it isn't known which of its pages reached the disk, and the tree that we read may be one that a crash would undo. So
// decisions that write nothing aren't given until a later commit has succeeded, which makes everything before it durable too. A full disk is worth
// trying again; after any other fault the kernel may have dropped what it couldn't write, so only a fresh look at the file helps.
func (f *File) afterFailure(err error) {
	f.unproven.Store(true)
	// bbolt gives the reason for a file that can't grow as text only; at that point nothing has been written.
	if strings.HasPrefix(err.Error(), "file resize error") {
		return
	}
	for _, full := range []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG, bbolterrors.ErrMaxSizeReached} {
		if errors.Is(err, full) {
			return
		}
	}
	if f.usable() != nil {
		return // it was never tried, and a file that comes back under its name is in order
	}
	f.fail(fmt.Errorf("writing the mark file failed: %w", err))
}

func (f *File) afterLostChanges() {
	if err := f.reload(false); err != nil {
		f.fail(fmt.Errorf("reading the requests in flight after a commit that failed: %w", err))
	}
}

func (f *File) decideGroup(s *staged, group []*operation) error {
	added := map[string]uint64{}
	flush := false
	for _, op := range group {
		if err := op.ctx.Err(); err != nil {
			op.err = fmt.Errorf("%w: %w", mark.ErrUnavailable, err)
			continue
		}
		flush = flush || op.flush
		switch {
		case op.probe, op.flush:
		case op.work != nil:
			if err := op.work(s); err != nil {
				return err
			}
		default:
			isNew, err := s.decide(op)
			if err != nil {
				return err
			}
			if isNew {
				added[op.admission.Guard]++
			}
		}
	}
	if s.wrote || flush || s.flush {
		if err := s.finish(); err != nil {
			return err
		}
	}
	if !s.wrote && !f.unproven.Load() {
		return errNothingToWrite
	}
	for name, n := range added {
		guards := s.tx.Bucket(bucketGuards)
		info, err := readInfo(guards, name)
		if err != nil {
			return err
		}
		info.Count += n
		if err := writeInfo(guards, name, info); err != nil {
			return err
		}
	}
	if !s.wrote {
		return s.tx.Bucket(bucketFormat).Put(keyProof, []byte(s.now.UTC().Format(time.RFC3339Nano)))
	}
	return nil
}

// decide compares and raises one mark within the group's transaction, and registers an entry that was admitted.
func (s *staged) decide(op *operation) (isNew bool, err error) {
	a := op.admission
	marks := s.tx.Bucket(bucketMarks).Bucket([]byte(a.Guard))
	if marks == nil {
		return false, fmt.Errorf("the mark file has no guard %s", a.Guard)
	}
	if op.entry != nil {
		if ready, err := s.mayRegister(op); !ready {
			return false, err
		}
	}
	highest, found, err := get(marks, a.Guard, a.Key)
	if err != nil {
		return false, err
	}
	op.decision = a.Judge(highest, found, op.reject, op.maxJump)
	if op.decision.Verdict != mark.Admitted {
		return false, nil
	}
	raise := a.Token
	if op.entry != nil {
		raise = op.entry.Raise
	}
	if raise > highest {
		s.wrote, isNew = true, !found
		if err := marks.Put([]byte(a.Key), encode(a.Guard, []byte(a.Key), raise, s.now)); err != nil {
			return false, err
		}
	}
	if op.entry != nil {
		return isNew, s.register(op)
	}
	return isNew, nil
}

// mayRegister says whether this sidecar has a life and its idea of the guard is the one under which requests are in flight; otherwise the entry is refused.
func (s *staged) mayRegister(op *operation) (bool, error) {
	if s.lifeNow() == "" {
		op.err = mark.ErrNoLife
		return false, nil
	}
	same, err := s.define(op.admission.Guard, op.definition)
	if err == nil && !same {
		op.err = fmt.Errorf("guard %s: %w", op.admission.Guard, mark.ErrOtherDefinition)
	}
	return same && err == nil, err
}
