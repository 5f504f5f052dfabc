// Package faultnet puts a TCP proxy between a client and a server in tests, and cuts or silences it at will.
package faultnet

import (
	"fmt"
	"strings"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
)

// testingT is what New needs of a *testing.T; this package stays free of package testing.
type testingT interface {
	Helper()
	Fatalf(format string, args ...any)
	Cleanup(f func())
}

// Proxy passes connections on to a server.
type Proxy struct {
	t     testingT
	proxy *toxiproxy.Proxy
}

// New starts a proxy on a free port before the server at upstream (host:port). It ends with the test.
func New(t testingT, upstream string) *Proxy {
	t.Helper()
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(prometheus.NewRegistry()), zerolog.Nop())
	p := &Proxy{t: t, proxy: toxiproxy.NewProxy(server, "server", "127.0.0.1:0", upstream)}
	if err := p.proxy.Start(); err != nil {
		t.Fatalf("start proxy: %v", err)
	}
	t.Cleanup(p.proxy.Stop)
	return p
}

// Addr is where the proxy listens.
func (p *Proxy) Addr() string { return p.proxy.Listen }

// Silence keeps back everything that the server says from now on, on all connections. Requests still reach it.
func (p *Proxy) Silence() {
	p.t.Helper()
	p.toxic(`{"name":"silence","type":"timeout","stream":"downstream","attributes":{"timeout":0}}`)
}

func (p *Proxy) toxic(definition string) {
	p.t.Helper()
	if _, err := p.proxy.Toxics.AddToxicJson(strings.NewReader(definition)); err != nil {
		p.t.Fatalf("add fault: %v", err)
	}
}

// Cut closes every connection and refuses new ones until Mend.
func (p *Proxy) Cut() { p.proxy.Stop() }

// Mend lets connections pass again, at the same address.
func (p *Proxy) Mend() error {
	if err := p.proxy.Start(); err != nil {
		return fmt.Errorf("start proxy again: %w", err)
	}
	return nil
}

// Lead closes every connection and takes new ones to another server from now on.
func (p *Proxy) Lead(upstream string) error {
	p.proxy.Stop()
	p.proxy.Upstream = upstream
	return p.Mend()
}
