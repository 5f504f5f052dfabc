package etcdtest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Cluster is several members that are one etcd.
type Cluster struct {
	Members []*Member
}

// StartCluster runs a cluster of that many members until the test ends.
func StartCluster(t testing.TB, size int) *Cluster {
	t.Helper()
	c := &Cluster{}
	var initial []string
	for i := range size {
		m := newMember(t, fmt.Sprintf("m%d", i))
		c.Members = append(c.Members, m)
		initial = append(initial, m.name+"="+m.peer.String())
	}
	t.Cleanup(func() {
		for _, m := range c.Members {
			m.Kill()
		}
	})
	for _, m := range c.Members {
		m.cluster = strings.Join(initial, ",")
		require.NoError(t, m.launch())
	}
	for _, m := range c.Members {
		require.NoError(t, m.await())
	}
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

// Leader waits until all running members that aren't cut off agree on a leader among them, and returns it.
func (c *Cluster) Leader(t testing.TB) *Member {
	t.Helper()
	var leader *Member
	require.Eventually(t, func() bool {
		leader = c.leader()
		return leader != nil
	}, startTimeout, 10*time.Millisecond, "the cluster has no leader")
	return leader
}

// leader is the running member that leads in the highest term: one that was cut off may believe for a while that it still leads.
func (c *Cluster) leader() *Member {
	var found *Member
	for _, m := range c.Members {
		if m.Running() && m.etcd.Server.Leader() == m.etcd.Server.MemberID() && (found == nil || m.etcd.Server.Term() > found.etcd.Server.Term()) {
			found = m
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
func (c *Cluster) CutOff(lonely *Member) { c.each(lonely, func(a, b *Member) { a.etcd.Server.CutPeer(b.etcd.Server.MemberID()) }) }

// Mend takes CutOff back.
func (c *Cluster) Mend(lonely *Member) { c.each(lonely, func(a, b *Member) { a.etcd.Server.MendPeer(b.etcd.Server.MemberID()) }) }

func (c *Cluster) each(lonely *Member, do func(a, b *Member)) {
	for _, m := range c.Members {
		if m != lonely && m.Running() {
			do(m, lonely)
			do(lonely, m)
		}
	}
}
