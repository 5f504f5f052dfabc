package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fenceline/internal/credential/credtest"
)

// tlsSidecar has certificates on both sides.
type tlsSidecar struct {
	*fileSidecar
	clients, servers  *credtest.Authority // who issues certificates for clients of the sidecar, and for servers
	certificate, key  string              // the sidecar's own files
	resourceSaw       chan string         // the common name of the certificate that came to the resource
	clientCertificate *tls.Config
}

func newTLSSidecar(t *testing.T) *tlsSidecar {
	t.Helper()
	s := &tlsSidecar{clients: credtest.NewAuthority(t), servers: credtest.NewAuthority(t), resourceSaw: make(chan string, 100)}
	resourceCert, resourceKey := s.servers.Issue("resource", x509.ExtKeyUsageServerAuth, time.Hour)
	pair, err := tls.LoadX509KeyPair(resourceCert, resourceKey)
	require.NoError(t, err)
	resource := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.resourceSaw <- r.TLS.PeerCertificates[0].Subject.CommonName + " " + r.Header.Get("X-Forwarded-Proto")
		_, _ = io.WriteString(w, "done")
	}))
	resource.TLS = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: s.clients.Pool()}
	resource.StartTLS()
	t.Cleanup(resource.Close)

	s.certificate, s.key = s.servers.Issue("sidecar", x509.ExtKeyUsageServerAuth, time.Hour)
	ownCert, ownKey := s.clients.Issue("sidecar-as-client", x509.ExtKeyUsageClientAuth, time.Hour)
	dir := t.TempDir()
	serversCA, clientsCA := filepath.Join(dir, "servers.pem"), filepath.Join(dir, "clients.pem")
	require.NoError(t, os.WriteFile(serversCA, s.servers.PEM(), 0o600))
	require.NoError(t, os.WriteFile(clientsCA, s.clients.PEM(), 0o600))
	s.fileSidecar = newFileSidecar(t, resource.URL)
	text := strings.Replace(fileConfig, `upstream: { url: "${UPSTREAM}", `, fmt.Sprintf("upstream:\n  { url: \"${UPSTREAM}\", tls: { ca_file: %s, certificate_file: %s, key_file: %s }, ", serversCA, ownCert, ownKey), 1) +
		fmt.Sprintf("listen_tls: { certificate_file: %s, key_file: %s, client_ca_file: %s }\n", s.certificate, s.key, clientsCA)
	rewrite(t, s.config, text)
	s.start(t)
	s.clientCertificate = s.servers.Client(s.clients.Issue("worker", x509.ExtKeyUsageClientAuth, time.Hour))
	return s
}

// tryPut sends a write over TLS.
func (s *tlsSidecar) tryPut(t *testing.T, config *tls.Config, token string) (status int, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+s.api+"/docs/7", nil)
	require.NoError(t, err)
	request.Header.Set("X-Fencing-Token", token)
	transport := &http.Transport{TLSClientConfig: config}
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(request)
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }()
	_, err = io.Copy(io.Discard, response.Body)
	return response.StatusCode, err
}

func TestTLSOnBothSidesWithClientCertificates(t *testing.T) {
	t.Parallel()
	s := newTLSSidecar(t)
	for range 3 {
		status, err := s.tryPut(t, s.clientCertificate, "5")
		require.NoError(t, err)
		require.Equal(t, 200, status)
		require.Equal(t, "sidecar-as-client https", <-s.resourceSaw)
	}
	status, err := s.tryPut(t, s.clientCertificate, "4")
	require.NoError(t, err)
	require.Equal(t, 409, status, "fencing is what it is without TLS")

	stranger := credtest.NewAuthority(t)
	for name, config := range map[string]*tls.Config{
		"no certificate":                 s.servers.Client("", ""),
		"somebody else's certificate":    s.servers.Client(stranger.Issue("worker", x509.ExtKeyUsageClientAuth, time.Hour)),
		"an expired certificate":         s.servers.Client(s.clients.Issue("worker", x509.ExtKeyUsageClientAuth, -time.Minute)),
		"a server's certificate":         s.servers.Client(s.clients.Issue("worker", x509.ExtKeyUsageServerAuth, time.Hour)),
		"a client that doesn't trust it": stranger.Client(s.clients.Issue("worker", x509.ExtKeyUsageClientAuth, time.Hour)),
	} {
		_, err := s.tryPut(t, config, "9")
		require.Error(t, err, name)
	}
	// Plain HTTP on this port is nobody's request.
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", s.api)
	require.NoError(t, err)
	defer func() { _ = c.Close() }()
	require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
	_, err = io.WriteString(c, "POST /docs/7 HTTP/1.1\r\nHost: a\r\nX-Fencing-Token: 9\r\nContent-Length: 0\r\n\r\n")
	require.NoError(t, err)
	if response, err := http.ReadResponse(bufio.NewReader(c), nil); err == nil {
		require.GreaterOrEqual(t, response.StatusCode, 400)
		require.NoError(t, response.Body.Close())
	}
	require.Equal(t, int64(5), s.mark(t, "7"), "none of them was admitted")
	require.Empty(t, s.resourceSaw)
}

func TestResourceThatCannotBeBelievedGetsNothing(t *testing.T) {
	t.Parallel()
	s := newTLSSidecar(t)
	text, err := os.ReadFile(s.config)
	require.NoError(t, err)
	rewrite(t, s.config, strings.Replace(string(text), "tls: { ca_file:", "tls: { server_name: other.internal, ca_file:", 1))
	s.eventually(t, "reload", func() bool { return len(s.Events("config_reloaded")) == 1 })
	status, err := s.tryPut(t, s.clientCertificate, "5")
	require.NoError(t, err)
	require.Equal(t, 502, status)
	require.Empty(t, s.resourceSaw)
	require.Equal(t, "1", s.metric(t, `fence_upstream_failures_total{outcome="not_sent"}`))
}

func TestRenewedCertificateIsTakenUpAndABrokenOneIsNot(t *testing.T) {
	t.Parallel()
	s := newTLSSidecar(t)
	serial := func() string {
		c, err := (&tls.Dialer{Config: s.clientCertificate}).DialContext(t.Context(), "tcp", s.api)
		require.NoError(t, err)
		defer func() { _ = c.Close() }()
		secured, ok := c.(*tls.Conn)
		require.True(t, ok)
		return secured.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	first := serial()
	credtest.Write(t, s.certificate, "no certificate")
	s.eventually(t, "the broken one is refused", func() bool { return len(s.Events("config_rejected")) > 0 })
	require.Equal(t, first, serial())
	certificate, key := s.servers.Issue("sidecar", x509.ExtKeyUsageServerAuth, time.Hour)
	for from, to := range map[string]string{key: s.key, certificate: s.certificate} {
		content, err := os.ReadFile(from)
		require.NoError(t, err)
		credtest.Write(t, to, string(content))
	}
	s.eventually(t, "the new one is taken up", func() bool { return serial() != first })
	status, err := s.tryPut(t, s.clientCertificate, "5")
	require.NoError(t, err)
	require.Equal(t, 200, status)
}
