package app_test

import (
	"crypto/x509"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"fenceline/internal/credential/credtest"
	"fenceline/internal/etcdtest"
	"fenceline/lockd/app"
	"fenceline/lockd/lock"
	"fenceline/lockd/lockapi"
)

// lockd and etcd know each other by certificates. Where one of them doesn't, lockd isn't ready and says no more than that it can't ask.
func TestEtcdIsMetOverTLSWithCertificatesOnBothSides(t *testing.T) {
	t.Parallel()
	authority, stranger := credtest.NewAuthority(t), credtest.NewAuthority(t)
	dir := t.TempDir()
	ca, strangersCA := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "stranger.pem")
	credtest.Write(t, ca, string(authority.PEM()))
	credtest.Write(t, strangersCA, string(stranger.PEM()))
	// Etcd also calls itself with this certificate.
	serverCert, serverKey := authority.Issue("etcd", x509.ExtKeyUsageServerAuth, time.Hour)
	member := etcdtest.StartSecure(t, serverCert, serverKey, ca)
	cert, key := authority.Issue("lockd", x509.ExtKeyUsageClientAuth, time.Hour)
	strangersCert, strangersKey := stranger.Issue("lockd", x509.ExtKeyUsageClientAuth, time.Hour)
	oldCert, oldKey := authority.Issue("lockd", x509.ExtKeyUsageClientAuth, -time.Minute)
	at := func(ca, cert, key string) app.Config {
		return app.Config{Backend: "etcd", Etcd: app.EtcdConfig{Endpoints: []string{member.Endpoint()}, CA: ca, Cert: cert, Key: key}}
	}

	base, admin := start(t, at(ca, cert, key))
	c := client(t, base, "worker")
	var token lock.Token
	require.Eventually(t, func() bool {
		session, err := c.OpenSession(t.Context(), time.Minute)
		if err != nil {
			return false
		}
		grant, err := c.Acquire(t.Context(), "k", session.SessionID, time.Minute)
		token = lock.Token(grant.FencingToken)
		return err == nil
	}, time.Minute, 10*time.Millisecond)
	_, err := c.Renew(t.Context(), "k", token, time.Minute)
	require.NoError(t, err)
	status, _ := get(t, admin+"/readyz")
	require.Equal(t, http.StatusOK, status)

	for name, config := range map[string]app.Config{
		"no certificate": at(ca, "", ""), "a stranger's certificate": at(ca, strangersCert, strangersKey),
		"etcd is a stranger": at(strangersCA, cert, key),
	} {
		base, admin := start(t, config)
		status, _ := get(t, admin+"/readyz")
		require.Equal(t, http.StatusServiceUnavailable, status, name)
		status, answer := send(t, "POST", base+"/v1/locks/k/renew", "", "X-Owner-Id", "worker", "X-Fencing-Token", token.String())
		require.Equal(t, http.StatusServiceUnavailable, status, name)
		require.Equal(t, lockapi.CodeBackendUnavailable, answer.Code, name)
		require.NotContains(t, answer.Details, "outcome", "nothing has left for a server that isn't the one: %s", name)
	}
	old := app.New(at(ca, oldCert, oldKey), hclog.NewNullLogger())
	require.ErrorContains(t, old.Start(t.Context()), "--etcd-cert: etcd_tls: "+oldCert+": the certificate has been over since")
	_, err = c.Renew(t.Context(), "k", token, time.Minute)
	require.NoError(t, err, "the lock is as before")
}
