// Package etcdtest runs real etcd for tests: members in processes of their own, on loopback, with ports and folders of their own, to be killed and
// restarted at will.
package etcdtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"fenceline/internal/process"
)

// startTimeout bounds the start of a member on a busy machine.
const startTimeout = 2 * time.Minute

// Member is one etcd server. Its address and its data stay the same when it is killed and started again.
type Member struct {
	name    string
	dir     string
	client  string
	peer    string
	cluster string // name=peer of every member
	token   string
	secure  []string         // arguments for encrypted clients
	process *process.Process // nil: not running
}

// Start runs a single member until the test ends.
func Start(t testing.TB) *Member {
	t.Helper()
	return StartCluster(t, 1).Members[0]
}

// StartOn runs a single member on a data folder that is there already, as a member that was restored from a backup does. Its name is "m0".
func StartOn(t testing.TB, dir string) *Member {
	t.Helper()
	m := newMember(t, "m0")
	m.dir, m.cluster = dir, "m0="+m.peer
	t.Cleanup(func() { m.Kill(t) })
	m.Restart(t)
	return m
}

// StartSecure runs a single member that shows clients this certificate and lets in those with a certificate of the authority. All are paths of PEM files.
func StartSecure(t testing.TB, certificate, key, authority string) *Member {
	t.Helper()
	m := newMember(t, "m0")
	m.client = strings.Replace(m.client, "http://", "https://", 1)
	m.cluster, m.secure = "m0="+m.peer, []string{"-cert", certificate, "-key", key, "-client-ca", authority}
	t.Cleanup(func() { m.Kill(t) })
	m.Restart(t)
	return m
}

// newMember reserves what a member needs.
func newMember(t testing.TB, name string) *Member {
	t.Helper()
	return &Member{name: name, dir: t.TempDir(), client: freeAddress(t), peer: freeAddress(t), token: "fenceline-test"}
}

// Ports of members come from below those that systems hand out for outgoing connections: such a connection could take a member's
// port while the member is down.
const (
	firstPort = 10_000
	lastPort  = 30_000
)

// freeAddress finds a port that nobody uses. Somebody may take it before the member does; then the start fails and says so.
func freeAddress(t testing.TB) string {
	t.Helper()
	for range 100 {
		port := firstPort + rand.IntN(lastPort-firstPort) //nolint:gosec // no secret
		l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
		if err != nil {
			continue
		}
		require.NoError(t, l.Close())
		return "http://" + l.Addr().String()
	}
	require.Fail(t, "no free port")
	return ""
}

// Endpoint is where clients reach the member.
func (m *Member) Endpoint() string { return m.client }

// Dir is the member's data folder.
func (m *Member) Dir() string { return m.dir }

// Peer is where other members reach it.
func (m *Member) Peer() string { return m.peer }

// Running says whether the member runs.
func (m *Member) Running() bool { return m.process != nil }

// PID is the running member's process id.
func (m *Member) PID() int { return m.process.PID() }

// launch starts the member without waiting until it takes part.
func (m *Member) launch(t testing.TB) {
	t.Helper()
	p, err := process.Start(t.Context(), process.Spec{
		Name: "etcd-" + m.name, Path: program(t), LogDir: t.TempDir(),
		Args: append([]string{"-name", m.name, "-dir", m.dir, "-client", m.client, "-peer", m.peer, "-cluster", m.cluster, "-token", m.token}, m.secure...),
	})
	require.NoError(t, err)
	m.process = p
}

// await waits until the member has told of an event.
func (m *Member) await(t testing.TB, event string, times int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	n := 0
	_, err := m.process.WaitEvent(ctx, event, func(e process.Event) bool {
		if e.Name() == event {
			n++
		}
		return n == times
	})
	require.NoError(t, err)
}

// Kill ends the member with SIGKILL. What it had confirmed is on its disk.
func (m *Member) Kill(t testing.TB) {
	t.Helper()
	if m.process == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	require.NoError(t, m.process.Kill(ctx))
	m.process = nil
}

// Restart starts a killed member again on its data and waits until it takes part.
func (m *Member) Restart(t testing.TB) {
	t.Helper()
	m.launch(t)
	m.await(t, "ready", 1)
}

// tell gives the member a command and waits until it is carried out.
func (m *Member) tell(t testing.TB, command, other string) {
	t.Helper()
	before := len(m.process.Events(command))
	require.NoError(t, m.process.Type(command+" "+other))
	m.await(t, command, before+1)
}

// Connect returns a client of these endpoints that is closed when the test ends.
func Connect(t testing.TB, endpoints ...string) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

var building sync.Mutex //nolint:gochecknoglobals // the program is built once for each test binary

var built string //nolint:gochecknoglobals // where it is

// program builds what a member runs. It goes without the race detector, which would slow down etcd and find nothing of ours; with -trimpath, as
// `make build` does, so that what was compiled for one serves the other.
func program(t testing.TB) string {
	t.Helper()
	building.Lock()
	defer building.Unlock()
	if built != "" {
		return built
	}
	dir, err := os.MkdirTemp("", "fenceline-build-") // outlives the test that builds first; the system clears it
	require.NoError(t, err)
	path := filepath.Join(dir, "etcdmember")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", path, "fenceline/internal/etcdtest/cmd/etcdmember").CombinedOutput() //nolint:gosec // our own
	require.NoError(t, err, "%s", out)
	built = path
	return built
}

func (m *Member) String() string { return fmt.Sprintf("%s at %s", m.name, m.client) }
