package pgserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// account is the user that server programs run as; nil for our own.
type account struct {
	name     string
	uid, gid uint32
}

// serverUser chooses the account: PostgreSQL refuses to run as root, so root starts it as postgres, else nobody.
func serverUser() (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		found, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, errU := strconv.ParseUint(found.Uid, 10, 32)
		gid, errG := strconv.ParseUint(found.Gid, 10, 32)
		if errU == nil && errG == nil {
			return &account{name: name, uid: uint32(uid), gid: uint32(gid)}, nil
		}
	}
	return nil, errors.New("PostgreSQL refuses to run as root, and there is neither a user postgres nor a user nobody to run it as")
}

// home is the folder of one running server: data, log, and a lock that shows that its owner lives.
type home struct {
	dir   string
	owner *account
	lock  *os.File
}

const homePrefix = "server-"

// newHome makes a folder for a new server and clears those whose owners have died.
func newHome(ctx context.Context, bin string, owner *account) (*home, error) {
	cache, err := CacheDir()
	if err != nil {
		return nil, err
	}
	base := filepath.Join(cache, "run")
	if err := os.MkdirAll(base, 0o755); err != nil { //nolint:gosec // the server's user must get in
		return nil, fmt.Errorf("make a folder for servers: %w", err)
	}
	// One at a time: between the making of a folder and the taking of its lock it looks like a leftover.
	unlock, err := lockFile(ctx, filepath.Join(base, "homes.lock"))
	if err != nil {
		return nil, err
	}
	defer unlock()
	clearLeftovers(ctx, bin, base, owner)

	dir, err := os.MkdirTemp(base, homePrefix)
	if err != nil {
		return nil, fmt.Errorf("make a folder for the server: %w", err)
	}
	h := &home{dir: dir, owner: owner}
	if h.lock, err = tryLock(filepath.Join(dir, "owner.lock")); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if owner != nil {
		if err := os.Chown(dir, int(owner.uid), int(owner.gid)); err != nil {
			return nil, fmt.Errorf("give the server its folder: %w", errors.Join(err, h.remove()))
		}
	}
	if out, err := h.command(ctx, filepath.Join(bin, "postgres"), "--version").CombinedOutput(); err != nil {
		return nil, errors.Join(fmt.Errorf("user %s can't run %s: %w: %s; set FENCELINE_CACHE to a folder that this user can get into",
			h.userName(), bin, err, out), h.remove())
	}
	return h, nil
}

func (h *home) userName() string {
	if h.owner == nil {
		return "(ourselves)"
	}
	return h.owner.name
}

func (h *home) data() string { return filepath.Join(h.dir, "data") }

// command prepares a server program to run in this home as its user, with an empty environment but for what it needs.
func (h *home) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...) //nolint:gosec // a server program that we chose
	cmd.Dir = h.dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC", "HOME=" + h.dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a terminal's Ctrl-C is ours to handle
	if h.owner != nil {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: h.owner.uid, Gid: h.owner.gid}
	}
	return cmd
}

// write makes a file that only the server's user can read.
func (h *home) write(path, content string) error {
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	if h.owner != nil {
		if err := os.Chown(path, int(h.owner.uid), int(h.owner.gid)); err != nil {
			return fmt.Errorf("hand over %s: %w", filepath.Base(path), err)
		}
	}
	return nil
}

// remove deletes the folder and gives up the lock.
func (h *home) remove() error {
	err := os.RemoveAll(h.dir)
	_ = h.lock.Close()
	if err != nil {
		return fmt.Errorf("remove the server's folder: %w", err)
	}
	return nil
}

// tryLock takes a lock that the kernel drops with our death. Server processes don't inherit it (close-on-exec).
func tryLock(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600) //nolint:gosec // in our cache
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, errors.Join(err, file.Close()))
	}
	return file, nil
}

// clearLeftovers stops and removes servers whose owner's lock is free: the owner has died without doing so. What can't be
// cleared stays for the next run; it must not keep this one from starting.
func clearLeftovers(ctx context.Context, bin, base string, owner *account) {
	dirs, _ := filepath.Glob(filepath.Join(base, homePrefix+"*"))
	for _, dir := range dirs {
		lock, err := tryLock(filepath.Join(dir, "owner.lock"))
		if err != nil {
			continue // its owner lives, or it isn't ours to touch
		}
		left := &home{dir: dir, owner: owner, lock: lock}
		if pid := postmasterPID(left.data()); pid != "" && runsOn(ctx, pid, left.data()) {
			if err := left.command(ctx, filepath.Join(bin, "pg_ctl"), "stop", "-D", left.data(), "-m", "immediate", "-t", "10").Run(); err != nil {
				_ = lock.Close() // it still runs: its folder must stay
				continue
			}
		}
		_ = left.remove()
	}
}

// runsOn says whether the process is a server on exactly this data folder. The number in a file that outlived a reboot can belong to anybody,
// and pg_ctl signals it without asking.
func runsOn(ctx context.Context, pid, data string) bool {
	out, err := exec.CommandContext(ctx, "ps", "-ww", "-o", "args=", "-p", pid).Output() //nolint:gosec // a number from our own folder
	return err == nil && strings.Contains(string(out), "postgres") && strings.Contains(string(out), data)
}

func postmasterPID(data string) string {
	content, err := os.ReadFile(filepath.Join(data, "postmaster.pid")) //nolint:gosec // in our cache
	if err != nil {
		return ""
	}
	first, _, _ := strings.Cut(string(content), "\n")
	if _, err := strconv.ParseUint(strings.TrimSpace(first), 10, 31); err != nil {
		return ""
	}
	return strings.TrimSpace(first)
}
