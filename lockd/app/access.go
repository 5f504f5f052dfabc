package app

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"fenceline/internal/credential"
	"fenceline/lockd/httpapi"
)

// AccessConfig says who may call, by files. Each is read again when it changes.
type AccessConfig struct {
	ClientTokens   string        // a file with bearer tokens, one a line; "": clients need none
	OperatorTokens string        // the same for revoking and listing
	TLSCert        string        // the server's certificate and chain, in PEM; "": plain HTTP
	TLSKey         string        // its key
	TLSClientCA    string        // who issues client certificates, in PEM; "": clients need none
	Interval       time.Duration // between looks at the files; 0: a second
}

// asksClients says whether whoever calls must say who they are.
func (c AccessConfig) asksClients() bool { return c.ClientTokens != "" || c.TLSClientCA != "" }

// The sources' names, in events and as a metric's label.
const (
	clientTokens   = "client_tokens"
	operatorTokens = "operator_tokens"
	serverPair     = "tls"
	clientCA       = "client_ca"
)

// access is who may call, open.
type access struct {
	callers  httpapi.Callers
	tls      *tls.Config
	interval time.Duration
	sources  map[string]follower
}

// follower follows the changes of a source's files.
type follower interface {
	Follow(ctx context.Context, interval time.Duration, report credential.Report)
}

func (c access) hasTokens() bool { return c.callers.Clients != nil || c.callers.Operators != nil }

// open reads the files for the first time. Each that is configured must be usable: lockd that asks for less than it was told to would let strangers in.
func (c AccessConfig) open() (*access, error) {
	switch {
	case (c.TLSCert == "") != (c.TLSKey == ""):
		return nil, errors.New("--tls-cert and --tls-key: want both or none")
	case c.TLSClientCA != "" && c.TLSCert == "":
		return nil, errors.New("--tls-client-ca: client certificates need TLS; set --tls-cert and --tls-key too")
	}
	a := &access{interval: cmp.Or(c.Interval, time.Second), sources: map[string]follower{}}
	var err error
	if a.callers.Clients, err = openSource(a, clientTokens, credential.ParseTokens, secret(c.ClientTokens)); err != nil {
		return nil, err
	}
	if a.callers.Operators, err = openSource(a, operatorTokens, credential.ParseTokens, secret(c.OperatorTokens)); err != nil {
		return nil, err
	}
	if a.callers.Authority, err = openSource(a, clientCA, credential.ParseAuthority, credential.File{Path: c.TLSClientCA}); err != nil {
		return nil, err
	}
	pair, err := openSource(a, serverPair, credential.ParseKeyPair, credential.File{Path: c.TLSCert}, secret(c.TLSKey))
	if err != nil {
		return nil, err
	}
	if pair != nil {
		a.tls = credential.ServerTLS(pair, a.callers.Authority)
	}
	return a, nil
}

func secret(path string) credential.File { return credential.File{Path: path, Private: true} }

// openSource opens what is configured; nil is what isn't.
func openSource[T any](a *access, name string, parse func([][]byte) (T, error), files ...credential.File) (*credential.Source[T], error) {
	if files[0].Path == "" {
		return nil, nil
	}
	source, err := credential.Open(name, parse, files...)
	if err != nil {
		return nil, err
	}
	a.sources[name] = source
	return source, nil
}

// follow takes over changes of the files until the app stops. What can't be used is counted and logged, and the last good one stays.
func (a *App) follow(ctx context.Context, access *access, registry prometheus.Registerer) {
	rejected := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "lock_credentials_rejected_total", Help: "Changes of credential files that couldn't be used; the last good ones stayed.",
	}, []string{"source"})
	registry.MustRegister(rejected)
	for _, name := range []string{clientTokens, operatorTokens, serverPair, clientCA} {
		rejected.WithLabelValues(name) // every series is there from the start
	}
	report := func(name string, err error) {
		if err == nil {
			a.logger.Info("credentials reloaded", "event", "credentials_reloaded", "source", name)
			return
		}
		rejected.WithLabelValues(name).Inc()
		a.logger.Warn("changed credentials can't be used; the last good ones stay", "event", "credentials_rejected", "source", name, "error", err)
	}
	for name, source := range access.sources {
		a.background(ctx, name, func(ctx context.Context) { source.Follow(ctx, access.interval, report) })
	}
}
