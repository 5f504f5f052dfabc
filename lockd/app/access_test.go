package app_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"fenceline/internal/credential/credtest"
	"fenceline/lockd/app"
	"fenceline/lockd/lockclient"
)

// noDatabase is a database that isn't there: who may call is decided before it is asked, and whoever may gets 503.
const noDatabase = "postgres://x@127.0.0.1:1/x"

// logged is a log that may be read while it is written.
type logged struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}

// guarded runs lockd in this process without a database.
func guarded(t *testing.T, access app.AccessConfig) (a *app.App, log *logged) {
	t.Helper()
	access.Interval = 10 * time.Millisecond
	log = &logged{}
	a = app.New(app.Config{
		Listen: "127.0.0.1:0", AdminListen: "127.0.0.1:0", DatabaseURL: noDatabase, StoreTimeout: time.Second, StartupTimeout: time.Second, Access: access,
	}, hclog.New(&hclog.LoggerOptions{Output: log, JSONFormat: true}))
	require.NoError(t, a.Start(t.Context()))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		require.NoError(t, a.Stop(ctx))
	})
	return a, log
}

// over makes one request on a connection of its own and returns the status; 0 and the error when there was no answer.
func over(t *testing.T, config *tls.Config, method, url string, headers ...string) (int, error) {
	t.Helper()
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
	request, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	require.NoError(t, err)
	for i := 0; i < len(headers); i += 2 {
		request.Header.Add(headers[i], headers[i+1])
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, response.Body)
	require.NoError(t, err)
	return response.StatusCode, response.Body.Close()
}

// mutual is lockd with TLS and client certificates.
func mutual(t *testing.T, servers, clients *credtest.Authority) (a *app.App, log *logged, bundle string) {
	t.Helper()
	bundle = filepath.Join(t.TempDir(), "ca.pem")
	credtest.Write(t, bundle, string(clients.PEM()))
	certificate, key := servers.Issue("lockd", x509.ExtKeyUsageServerAuth, time.Hour)
	a, log = guarded(t, app.AccessConfig{TLSCert: certificate, TLSKey: key, TLSClientCA: bundle})
	return a, log, bundle
}

func TestOnlyAClientsCertificateFromTheAuthorityIsServed(t *testing.T) {
	t.Parallel()
	servers, clients, strangers := credtest.NewAuthority(t), credtest.NewAuthority(t), credtest.NewAuthority(t)
	a, log, _ := mutual(t, servers, clients)
	base := "https://" + a.Address().String()
	config := func(by *credtest.Authority, usage x509.ExtKeyUsage, validity time.Duration) *tls.Config {
		certificate, key := by.Issue("worker-7", usage, validity)
		return servers.Client(certificate, key)
	}
	good := config(clients, x509.ExtKeyUsageClientAuth, time.Hour)
	status, err := over(t, good, "GET", base+"/v1/locks/k")
	require.NoError(t, err)
	require.Equal(t, 503, status, "known, and only the database is missing")
	status, err = over(t, good, "GET", base+"/v1/locks")
	require.NoError(t, err)
	require.Equal(t, 403, status, "a certificate is a client's")
	require.Contains(t, log.String(), "CN=worker-7 URI:spiffe://test/worker-7", "the audit names it")

	status, err = over(t, servers.Client("", ""), "GET", base+"/v1/locks/k")
	require.NoError(t, err)
	require.Equal(t, 401, status, "no certificate")
	for name, bad := range map[string]*tls.Config{
		"expired":      config(clients, x509.ExtKeyUsageClientAuth, -time.Minute),
		"unknown CA":   config(strangers, x509.ExtKeyUsageClientAuth, time.Hour),
		"for a server": config(clients, x509.ExtKeyUsageServerAuth, time.Hour),
	} {
		_, err := over(t, bad, "GET", base+"/v1/locks/k")
		require.ErrorContains(t, err, "tls: ", name)
	}
	old := servers.Client("", "")
	old.MinVersion, old.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
	_, err = over(t, old, "GET", base+"/v1/locks/k")
	require.ErrorContains(t, err, "protocol version")

	status, err = over(t, nil, "GET", "http://"+a.Address().String()+"/v1/locks/k")
	require.NoError(t, err)
	require.Equal(t, 400, status, "plain HTTP on the TLS port is told so")

	_, metrics := get(t, "http://"+a.AdminAddress().String()+"/metrics")
	for _, series := range []string{
		`lock_callers_refused_total{reason="certificate_missing"} 1`, `lock_callers_refused_total{reason="certificate_refused"} 3`,
		`lock_callers_refused_total{reason="handshake_failed"} 2`, `lock_callers_refused_total{reason="operator_needed"} 1`,
	} {
		require.Contains(t, metrics, series+"\n")
	}
}

