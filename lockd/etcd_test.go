package main

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fenceline/internal/etcdtest"
	"fenceline/internal/process"
	"fenceline/lockd/lock"
	"fenceline/lockd/lockapi"
	"fenceline/lockd/lockclient"
)

// serveEtcd starts `lockd serve` over etcd on ports of its own and returns the base URLs of API and admin listener.
func serveEtcd(t *testing.T, args ...string) (p *process.Process, api, admin string) {
	t.Helper()
	p = start(t, nil, append([]string{"serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--startup-timeout", "500ms"}, args...)...)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	address, err := p.Address(ctx, "api")
	require.NoError(t, err)
	adminAddress, err := p.Address(ctx, "admin")
	require.NoError(t, err)
	return p, "http://" + address, "http://" + adminAddress
}

// shortDir is a folder whose path leaves room for a socket's name.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "lockd")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return filepath.Join(dir, "d")
}

func kill(t *testing.T, p *process.Process) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	require.NoError(t, p.Kill(ctx))
}

// With a folder and nothing else lockd is a lock service, and kill -9 takes nothing back: grants stay, tokens go on.
func TestEmbeddedEtcdSurvivesItsOwnKill(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	p, base, admin := serveEtcd(t, "--etcd-embedded", dir)
	c := client(t, base)
	grant, err := acquire(t, c, "k", time.Minute)
	require.NoError(t, err)
	status, reason := ready(t, admin)
	require.Equal(t, 200, status, reason)
	require.Contains(t, metricsPage(t, admin), `lock_acquire_seconds_count{backend="etcd",outcome="granted"} 1`)
	for _, path := range []string{dir, filepath.Join(dir, "data")} {
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o700), info.Mode().Perm(), path)
	}

	code, output := run(t, nil, "serve", "--etcd-embedded", dir, "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0")
	require.Equal(t, 1, code)
	require.Contains(t, output, "another lockd runs on this folder")

	kill(t, p)
	p, base, _ = serveEtcd(t, "--etcd-embedded", dir)
	c = client(t, base)
	require.Eventually(t, func() bool {
		_, err := c.Renew(t.Context(), "k", lock.Token(grant.FencingToken), time.Minute)
		require.NotErrorIs(t, err, lock.ErrLockLost, "the grant was durable")
		return err == nil
	}, 20*time.Second, 20*time.Millisecond)
	_, err = acquire(t, c, "k", time.Minute)
	require.ErrorIs(t, err, lockclient.ErrContended)
	next, err := acquire(t, c, "k2", time.Minute)
	require.NoError(t, err)
	require.Greater(t, next.FencingToken, grant.FencingToken)

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	require.NoError(t, p.Stop(ctx))
	require.Zero(t, p.ExitCode(), p.Tail())
	require.NotContains(t, written(t, p), `"event":"etcd"`, "a start and a stop without a fault are quiet")
}

// metricsPage reads /metrics.
func metricsPage(t *testing.T, admin string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, admin+"/metrics", nil)
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer func() { require.NoError(t, response.Body.Close()) }()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return string(body)
}

