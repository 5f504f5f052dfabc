package app

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"fenceline/internal/credential"
	"fenceline/lockd/etcdstore"
)

// EtcdConfig says how to reach etcd, or where to run one.
type EtcdConfig struct {
	Endpoints    []string // http(s)://host:port
	Prefix       string   // of all keys; "": etcdstore.DefaultPrefix
	CA           string   // whose certificates etcd's members have, in PEM; "": the system's authorities
	Cert         string   // lockd's own certificate, in PEM; "": none
	Key          string   // its key
	User         string   // "": none
	PasswordFile string
	Embedded     string // a folder: run a single member of its own in this process; "": don't
}

// validate refuses what could be meant otherwise, or would send a secret in the clear.
func (c EtcdConfig) validate() error {
	switch {
	case c.Embedded != "" && (len(c.Endpoints) > 0 || c.CA != "" || c.Cert != "" || c.Key != "" || c.User != ""):
		return errors.New("--etcd-embedded runs an etcd of its own; leave out the other --etcd flags, or it")
	case c.Embedded == "" && len(c.Endpoints) == 0:
		return errors.New("--backend etcd: want --etcd-endpoints, or --etcd-embedded for one of its own")
	case (c.Cert == "") != (c.Key == ""):
		return errors.New("--etcd-cert and --etcd-key: want both or none")
	case (c.User == "") != (c.PasswordFile == ""):
		return errors.New("--etcd-user and --etcd-password-file: want both or none")
	}
	for i, endpoint := range c.Endpoints {
		if err := c.validEndpoint(endpoint); err != nil {
			return fmt.Errorf("--etcd-endpoints: number %d: %w", i+1, err) // itself it may hold a password
		}
	}
	return nil
}

func (c EtcdConfig) validEndpoint(endpoint string) error {
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return errors.New("want http://host:port or https://host:port, several with commas between")
	}
	if u.User != nil {
		return errors.New("a password in a URL shows up everywhere; use --etcd-user and --etcd-password-file")
	}
	if u.Scheme == "https" {
		return nil
	}
	switch ip := net.ParseIP(u.Hostname()); {
	case c.CA != "" || c.Cert != "":
		return errors.New("certificates need https://; this endpoint would be reached in the clear")
	case c.User != "" && u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()):
		return errors.New("the password would be sent in the clear; use https://")
	}
	return nil
}

// openEtcd returns the store over etcd.
func openEtcd(ctx context.Context, config Config, logger hclog.Logger) (*backend, error) {
	c := config.Etcd
	if err := c.validate(); err != nil {
		return nil, err
	}
	settings := etcdstore.Config{Endpoints: c.Endpoints, Username: c.User, Prefix: c.Prefix, Timeout: config.StoreTimeout, Logger: logger.Named("etcd")}
	var err error
	if settings.TLS, err = c.tls(); err != nil {
		return nil, err
	}
	if settings.Password, err = c.password(); err != nil {
		return nil, err
	}
	var member *embedded
	if c.Embedded != "" {
		if member, err = startEmbedded(ctx, c.Embedded, logger.Named("etcd")); err != nil {
			return nil, fmt.Errorf("--etcd-embedded %s: %w", c.Embedded, err)
		}
		settings.Endpoints = []string{member.endpoint()}
	}
	store, err := etcdstore.Open(settings) //nolint:contextcheck // its background work ends with Close
	if err != nil {
		return nil, errors.Join(err, member.stop(ctx))
	}
	b := &backend{
		name: "etcd", place: "etcd", store: store, check: store.Check,
		hopeless: func(err error) bool { return errors.Is(err, etcdstore.ErrRefused) },
		register: func(prometheus.Registerer) {},
		failed:   member.failed(),
		close:    func(ctx context.Context) error { return errors.Join(store.Close(), member.stop(ctx)) },
	}
	return b.complete(), nil
}

// tls is how lockd meets etcd's members; nil when every endpoint is plain.
func (c EtcdConfig) tls() (*tls.Config, error) {
	secure := false
	for _, endpoint := range c.Endpoints {
		secure = secure || strings.HasPrefix(endpoint, "https://")
	}
	if !secure {
		return nil, nil //nolint:nilnil // no TLS, which is no error
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CA != "" {
		pem, err := os.ReadFile(c.CA)
		if err != nil {
			return nil, fmt.Errorf("--etcd-ca: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--etcd-ca: %s holds no certificate in PEM", c.CA)
		}
	}
	if c.Cert != "" {
		pair, err := credential.Open("etcd_tls", credential.ParseKeyPair, credential.File{Path: c.Cert}, secret(c.Key))
		if err != nil {
			return nil, fmt.Errorf("--etcd-cert: %w", err)
		}
		config.Certificates = []tls.Certificate{pair.Get()}
	}
	return config, nil
}

func (c EtcdConfig) password() (string, error) {
	if c.PasswordFile == "" {
		return "", nil
	}
	source, err := credential.Open("etcd_password", func(contents [][]byte) (string, error) {
		text := strings.TrimRight(string(contents[0]), "\r\n")
		if text == "" {
			return "", errors.New("the file is empty")
		}
		return text, nil
	}, secret(c.PasswordFile))
	if err != nil {
		return "", fmt.Errorf("--etcd-password-file: %w", err)
	}
	return source.Get(), nil
}