// A connection that is open doesn't outlive the trust in its certificate.
func TestCertificateIsJudgedAgainWhenTheAuthorityChanges(t *testing.T) {
	t.Parallel()
	servers, clients, others := credtest.NewAuthority(t), credtest.NewAuthority(t), credtest.NewAuthority(t)
	a, log, bundle := mutual(t, servers, clients)
	certificate, key := clients.Issue("worker", x509.ExtKeyUsageClientAuth, time.Hour)
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: servers.Client(certificate, key)}}
	t.Cleanup(client.CloseIdleConnections)
	ask := func() int {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+a.Address().String()+"/v1/locks/k", nil)
		require.NoError(t, err)
		response, err := client.Do(request)
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, response.Body)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		return response.StatusCode
	}
	require.Equal(t, 503, ask())
	credtest.Write(t, bundle, string(clients.PEM())+string(others.PEM()))
	require.Eventually(t, func() bool { return strings.Contains(log.String(), "credentials_reloaded") }, 10*time.Second, 5*time.Millisecond)
	require.Equal(t, 503, ask(), "still trusted")
	credtest.Write(t, bundle, string(others.PEM()))
	require.Eventually(t, func() bool { return strings.Count(log.String(), "credentials_reloaded") == 2 }, 10*time.Second, 5*time.Millisecond)
	require.Equal(t, 401, ask(), "the same connection")
	_, err := over(t, servers.Client(certificate, key), "GET", "https://"+a.Address().String()+"/v1/locks/k")
	require.Error(t, err, "and a new one")
}

func TestTokensAndServerCertificateAreRotatedWithoutARestart(t *testing.T) {
	t.Parallel()
	servers := credtest.NewAuthority(t)
	certificate, key := servers.Issue("lockd", x509.ExtKeyUsageServerAuth, time.Hour)
	tokens := filepath.Join(t.TempDir(), "tokens")
	const before, after = "before-token-0123456789", "after-token-0123456789"
	credtest.Write(t, tokens, before)
	a, log := guarded(t, app.AccessConfig{TLSCert: certificate, TLSKey: key, ClientTokens: tokens})
	base := "https://" + a.Address().String()
	with := func(token string) int {
		status, err := over(t, servers.Client("", ""), "GET", base+"/v1/locks/k", "Authorization", "Bearer "+token)
		require.NoError(t, err)
		return status
	}
	require.Equal(t, []int{503, 401}, []int{with(before), with(after)})
	credtest.Write(t, tokens, before+"\n"+after)
	require.Eventually(t, func() bool { return with(after) == 503 }, 10*time.Second, 5*time.Millisecond)
	require.Equal(t, 503, with(before))
	credtest.Write(t, tokens, after)
	require.Eventually(t, func() bool { return with(before) == 401 }, 10*time.Second, 5*time.Millisecond)

	require.NoError(t, os.Remove(tokens))
	require.Eventually(t, func() bool { return strings.Contains(log.String(), "credentials_rejected") }, 10*time.Second, 5*time.Millisecond)
	require.Equal(t, 503, with(after), "the last good ones stay")
	_, metrics := get(t, "http://"+a.AdminAddress().String()+"/metrics")
	require.Contains(t, metrics, `lock_credentials_rejected_total{source="client_tokens"} 1`+"\n")
	require.Contains(t, metrics, `lock_credentials_rejected_total{source="tls"} 0`+"\n")

	newCertificate, newKey := servers.Issue("lockd-new", x509.ExtKeyUsageServerAuth, time.Hour)
	for from, to := range map[string]string{newCertificate: certificate, newKey: key} {
		content, err := os.ReadFile(from)
		require.NoError(t, err)
		credtest.Write(t, to, string(content))
	}
	require.Eventually(t, func() bool {
		connection, err := (&tls.Dialer{Config: servers.Client("", "")}).DialContext(t.Context(), "tcp", a.Address().String())
		require.NoError(t, err)
		defer func() { require.NoError(t, connection.Close()) }()
		return connection.(*tls.Conn).ConnectionState().PeerCertificates[0].Subject.CommonName == "lockd-new"
	}, 10*time.Second, 20*time.Millisecond)
	require.NotContains(t, log.String(), "token-0123456789")
}

