package measure

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestQuantilesOfAnything(t *testing.T) {
	t.Parallel()
	require.Zero(t, Quantile([]float64(nil), 0.5))
	require.InDelta(t, 2, Quantile([]float64{3, 1, 2}, 0.5), 0)
	require.Equal(t, 3*time.Second, Quantile([]time.Duration{3 * time.Second, 1, 2}, 0.99))
	require.InDelta(t, 3, Median([]int{5, 1, 3}, func(n int) float64 { return float64(n) }), 0)
}

func TestProcessorTimeGoesUpWithWork(t *testing.T) {
	t.Parallel()
	before := SpentBy([]int{os.Getpid()}, 0)
	for deadline, sum := time.Now().Add(20*time.Second), 0; SpentBy([]int{os.Getpid()}, 0).Minus(before).Service < 50*time.Millisecond; sum++ {
		if time.Now().After(deadline) {
			t.Fatal("no processor time was counted")
		}
	}
	require.Positive(t, Resident(os.Getpid()))
	require.Equal(t, os.Getppid(), Parent(os.Getpid()))
	require.Equal(t, Spent{Clients: time.Second}, Spent{Clients: 2 * time.Second}.Over(2))
}
