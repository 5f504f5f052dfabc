package credential

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"time"
)

// Authority is who may issue client certificates.
type Authority struct{ pool *x509.CertPool }

// ParseAuthority reads a bundle of certificates in PEM.
func ParseAuthority(contents [][]byte) (Authority, error) {
	pool := x509.NewCertPool()
	rest, n := contents[0], 0
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil || block.Type != "CERTIFICATE" {
			return Authority{}, fmt.Errorf("block %d isn't a certificate", n+1)
		}
		pool.AddCert(certificate)
		n++
	}
	if n == 0 {
		return Authority{}, errors.New("there is no certificate in PEM in it")
	}
	return Authority{pool: pool}, nil
}

// Verify says whether a chain, the client's own certificate first, comes from the authority and is valid now for a client.
func (a Authority) Verify(chain []*x509.Certificate) error {
	intermediates := x509.NewCertPool()
	for _, certificate := range chain[1:] {
		intermediates.AddCert(certificate)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{Roots: a.pool, Intermediates: intermediates, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	return err
}

// ParseKeyPair reads a server's certificate, with its chain, and its key.
func ParseKeyPair(contents [][]byte) (tls.Certificate, error) {
	pair, err := tls.X509KeyPair(contents[0], contents[1])
	if err != nil {
		return tls.Certificate{}, err
	}
	if pair.Leaf != nil && time.Now().After(pair.Leaf.NotAfter) {
		return tls.Certificate{}, fmt.Errorf("the certificate has been over since %s", pair.Leaf.NotAfter.UTC().Format(time.DateOnly))
	}
	return pair, nil
}

// ServerTLS is a TLS configuration that always has the sources' current values. Authority may be nil: clients need no certificate. With one, a
// certificate that isn't the authority's fails the handshake; whether to serve a client that shows none is the handler's decision. TLS is at least
// 1.2, and 1.3 with everybody who can. Sessions aren't resumed where certificates are asked for: a resumed one would stand on a certificate that was judged long ago.
func ServerTLS(pair *Source[tls.Certificate], authority *Source[Authority]) *tls.Config {
	config := &tls.Config{
		MinVersion:             tls.VersionTLS12,
		NextProtos:             []string{"http/1.1"},
		SessionTicketsDisabled: authority != nil,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return pair.Current(), nil
		},
	}
	if authority == nil {
		return config
	}
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		current := config.Clone()
		current.GetConfigForClient = nil
		current.ClientAuth = tls.VerifyClientCertIfGiven
		current.ClientCAs = authority.Get().pool
		return current, nil
	}
	return config
}

// Pool returns the authority's certificates, for a client that believes servers by them.
func (a Authority) Pool() *x509.CertPool { return a.pool }
