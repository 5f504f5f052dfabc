// Package credtest issues certificates for tests.
package credtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"time"
)

// testingT is what this package needs of a *testing.T.
type testingT interface {
	Helper()
	Fatalf(format string, args ...any)
	TempDir() string
}

// Authority issues certificates.
type Authority struct {
	t           testingT
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// NewAuthority makes an authority.
func NewAuthority(t testingT) *Authority {
	t.Helper()
	a := &Authority{t: t, key: newKey(t)}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	a.certificate = a.sign(template, template, a.key)
	return a
}

// PEM is the authority's own certificate.
func (a *Authority) PEM() []byte { return encode("CERTIFICATE", a.certificate.Raw) }

// Pool has the authority's certificate.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.certificate)
	return pool
}

// Issue makes a certificate for a name, for servers at 127.0.0.1 or for clients, that ends after validity, which may be negative. It returns
// the paths of certificate and key.
func (a *Authority) Issue(name string, usage x509.ExtKeyUsage, validity time.Duration) (certificate, key string) {
	a.t.Helper()
	private := newKey(a.t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, ExtKeyUsage: []x509.ExtKeyUsage{usage},
		KeyUsage: x509.KeyUsageDigitalSignature, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(validity),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, URIs: []*url.URL{{Scheme: "spiffe", Host: "test", Path: "/" + name}},
	}
	signed := a.sign(template, a.certificate, private)
	encoded, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		a.t.Fatalf("encode key: %v", err)
	}
	dir := a.t.TempDir()
	certificate, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	Write(a.t, certificate, string(encode("CERTIFICATE", signed.Raw)))
	Write(a.t, key, string(encode("EC PRIVATE KEY", encoded)))
	return certificate, key
}

// Client is the TLS configuration of a client that trusts the authority and shows the certificate, if there is one.
func (a *Authority) Client(certificate, key string) *tls.Config {
	a.t.Helper()
	config := &tls.Config{RootCAs: a.Pool(), MinVersion: tls.VersionTLS12}
	if certificate == "" {
		return config
	}
	pair, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil {
		a.t.Fatalf("load: %v", err)
	}
	// Also when the server doesn't name its issuer, which a careful client would take for "not for you".
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	return config
}

func (a *Authority) sign(template, parent *x509.Certificate, key *ecdsa.PrivateKey) *x509.Certificate {
	a.t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, a.key)
	if err != nil {
		a.t.Fatalf("sign: %v", err)
	}
	signed, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatalf("parse: %v", err)
	}
	return signed
}

func newKey(t testingT) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatalf("make key: %v", err)
	}
	return key
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// Write replaces a file by one that only its owner may read.
func Write(t testingT, path, content string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(content), 0o600); err != nil {
		t.Fatalf("write: %v", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatalf("write: %v", err)
	}
}