func TestAccessThatCannotBeAsConfiguredKeepsLockdFromStarting(t *testing.T) {
	t.Parallel()
	authority := credtest.NewAuthority(t)
	certificate, key := authority.Issue("lockd", x509.ExtKeyUsageServerAuth, time.Hour)
	write := func(name, content string, mode os.FileMode) string {
		path := filepath.Join(t.TempDir(), name)
		credtest.Write(t, path, content)
		require.NoError(t, os.Chmod(path, mode))
		return path
	}
	const token = "the-token-0123456789"
	shown := write("shown", token, 0o644)
	for says, access := range map[string]app.AccessConfig{
		"client_tokens: open /nowhere":            {ClientTokens: "/nowhere"},
		"client_tokens: " + shown + ": everybody": {ClientTokens: shown},
		"there is no token in it":                 {OperatorTokens: write("empty", "", 0o600)},
		"line 1: want 16":                         {OperatorTokens: write("short", "secret", 0o600)},
		"want both or none":                       {TLSCert: certificate},
		"client certificates need TLS":            {TLSClientCA: certificate},
		"everybody on this machine":               {TLSCert: certificate, TLSKey: write("key", "x", 0o644)},
		"there is no certificate in PEM":          {TLSCert: certificate, TLSKey: key, TLSClientCA: write("ca", "x", 0o644)},
		"tls: " + certificate:                     {TLSCert: certificate, TLSKey: write("other", "x", 0o600)},
	} {
		err := attempt(t, app.Config{DatabaseURL: noDatabase, Access: access})
		require.ErrorContains(t, err, says)
		require.NotContains(t, err.Error(), token)
	}
	err := attempt(t, app.Config{DatabaseURL: noDatabase, Listen: "unix:" + t.TempDir() + "/s", Access: app.AccessConfig{TLSCert: certificate, TLSKey: key}})
	require.ErrorContains(t, err, "a unix socket, which has no TLS")
	require.ErrorContains(t, attempt(t, app.Config{DatabaseURL: noDatabase, MaxConnections: -1}), "--max-connections")
}

// An address that others reach needs somebody who is asked: TLS alone asks nobody.
func TestBindingToTheNetworkNeedsCallersWhoAreAsked(t *testing.T) {
	t.Parallel()
	authority := credtest.NewAuthority(t)
	certificate, key := authority.Issue("lockd", x509.ExtKeyUsageServerAuth, time.Hour)
	tokens, bundle := filepath.Join(t.TempDir(), "tokens"), filepath.Join(t.TempDir(), "ca")
	credtest.Write(t, tokens, "the-token-0123456789")
	credtest.Write(t, bundle, string(authority.PEM()))
	for name, c := range map[string]struct {
		access app.AccessConfig
		fine   bool
	}{
		"nothing":             {app.AccessConfig{}, false},
		"TLS":                 {app.AccessConfig{TLSCert: certificate, TLSKey: key}, false},
		"operators' tokens":   {app.AccessConfig{OperatorTokens: tokens}, false},
		"clients' tokens":     {app.AccessConfig{ClientTokens: tokens}, true},
		"client certificates": {app.AccessConfig{TLSCert: certificate, TLSKey: key, TLSClientCA: bundle}, true},
	} {
		err := attempt(t, app.Config{DatabaseURL: noDatabase, Listen: "0.0.0.0:0", Access: c.access})
		if c.fine {
			require.NoError(t, err, name)
		} else {
			require.ErrorContains(t, err, "--allow-any-host", name)
		}
		require.ErrorContains(t, attempt(t, app.Config{DatabaseURL: noDatabase, AdminListen: "0.0.0.0:0", Access: c.access}), "--allow-any-host", "the admin listener asks nobody")
	}
}

