package config

import (
	"fmt"
	"net"
	"net/textproto"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
)

// LoadFile reads a configuration file with this process's environment.
func LoadFile(path string) (*Config, error) {
	data, err := os.ReadFile(path) //nolint:gosec // the operator's own file
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	return Load(data, path, os.LookupEnv)
}

// Load turns the text of a configuration file into a Config. The error is *Faults: everything that is wrong, at once. File is the name
// that they carry; env looks up the variables of ${NAME}.
func Load(data []byte, file string, env func(string) (string, bool)) (*Config, error) {
	faults := &Faults{file: file}
	root := parse(data, faults)
	if root == nil {
		return nil, faults.err()
	}
	if root.kind != mappingNode {
		faults.add(root.at, "", "want a mapping at the top, not "+root.kind.String())
		return nil, faults.err()
	}
	newSchema().check(root, "", faults)
	top := section{decoder: &decoder{faults: faults, env: env}, n: root}
	cfg := top.config()
	if err := faults.err(); err != nil {
		return nil, err
	}
	return cfg, nil
}

// Every default stands here and nowhere else.
const (
	defaultConnectTimeout  = time.Second
	defaultResponseTimeout = 10 * time.Second
	defaultMaxConns        = 8
	defaultStoreTimeout    = 500 * time.Millisecond
	defaultQueryMode       = "cache_describe"
	defaultTokenHeader     = "X-Fencing-Token" //nolint:gosec // a header's name
	defaultOwnerHeader     = "X-Owner-Id"
	defaultMaxJump         = 1_000_000_000_000
	defaultBody            = 1 << 20
	defaultResponse        = 16 << 20
	defaultHead            = 16 << 10
	defaultConnections     = 4096
	defaultInFlight        = 512
	defaultWait            = 5 * time.Second
	defaultDelay           = 2 * time.Second
	defaultGrace           = 25 * time.Second
	defaultListen          = "127.0.0.1:8081"
	defaultAdminListen     = "127.0.0.1:9081"
)

func (s section) config() *Config {
	if s.number("version", 0, 0, 1<<30) != 1 {
		s.fault("version", "want version: 1")
	}
	c := &Config{
		ID:        s.text("id", ""),
		Listen:    s.listen("listen", defaultListen),
		Admin:     Admin{Listen: s.sub("admin").listen("listen", defaultAdminListen)},
		Upstream:  s.sub("upstream").upstream(),
		Store:     s.sub("store").store(),
		Token:     s.sub("token").token(),
		Unmatched: choice(s, "unmatched", UnmatchedReject, []Unmatched{UnmatchedReject, UnmatchedPass}, nil),
		Limits:    s.sub("limits").limits(),
	}
	shutdown := s.sub("shutdown")
	c.Shutdown = Shutdown{
		Delay: shutdown.duration("delay", defaultDelay, 0, time.Hour),
		Grace: shutdown.duration("grace", defaultGrace, time.Millisecond, time.Hour),
	}
	if c.ID == "" {
		host, err := os.Hostname()
		if err != nil {
			s.fault("id", "missing, and this machine has no host name to take instead")
		}
		c.ID, c.IDDefault = host, true
	}
	guards := s.list("guards")
	for _, g := range guards {
		c.Guards = append(c.Guards, g.guard())
	}
	routes := s.list("routes")
	for _, r := range routes {
		c.Routes = append(c.Routes, r.route())
	}
	s.crossCheck(c, guards, routes)
	return c
}

// listen is an address to listen on.
func (s section) listen(name, otherwise string) string {
	address := s.text(name, otherwise)
	if strings.HasPrefix(address, "unix:") {
		return address
	}
	if _, port, err := net.SplitHostPort(address); err != nil || port == "" {
		s.fault(name, "want host:port, or unix:/path?mode=0660")
	}
	return address
}

