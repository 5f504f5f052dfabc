package app

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"

	"fenceline/internal/credential"
	"fenceline/sidecar/config"
)

// tlsConfigs are a configuration's certificates, read from their files; nil where there is no TLS. A changed file makes a new configuration, as any change does.
type tlsConfigs struct{ listen, upstream *tls.Config }

func openTLS(cfg *config.Config) (*tlsConfigs, error) {
	listen, err := listenTLS(cfg.ListenTLS)
	if err != nil {
		return nil, fmt.Errorf("listen_tls: %w", err)
	}
	upstream, err := upstreamTLS(cfg.Upstream)
	if err != nil {
		return nil, fmt.Errorf("upstream.tls: %w", err)
	}
	return &tlsConfigs{listen: listen, upstream: upstream}, nil
}

// listenTLS wants a certificate of every client where an authority is named.
func listenTLS(files config.ListenTLS) (*tls.Config, error) {
	if !files.On() {
		return nil, nil //nolint:nilnil // plain HTTP, which is no error
	}
	pair, err := openPair(files.CertificateFile, files.KeyFile)
	if err != nil || files.ClientCAFile == "" {
		return credential.ServerTLS(pair, nil), err
	}
	authority, err := credential.Open("client_ca_file", credential.ParseAuthority, credential.File{Path: files.ClientCAFile})
	if err != nil {
		return nil, err
	}
	forClient := credential.ServerTLS(pair, authority).GetConfigForClient
	return &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		current, err := forClient(hello)
		if err == nil {
			current.ClientAuth = tls.RequireAndVerifyClientCert
		}
		return current, err
	}}, nil
}

func openPair(certificate, key string) (*credential.Source[tls.Certificate], error) {
	return credential.Open("certificate_file", credential.ParseKeyPair, credential.File{Path: certificate}, credential.File{Path: key, Private: true})
}

// upstreamTLS believes the resource's certificate only by its name and by the authority that is named, else the system's.
func upstreamTLS(u config.Upstream) (*tls.Config, error) {
	if u.URL.Scheme != "https" {
		return nil, nil //nolint:nilnil // plain HTTP, which is no error
	}
	client := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: u.TLS.ServerName, NextProtos: []string{"http/1.1"}}
	if u.TLS.CAFile != "" {
		authority, err := credential.Open("ca_file", credential.ParseAuthority, credential.File{Path: u.TLS.CAFile})
		if err != nil {
			return nil, err
		}
		client.RootCAs = authority.Get().Pool()
	}
	if u.TLS.CertificateFile != "" {
		pair, err := openPair(u.TLS.CertificateFile, u.TLS.KeyFile)
		if err != nil {
			return nil, err
		}
		client.Certificates = []tls.Certificate{pair.Get()}
	}
	return client, nil
}

// openAdminTokens reads who may use the admin listener; nil where nobody is asked.
func openAdminTokens(c config.Admin) (*credential.Tokens, error) {
	if c.TokenFile == "" {
		return nil, nil //nolint:nilnil // nobody is asked, which is no error
	}
	source, err := credential.Open("admin.token_file", credential.ParseTokens, credential.File{Path: c.TokenFile, Private: true})
	if err != nil {
		return nil, err
	}
	return source.Current(), nil
}

// errNoTLS can't be: whether clients speak TLS changes with a restart only.
var errNoTLS = errors.New("no certificate")

// withTLS lets connections begin with a handshake, by the certificates of the configuration that is then in use.
func (a *App) withTLS(l net.Listener) net.Listener {
	return tls.NewListener(l, &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		current := a.generation().tls.listen
		switch {
		case current == nil:
			return nil, errNoTLS
		case current.GetConfigForClient != nil:
			return current.GetConfigForClient(hello)
		}
		return current, nil
	}})
}
