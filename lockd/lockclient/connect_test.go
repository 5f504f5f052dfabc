package lockclient_test

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fenceline/lockd/lockclient"
)

// inspected answers every call like L7 and says what it was sent.
func inspected(got *http.Header) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		*got = r.Header.Clone()
		_, _ = io.WriteString(w, `{"key":"k","held":false}`)
	}
}

func TestLockdIsReachedThroughASocket(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "lockd.sock")
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "unix", socket)
	require.NoError(t, err)
	var got http.Header
	server := &http.Server{Handler: inspected(&got), ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	for _, address := range []string{"unix:" + socket, "unix://" + socket, "http+unix://" + url.PathEscape(socket)} {
		c, err := lockclient.Connect("w", lockclient.Options{URL: address})
		require.NoError(t, err)
		_, err = c.Inspect(t.Context(), "k")
		require.NoError(t, err, address)
		c.CloseIdleConnections()
	}
	_, err = lockclient.Connect("w", lockclient.Options{URL: "unix:" + socket, HTTPClient: &http.Client{}})
	require.ErrorContains(t, err, "leave HTTPClient out")
	for _, address := range []string{"unix:", "unix:relative", "unix:/", "unix://host/path", "http+unix://", "http+unix://relative"} {
		_, err := lockclient.Connect("w", lockclient.Options{URL: address})
		require.ErrorContains(t, err, "want a URL", address)
	}
}

func TestLockdIsReachedOverTLSByWhoItBelieves(t *testing.T) {
	t.Parallel()
	var got http.Header
	server := httptest.NewTLSServer(inspected(&got))
	t.Cleanup(server.Close)
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	c, err := lockclient.Connect("w", lockclient.Options{URL: server.URL, TLS: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}})
	require.NoError(t, err)
	_, err = c.Inspect(t.Context(), "k")
	require.NoError(t, err)
	c.CloseIdleConnections()

	stranger, err := lockclient.Connect("w", lockclient.Options{URL: server.URL})
	require.NoError(t, err)
	_, err = stranger.Inspect(t.Context(), "k")
	require.ErrorIs(t, err, lockclient.ErrNoAnswer)
	require.ErrorContains(t, err, "certificate")
}

func TestBearerTokenIsReadFromItsFileForEachCall(t *testing.T) {
	t.Parallel()
	var got http.Header
	server := httptest.NewServer(inspected(&got))
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "token")
	c, err := lockclient.Connect("w", lockclient.Options{URL: server.URL, TokenFile: file})
	require.NoError(t, err)
	t.Cleanup(c.CloseIdleConnections)
	for _, token := range []string{"first-secret", "second-secret"} {
		require.NoError(t, os.WriteFile(file, []byte(token+"\n"), 0o600))
		_, err = c.Inspect(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, "Bearer "+token, got.Get("Authorization"))
	}
	got = nil
	for _, bad := range []string{"", "two-secret words", "line-secret\nline", strings.Repeat("x", 9<<10)} {
		require.NoError(t, os.WriteFile(file, []byte(bad), 0o600))
		_, err = c.Inspect(t.Context(), "k")
		require.ErrorContains(t, err, file)
		require.NotContains(t, err.Error(), "secret")
	}
	require.NoError(t, os.Remove(file))
	_, err = c.Inspect(t.Context(), "k")
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NotErrorIs(t, err, lockclient.ErrNoAnswer, "nothing was sent")
	require.Nil(t, got)
}

func TestEnvironmentNamesLockd(t *testing.T) {
	t.Setenv("LOCKD_URL", "unix:/run/lockd.sock")
	t.Setenv("LOCKD_TOKEN_FILE", "/run/secrets/lockd")
	o := lockclient.FromEnv()
	require.Equal(t, "unix:/run/lockd.sock", o.URL)
	require.Equal(t, "/run/secrets/lockd", o.TokenFile)
}

// A request that waits has its own time on top of the client's.
func TestWaitingHasItsOwnTime(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		select {
		case <-time.After(300 * time.Millisecond):
			w.Header().Set("X-Fencing-Token", "7")
			_, _ = io.WriteString(w, `{"key":"k","fencingToken":7,"ttlMillis":1000,"grantedAfterMillis":290}`)
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(server.Close)
	c, err := lockclient.Connect("w", lockclient.Options{URL: server.URL, Timeout: 100 * time.Millisecond})
	require.NoError(t, err)
	t.Cleanup(c.CloseIdleConnections)
	grant, err := c.AcquireWaiting(t.Context(), "k", "s", 0, 10*time.Second)
	require.NoError(t, err)
	require.EqualValues(t, 290, grant.GrantedAfterMillis)
	_, err = c.Acquire(t.Context(), "k", "s", 0)
	require.ErrorIs(t, err, lockclient.ErrNoAnswer)
}
