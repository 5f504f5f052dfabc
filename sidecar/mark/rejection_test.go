package mark

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fenceline/lockd/lock"
)

// memoryLog keeps rejections, or fails.
type memoryLog struct {
	mu     sync.Mutex
	fault  error
	hang   bool
	rows   []Rejection
	sizes  []int
	pruned []time.Duration
}

func (m *memoryLog) Append(ctx context.Context, list []Rejection) error {
	m.mu.Lock()
	hang := m.hang
	m.mu.Unlock()
	if hang {
		<-ctx.Done()
		return ctx.Err()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fault != nil {
		return m.fault
	}
	m.rows, m.sizes = append(m.rows, list...), append(m.sizes, len(list))
	return nil
}

func (m *memoryLog) Prune(_ context.Context, keep time.Duration) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pruned = append(m.pruned, keep)
	return nil
}

func (m *memoryLog) set(fault error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fault = fault
}

func (m *memoryLog) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.rows)
}

func TestRecorderWritesInBatchesAndPrunesEveryHour(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := &memoryLog{}
		r := NewRecorder(t.Context(), log, time.Hour, func(error) {})
		for i := range 1000 {
			r.Record(Rejection{Presented: lock.Token(i + 1)})
		}
		synctest.Wait()
		require.Equal(t, 1000, log.count())
		r.Keep(2 * time.Hour)
		time.Sleep(pruneEvery + time.Minute) //nolint:forbidigo // the bubble's clock
		require.NoError(t, r.Stop(t.Context()))
		require.Equal(t, []time.Duration{time.Hour, 2 * time.Hour}, log.pruned)
		require.Less(t, len(log.sizes), 500)
		for i, row := range log.rows {
			require.Equal(t, lock.Token(i+1), row.Presented, "in their order")
		}
	})
}

func TestRecorderNeverWaitsForItsLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := &memoryLog{hang: true}
		r := NewRecorder(t.Context(), log, time.Hour, func(error) {})
		start := time.Now()
		const sent = maxQueued + maxBatch + 500
		for i := range sent {
			r.Record(Rejection{Presented: lock.Token(i + 1)})
			if i == 0 {
				synctest.Wait() // the first one hangs at the log
			}
		}
		require.Zero(t, time.Since(start))
		require.Equal(t, int64(sent-1-maxQueued), r.Dropped(), "what found no place is counted")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.Error(t, r.Stop(ctx), "it hangs at the end too, and no longer than it may")
		require.Equal(t, time.Minute, time.Since(start))
	})
}

func TestRecorderTriesAgainAndTellsOfItsFirstFault(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := &memoryLog{fault: errors.New("down")}
		var faults atomic.Int64
		r := NewRecorder(t.Context(), log, time.Hour, func(error) { faults.Add(1) })
		r.Record(Rejection{Presented: 1})
		time.Sleep(10 * time.Second) //nolint:forbidigo // the bubble's clock
		require.Equal(t, int64(1), faults.Load())
		log.set(nil)
		time.Sleep(2 * time.Second) //nolint:forbidigo // the bubble's clock
		require.Equal(t, 1, log.count())
		log.set(errors.New("down again"))
		r.Record(Rejection{Presented: 2})
		time.Sleep(2 * time.Second) //nolint:forbidigo // the bubble's clock
		require.Equal(t, int64(2), faults.Load())
		log.set(nil)
		require.NoError(t, r.Stop(t.Context()))
		require.Equal(t, 2, log.count(), "what waited is written at the end")
		require.Zero(t, r.Dropped())
	})
}
