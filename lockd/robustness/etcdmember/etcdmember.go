// Package etcdmember gives the soak and the benchmark an etcd of their own, in a process of its own: their own program, started again with the command that is here.
package etcdmember

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"go.etcd.io/etcd/server/v3/embed"

	"fenceline/internal/process"
)

// Command is a single etcd member with etcd's own settings: it syncs every entry of its log. A program that calls Start has it as its command "etcd".
type Command struct {
	Dir    string `help:"Data folder." required:""`
	Client string `help:"Address for clients." required:""`
	Peer   string `help:"Address for members." required:""`
}

// Run serves until a signal ends it.
func (c *Command) Run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	config := embed.NewConfig()
	config.Name, config.Dir = "single", c.Dir
	client, peer := url.URL{Scheme: "http", Host: c.Client}, url.URL{Scheme: "http", Host: c.Peer}
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	config.ListenPeerUrls, config.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	config.InitialCluster = config.Name + "=" + peer.String()
	config.LogLevel = "error"
	server, err := embed.StartEtcd(config)
	if err != nil {
		return fmt.Errorf("start etcd: %w", err)
	}
	defer server.Close()
	select {
	case <-ctx.Done():
		return nil
	case err := <-server.Err():
		return fmt.Errorf("etcd: %w", err)
	}
}

// Start starts this program's command "etcd" with its data below dir and its log there. The address is host:port, for clients; whoever
// connects waits until it answers.
func Start(ctx context.Context, dir string) (p *process.Process, address string, err error) {
	address, peer, err := TwoPorts(ctx)
	if err != nil {
		return nil, "", err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, "", fmt.Errorf("find this program: %w", err)
	}
	p, err = process.Start(ctx, process.Spec{
		Name: "etcd", Path: self, LogDir: dir, FileOnly: true,
		Args: []string{"etcd", "--dir", filepath.Join(dir, "etcd"), "--client", address, "--peer", peer},
	})
	return p, address, err
}

// TwoPorts finds two ports that nobody uses at this moment.
func TwoPorts(ctx context.Context) (first, second string, err error) {
	var config net.ListenConfig
	a, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", "", fmt.Errorf("find a free port: %w", err)
	}
	b, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", "", fmt.Errorf("find a free port: %w", errors.Join(err, a.Close()))
	}
	return a.Addr().String(), b.Addr().String(), errors.Join(a.Close(), b.Close())
}
