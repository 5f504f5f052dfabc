// Package etcdtest runs real etcd for tests: members embedded in the test's own process, on loopback, with ports and folders of their own.
package etcdtest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// startTimeout bounds the start of a member on a busy machine.
const startTimeout = 60 * time.Second

// Member is one etcd server. Its address and its data stay the same when it is stopped and started again.
type Member struct {
	name    string
	dir     string
	client  url.URL
	peer    url.URL
	cluster string // name=peer of every member
	etcd    *embed.Etcd
}

// Start runs a single member until the test ends.
func Start(t testing.TB) *Member {
	t.Helper()
	return StartCluster(t, 1).Members[0]
}

// newMember reserves what a member needs.
func newMember(t testing.TB, name string) *Member {
	t.Helper()
	return &Member{name: name, dir: t.TempDir(), client: freeAddress(t), peer: freeAddress(t)}
}

// Ports of members come from below those that systems hand out for outgoing connections: such a connection could take a member's
// port while the member is down.
const (
	firstPort = 10_000
	lastPort  = 30_000
)

// freeAddress finds a port that nobody uses. Somebody may take it before the member does; then the start fails and says so.
func freeAddress(t testing.TB) url.URL {
	t.Helper()
	for range 100 {
		port := firstPort + rand.IntN(lastPort-firstPort) //nolint:gosec // no secret
		l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
		if err != nil {
			continue
		}
		require.NoError(t, l.Close())
		return url.URL{Scheme: "http", Host: l.Addr().String()}
	}
	require.Fail(t, "no free port")
	return url.URL{}
}

// Endpoint is where clients reach the member.
func (m *Member) Endpoint() string { return m.client.String() }

// Dir is the member's data folder.
func (m *Member) Dir() string { return m.dir }

func (m *Member) config() *embed.Config {
	c := embed.NewConfig()
	c.Name, c.Dir = m.name, m.dir
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{m.client}, []url.URL{m.client}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{m.peer}, []url.URL{m.peer}
	c.InitialCluster = m.cluster
	c.EnableGRPCGateway = false
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	return c
}

// launch starts the member without waiting until it takes part.
func (m *Member) launch() error {
	etcd, err := embed.StartEtcd(m.config())
	if err != nil {
		return fmt.Errorf("start etcd member %s: %w", m.name, err)
	}
	m.etcd = etcd
	return nil
}

// await waits until the member takes part in its cluster.
func (m *Member) await() error {
	timeout := time.NewTimer(startTimeout)
	defer timeout.Stop()
	select {
	case <-m.etcd.Server.ReadyNotify():
		return nil
	case err := <-m.etcd.Err():
		return fmt.Errorf("etcd member %s: %w", m.name, err)
	case <-timeout.C:
		return fmt.Errorf("etcd member %s isn't ready after %s", m.name, startTimeout)
	}
}

// Kill ends the member at once: nothing is finished, nobody is told. What it had confirmed is on its disk.
func (m *Member) Kill() {
	if m.etcd == nil {
		return
	}
	m.etcd.Server.HardStop()
	m.etcd.Close()
	m.etcd = nil
}

// Restart starts a killed member again on its data and waits until it takes part.
func (m *Member) Restart(t testing.TB) {
	t.Helper()
	require.NoError(t, m.launch())
	require.NoError(t, m.await())
}

// Running says whether the member runs.
func (m *Member) Running() bool { return m.etcd != nil }

// Connect returns a client of these endpoints that is closed when the test ends.
func Connect(t testing.TB, endpoints ...string) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return client
}
