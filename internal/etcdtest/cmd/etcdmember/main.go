// Etcdmember runs one member of an etcd cluster for tests, so that they can kill it and part it from the others. Lines on its standard
// input are commands: "cut NAME" parts it from another member, "mend NAME" takes that back.
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"fenceline/internal/daemon"
)

const startTimeout = time.Minute

func main() {
	name := flag.String("name", "m0", "the member's name")
	dir := flag.String("dir", "", "its data folder")
	client := flag.String("client", "", "the URL for clients")
	peer := flag.String("peer", "", "the URL for other members")
	cluster := flag.String("cluster", "", "name=peer of all members, with commas")
	token := flag.String("token", "fenceline-test", "what tells this cluster from others")
	var tls transport.TLSInfo
	flag.StringVar(&tls.CertFile, "cert", "", "the certificate that clients see; without one they aren't encrypted")
	flag.StringVar(&tls.KeyFile, "key", "", "its key")
	flag.StringVar(&tls.TrustedCAFile, "client-ca", "", "the authority whose certificates clients must have")
	flag.Parse()
	logger, err := daemon.NewLogger("etcdmember", "info", os.Stderr)
	if err == nil {
		err = run(logger, *name, *dir, *client, *peer, *cluster, *token, tls)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "etcdmember:", err)
		os.Exit(1)
	}
}

func run(logger hclog.Logger, name, dir, client, peer, cluster, token string, tls transport.TLSInfo) error {
	clientURL, err := url.Parse(client)
	if err != nil {
		return err
	}
	peerURL, err := url.Parse(peer)
	if err != nil {
		return err
	}
	c := embed.NewConfig()
	c.Name, c.Dir, c.InitialCluster, c.InitialClusterToken = name, dir, cluster, token
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{*clientURL}, []url.URL{*clientURL}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{*peerURL}, []url.URL{*peerURL}
	c.EnableGRPCGateway = false
	c.BcryptCost = 4 // the least that there is: passwords here are no secrets
	c.ClientTLSInfo = tls
	c.ClientTLSInfo.ClientCertAuth = tls.TrustedCAFile != ""
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	etcd, err := embed.StartEtcd(c)
	if err != nil {
		return err
	}
	timeout := time.NewTimer(startTimeout)
	defer timeout.Stop()
	select {
	case <-etcd.Server.ReadyNotify():
		logger.Info("ready", "event", "ready")
	case err := <-etcd.Err():
		return err
	case <-timeout.C:
		return errors.New("the cluster doesn't come about")
	}
	obey(etcd, logger)
	return <-etcd.Err()
}

// obey reads commands until the test ends.
func obey(etcd *embed.Etcd, logger hclog.Logger) {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		do := etcd.Server.CutPeer
		command, name, _ := strings.Cut(lines.Text(), " ")
		if command == "mend" {
			do = etcd.Server.MendPeer
		}
		for _, member := range etcd.Server.Cluster().Members() {
			if member.Name == name {
				do(member.ID)
			}
		}
		logger.Info("done", "event", command, "name", name)
	}
}
