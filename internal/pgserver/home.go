package pgserver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
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

// home is the folder of one running server, data and log, with a lock file beside it that shows that its owner lives.
type home struct {
	dir   string
	owner *account
	lock  *os.File
}

const (
	homePrefix = "pg-"
	lockSuffix = ".lock"
)

// newHome makes a folder for a new server and clears those whose owners have died.
func newHome(ctx context.Context, bin string, owner *account) (*home, error) {
	cache, err := CacheDir()
	if err != nil {
		return nil, err
	}
	base := filepath.Join(cache, "run")
	if err := makeFolder(base); err != nil {
		return nil, fmt.Errorf("make a folder for servers: %w", err)
	}
	// One at a time: between the making of a lock file and the taking of the lock it looks like a leftover.
	unlock, err := lockFile(ctx, filepath.Join(base, "homes.lock"))
	if err != nil {
		return nil, err
	}
	defer unlock()
	clearLeftovers(ctx, base)

	lock, err := os.CreateTemp(base, homePrefix+"*"+lockSuffix)
	if err != nil {
		return nil, fmt.Errorf("make a lock for the server: %w", err)
	}
	h := &home{dir: strings.TrimSuffix(lock.Name(), lockSuffix), owner: owner, lock: lock}
	if err := h.prepare(ctx, bin); err != nil {
		return nil, errors.Join(err, h.remove())
	}
	return h, nil
}

func (h *home) prepare(ctx context.Context, bin string) error {
	if err := unix.Flock(int(h.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("lock the server's folder: %w", err)
	}
	if err := os.Mkdir(h.dir, 0o700); err != nil {
		return fmt.Errorf("make a folder for the server: %w", err)
	}
	if h.owner != nil {
		if err := os.Chown(h.dir, int(h.owner.uid), int(h.owner.gid)); err != nil {
			return fmt.Errorf("give the server its folder: %w", err)
		}
	}
	if out, err := h.command(ctx, filepath.Join(bin, "postgres"), "--version").CombinedOutput(); err != nil {
		return fmt.Errorf("user %s can't run %s in %s: %w %s; set FENCELINE_CACHE to a folder that this user can get into",
			h.userName(), bin, h.dir, err, lastLines(string(out), 2))
	}
	return nil
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

// remove deletes the folder, then the lock file: one that is left behind has the next run try again.
func (h *home) remove() error {
	defer func() { _ = h.lock.Close() }()
	if err := os.RemoveAll(h.dir); err != nil {
		return fmt.Errorf("remove the server's folder: %w", err)
	}
	if err := os.Remove(h.lock.Name()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the lock of the server's folder: %w", err)
	}
	return nil
}

// makeFolder makes the folder and those that are missing above it. Under root the server's user gets through them whatever
// our umask is; what exists keeps its mode.
func makeFolder(dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := makeFolder(filepath.Dir(dir)); err != nil {
		return err
	}
	switch err := os.Mkdir(dir, 0o755); { //nolint:gosec // the server runs as another user and must get in
	case errors.Is(err, fs.ErrExist):
		return nil // another process was faster
	case err != nil:
		return err
	case os.Geteuid() != 0:
		return nil
	}
	return os.Chmod(dir, 0o755) //nolint:gosec // as above
}
