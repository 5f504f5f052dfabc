package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"fenceline/internal/pgserver"
)

func cacheDir() (string, error) {
	dir, err := pgserver.CacheDir()
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // PostgreSQL's account reads there, too
		return "", fmt.Errorf("make the cache folder: %w", err)
	}
	return dir, nil
}

// describeMachine says what the numbers will be worth. The disk is judged by what all contestants wait for.
func describeMachine(dir string) (machine, error) {
	m := machine{system: runtime.GOOS + "/" + runtime.GOARCH, cpus: runtime.NumCPU(), cpu: cpuModel(), load: loadAverage()}
	var err error
	if m.fsync, err = measureSync(filepath.Join(dir, "sync")); err != nil {
		return machine{}, fmt.Errorf("measure the disk: %w", err)
	}
	if load, err := strconv.ParseFloat(m.load, 64); err == nil {
		m.busy = load > 0.5*float64(m.cpus)
	}
	return m, nil
}

// loadAverage is that of the last minute where the system tells it, else "unknown".
func loadAverage() string {
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

func measureSync(path string) (p50 time.Duration, err error) {
	file, err := os.Create(path) //nolint:gosec // in our own folder
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
	return quantile(took, 0.5), nil
}
