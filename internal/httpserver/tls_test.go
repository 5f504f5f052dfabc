package httpserver_test

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fenceline/internal/httpserver"
)

func TestTLSServerAnswersHTTPSAndTellsPlainHTTPWhatIsWrong(t *testing.T) {
	t.Parallel()
	authority := httptest.NewUnstartedServer(http.NotFoundHandler()) // only for its certificate
	authority.StartTLS()
	authority.Close()
	failed := make(chan error, 8)
	address, _ := serve(t, httpserver.Config{
		TLS:             &tls.Config{Certificates: authority.TLS.Certificates, MinVersion: tls.VersionTLS12},
		HandshakeFailed: func(_ net.Addr, err error) { failed <- err },
		MaxConnections:  3,
	}, nil)
	transport := authority.Client().Transport.(*http.Transport)
	transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", address)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://example.com/", nil)
	require.NoError(t, err)
	response, err := transport.RoundTrip(request)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, 204, response.StatusCode)

	got := ask(t, dial(t, address), "GET /v1/locks/k HTTP/1.1\r\nHost: h\r\n\r\n")
	require.Equal(t, 400, got.status)
	require.Contains(t, got.envelope.Message, "https")
	require.ErrorAs(t, <-failed, &tls.RecordHeaderError{})

	// What is neither is closed without words, and so is what comes on top of a full server: a refusal couldn't be read before a handshake.
	silent := dial(t, address)
	_, err = silent.Write([]byte("\x00\x01\x02\x03\x04\x05\x06\x07"))
	require.NoError(t, err)
	require.Error(t, <-failed)
	dial(t, address)
	dial(t, address)
	require.Eventually(t, func() bool {
		extra := dial(t, address)
		_, err := extra.Read(make([]byte, 1))
		return err != nil
	}, 10*time.Second, 20*time.Millisecond)
	transport.CloseIdleConnections()
}
