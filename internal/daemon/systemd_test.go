package daemon

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
)

// underSystemd makes this test binary a small daemon on a socket that was handed to it.
const underSystemd = "FENCELINE_TEST_UNDER_SYSTEMD"

type greeter struct{ listener net.Listener }

func (g *greeter) Start(ctx context.Context) (err error) {
	if _, err := Listen(ctx, "systemd:other"); err == nil || !strings.Contains(err.Error(), "called api") {
		return fmt.Errorf("a socket of another name: %w", err)
	}
	if g.listener, err = Listen(ctx, "systemd:api"); err != nil {
		return err
	}
	go func() {
		for {
			c, err := g.listener.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "hello")
			_ = c.Close()
		}
	}()
	return nil
}

func (g *greeter) Stop(context.Context) error {
	if g.listener == nil {
		return nil
	}
	return g.listener.Close()
}

func (*greeter) Failed() <-chan error { return nil }

func runUnderSystemd() {
	if err := Run(context.Background(), &greeter{}, time.Second, hclog.NewNullLogger()); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// The test plays systemd: it opens the socket and hands it over as descriptor 3, and hears what the daemon says of itself.
func TestSocketOfSystemdIsTakenOverAndSystemdIsToldWhenItIsServed(t *testing.T) {
	t.Parallel()
	handed, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	tcp, ok := handed.(*net.TCPListener)
	require.True(t, ok)
	file, err := tcp.File()
	require.NoError(t, err)
	require.NoError(t, handed.Close())
	socket := filepath.Join(t.TempDir(), "notify")
	heard, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "unixgram", socket)
	require.NoError(t, err)
	t.Cleanup(func() { _ = heard.Close() })

	self, err := os.Executable()
	require.NoError(t, err)
	command := exec.CommandContext(t.Context(), "sh", "-c", `LISTEN_PID=$$ exec "$0"`, self) // the process that is handed the socket must be named
	command.Env = append(os.Environ(), underSystemd+"=1", "LISTEN_FDS=1", "LISTEN_FDNAMES=api", "NOTIFY_SOCKET="+socket)
	command.ExtraFiles = []*os.File{file}
	var stderr strings.Builder
	command.Stderr = &stderr
	require.NoError(t, command.Start())
	require.NoError(t, file.Close())

	require.Equal(t, "READY=1", hear(t, heard), "%s", stderr.String())
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", handed.Addr().String())
	require.NoError(t, err)
	greeting, err := io.ReadAll(c)
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.Equal(t, "hello", string(greeting))
	require.NoError(t, command.Process.Signal(os.Interrupt))
	require.Equal(t, "STOPPING=1", hear(t, heard))
	require.NoError(t, command.Wait(), "%s", stderr.String())

	_, err = Listen(t.Context(), "systemd:api")
	require.ErrorContains(t, err, "no sockets were handed to this process")
}

func hear(t *testing.T, heard net.PacketConn) string {
	t.Helper()
	require.NoError(t, heard.SetReadDeadline(time.Now().Add(20*time.Second)))
	var b [64]byte
	n, _, err := heard.ReadFrom(b[:])
	require.NoError(t, err)
	return string(b[:n])
}
