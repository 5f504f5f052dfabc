package etcdtest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Cluster is several members that are one etcd.
type Cluster struct {
	Members []*Member
	client  *clientv3.Client
}

// StartCluster runs a cluster of that many members until the test ends.
func StartCluster(t testing.TB, size int) *Cluster {
	t.Helper()
	c := &Cluster{}
	var initial []string
	for i := range size {
		m := newMember(t, fmt.Sprintf("m%d", i))
		c.Members = append(c.Members, m)
		initial = append(initial, m.name+"="+m.peer)
		t.Cleanup(func() { m.Kill(t) })
	}
	for _, m := range c.Members {
		m.cluster = strings.Join(initial, ",")
		m.launch(t)
	}
	for _, m := range c.Members {
		m.await(t, "ready", 1)
	}
	c.client = Connect(t, c.Endpoints()...)
	return c
}

// Endpoints are the client addresses of all members, running or not.
func (c *Cluster) Endpoints() []string {
	var endpoints []string
	for _, m := range c.Members {
		endpoints = append(endpoints, m.Endpoint())
	}
	return endpoints
}

// Leader waits until a running member leads, and returns it. Of several that believe so the one of the highest term does: one that was cut off may
// believe it for a while.
func (c *Cluster) Leader(t testing.TB) *Member {
	t.Helper()
	var leader *Member
	require.Eventually(t, func() bool {
		leader = c.leader(t.Context())
		return leader != nil
	}, startTimeout, 20*time.Millisecond, "the cluster has no leader")
	return leader
}

func (c *Cluster) leader(ctx context.Context) *Member {
	var found *Member
	var term uint64
	for _, m := range c.Members {
		if !m.Running() {
			continue
		}
		one, cancel := context.WithTimeout(ctx, 2*time.Second)
		status, err := c.client.Status(one, m.Endpoint())
		cancel()
		if err == nil && status.Leader == status.Header.MemberId && status.RaftTerm > term {
			found, term = m, status.RaftTerm
		}
	}
	return found
}

// Follower returns a running member that doesn't lead.
func (c *Cluster) Follower(t testing.TB) *Member {
	t.Helper()
	leader := c.Leader(t)
	for _, m := range c.Members {
		if m != leader && m.Running() {
			return m
		}
	}
	require.Fail(t, "no follower runs")
	return nil
}

// CutOff parts a member from the others, both ways. Clients still reach it.
func (c *Cluster) CutOff(t testing.TB, lonely *Member) {
	t.Helper()
	c.each(t, lonely, "cut")
}

// Mend takes CutOff back.
func (c *Cluster) Mend(t testing.TB, lonely *Member) {
	t.Helper()
	c.each(t, lonely, "mend")
}

func (c *Cluster) each(t testing.TB, lonely *Member, command string) {
	t.Helper()
	for _, m := range c.Members {
		if m != lonely && m.Running() {
			m.tell(t, command, lonely.name)
			lonely.tell(t, command, m.name)
		}
	}
}
