package filemark

import (
	"context"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// smallDisk is a folder with little room: a file system of its own where we may mount one, else nothing, and the file is bounded instead.
func smallDisk(t *testing.T) (dir string, o Options) {
	t.Helper()
	dir = t.TempDir()
	if syscall.Mount("none", dir, "tmpfs", 0, "size=400k") != nil {
		return dir, Options{MaxSize: 256 << 10}
	}
	t.Cleanup(func() { require.NoError(t, exec.CommandContext(context.Background(), "umount", dir).Run()) })
	return dir, Options{}
}