// Two lockd over one etcd are one lock service, with waiters woken across them; an etcd that is gone is 503 and never LOCK_LOST, at the
// start and later.
func TestReplicasOverEtcdOutliveItsAbsence(t *testing.T) {
	t.Parallel()
	member := etcdtest.Start(t)
	member.Kill(t)
	args := []string{"--backend", "etcd", "--etcd-endpoints", member.Endpoint(), "--store-timeout", "1s"}
	_, firstBase, firstAdmin := serveEtcd(t, args...)
	_, secondBase, _ := serveEtcd(t, args...)
	one, two := client(t, firstBase), client(t, secondBase)
	unavailable := func() {
		t.Helper()
		_, err := one.Renew(t.Context(), "k", 5, time.Second)
		require.ErrorIs(t, err, lock.ErrUnavailable)
		require.NotErrorIs(t, err, lock.ErrLockLost)
		status, reason := ready(t, firstAdmin)
		require.Equal(t, 503, status)
		require.Contains(t, reason, "unavailable")
	}
	unavailable()
	member.Restart(t)
	var grant lockapi.LockGrant
	require.Eventually(t, func() bool {
		var err error
		grant, err = acquire(t, one, "k", time.Minute)
		return err == nil
	}, time.Minute, 20*time.Millisecond, "it recovers without a restart")

	session, err := two.OpenSession(t.Context(), time.Minute)
	require.NoError(t, err)
	waited := make(chan lockapi.LockGrant, 1)
	go func() {
		defer close(waited)
		if got, err := two.AcquireWaiting(t.Context(), "k", session.SessionID, time.Minute, 30*time.Second); err == nil {
			waited <- got
		}
	}()
	require.Eventually(t, func() bool {
		info, err := two.Inspect(t.Context(), "k")
		return err == nil && info.WaiterCount != nil && *info.WaiterCount == 1
	}, time.Minute, 20*time.Millisecond)
	_, err = one.Release(t.Context(), "k", lock.Token(grant.FencingToken))
	require.NoError(t, err)
	next, woken := <-waited
	require.True(t, woken, "the other replica's waiter gets it")
	require.Greater(t, next.FencingToken, grant.FencingToken)

	member.Kill(t)
	unavailable()
	member.Restart(t)
	require.Eventually(t, func() bool {
		_, err := two.Renew(t.Context(), "k", lock.Token(next.FencingToken), time.Minute)
		require.NotErrorIs(t, err, lock.ErrLockLost, "the grant was durable")
		return err == nil
	}, time.Minute, 20*time.Millisecond)
}

func TestEtcdSettingsThatCannotBeMeantAreRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	secret := filepath.Join(dir, "password")
	require.NoError(t, os.WriteFile(secret, []byte("the-password\n"), 0o600))
	open := filepath.Join(dir, "open")
	require.NoError(t, os.WriteFile(open, []byte("the-password\n"), 0o644))
	for want, args := range map[string][]string{
		"want --etcd-endpoints":          {"--backend", "etcd"},
		"missing --database-url":         {"--backend", "pg"},
		"need --backend etcd":            {"--etcd-endpoints", "http://127.0.0.1:1", "--database-url", "postgres://h/d"},
		"want http://host:port":          {"--backend", "etcd", "--etcd-endpoints", "127.0.0.1:1"},
		"use --etcd-user":                {"--backend", "etcd", "--etcd-endpoints", "http://u:the-password@127.0.0.1:1"},
		"sent in the clear":              {"--backend", "etcd", "--etcd-endpoints", "http://192.0.2.1:1", "--etcd-user", "u", "--etcd-password-file", secret},
		"certificates need https":        {"--backend", "etcd", "--etcd-endpoints", "http://127.0.0.1:1", "--etcd-ca", secret},
		"holds no certificate":           {"--backend", "etcd", "--etcd-endpoints", "https://127.0.0.1:1", "--etcd-ca", secret},
		"--etcd-cert and --etcd-key":     {"--backend", "etcd", "--etcd-endpoints", "https://127.0.0.1:1", "--etcd-cert", secret},
		"--etcd-user and --etcd-passwor": {"--backend", "etcd", "--etcd-endpoints", "https://127.0.0.1:1", "--etcd-user", "u"},
		"--etcd-password-file":           {"--backend", "etcd", "--etcd-endpoints", "http://127.0.0.1:1", "--etcd-user", "u", "--etcd-password-file", open},
		"leave out the other":            {"--etcd-embedded", dir, "--etcd-endpoints", "http://127.0.0.1:1"},
		"choose a shorter one":           {"--etcd-embedded", filepath.Join(dir, strings.Repeat("x", 100))},
	} {
		code, output := run(t, nil, append([]string{"serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"}, args...)...)
		require.NotZero(t, code, want)
		require.Contains(t, output, want)
		require.NotContains(t, output, "the-password")
	}
}
