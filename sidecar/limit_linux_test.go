package main

import (
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// limitFileSize keeps a process from making files larger than that: as on a full disk its writes fail.
func limitFileSize(t *testing.T, pid int, size uint64) {
	t.Helper()
	require.NoError(t, unix.Prlimit(pid, unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: size, Max: unix.RLIM_INFINITY}, nil))
}

// A full disk: 503, and nothing reaches the resource that wasn't admitted.
func TestFullDiskForwardsNothing(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	forwarded := 0
	f := newFileSidecar(t, resource(t, func(http.ResponseWriter, *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		forwarded++
	}))
	f.start(t)
	// The operating system's own limit on the size of a file, set from outside.
	info, err := os.Stat(f.env["MARKS"])
	require.NoError(t, err)
	limitFileSize(t, f.PID(), uint64(info.Size()))
	admitted, refused := 0, 0
	for i := range 2000 {
		status, body := f.put(t, strings.Repeat("k", 400)+strconv.Itoa(i), 5)
		switch status {
		case http.StatusOK:
			admitted++
		case http.StatusServiceUnavailable:
			require.Contains(t, body, `"code":"FENCE_UNAVAILABLE"`)
			refused++
		default:
			require.Fail(t, "unexpected", "%d %s", status, body)
		}
		if refused >= 20 {
			break
		}
	}
	require.GreaterOrEqual(t, refused, 20, "%d admitted", admitted)
	limitFileSize(t, f.PID(), unix.RLIM_INFINITY)
	f.eventually(t, "room again", func() bool { return f.ready(t) })
	status, body := f.put(t, "another", 5)
	require.Equal(t, http.StatusOK, status, body)
	admitted++
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, admitted, forwarded)
}