func (s section) upstream() Upstream {
	u := Upstream{
		AllowRemote:     s.boolean("allow_remote", false),
		ConnectTimeout:  s.duration("connect_timeout", defaultConnectTimeout, time.Millisecond, time.Minute),
		ResponseTimeout: s.duration("response_timeout", defaultResponseTimeout, time.Millisecond, time.Hour),
	}
	text := s.required("url")
	if text == "" {
		return u
	}
	parsed, err := url.Parse(text)
	switch {
	case err != nil || parsed.Scheme != "http" || parsed.Hostname() == "" || parsed.User != nil ||
		parsed.Path != "" && parsed.Path != "/" || parsed.RawQuery != "" || parsed.Fragment != "":
		s.fault("url", "want http://host:port, without a path")
		return u
	case !u.AllowRemote && !isLoopback(parsed.Hostname()):
		s.fault("url", "the resource isn't on this machine, so others could reach it without the sidecar; write allow_remote: true if something else keeps them out")
	}
	if parsed.Port() == "" {
		parsed.Host = net.JoinHostPort(parsed.Hostname(), "80")
	}
	u.URL = parsed
	return u
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func (s section) store() Store {
	if s.has("file") {
		return Store{} // refused by name already
	}
	if !s.has("postgres") {
		s.faults.add(s.position(), s.key("postgres"), "missing: where the marks live")
		return Store{}
	}
	p := s.sub("postgres")
	return Store{Postgres: Postgres{
		URL:       p.secret("url"),
		MaxConns:  int32(p.number("max_conns", defaultMaxConns, 1, 1000)), //nolint:gosec // bounded
		Timeout:   p.duration("timeout", defaultStoreTimeout, time.Millisecond, time.Minute),
		QueryMode: choice(p, "query_mode", defaultQueryMode, []string{"cache_describe", "cache_statement", "exec", "simple_protocol"}, nil),
	}}
}

func (s section) position() position {
	if s.n != nil {
		return s.n.at
	}
	return position{1, 1}
}

func (s section) token() Token {
	return Token{
		Header:      s.headerName("header", defaultTokenHeader),
		OwnerHeader: s.headerName("owner_header", defaultOwnerHeader),
		MaxJump:     s.number("max_jump", defaultMaxJump, 1, 1<<62),
	}
}

var headerGrammar = regexp.MustCompile(`^[A-Za-z0-9]+(-[A-Za-z0-9]+)*$`)

// headerName is a header's name in its usual spelling.
func (s section) headerName(name, otherwise string) string {
	text := s.text(name, otherwise)
	if !headerGrammar.MatchString(text) {
		s.fault(name, "want a header name of letters, digits and single hyphens")
		return otherwise
	}
	return textproto.CanonicalMIMEHeaderKey(text)
}

func (s section) limits() Limits {
	return Limits{
		Body:        s.size("body", defaultBody, 1, 1<<30),
		Response:    s.size("response", defaultResponse, 1, 1<<30),
		Head:        s.size("head", defaultHead, 1<<10, 1<<20),
		Connections: int(s.number("connections", defaultConnections, 1, 1_000_000)),
		InFlight:    int(s.number("in_flight", defaultInFlight, 1, 100_000)),
		Wait:        s.duration("wait", defaultWait, time.Millisecond, time.Hour),
	}
}

var nameGrammar = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,63}$`)

// name is a short name that appears in metrics and logs.
func (s section) name() string {
	text := s.required("name")
	if text != "" && !nameGrammar.MatchString(text) {
		s.fault("name", "want lower-case letters, digits, _ and -, at most 64")
	}
	return text
}

func (s section) guard() Guard {
	g := Guard{Name: s.name(), LockKey: s.text("lock_key", "{key}"), Mark: s.sub("mark").mark()}
	if !s.has("mark") {
		s.faults.addUnsupported(s.position(), s.key("mark"), ": a guard without mark: {table, key, token, …} would keep its marks in the sidecar's own table")
	}
	g.Order = choice(s, "order", OrderEffects, []Order{OrderAdmissions}, map[Order]string{OrderEffects: "; write order: admissions"})
	choice(s, "ownership", "shared", []string{"shared"}, map[string]string{"exclusive": "; write ownership: shared"})
	choice(s, "advance", "sidecar", []string{"sidecar"}, map[string]string{"resource": "; write advance: sidecar"})
	return g
}

var identifierGrammar = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_$]{0,62}$`)

