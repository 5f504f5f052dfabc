package app

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/hashicorp/go-hclog"
	"go.etcd.io/etcd/server/v3/embed"
	"golang.org/x/sys/unix"
)

const (
	// maxSocketPath is what fits into a socket's address everywhere.
	maxSocketPath = 100
	// compactAfter is how much history the member keeps: long enough for a watcher to pick up its thread.
	compactAfter = "10m"
	// memberURL names the member's place in a cluster of one. Nobody listens there.
	memberURL = "http://127.0.0.1:2380"
)

// embedded is a single etcd member in this process. It listens on a unix socket in its own folder and nowhere else; nothing
// outside its user reaches it.
type embedded struct {
	etcd   *embed.Etcd
	socket string
	lock   *os.File
	quiet  atomic.Bool
}

// startEmbedded starts the member on its folder, which it makes if it has to.
func startEmbedded(ctx context.Context, dir string, logger hclog.Logger) (*embedded, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	m := &embedded{socket: filepath.Join(dir, "etcd.sock")}
	if len(m.socket) > maxSocketPath {
		return nil, fmt.Errorf("the folder's path is too long for the socket in it (%d bytes, at most %d); choose a shorter one", len(m.socket), maxSocketPath)
	}
	if err := m.claim(dir); err != nil {
		return nil, err
	}
	if m.etcd, err = embed.StartEtcd(m.config(dir, logger)); err != nil {
		return nil, errors.Join(fmt.Errorf("start etcd: %w", err), m.stop(ctx))
	}
	select {
	case <-m.etcd.Server.ReadyNotify():
		return m, nil
	case err := <-m.etcd.Err():
		return nil, errors.Join(fmt.Errorf("start etcd: %w", err), m.stop(ctx))
	case <-ctx.Done():
		return nil, errors.Join(context.Cause(ctx), m.stop(context.WithoutCancel(ctx)))
	}
}

// claim makes the folder ours alone. Without the lock a second lockd on it would wait without a word for the first one's end.
func (m *embedded) claim(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := os.Chmod(dir, 0o700); err != nil { //nolint:gosec // a folder needs its x
		return fmt.Errorf("the folder must be lockd's alone: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600) //nolint:gosec // the operator names the folder
	if err != nil {
		return err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return errors.Join(fmt.Errorf("another lockd runs on this folder: %w", err), lock.Close())
	}
	m.lock = lock
	return nil
}

func (m *embedded) config(dir string, logger hclog.Logger) *embed.Config {
	c := embed.NewConfig()
	c.Name, c.Dir = "lockd", filepath.Join(dir, "data")
	c.ListenClientUrls = []url.URL{{Scheme: "unix", Path: m.socket}}
	c.AdvertiseClientUrls = c.ListenClientUrls
	peer, _ := url.Parse(memberURL) // a constant
	c.ListenPeerUrls, c.AdvertisePeerUrls = nil, []url.URL{*peer}
	c.InitialCluster = c.Name + "=" + memberURL
	// Only the very first start uses it. Random, so that a data folder restored from a backup has another cluster id, and lockd sees it.
	c.InitialClusterToken = rand.Text()
	c.AutoCompactionMode, c.AutoCompactionRetention = embed.CompactorModePeriodic, compactAfter
	c.EnableGRPCGateway = false
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zapTo(logger, &m.quiet))
	return c
}

func (m *embedded) endpoint() string { return "unix://" + m.socket }

// failed delivers the member's end when nobody asked for it. A nil member never fails.
func (m *embedded) failed() <-chan error {
	if m == nil {
		return nil
	}
	return m.etcd.Err()
}

// stop ends the member; what it has confirmed is on its disk. A nil member is one that never ran.
func (m *embedded) stop(ctx context.Context) error {
	if m == nil {
		return nil
	}
	if m.etcd != nil {
		m.quiet.Store(true)
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			m.etcd.Close()
		}()
		select {
		case <-closed:
		case <-ctx.Done():
			return fmt.Errorf("stop etcd: %w", context.Cause(ctx))
		}
	}
	if m.lock == nil {
		return nil
	}
	return m.lock.Close()
}
