package pgserver

import (
	"archive/tar"
	"compress/gzip"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func writeArchive(t *testing.T, files map[string]string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "a.tgz")
	file, err := os.Create(path)
	require.NoError(t, err)
	zipped := gzip.NewWriter(file)
	writer := tar.NewWriter(zipped)
	for name, content := range files {
		require.NoError(t, writer.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(content))}))
		_, err := writer.Write([]byte(content))
		require.NoError(t, err)
	}
	require.NoError(t, writer.Close())
	require.NoError(t, zipped.Close())
	require.NoError(t, file.Close())
	return path
}
