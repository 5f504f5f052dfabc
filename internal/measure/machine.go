package measure

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// Machine is what numbers were taken on.
type Machine struct {
	System string
	CPUs   int
	CPU    string
	Fsync  time.Duration // median of writing and syncing 4 KiB
	Load   string        // of the minute before
	Busy   bool          // with something else
}

func (m Machine) String() string {
	return fmt.Sprintf("%s, %d × %s; writing and syncing 4 KiB takes %.2f ms (p50)", m.System, m.CPUs, m.CPU, float64(m.Fsync)/float64(time.Millisecond))
}

// Describe looks at the machine. The disk is judged by a folder on it.
func Describe(dir string) (Machine, error) {
	m := Machine{System: runtime.GOOS + "/" + runtime.GOARCH, CPUs: runtime.NumCPU(), CPU: cpuModel(), Load: LoadAverage()}
	var err error
	if m.Fsync, err = sync(filepath.Join(dir, "sync")); err != nil {
		return Machine{}, fmt.Errorf("measure the disk: %w", err)
	}
	if load, err := strconv.ParseFloat(m.Load, 64); err == nil {
		m.Busy = load > 0.5*float64(m.CPUs)
	}
	return m, nil
}

// LoadAverage is that of the last minute where the system tells it, else "unknown".
func LoadAverage() string {
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	first, _, _ := strings.Cut(string(data), " ")
	return first
}

func cpuModel() string {
	data, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "CPU"
	}
	for line := range strings.Lines(string(data)) {
		if name, value, found := strings.Cut(line, ":"); found && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "CPU"
}

const syncs = 100

func sync(path string) (p50 time.Duration, err error) {
	file, err := os.Create(path) //nolint:gosec // in the caller's own folder
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, file.Close(), os.Remove(path)) }()
	block := make([]byte, 4096)
	took := make([]time.Duration, 0, syncs)
	for range syncs {
		start := time.Now()
		if _, err := file.Write(block); err != nil {
			return 0, err
		}
		if err := file.Sync(); err != nil {
			return 0, err
		}
		took = append(took, time.Since(start))
	}
	return Quantile(took, 0.5), nil
}
