package lockclient_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// fromDocs is a block of docs/client.md.
func fromDocs(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/client.md")
	require.NoError(t, err)
	block := regexp.MustCompile("(?s)<!-- built by a test: " + regexp.QuoteMeta(name) + " -->\n```[a-z]*\n(.*?)```").FindSubmatch(text)
	require.NotNil(t, block, "docs/client.md shows no %s", name)
	return string(block[1])
}

// The program of the docs, in a module of its own outside of this one, with the replace line that the docs give: it builds, and works.
func TestProgramOfTheDocsBuildsOutsideOfThisModule(t *testing.T) {
	t.Parallel()
	url, err := realLockd()
	require.NoError(t, err)
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	dir := t.TempDir()
	module := fromDocs(t, "go.mod")
	require.Contains(t, module, "=> ../fenceline\n")
	module = strings.Replace(module, "=> ../fenceline\n", "=> "+root+"\n", 1)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.mod"), []byte(module), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(fromDocs(t, "main.go")), 0o600))
	build := exec.CommandContext(t.Context(), "go", "build", "-mod=mod", "-o", "worker", ".")
	build.Dir = dir
	build.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)

	after, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	require.NoError(t, err)
	for _, unwanted := range []string{"pgx", "etcd", "fasthttp", "prometheus"} {
		require.NotContains(t, string(after), unwanted, "whoever uses the client gets no database driver with it")
	}

	worker := exec.CommandContext(t.Context(), filepath.Join(dir, "worker"))
	worker.Env = append(os.Environ(), "LOCKD_URL="+url, "SIDECAR_URL=")
	out, err = worker.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Regexp(t, `token [1-9][0-9]*\n$`, string(out))
}
