package failuretest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver"
	"fenceline/internal/pgserver/pgtest"
)

// SmallDisk mounts a file system with room for so many bytes, for a server that is started after it. That needs root.
func SmallDisk(t testing.TB, size string) string {
	t.Helper()
	// Not t.TempDir: the server, which doesn't run as root, must get in.
	dir, err := os.MkdirTemp("", "fenceline-disk-")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755)) //nolint:gosec // as above
	t.Cleanup(func() { require.NoError(t, os.Remove(dir)) })
	err = syscall.Mount("none", dir, "tmpfs", 0, "mode=0755,size="+size)
	require.NoError(t, err, "a full disk is a small file system that this test mounts, which needs root: sudo make test-disk-full")
	t.Cleanup(func() { require.NoError(t, exec.CommandContext(context.Background(), "umount", dir).Run()) }) //nolint:gosec // the folder that we made
	return dir
}

// MoveTo moves a database, by the URL of its owner, to a folder on another disk. Nobody may be connected to it.
func MoveTo(t testing.TB, dir string, server *pgserver.Server, owner string) {
	t.Helper()
	config, err := pgx.ParseConfig(owner)
	require.NoError(t, err)
	conn, err := pgx.Connect(t.Context(), server.URL("postgres"))
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(context.Background())) }()
	var uid int
	_, err = conn.Exec(t.Context(), "CREATE TEMPORARY TABLE whoami (uid int); COPY whoami FROM PROGRAM 'id -u'")
	require.NoError(t, err)
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT uid FROM whoami").Scan(&uid))
	dir = filepath.Join(dir, "tables")
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, os.Chown(dir, uid, -1))
	for _, sql := range []string{
		"CREATE TABLESPACE small LOCATION '" + strings.ReplaceAll(dir, "'", "''") + "'",
		"ALTER DATABASE " + pgx.Identifier{config.Database}.Sanitize() + " SET TABLESPACE small",
	} {
		_, err := conn.Exec(t.Context(), sql)
		require.NoError(t, err, sql)
	}
}

// DiskFull lets the disk with the tables be full when a transaction needs more of it (53100). The server's log is on another disk, so the server lives on.
func DiskFull(dir string) Fault {
	return Fault{Name: "diskFull", strike: func(ctx context.Context, b *Bench, table string) (healer, error) {
		drop, err := trigger(ctx, b, table, "fill()", false)
		if err != nil {
			return nil, err
		}
		ballast := filepath.Join(dir, "ballast")
		if err := fill(ballast); !errors.Is(err, syscall.ENOSPC) {
			return nil, fmt.Errorf("the disk isn't full: %w", err)
		}
		return both(func(context.Context) error { return os.Remove(ballast) }, drop), nil
	}}
}

// fill writes until nothing more fits.
func fill(path string) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600) //nolint:gosec // a test's own file
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	for chunk := make([]byte, 64<<10); ; {
		if _, err := file.Write(chunk); err != nil {
			return err
		}
	}
}

// MoveLogTo moves a server's log (pg_wal) to a folder on another disk.
func MoveLogTo(t testing.TB, dir string, server *pgserver.Server) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), server.URL("postgres"))
	require.NoError(t, err)
	var data string
	require.NoError(t, conn.QueryRow(t.Context(), "SHOW data_directory").Scan(&data))
	require.NoError(t, conn.Close(t.Context()))
	require.NoError(t, server.Crash(t.Context()))
	from, to := filepath.Join(data, "pg_wal"), filepath.Join(dir, "pg_wal")
	require.NoError(t, exec.CommandContext(t.Context(), "cp", "-a", from, to).Run()) //nolint:gosec // a test's own folders
	require.NoError(t, os.RemoveAll(from))
	require.NoError(t, os.Symlink(to, from))
	require.NoError(t, server.Restart(t.Context()))
}

// ByFullLog fills the disk with the server's log, so that the server ends itself (PANIC), and again whenever it tries to start.
func ByFullLog(dir string) End {
	return func(ctx context.Context, b *Bench, server *pgserver.Server) (func() error, error) {
		ballast := filepath.Join(dir, "ballast")
		if err := fill(ballast); !errors.Is(err, syscall.ENOSPC) {
			return nil, fmt.Errorf("the disk isn't full: %w", err)
		}
		// Until a segment is needed that isn't there yet. One record in between, since an empty segment isn't switched.
		for range 100 {
			if err := b.Exec(ctx, "SELECT pg_logical_emit_message(false, 'fault', 'x'), pg_switch_wal()"); err != nil {
				// It may be in the middle of starting once more, and a fast shutdown would then wait for ever.
				return func() error { return errors.Join(os.Remove(ballast), server.Crash(ctx)) }, nil //nolint:nilerr // that is the end of it
			}
		}
		return nil, errors.New("the server still finds room for its log")
	}
}

// OnSmallDisk is a bench on a server of its own, with the database's tables on a small disk.
func (d Deployment) OnSmallDisk(t testing.TB) (b *Bench, disk string) {
	t.Helper()
	disk = SmallDisk(t, "48m")
	server := pgtest.Server(t, nil)
	owner := pgtest.DatabaseOn(t, server, d.Sets...)
	MoveTo(t, disk, server, owner)
	return d.bench(t, owner), disk
}

// WithLogOnSmallDisk is a bench on a server of its own, whose log (pg_wal) is on a small disk.
func (d Deployment) WithLogOnSmallDisk(t testing.TB) (b *Bench, server *pgserver.Server, disk string) {
	t.Helper()
	disk = SmallDisk(t, "128m")
	server = pgtest.Server(t, nil)
	MoveLogTo(t, disk, server)
	return d.bench(t, pgtest.DatabaseOn(t, server, d.Sets...)), server, disk
}
