package etcdtest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"
)

// Snapshot takes a backup of a running member, as `etcdctl snapshot save` does, and returns its path.
func (m *Member) Snapshot(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "snapshot.db")
	_, err := snapshot.NewV3(zap.NewNop()).Save(t.Context(), clientv3.Config{Endpoints: []string{m.client}, Logger: zap.NewNop()}, path)
	require.NoError(t, err)
	return path
}

// Restore makes a killed member, the only one of its cluster, begin anew from a backup at its next start, as `etcdutl snapshot restore` does. Name and addresses
// stay the same; its consensus begins a history of its own.
func (m *Member) Restore(t testing.TB, path string) {
	t.Helper()
	require.False(t, m.Running(), "a running member isn't restored")
	dir := filepath.Join(t.TempDir(), "restored")
	require.NoError(t, snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath: path, Name: m.name, OutputDataDir: dir, OutputWALDir: filepath.Join(dir, "member", "wal"),
		PeerURLs: []string{m.peer}, InitialCluster: m.cluster, InitialClusterToken: m.token,
	}))
	m.dir = dir
}

// CopyDisk copies a killed member's data folder, as a disk snapshot does, and returns the copy.
func (m *Member) CopyDisk(t testing.TB) string {
	t.Helper()
	require.False(t, m.Running(), "a running member's files aren't copied")
	dir := filepath.Join(t.TempDir(), "copy")
	require.NoError(t, os.CopyFS(dir, os.DirFS(m.dir)))
	require.NoError(t, os.Chmod(dir, 0o700)) //nolint:gosec // a folder
	return dir
}

// Use makes a killed member run on another data folder from its next start on.
func (m *Member) Use(t testing.TB, dir string) {
	t.Helper()
	require.False(t, m.Running(), "a running member keeps its folder")
	m.dir = dir
}
