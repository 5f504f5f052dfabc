package pgtest

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// Pooler starts a PgBouncer in transaction mode before the database of the URL, with the URL's login, and returns the URL that leads
// through it. It has few connections to the server, so that transactions of one client end up on several of them. It ends with the test. PgBouncer
// comes from the distribution's packages (make deps); without it the test fails.
func Pooler(t testing.TB, databaseURL string) string {
	t.Helper()
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		program = "/usr/sbin/pgbouncer" // not on everybody's PATH
	}
	u, err := url.Parse(databaseURL)
	require.NoError(t, err)
	password, _ := u.User.Password()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	require.NoError(t, l.Close())

	// Not t.TempDir: PgBouncer, which doesn't run as root, must be able to read it.
	dir, err := os.MkdirTemp("", "fenceline-pgbouncer-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	config := filepath.Join(dir, "pgbouncer.ini")
	require.NoError(t, os.Chmod(dir, 0o755)) //nolint:gosec // holds a test's password for a server on loopback
	text := fmt.Sprintf(`[databases]
* = host=%s port=%s user=%s password=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %s
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 8
max_client_conn = 200
`, u.Hostname(), u.Port(), u.User.Username(), password, port)
	require.NoError(t, os.WriteFile(config, []byte(text), 0o644)) //nolint:gosec // as above
	var log strings.Builder
	arguments := []string{config}
	if os.Geteuid() == 0 {
		arguments = []string{"-u", "nobody", config}
	}
	command := exec.CommandContext(context.Background(), program, arguments...) //nolint:gosec // the distribution's program
	command.Stderr = &log
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a Ctrl-C ends the tests first
	require.NoError(t, command.Start(), "PgBouncer is missing: make deps installs it")
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	u.Host = net.JoinHostPort("127.0.0.1", port)
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		conn, err := pgx.Connect(ctx, u.String()+"&default_query_exec_mode=exec")
		if err != nil {
			return false
		}
		return conn.Close(ctx) == nil
	}, 20*time.Second, 20*time.Millisecond, "PgBouncer doesn't answer")
	return u.String()
}
