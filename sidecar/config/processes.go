package config

import (
	"net"
	"net/netip"
	"net/textproto"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"fenceline/sidecar/httpcheck"
)

// listen is an address to listen on.
func (s section) listen(name, otherwise string) string {
	address := s.text(name, otherwise)
	if strings.HasPrefix(address, "unix:/") {
		return address
	}
	if name, ok := strings.CutPrefix(address, "systemd:"); ok && name != "" {
		return address
	}
	_, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		s.fault(name, "want host:port, unix:/path?mode=0660 or systemd:name")
	}
	return address
}

func (s section) upstream() Upstream {
	u := Upstream{
		AllowRemote:     s.boolean("allow_remote", false),
		ConnectTimeout:  s.duration("connect_timeout", defaultConnectTimeout, time.Millisecond, time.Minute),
		ResponseTimeout: s.duration("response_timeout", defaultResponseTimeout, time.Millisecond, time.Hour),
		Readiness:       choice(s, "readiness", ReadinessNone, []Readiness{ReadinessNone, ReadinessConnect}, nil),
		IdleTimeout:     s.duration("idle_timeout", defaultIdleTimeout, time.Millisecond, 24*time.Hour),
	}
	text := s.required("url")
	if text == "" {
		return u
	}
	if s.has("tls") && !strings.HasPrefix(text, "https:") {
		s.fault("tls", "means nothing without TLS; write url: https://host:port")
	}
	if path, ok := strings.CutPrefix(text, "unix:"); ok {
		if !strings.HasPrefix(path, "/") || strings.ContainsAny(path, "?#") {
			s.fault("url", "want unix:/path of the resource's socket")
		}
		u.URL = &url.URL{Scheme: "unix", Path: path}
		return u
	}
	parsed, err := url.Parse(text)
	switch {
	case err != nil || (parsed.Scheme != "http" && parsed.Scheme != "https") || parsed.Hostname() == "" || parsed.User != nil ||
		parsed.Path != "" && parsed.Path != "/" || parsed.RawQuery != "" || parsed.Fragment != "":
		s.fault("url", "want http://host:port or https://host:port without a path, or unix:/path")
		return u
	case !u.AllowRemote && !isLoopback(parsed.Hostname()):
		s.fault("url", "the resource isn't on this machine, so others could reach it without the sidecar; write allow_remote: true if something else keeps them out")
	}
	port := parsed.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[parsed.Scheme]
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		s.fault("url", "want a port from 1 to 65535")
	}
	u.URL = &url.URL{Scheme: parsed.Scheme, Host: net.JoinHostPort(parsed.Hostname(), port)}
	if parsed.Scheme == "https" {
		u.TLS = s.sub("tls").upstreamTLS(parsed.Hostname())
	}
	return u
}

func (s section) upstreamTLS(host string) UpstreamTLS {
	t := UpstreamTLS{CAFile: s.file("ca_file"), ServerName: s.text("server_name", host)}
	t.CertificateFile, t.KeyFile = s.pair()
	return t
}

func (s section) listenTLS() ListenTLS {
	t := ListenTLS{ClientCAFile: s.file("client_ca_file")}
	t.CertificateFile, t.KeyFile = s.pair()
	if t.ClientCAFile != "" && !t.On() {
		s.fault("client_ca_file", "client certificates need TLS; give certificate_file and key_file too")
	}
	return t
}

// pair is a certificate and its key: both or none.
func (s section) pair() (certificate, key string) {
	certificate, key = s.file("certificate_file"), s.file("key_file")
	if (certificate == "") != (key == "") {
		s.fault(s.given("certificate_file", "key_file"), "want certificate_file and key_file, both or none")
	}
	return certificate, key
}

// file is the path of a file whose changes are followed.
func (s section) file(name string) string {
	if !s.has(name) {
		return ""
	}
	path := s.required(name)
	if path != "" {
		s.secretFiles = append(s.secretFiles, path)
	}
	return path
}

func (s section) admin() Admin {
	a := Admin{Listen: s.listen("listen", defaultAdminListen), TokenFile: s.file("token_file")}
	if a.BeyondThisMachine() && a.TokenFile == "" {
		s.fault("listen", "others can reach this address and would read the configuration and raise marks; bind to loopback or a unix socket, or give token_file")
	}
	return a
}

