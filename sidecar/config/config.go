// Package config turns a sidecar's YAML file into a Config: parse (strict), validate
// (pure, every fault at once, each with file, line and key), done. A Config that Load returned holds no
// invalid value, so nothing behind it checks again.
package config

import (
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Config is a complete, valid configuration with every default filled in.
type Config struct {
	ID        string
	IDDefault bool // the id is the host name because the file gives none
	Listen    string
	ListenTLS ListenTLS
	Admin     Admin
	Upstream  Upstream
	Store     Store
	Token     Token
	Headers   Headers
	Forwarded Forwarded
	Guards    []Guard
	Routes    []Route
	Unmatched Unmatched
	Limits    Limits
	Shutdown  Shutdown
	Tracing   Tracing
	// RejectionsKept is how long rows of fence.rejection stay.
	RejectionsKept time.Duration
	// SecretFiles are the files that secrets were read from, and those of certificates (*_file).
	SecretFiles []string
}

// Admin is the listener for health, metrics and operators.
type Admin struct {
	Listen    string
	TokenFile string // bearer tokens, one a line; empty: nobody is asked, and others than this machine can't reach it
}

// BeyondThisMachine says whether others than this machine's processes can reach the listener.
func (a Admin) BeyondThisMachine() bool {
	if strings.HasPrefix(a.Listen, "unix:") || strings.HasPrefix(a.Listen, "systemd:") {
		return false // the socket's mode, or the unit's, says who may
	}
	host, _, err := net.SplitHostPort(a.Listen)
	return err == nil && !isLoopback(host)
}

// Tracing says where spans go.
type Tracing struct{ Endpoint *url.URL } // OTLP over HTTP; nil: nowhere

// ListenTLS names the files, in PEM, for TLS with clients; all empty for plain HTTP.
type ListenTLS struct {
	CertificateFile string // with its chain
	KeyFile         string
	ClientCAFile    string // who issues client certificates, which then every client must show
}

// On says whether clients speak TLS.
func (l ListenTLS) On() bool { return l.CertificateFile != "" }

// UpstreamTLS names the files, in PEM, for TLS with the resource.
type UpstreamTLS struct {
	CAFile          string // whose certificates are believed; empty for the system's
	CertificateFile string // the sidecar's own, if the resource asks for one
	KeyFile         string
	ServerName      string // the name that the resource's certificate must have
}

// Upstream is the one resource that the sidecar stands in front of.
type Upstream struct {
	URL             *url.URL      // scheme http or https with host:port and no path, or scheme unix with the socket's path
	TLS             UpstreamTLS   // with scheme https
	AllowRemote     bool          // the host may be other than loopback
	ConnectTimeout  time.Duration // bounds one dial
	ResponseTimeout time.Duration // after this the outcome of a sent request is unknown
	Readiness       Readiness
	IdleTimeout     time.Duration // between two pieces of a response that is passed on while it arrives
}

// Readiness says whether the sidecar is ready only while its resource takes connections.
type Readiness string

// The kinds of readiness.
const (
	ReadinessNone    Readiness = "none"    // the resource isn't asked
	ReadinessConnect Readiness = "connect" // it must take a connection
)

// Dial gives network and address of the resource, as net.Dial takes them.
func (u Upstream) Dial() (network, address string) {
	if u.URL.Scheme == "unix" {
		return "unix", u.URL.Path
	}
	return "tcp", u.URL.Host
}

// Store is where marks live: a database, or a file when File.Path isn't empty.
type Store struct {
	Postgres Postgres
	File     File
}

// Timeout bounds one admission, whatever the store; past it the answer is FENCE_UNAVAILABLE.
func (s Store) Timeout() time.Duration {
	if s.File.Path != "" {
		return s.File.Timeout
	}
	return s.Postgres.Timeout
}

// File is a mark store in a file of this machine, for one sidecar.
type File struct {
	Path    string
	Timeout time.Duration
}

// Postgres is a mark store in a PostgreSQL database.
type Postgres struct {
	URL       Secret
	ListenURL Secret // for LISTEN, past a pooler; the same as URL where nothing else is given
	MaxConns  int32
	Timeout   time.Duration // bounds one admission; past it the answer is FENCE_UNAVAILABLE
	QueryMode string        // as in postgres.Config
}

// Token says how requests carry their token.
type Token struct {
	Header      string // canonical header name
	OwnerHeader string
	MaxJump     int64 // a token further above the mark is implausible
}

// Headers says which unusual headers may pass.
type Headers struct {
	// Allow are names with other characters than letters, digits and hyphens that requests may carry all the same.
	Allow []string
}

// Forwarded says whose word is taken about where a request came from.
type Forwarded struct {
	// TrustedPeers are the networks of proxies before this one. What they say in X-Forwarded-* is passed on; everybody else's is replaced.
	TrustedPeers []netip.Prefix
}

// Trusts says whether the peer is one of them. A peer without an IP address, on a unix socket, isn't.
func (f Forwarded) Trusts(peer net.Addr) bool {
	tcp, ok := peer.(*net.TCPAddr)
	if !ok {
		return false
	}
	address := tcp.AddrPort().Addr().Unmap()
	return slices.ContainsFunc(f.TrustedPeers, func(p netip.Prefix) bool { return p.Contains(address) })
}

// Guard is one named set of marks with the rules for admitting against it.
type Guard struct {
	Name    string
	LockKey string // template such as "payout:{key}", for people
	Mark    Mark
	Order   Order
	Advance Advance
	Effects // beside Ownership only for an Order of effects
}

// Mark locates a guard's marks: in a table of the resource, or in the sidecar's own (fence.mark, or the store's file).
type Mark struct {
	Table     []string // schema-qualified: one or two identifiers; empty for the sidecar's own marks
	Key       string   // key column
	KeyType   KeyType
	Token     string // token column, BIGINT
	UpdatedAt string // optional timestamp column that an admission stamps; empty for none
	Missing   Missing
}

// Own says whether the marks are in the sidecar's own table or file.
func (m Mark) Own() bool { return len(m.Table) == 0 }

// Route is one rule for requests; the first that matches decides.
type Route struct {
	Name    string
	Methods []string // exact, upper case
	Path    string   // template such as /v1/payouts/{payout_id}/claim; empty matches every path
	Pass    bool     // forward without a guard
	Guard   string   // name of a guard; empty when Pass
	Admit   Admit
	Key     Key
	Mode    Mode
	// Stream passes bodies on while they arrive, on a guarded route; passed routes always do.
	Stream bool
	// Overlaps names earlier routes that may take some of this one's requests and decide
	// differently.
	Overlaps []string
	OnFenced *Statement // nil for none
}

// Key says where a request's key comes from. Exactly one of the first five is set; the
// params of a lookup are themselves such sources.
type Key struct {
	Path   string // name of a path segment in the route's template
	Header string
	Query  string
	JSON   string // JSON pointer (RFC 6901) into the body
	Lookup *Lookup
}

// Lookup finds the key with one query in the store. Each @name in SQL is a parameter,
// filled from Params[name], or from the path segment of that name.
type Lookup struct {
	SQL    string
	Params map[string]Key
	Cache  Cache
}

// Statement is what runs in the store when a request is fenced out. Each @name in SQL is a parameter: token, highest, key or owner, a segment
// of the path, or one of Params. A parameter that the request doesn't have is NULL.
type Statement struct {
	SQL    string
	Params map[string]Key
}

// Limits bound what one sidecar holds in memory and waits for.
type Limits struct {
	Body        int64 // bytes of a request body on a guarded route
	Response    int64 // bytes of a response body that is held
	Head        int64 // bytes of request line and headers
	Connections int
	InFlight    int
	Wait        time.Duration
}

// Shutdown is how SIGTERM is answered: Delay keeps serving while not ready, Grace bounds the
// rest.
type Shutdown struct{ Delay, Grace time.Duration }

// The closed sets of values. Each type's constants are all there is.
type (
	// Advance says who raises the marks.
	Advance string
	// Order is what a guard orders: admissions, or effects too.
	Order string
	// KeyType is the type of a guard's keys; it decides what one key's one spelling is.
	KeyType string
	// Missing says what a key without a mark means.
	Missing string
	// Admit says whether a token equal to the mark is admitted.
	Admit string
	// Mode says how far a guarded route is enforced.
	Mode string
	// Unmatched says what happens to requests that no route takes.
	Unmatched string
	// Cache says whether a lookup's results may be remembered.
	Cache string
)

// Values as they are written in the file.
const (
	OrderEffects    Order = "effects"
	OrderAdmissions Order = "admissions"

	AdvanceSidecar  Advance = "sidecar"
	AdvanceResource Advance = "resource"

	KeyUUID KeyType = "uuid"
	KeyInt  KeyType = "int"
	KeyText KeyType = "text"

	MissingReject Missing = "reject"
	MissingInsert Missing = "insert"

	AdmitNewer       Admit = "newer"
	AdmitNewerOrSame Admit = "newer_or_same"

	ModeEnforce Mode = "enforce"
	ModeShadow  Mode = "shadow"
	ModeOff     Mode = "off"

	UnmatchedReject Unmatched = "reject"
	UnmatchedPass   Unmatched = "pass"

	CacheNone      Cache = "none"
	CacheImmutable Cache = "immutable"
)

// Secret is a text that is never shown: every way of printing it gives "[redacted]".
type Secret string

// String hides the secret; fmt uses it.
func (Secret) String() string { return "[redacted]" }

// GoString hides the secret from %#v.
func (Secret) GoString() string { return "[redacted]" }

// MarshalText hides the secret from JSON and YAML encoders.
func (Secret) MarshalText() ([]byte, error) { return []byte("[redacted]"), nil }

// Reveal gives the text itself, for the one place that needs it.
func (s Secret) Reveal() string { return string(s) }
