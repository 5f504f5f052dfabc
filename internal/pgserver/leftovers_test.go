package pgserver

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// What a dead owner leaves, a running server included, goes with the next start. A living owner's stays.
func TestLeftoversOfADeadOwnerAreCleared(t *testing.T) {
	t.Parallel()
	alive := startServer(t, Options{Name: "alive"})
	abandoned, err := Start(t.Context(), Options{Name: "abandoned"})
	require.NoError(t, err)
	require.NoError(t, abandoned.home.lock.Close()) // what the kernel does when the owner dies

	startServer(t, Options{Name: "next"})
	select {
	case <-abandoned.exited:
	case <-time.After(20 * time.Second):
		require.Fail(t, "the abandoned server still runs")
	}
	require.NoDirExists(t, abandoned.home.dir)
	conn, err := pgx.Connect(t.Context(), alive.URL("postgres"))
	require.NoError(t, err)
	require.NoError(t, conn.Close(t.Context()))
}

// A real process that is killed like a test run that hangs: nothing of it stays.
func TestKilledOwnerLeavesNothing(t *testing.T) {
	t.Parallel()
	owner := exec.CommandContext(t.Context(), os.Args[0])
	owner.Env = append(os.Environ(), ownerVariable+"=1")
	owner.Stderr = os.Stderr
	out, err := owner.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, owner.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	addr, dir, _ := strings.Cut(strings.TrimSpace(line), " ")
	require.DirExists(t, dir)
	require.NoError(t, owner.Process.Kill())
	_ = owner.Wait()

	if runtime.GOOS == "linux" { // the kernel ends the server at once; elsewhere the next start does
		require.Eventually(t, func() bool {
			conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(t.Context(), "tcp", addr)
			if err == nil {
				_ = conn.Close()
			}
			return err != nil
		}, 20*time.Second, 20*time.Millisecond, "the server outlives its owner")
	}
	startServer(t, Options{Name: "next"})
	require.NoDirExists(t, dir)
	require.NoFileExists(t, dir+lockSuffix)
}

// After a restart of the machine the number in a left postmaster.pid may be anybody's.
func TestProcessThatOnlyHasALeftoversNumberIsLeftAlone(t *testing.T) {
	t.Parallel()
	stranger := exec.CommandContext(t.Context(), "sleep", "60")
	require.NoError(t, stranger.Start())
	ended := make(chan struct{})
	go func() {
		_ = stranger.Wait()
		close(ended)
	}()
	base := t.TempDir()
	dir := filepath.Join(base, homePrefix+"1")
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "data"), 0o700))
	require.NoError(t, os.WriteFile(dir+lockSuffix, nil, 0o600))
	pid := fmt.Sprintf("%d\n%s\n", stranger.Process.Pid, filepath.Join(dir, "data"))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "data", "postmaster.pid"), []byte(pid), 0o600))

	clearLeftovers(t.Context(), base)
	require.NoDirExists(t, dir)
	require.NoFileExists(t, dir+lockSuffix)
	require.NoError(t, stranger.Process.Signal(syscall.Signal(0)))
	select {
	case <-ended:
		require.Fail(t, "the stranger was ended")
	default:
	}
	require.NoError(t, stranger.Process.Kill())
}

// Nor is another server ended that has the number by now.
func TestLeftoverFileNeverPointsAtSomebodyElsesServer(t *testing.T) {
	t.Parallel()
	s := startServer(t, Options{Name: "innocent"})
	abandoned, err := Start(t.Context(), Options{Name: "rebooted"})
	require.NoError(t, err)
	require.NoError(t, abandoned.Crash(t.Context()))
	// What a reboot leaves: the file, naming a process that is now another server.
	pid := strconv.Itoa(s.cmd.Process.Pid)
	require.NoError(t, abandoned.home.write(filepath.Join(abandoned.home.data(), "postmaster.pid"), pid+"\n"+abandoned.home.data()+"\n"))
	require.NoError(t, abandoned.home.lock.Close())

	startServer(t, Options{Name: "next"})
	require.NoDirExists(t, abandoned.home.dir)
	conn, err := pgx.Connect(t.Context(), s.URL("postgres"))
	require.NoError(t, err, "the innocent server runs on")
	require.NoError(t, conn.Close(t.Context()))
}

// Not parallel: the umask is the whole process's.
func TestFoldersLetTheServersUserThroughWhateverTheUmask(t *testing.T) {
	before := syscall.Umask(0o077)
	defer syscall.Umask(before)
	base := t.TempDir()
	require.NoError(t, makeFolder(filepath.Join(base, "a", "b")))
	want := os.FileMode(0o700)
	if os.Geteuid() == 0 {
		want = 0o755
	}
	for _, dir := range []string{"a", "a/b"} {
		info, err := os.Stat(filepath.Join(base, dir))
		require.NoError(t, err)
		require.Equal(t, want, info.Mode().Perm(), dir)
	}
	require.NoError(t, os.WriteFile(filepath.Join(base, "file"), nil, 0o600))
	require.Error(t, makeFolder(filepath.Join(base, "file", "c")))
}
