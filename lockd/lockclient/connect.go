package lockclient

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"fenceline/lockd/lock"
)

// DefaultURL is where lockd listens unless it is told otherwise.
const DefaultURL = "http://127.0.0.1:7400"

// Environment variables that FromEnv reads.
const (
	EnvURL       = "LOCKD_URL"
	EnvTokenFile = "LOCKD_TOKEN_FILE"
)

const defaultTimeout = 10 * time.Second

// Options say how to reach lockd and how to hold locks. The zero value is usable.
type Options struct {
	// URL is where lockd is: http://host:port, https://host:port or a socket as unix:/path (http+unix://%2Fpath as well). Default: DefaultURL.
	URL string
	// TLS is for https: the authorities to believe, a client certificate. Nil means the system's authorities and no certificate.
	TLS *tls.Config
	// TokenFile, when not "", holds the bearer token that each call carries. It is read for each call, so it may be replaced at any time.
	TokenFile string
	// Timeout bounds each try of a call, on top of the time that the call asks lockd to wait. Default: 10 s.
	Timeout time.Duration
	// HTTPClient, when not nil, is used instead of one of our own; then TLS is ignored, a socket isn't possible, and its time limit is the Timeout. Redirects
	// aren't followed whatever it says: lockd sends none.
	HTTPClient *http.Client

	// SessionTTL is how long the session lasts without a heartbeat, 1 s to 60 s; 0 means the server's default, 15 s.
	SessionTTL time.Duration
	// Lock is how Session.Do acquires.
	Lock AcquireOptions
	// Observer hears of what happens by itself, such as a loss. Nil means nobody.
	Observer Observer
	// Sidecars is the HTTP client for Held.Barrier. Nil means one of the package's own, without a client certificate.
	Sidecars *http.Client
}

// FromEnv returns Options with the URL from LOCKD_URL and the token file from LOCKD_TOKEN_FILE, for command lines. What isn't set stays empty.
func FromEnv() Options {
	return Options{URL: os.Getenv(EnvURL), TokenFile: os.Getenv(EnvTokenFile)}
}

// New returns a client for the lockd at base (see Options.URL) that acts as owner, 1 to 64 characters.
// The HTTP client's time limit bounds each call; nil means one with 10 s.
func New(base, owner string, httpClient *http.Client) (*Client, error) {
	if base == "" {
		return nil, errAddress
	}
	return Connect(owner, Options{URL: base, HTTPClient: httpClient})
}

// errAddress doesn't quote the address, which may hold a password.
var errAddress = errors.New("lockd's address: want a URL such as http://127.0.0.1:7400, https://lockd:7400 or unix:/run/lockd.sock")

// Connect returns a client as the options say, that acts as owner, 1 to 64 characters. Nothing is sent yet.
func Connect(owner string, o Options) (*Client, error) {
	if err := lock.ValidOwner("owner", owner); err != nil {
		return nil, err
	}
	if o.URL == "" {
		o.URL = DefaultURL
	}
	base, socket, err := parseAddress(o.URL)
	if err != nil {
		return nil, err
	}
	c := &Client{base: base, owner: owner, timeout: o.Timeout, tokenFile: o.TokenFile}
	switch {
	case o.HTTPClient == nil:
		if c.timeout == 0 {
			c.timeout = defaultTimeout
		}
		c.http = &http.Client{Transport: transport(o.TLS, socket)}
		c.ownConnections = true
	case socket != "":
		return nil, errors.New("lockd's address is a socket: leave HTTPClient out, or give one that dials it an http URL")
	default:
		own := *o.HTTPClient
		if c.timeout == 0 {
			c.timeout = own.Timeout
		}
		own.Timeout = 0 // each call has its own time limit, since one that waits for a lock needs more
		c.http = &own
	}
	c.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return c, nil
}

// socketBase stands for the host of a lockd that is reached through a socket.
const socketBase = "http://lockd"

// parseAddress reads lockd's address. socket is a path when it is reached through one.
func parseAddress(address string) (base, socket string, err error) {
	if encoded, ok := strings.CutPrefix(address, "http+unix://"); ok { // url.Parse accepts no slash in a host, encoded or not
		path, err := url.PathUnescape(strings.TrimSuffix(encoded, "/"))
		if err != nil || !strings.HasPrefix(path, "/") || path == "/" {
			return "", "", errAddress
		}
		return socketBase, path, nil
	}
	parsed, err := url.Parse(address)
	if err != nil || parsed.RawQuery != "" || parsed.Fragment != "" {
		return "", "", errAddress
	}
	switch parsed.Scheme {
	case "http", "https":
		if parsed.Host != "" {
			return strings.TrimSuffix(address, "/"), "", nil
		}
	case "unix":
		if path := parsed.Path; parsed.Host == "" && strings.HasPrefix(path, "/") && path != "/" {
			return socketBase, path, nil
		}
	}
	return "", "", errAddress
}

func transport(config *tls.Config, socket string) *http.Transport {
	t := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		TLSHandshakeTimeout: defaultTimeout,
		MaxIdleConnsPerHost: 16,
		IdleConnTimeout:     90 * time.Second,
		TLSClientConfig:     config.Clone(),
	}
	dialer := &net.Dialer{Timeout: defaultTimeout, KeepAlive: 15 * time.Second}
	t.DialContext = dialer.DialContext
	if socket != "" {
		t.Proxy = nil
		t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", socket)
		}
	}
	return t
}

// maxTokenFile bounds the bearer token's file.
const maxTokenFile = 8 << 10

// bearer reads the token, or "" when there is no file to read.
func (c *Client) bearer() (string, error) {
	if c.tokenFile == "" {
		return "", nil
	}
	data, err := os.ReadFile(c.tokenFile)
	if err != nil {
		return "", fmt.Errorf("bearer token: %w", err)
	}
	token := strings.TrimSpace(string(data))
	if token == "" || len(token) > maxTokenFile || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", fmt.Errorf("bearer token: %s: want one line of printable characters without spaces", c.tokenFile)
	}
	return token, nil
}