func (s section) mark() Mark {
	if s.n == nil {
		return Mark{}
	}
	m := Mark{
		Key:     s.required("key"),
		Token:   s.required("token"),
		KeyType: choice(s, "key_type", "", []KeyType{KeyUUID, KeyInt, KeyText}, nil),
		Missing: choice(s, "missing", MissingReject, []Missing{MissingReject, MissingInsert}, nil),
	}
	if !s.has("key_type") {
		s.fault("key_type", "missing: uuid, int or text")
	}
	if s.has("updated_at") {
		m.UpdatedAt = s.required("updated_at")
	}
	if table := s.required("table"); table != "" {
		m.Table = strings.Split(table, ".")
	}
	for name, identifiers := range map[string][]string{"table": m.Table, "key": {m.Key}, "token": {m.Token}, "updated_at": {m.UpdatedAt}} {
		for _, identifier := range identifiers {
			if identifier != "" && !identifierGrammar.MatchString(identifier) || len(identifiers) > 2 {
				s.fault(name, "want a name of the database, such as account or public.account")
			}
		}
	}
	return m
}

var methodGrammar = regexp.MustCompile(`^[A-Z]{1,20}$`)

func (s section) route() Route {
	match := s.sub("match")
	r := Route{
		Name: s.name(), Methods: match.texts("methods"), Path: match.text("path", ""), Pass: s.boolean("pass", false),
		Guard: s.text("guard", ""), Overlaps: s.texts("overlaps"),
		Mode: choice(s, "mode", ModeEnforce, []Mode{ModeEnforce, ModeOff}, map[Mode]string{ModeShadow: "; write mode: enforce or mode: off"}),
	}
	if len(r.Methods) == 0 {
		match.fault("methods", "missing: which methods, such as [POST]")
	}
	for _, method := range r.Methods {
		if !methodGrammar.MatchString(method) || method == "CONNECT" || method == "TRACE" {
			match.fault("methods", "want methods in upper case, and neither CONNECT nor TRACE")
		}
	}
	if match.has("path") {
		match.template(r.Path)
	}
	switch {
	case r.Pass && r.Guard != "":
		s.fault("pass", "a route is guarded or passed, not both")
	case r.Pass:
		for _, key := range []string{"key", "admit", "mode"} {
			if s.has(key) {
				s.fault(key, "means nothing on a passed route; remove it")
			}
		}
	case r.Guard == "":
		if v := s.n.get("guard"); v == nil || v.kind == scalarNode {
			s.fault("guard", "missing: name a guard, or write pass: true; two guards on one route aren't possible")
		}
	default:
		r.Admit = choice(s, "admit", "", []Admit{AdmitNewer, AdmitNewerOrSame}, nil)
		if !s.has("admit") {
			s.fault("admit", "missing: newer (each token once) or newer_or_same")
		}
		r.Key = s.sub("key").routeKey(r)
	}
	return r
}

func (s section) template(text string) {
	if _, err := ParseTemplate(text); err != nil {
		s.fault("path", err.Error())
	}
	if text == "/.fence" || strings.HasPrefix(text, "/.fence/") {
		s.fault("path", "paths below /.fence/ are the sidecar's own")
	}
}

// routeKey reads where the key comes from.
func (s section) routeKey(r Route) Key {
	k := s.source(r)
	if s.has("lookup") {
		if k != (Key{}) {
			s.fault("lookup", "a key has one source; put the others into the lookup's params")
		}
		lookup := s.sub("lookup").lookup(r)
		return Key{Lookup: &lookup}
	}
	if k == (Key{}) {
		s.fault("path", "missing: a key comes from path, header, query, json or lookup")
	}
	return k
}

// source reads a key's source other than a lookup: at most one.
func (s section) source(r Route) Key {
	var k Key
	given := 0
	for name, into := range map[string]*string{"path": &k.Path, "header": &k.Header, "query": &k.Query, "json": &k.JSON} {
		if s.has(name) {
			given++
			*into = s.required(name)
		}
	}
	if given > 1 {
		s.fault("path", "a key has one source, here are "+itoa(given))
	}
	if t, err := ParseTemplate(r.Path); k.Path != "" && (r.Path == "" || err == nil && !slices.Contains(t.Params(), k.Path)) {
		s.fault("path", "the route's path has no parameter {"+k.Path+"}")
	}
	if k.Header != "" {
		k.Header = s.headerName("header", "X-Key")
	}
	if k.JSON != "" && (!strings.HasPrefix(k.JSON, "/") || strings.HasSuffix(k.JSON, "/")) {
		s.fault("json", "want a JSON pointer such as /payoutId")
	}
	return k
}