func (s section) tracing() Tracing {
	if !s.has("endpoint") {
		return Tracing{}
	}
	parsed, err := url.Parse(s.required("endpoint"))
	if err != nil || parsed.Scheme != "http" && parsed.Scheme != "https" || parsed.Hostname() == "" || parsed.User != nil || parsed.RawQuery != "" || parsed.Fragment != "" {
		s.fault("endpoint", "want http://host:port or https://host:port of a collector that takes OTLP over HTTP (usually port 4318)")
		return Tracing{}
	}
	return Tracing{Endpoint: parsed}
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func (s section) store() Store {
	switch {
	case s.has("file") && s.has("postgres"):
		s.fault("file", "marks live in one place: a file or a database")
		return Store{}
	case s.has("file"):
		f := s.sub("file")
		return Store{File: File{Path: f.required("path"), Timeout: f.duration("timeout", defaultStoreTimeout, time.Millisecond, time.Minute)}}
	case !s.has("postgres"):
		s.faults.add(s.position(), s.key("postgres"), "missing: where the marks live, postgres or file")
		return Store{}
	}
	p := s.sub("postgres")
	address := p.secret("url")
	if address != "" && !postgresURL.MatchString(address.Reveal()) {
		p.fault(p.given("url", "url_file"), "want postgres://user:password@host:port/database")
	}
	listen := address
	if p.has("listen_url") {
		if listen = p.secret("listen_url"); listen != "" && !postgresURL.MatchString(listen.Reveal()) {
			p.fault("listen_url", "want postgres://user:password@host:port/database")
		}
	}
	return Store{Postgres: Postgres{
		URL:       address,
		ListenURL: listen,
		MaxConns:  int32(p.number("max_conns", defaultMaxConns, 1000)), //nolint:gosec // bounded
		Timeout:   p.duration("timeout", defaultStoreTimeout, time.Millisecond, time.Minute),
		QueryMode: choice(p, "query_mode", defaultQueryMode, []string{"cache_describe", "cache_statement", "exec", "simple_protocol"}, nil),
	}}
}

// postgresURL: a URL, or libpq's form "host=… dbname=…".
var postgresURL = regexp.MustCompile(`^(postgres(ql)?://\S+|[a-z_]+\s*=.*)$`)

// given is the first of the names that the mapping has.
func (s section) given(names ...string) string {
	for _, name := range names {
		if s.has(name) {
			return name
		}
	}
	return names[0]
}

func (s section) position() position {
	if s.n != nil {
		return s.n.at
	}
	return position{1, 1}
}

func (s section) token() Token {
	t := Token{
		Header:      s.headerName("header", defaultTokenHeader),
		OwnerHeader: s.headerName("owner_header", defaultOwnerHeader),
		MaxJump:     s.number("max_jump", defaultMaxJump, 1<<62),
	}
	if t.Header == t.OwnerHeader {
		s.fault("owner_header", "the token and its owner need a header each")
	}
	return t
}

var oddName = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")

func (s section) headers() Headers {
	h := Headers{Allow: s.texts("allow")}
	for _, name := range h.Allow {
		if !oddName.MatchString(name) {
			s.fault("allow", "want names of headers, by RFC 9110")
		}
	}
	return h
}

var headerGrammar = regexp.MustCompile(`^[A-Za-z0-9]+(-[A-Za-z0-9]+)*$`)

// headerName is the name, in its usual spelling, of a header that the resource gets as the client sent it.
func (s section) headerName(name, otherwise string) string {
	text := s.text(name, otherwise)
	if !headerGrammar.MatchString(text) {
		s.fault(name, "want a header name of letters, digits and single hyphens")
		return otherwise
	}
	if !httpcheck.Reaches(text) {
		s.fault(name, "this header doesn't reach the resource as the client sent it; choose another")
		return otherwise
	}
	return textproto.CanonicalMIMEHeaderKey(text)
}

func (s section) limits() Limits {
	return Limits{
		Body:        s.size("body", defaultBody, 1, 256<<20),
		Response:    s.size("response", defaultResponse, 1, 256<<20),
		Head:        s.size("head", defaultHead, 1<<10, 1<<20),
		Connections: int(s.number("connections", defaultConnections, 1_000_000)),
		InFlight:    int(s.number("in_flight", defaultInFlight, 100_000)),
		Wait:        s.duration("wait", defaultWait, time.Millisecond, time.Hour),
	}
}

// forwarded reads networks, or single addresses.
func (s section) forwarded() Forwarded {
	var f Forwarded
	for _, text := range s.texts("trusted_peers") {
		prefix, err := netip.ParsePrefix(text)
		if address, addressErr := netip.ParseAddr(text); addressErr == nil && address.Zone() == "" {
			prefix, err = netip.PrefixFrom(address, address.BitLen()), nil
		}
		if err != nil || prefix != prefix.Masked() {
			s.fault("trusted_peers", "want addresses or networks such as 10.1.2.3 or 10.1.0.0/16, without bits beyond the prefix")
			continue
		}
		f.TrustedPeers = append(f.TrustedPeers, prefix)
	}
	return f
}
