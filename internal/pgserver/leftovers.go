package pgserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const leftoverTimeout = 10 * time.Second

// clearLeftovers stops and removes servers whose owner's lock is free: the kernel drops it when the owner dies. What
// can't be cleared stays for the next run; it must not keep this one from starting.
func clearLeftovers(ctx context.Context, base string) {
	locks, _ := filepath.Glob(filepath.Join(base, homePrefix+"*"+lockSuffix))
	for _, path := range locks {
		lock, err := tryLock(path)
		if err != nil {
			continue // its owner lives, or it isn't ours to touch
		}
		left := &home{dir: strings.TrimSuffix(path, lockSuffix), lock: lock}
		if err := stopLeftover(ctx, left.data()); err != nil {
			_ = lock.Close() // files aren't taken away from under a server that runs
			continue
		}
		_ = left.remove()
	}
}

// tryLock takes the lock of a file that is there. Server processes don't inherit it (close-on-exec).
func tryLock(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR, 0) //nolint:gosec // in our cache
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, errors.Join(err, file.Close()))
	}
	return file, nil
}

// stopLeftover ends the server that runs on this data folder, if one does.
func stopLeftover(ctx context.Context, data string) error {
	pid := postmasterPID(data)
	if pid == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, leftoverTimeout)
	defer cancel()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	// Asked again before every signal: after a restart of the machine the number in the file may be any other process's.
	for signal := syscall.SIGQUIT; servesFolder(ctx, pid, data); signal = 0 {
		if signal != 0 {
			if err := syscall.Kill(pid, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("stop a server that was left: %w", err)
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for a server that was left: %w", context.Cause(ctx))
		}
	}
	return nil
}

// postmasterPID reads the process number from the data folder; 0 when there is none.
func postmasterPID(data string) int {
	content, err := os.ReadFile(filepath.Join(data, "postmaster.pid")) //nolint:gosec // in our cache
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(content), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(first))
	if err != nil || pid <= 1 {
		return 0
	}
	return pid
}

// servesFolder says whether the process was started with -D and this very folder.
func servesFolder(ctx context.Context, pid int, data string) bool {
	want, err := os.Stat(data)
	if err != nil {
		return false
	}
	args := arguments(ctx, pid)
	for i := range args {
		if i == 0 || args[i-1] != "-D" {
			continue
		}
		if got, err := os.Stat(args[i]); err == nil && os.SameFile(got, want) {
			return true
		}
	}
	return false
}
