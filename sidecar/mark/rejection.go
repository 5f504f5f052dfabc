package mark

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"fenceline/lockd/lock"
)

// Rejection is one request that was fenced out, or would have been.
type Rejection struct {
	Guard, Key, Route, Mode string
	Presented, Highest      lock.Token
	Owner, Trace            string
	At                      time.Time
}

// RejectionLog keeps rejections for people.
type RejectionLog interface {
	// Append adds rejections, all or none.
	Append(ctx context.Context, list []Rejection) error
	// Prune removes what is older than keep.
	Prune(ctx context.Context, keep time.Duration) error
}

const (
	maxQueued  = 4096
	maxBatch   = 256
	retryAfter = time.Second
	pruneEvery = time.Hour
)

// Recorder takes rejections to a log without ever keeping an answer waiting: what the log can't take in time is dropped and counted.
type Recorder struct {
	log     RejectionLog
	keep    atomic.Int64 // nanoseconds
	queue   chan Rejection
	dropped atomic.Int64
	failed  func(error)
	stop    context.CancelFunc
	ended   sync.WaitGroup
}

// NewRecorder starts a recorder, which runs until Stop. Rows are kept for the given time; failed hears of the first fault of each run of faults.
func NewRecorder(ctx context.Context, log RejectionLog, keep time.Duration, failed func(error)) *Recorder {
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	r := &Recorder{log: log, queue: make(chan Rejection, maxQueued), failed: failed, stop: stop}
	r.Keep(keep)
	r.ended.Go(func() { r.write(ctx) })
	r.ended.Go(func() { r.prune(ctx) })
	return r
}

// Keep changes how long rows are kept.
func (r *Recorder) Keep(keep time.Duration) { r.keep.Store(int64(keep)) }

// Record takes one rejection. It never waits.
func (r *Recorder) Record(rejection Rejection) {
	select {
	case r.queue <- rejection:
	default:
		r.dropped.Add(1)
	}
}

// Dropped is how many rejections found no place.
func (r *Recorder) Dropped() int64 { return r.dropped.Load() }

// Stop writes what is waiting, as far as ctx allows, and ends.
func (r *Recorder) Stop(ctx context.Context) error {
	r.stop()
	r.ended.Wait()
	for {
		batch := r.take(nil)
		if len(batch) == 0 {
			return nil
		}
		if err := r.log.Append(ctx, batch); err != nil {
			r.dropped.Add(int64(len(batch) + len(r.queue)))
			return err
		}
	}
}

// write takes rejections to the log in batches. A batch that can't be written is tried again; meanwhile the queue fills.
func (r *Recorder) write(ctx context.Context) {
	broken := false
	for {
		var batch []Rejection
		select {
		case first := <-r.queue:
			batch = r.take([]Rejection{first})
		case <-ctx.Done():
			return
		}
		for {
			err := r.log.Append(ctx, batch)
			if err == nil {
				broken = false
				break
			}
			if !broken && ctx.Err() == nil {
				broken = true
				r.failed(err)
			}
			if !pause(ctx, retryAfter) {
				r.putBack(batch)
				return
			}
		}
	}
}

// take adds to a batch what is waiting.
func (r *Recorder) take(batch []Rejection) []Rejection {
	for len(batch) < maxBatch {
		select {
		case next := <-r.queue:
			batch = append(batch, next)
		default:
			return batch
		}
	}
	return batch
}

// putBack keeps a batch for Stop.
func (r *Recorder) putBack(batch []Rejection) {
	for _, rejection := range batch {
		r.Record(rejection)
	}
}

func (r *Recorder) prune(ctx context.Context) {
	for {
		_ = r.log.Prune(ctx, time.Duration(r.keep.Load())) // tried again; the rows do no harm
		if !pause(ctx, pruneEvery) {
			return
		}
	}
}

// pause waits; false when ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
