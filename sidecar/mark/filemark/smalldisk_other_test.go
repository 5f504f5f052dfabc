//go:build !linux

package filemark

import "testing"

// smallDisk is a folder for a file that is bounded, as a full disk would.
func smallDisk(t *testing.T) (dir string, o Options) {
	t.Helper()
	return t.TempDir(), Options{MaxSize: 256 << 10}
}
