package etcdtest_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fenceline/internal/etcdtest"
)

// A cluster goes on without its leader, and a killed member comes back with what was confirmed.
func TestClusterOutlivesItsLeader(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.StartCluster(t, 3)
	client := etcdtest.Connect(t, cluster.Endpoints()...)
	put := func(value string) {
		require.Eventually(t, func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			_, err := client.Put(ctx, "k", value)
			return err == nil
		}, time.Minute, 10*time.Millisecond)
	}
	put("1")
	old := cluster.Leader(t)
	old.Kill(t)
	put("2")
	require.NotEqual(t, old, cluster.Leader(t))
	old.Restart(t)
	got, err := etcdtest.Connect(t, old.Endpoint()).Get(t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, "2", string(got.Kvs[0].Value))
}

// A member that is cut off can't confirm anything, and takes part again once it is mended.
func TestMinorityConfirmsNothing(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.StartCluster(t, 3)
	lonely := cluster.Follower(t)
	alone := etcdtest.Connect(t, lonely.Endpoint())
	write := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := alone.Put(ctx, "k", "v")
		return err
	}
	cluster.CutOff(t, lonely)
	require.Error(t, write())
	cluster.Mend(t, lonely)
	require.Eventually(t, func() bool { return write() == nil }, time.Minute, 10*time.Millisecond)
}