func TestTokensAreAskedForOnAUnixSocketToo(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "lockd") // t.TempDir can be too long for a socket's path
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	tokens := filepath.Join(dir, "tokens")
	credtest.Write(t, tokens, "the-token-0123456789")
	log := &logged{}
	a := app.New(app.Config{
		Listen: "unix:" + dir + "/api", AdminListen: "unix:" + dir + "/admin", DatabaseURL: noDatabase, StoreTimeout: time.Second, StartupTimeout: time.Second,
		Access: app.AccessConfig{ClientTokens: tokens},
	}, hclog.New(&hclog.LoggerOptions{Output: log, JSONFormat: true}))
	require.NoError(t, a.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, a.Stop(context.Background())) })
	ask := func(socket, request string) string {
		connection, err := (&net.Dialer{}).DialContext(t.Context(), "unix", filepath.Join(dir, socket))
		require.NoError(t, err)
		defer func() { require.NoError(t, connection.Close()) }()
		_, err = fmt.Fprintf(connection, "%s HTTP/1.1\r\nHost: lockd\r\nConnection: close\r\n\r\n", request)
		require.NoError(t, err)
		answer, err := io.ReadAll(connection)
		require.NoError(t, err)
		return string(answer)
	}
	require.Contains(t, ask("api", "GET /v1/locks/k"), "401 Unauthorized")
	require.NotContains(t, ask("admin", "GET /v1/locks"), "401 Unauthorized", "whoever may open the admin socket is an operator")
	require.Contains(t, log.String(), `"remote":"unix"`)
}

// What is looked at is the socket below TLS; the connection goes on afterwards.
func TestWaiterOverTLSThatHangsUpLeavesTheQueue(t *testing.T) {
	t.Parallel()
	servers := credtest.NewAuthority(t)
	config := databaseConfig(t)
	config.Access.TLSCert, config.Access.TLSKey = servers.Issue("lockd", x509.ExtKeyUsageServerAuth, time.Hour)
	address := started(t, config).Address().String()
	transport := &http.Transport{TLSClientConfig: servers.Client("", "")}
	t.Cleanup(transport.CloseIdleConnections)
	holder, err := lockclient.New("https://"+address, "holder", &http.Client{Transport: transport})
	require.NoError(t, err)
	_, token := hold(t, holder, "k")
	other, err := lockclient.New("https://"+address, "waiter", &http.Client{Transport: transport})
	require.NoError(t, err)
	session, err := other.OpenSession(t.Context(), time.Minute)
	require.NoError(t, err)
	wait := func() *tls.Conn {
		connection, err := (&tls.Dialer{Config: servers.Client("", "")}).DialContext(t.Context(), "tcp", address)
		require.NoError(t, err)
		t.Cleanup(func() { _ = connection.Close() })
		body := fmt.Sprintf(`{"sessionId":%q,"waitMillis":30000}`, session.SessionID)
		_, err = fmt.Fprintf(connection, "POST /v1/locks/k/acquire HTTP/1.1\r\nHost: lockd\r\nX-Owner-Id: waiter\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		require.NoError(t, err)
		waitersBecome(t, holder, 1)
		return connection.(*tls.Conn)
	}
	require.NoError(t, wait().Close())
	waitersBecome(t, holder, 0)

	patient := wait()
	_, err = holder.Release(t.Context(), "k", token)
	require.NoError(t, err)
	answers := bufio.NewReader(patient)
	for _, next := range []string{"GET /v1/locks/k HTTP/1.1\r\nHost: lockd\r\n\r\n", "GET /v1/locks/k HTTP/1.1\r\nHost: lockd\r\nConnection: close\r\n\r\n"} {
		response, err := http.ReadResponse(answers, nil)
		require.NoError(t, err)
		require.Equal(t, 200, response.StatusCode)
		_, err = io.Copy(io.Discard, response.Body)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		_, err = io.WriteString(patient, next)
		require.NoError(t, err)
	}
}
