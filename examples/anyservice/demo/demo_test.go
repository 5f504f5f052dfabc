package demo

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fenceline/internal/process"
)

const config = "../sidecar.yaml"

// folderService stands for nginx: it takes PUT and keeps the body under the path's last name.
func folderService(ctx context.Context, dir string) (*Service, error) {
	folder := filepath.Join(dir, "docs")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, err
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		file := filepath.Join(folder, filepath.Base(r.URL.Path))
		_, err := os.Stat(file)
		body, readErr := io.ReadAll(r.Body)
		if readErr != nil || os.WriteFile(file, body, 0o600) != nil {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		if err != nil {
			w.WriteHeader(http.StatusCreated)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})}
	go func() { _ = server.Serve(l) }() // it ends with Stop
	return &Service{Address: l.Addr().String(), Folder: folder, Stop: server.Shutdown}, nil
}

// The demo's promise, and that it notices when it isn't kept: a sidecar that enforces nothing fails the round.
func TestLateWriterIsRefusedBeforeAServiceThatKnowsNothingOfLocks(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(config)
	require.NoError(t, err)
	require.Contains(t, string(text), "admit: newer_or_same\n")
	off := filepath.Join(t.TempDir(), "off.yaml")
	require.NoError(t, os.WriteFile(off, []byte(strings.Replace(string(text), "admit: newer_or_same\n", "admit: newer_or_same\n    mode: off\n", 1)), 0o600))

	var out strings.Builder
	d := &demo{dir: t.TempDir(), Options: Options{
		Lockd: process.Build(t, "fenceline/lockd"), Sidecar: process.Build(t, "fenceline/sidecar"), Config: config, Out: &out, Service: folderService,
	}}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		require.NoError(t, d.close(ctx))
	})
	require.NoError(t, d.startLockd(ctx))
	require.NoError(t, d.round(ctx, false))
	require.NoError(t, d.round(ctx, true))
	require.Contains(t, out.String(), "409 FENCED_OUT")

	d.dir, d.Config = t.TempDir(), off
	require.ErrorContains(t, d.round(ctx, true), `want {status:409 code:FENCED_OUT file:written by B}`)
}
