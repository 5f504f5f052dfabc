package etcdstore_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/authpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"fenceline/internal/etcdtest"
	"fenceline/lockd/etcdstore"
	"fenceline/lockd/lock"
)

// guarded is a member that asks for passwords. The user lockd may do everything under its own prefix and nothing else; the user reader may read there.
func guarded(t *testing.T) *etcdtest.Member {
	t.Helper()
	member := etcdtest.Start(t)
	admin := etcdtest.Connect(t, member.Endpoint())
	ctx := t.Context()
	_, err := admin.UserAdd(ctx, "root", "root-password")
	require.NoError(t, err)
	_, err = admin.UserGrantRole(ctx, "root", "root")
	require.NoError(t, err)
	end := clientv3.GetPrefixRangeEnd(etcdstore.DefaultPrefix)
	for user, permission := range map[string]authpb.Permission_Type{"lockd": clientv3.PermReadWrite, "reader": clientv3.PermRead} {
		_, err = admin.RoleAdd(ctx, user)
		require.NoError(t, err)
		_, err = admin.RoleGrantPermission(ctx, user, etcdstore.DefaultPrefix, end, clientv3.PermissionType(permission))
		require.NoError(t, err)
		_, err = admin.UserAdd(ctx, user, user+"-password")
		require.NoError(t, err)
		_, err = admin.UserGrantRole(ctx, user, user)
		require.NoError(t, err)
	}
	_, err = admin.AuthEnable(ctx)
	require.NoError(t, err)
	return member
}

func as(member *etcdtest.Member, user, password string) etcdstore.Config {
	return etcdstore.Config{Endpoints: []string{member.Endpoint()}, Username: user, Password: password, Timeout: 10 * time.Second}
}

// The whole life of locks under a user who may do nothing beyond lockd's prefix, and on over a restart of the member, which forgets whom it has let in.
func TestUserOfThePrefixIsEnoughAndARestartForgetsNothingThatMatters(t *testing.T) {
	t.Parallel()
	member := guarded(t)
	store := openAt(t, as(member, "lockd", "lockd-password"))
	require.NoError(t, store.Check(t.Context()))
	session, grant := held(t, store, "key")
	use := func() {
		t.Helper()
		_, _, _, err := store.Heartbeat(t.Context(), session.ID)
		require.NoError(t, err)
		for _, ttl := range []time.Duration{30 * time.Second, 40 * time.Second} {
			_, err = store.Extend(t.Context(), "key", grant.Token, ttl)
			require.NoError(t, err)
		}
		again, err := store.Insert(t.Context(), "key", "alice", session.ID, 30*time.Second)
		require.NoError(t, err)
		require.Greater(t, again.Grant.Token, grant.Token)
		grant = again.Grant
		_, _, err = store.Reap(t.Context(), 100)
		require.NoError(t, err)
		require.NoError(t, store.Check(t.Context()))
	}
	use()
	for range 2 {
		member.Kill(t)
		member.Restart(t)
		for stop := time.Now().Add(time.Minute); ; {
			_, err := store.Extend(t.Context(), "key", grant.Token, 40*time.Second)
			if err == nil {
				break
			}
			require.True(t, silence(err), "a member that has forgotten us is no decision: %v", err)
			require.True(t, time.Now().Before(stop), err)
		}
		use()
	}
	_, err := store.Delete(t.Context(), "key", grant.Token)
	require.NoError(t, err)
	_, err = store.CloseSession(t.Context(), session.ID)
	require.NoError(t, err)
}

// Who may not is refused as a defect of the deployment: never as a lock that is lost or free, and nothing is granted.
func TestWrongPasswordAndMissingPermissionAreNoDecisions(t *testing.T) {
	t.Parallel()
	member := guarded(t)
	good := openAt(t, as(member, "lockd", "lockd-password"))
	session, grant := held(t, good, "key")
	for name, config := range map[string]etcdstore.Config{
		"wrong password": as(member, "lockd", "another-password"), "unknown user": as(member, "nobody", "nobody-password"), "no user": as(member, "", ""),
		"only reads": as(member, "reader", "reader-password"), "another prefix": withPrefix(as(member, "lockd", "lockd-password"), "elsewhere/"),
	} {
		store := openAt(t, config)
		reads := name == "only reads"
		if !reads {
			require.Error(t, store.Check(t.Context()), name)
		}
		_, opened := store.OpenSession(t.Context(), "alice", time.Minute)
		_, inserted := store.Insert(t.Context(), "key", "alice", session.ID, time.Minute)
		_, extended := store.Extend(t.Context(), "key", grant.Token, time.Minute)
		_, released := store.Delete(t.Context(), "key", grant.Token)
		_, revoked := store.Revoke(t.Context(), lock.RevokeRequest{Key: "key", Operator: "op", Reason: "it is stuck"})
		_, closed := store.CloseSession(t.Context(), session.ID)
		for call, err := range map[string]error{"open": opened, "acquire": inserted, "renew": extended, "release": released, "revoke": revoked, "close": closed} {
			require.ErrorIs(t, err, etcdstore.ErrRefused, "%s: %s", name, call)
			for _, decision := range []error{lock.ErrLockLost, lock.ErrNotHeld, lock.ErrSessionUnknown, lock.ErrSessionExpired, lock.ErrTokenMismatch, lock.ErrUnknownOutcome} {
				require.False(t, errors.Is(err, decision), "%s: %s: %v", name, call, err)
			}
			require.NotContains(t, err.Error(), "-password", name)
		}
	}
	_, err := good.Extend(t.Context(), "key", grant.Token, time.Minute)
	require.NoError(t, err, "the holder is as before")
}

func withPrefix(config etcdstore.Config, prefix string) etcdstore.Config {
	config.Prefix = prefix
	return config
}
