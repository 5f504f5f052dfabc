package pgserver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// Restore says how a copy of a server is to start.
type Restore struct {
	// Name is shown in errors.
	Name string
	// Signal is the empty file that tells PostgreSQL what the copy is: "recovery.signal" or "standby.signal". None for a copy that starts as a server
	// after a crash does.
	Signal string
	// Settings are written to postgresql.conf after the defaults, so they win.
	Settings map[string]string
}

// BaseBackup takes a base backup of the running server, into a folder of the copy's own, with the log up to the end of the backup. The copy has the
// same users and passwords. It isn't running and has no address: Restart starts it, on a port of its own, and Stop removes it. A server that somebody else runs is refused.
func (s *Server) BaseBackup(ctx context.Context, restore Restore) (*Server, error) {
	if s.external != nil {
		return nil, errors.New("take a base backup: the data folder of this server isn't ours")
	}
	home, err := newHome(ctx, s.bin, s.home.owner)
	if err != nil {
		return nil, err
	}
	replica := &Server{name: restore.Name, bin: s.bin, home: home, password: s.password, version: s.version, settings: map[string]string{}}
	maps.Copy(replica.settings, restore.Settings)
	if err := s.backUp(ctx, replica, restore); err != nil {
		return nil, fmt.Errorf("take a base backup for %s: %w", restore.Name, errors.Join(err, home.remove()))
	}
	return replica, nil
}

// backUp fills the copy's folder. The backup lasts as long as the connection that began it.
func (s *Server) backUp(ctx context.Context, replica *Server, restore Restore) error {
	conn, err := pgx.Connect(ctx, s.URL("postgres"))
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	begin, end := "SELECT pg_backup_start('copy', true)", "SELECT labelfile FROM pg_backup_stop(false)"
	if majorOf(ctx, s.bin) < 15 {
		begin, end = "SELECT pg_start_backup('copy', true, false)", "SELECT labelfile FROM pg_stop_backup(false, false)"
	}
	if _, err := conn.Exec(ctx, begin); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	from, to := s.home.data(), replica.home.data()
	if err := replica.home.copyTree(from, to, func(path string) bool { return path != "pg_wal" }); err != nil {
		return err
	}
	var label string
	if err := conn.QueryRow(ctx, end).Scan(&label); err != nil {
		return fmt.Errorf("end: %w", err)
	}
	// The log comes last, since it must reach beyond the end of the backup.
	if err := replica.home.copyTree(from, to, func(path string) bool { return path == "." || path == "pg_wal" || filepath.Dir(path) == "pg_wal" }); err != nil {
		return err
	}
	if err := replica.home.write(filepath.Join(to, "backup_label"), label); err != nil {
		return err
	}
	if restore.Signal != "" {
		if err := replica.home.write(filepath.Join(to, restore.Signal), ""); err != nil {
			return err
		}
	}
	return nil
}

// openCopy starts a copy for the first time.
func (s *Server) openCopy(ctx context.Context) error {
	if err := s.open(ctx, s.settings, freePort); err != nil {
		return err
	}
	s.settings = nil
	return nil
}

// copyTree copies a running server's data folder as far as wanted says, which gets paths within it; what it doesn't want of a folder's it takes
// nothing of. Files may change meanwhile, which the log mends, and go.
func (h *home) copyTree(from, to string, wanted func(path string) bool) error {
	err := filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		within, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		switch {
		case !wanted(within):
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		case entry.IsDir():
			return h.makeFolder(filepath.Join(to, within))
		case within == "postmaster.pid" || within == "postmaster.opts" || !entry.Type().IsRegular():
			return nil
		}
		content, err := os.ReadFile(path) //nolint:gosec // a server's file that we made
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		return h.write(filepath.Join(to, within), string(content))
	})
	if err != nil {
		return fmt.Errorf("copy the data folder: %w", err)
	}
	return nil
}

// makeFolder makes a folder that only the server's user can get into, unless it is there.
func (h *home) makeFolder(path string) error {
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if h.owner == nil {
		return nil
	}
	return os.Chown(path, int(h.owner.uid), int(h.owner.gid))
}

// Kill ends the server's first process with SIGKILL, so that nothing of the server is tidied up, and no other process of it is told: each notices by
// itself. Restart waits for them.
func (s *Server) Kill(ctx context.Context) error { return s.end(ctx, syscall.SIGKILL) }

// launchAfter is launch, again while processes of a killed server still hold its memory.
func (s *Server) launchAfter(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := s.launch(ctx)
		if err == nil || !strings.Contains(err.Error(), "pre-existing shared memory block") {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return err
		}
	}
}
