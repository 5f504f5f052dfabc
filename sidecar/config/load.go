package config

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"time"
)

// LoadFile reads a configuration file with this process's environment.
func LoadFile(path string) (*Config, error) {
	data, err := ReadFile(path)
	if err != nil {
		return nil, err
	}
	return Load(data, path, os.LookupEnv)
}

// ReadFile reads a configuration file's text, for Load.
func ReadFile(path string) ([]byte, error) {
	file, err := os.Open(path) //nolint:gosec // the operator's own file
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	defer func() { _ = file.Close() }()
	data, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("read configuration: %s is longer than %d bytes", path, maxFile)
	}
	return data, nil
}

// maxFile bounds a configuration file, in bytes.
const maxFile = 1 << 20

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
	cfg := decode(root, faults, env)
	if err := faults.err(); err != nil {
		return nil, err
	}
	return cfg, nil
}

func decode(root *node, faults *Faults, env func(string) (string, bool)) *Config {
	return section{decoder: &decoder{faults: faults, env: env}, n: root}.config()
}

// Every default stands here and nowhere else; those that are one of a closed set stand where the set is read.
const (
	defaultConnectTimeout  = time.Second
	defaultResponseTimeout = 10 * time.Second
	defaultIdleTimeout     = time.Minute
	defaultMaxConns        = 8
	defaultStoreTimeout    = 500 * time.Millisecond
	defaultQueryMode       = "cache_describe"
	defaultTokenHeader     = "X-Fencing-Token"
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
	defaultRejectionsKept  = 720 * time.Hour
	defaultLockKey         = "{key}"
)

func (s section) config() *Config {
	if v := s.n.get("version"); v == nil || v.kind != scalarNode || v.quoted || v.text != "1" {
		s.fault("version", "want version: 1")
	}
	c := &Config{
		ID:        s.id(),
		Listen:    s.listen("listen", defaultListen),
		ListenTLS: s.sub("listen_tls").listenTLS(),
		Admin:     s.sub("admin").admin(),
		Upstream:  s.sub("upstream").upstream(),
		Store:     s.sub("store").store(),
		Token:     s.sub("token").token(),
		Headers:   s.sub("headers").headers(),
		Forwarded: s.sub("forwarded").forwarded(),
		Unmatched: choice(s, "unmatched", UnmatchedReject, []Unmatched{UnmatchedReject, UnmatchedPass}, nil),
		Limits:    s.sub("limits").limits(),
		Tracing:   s.sub("tracing").tracing(),
	}
	shutdown := s.sub("shutdown")
	c.Shutdown = Shutdown{
		Delay: shutdown.duration("delay", defaultDelay, 0, time.Hour),
		Grace: shutdown.duration("grace", defaultGrace, time.Millisecond, time.Hour),
	}
	c.RejectionsKept = s.sub("rejections").duration("keep", defaultRejectionsKept, time.Hour, 10*365*24*time.Hour)
	if c.ID == "" {
		host, err := os.Hostname()
		if err != nil || host == "" {
			s.fault("id", "missing, and this machine has no host name to take instead")
		}
		c.ID, c.IDDefault = host, true
	}
	if c.Listen == c.Admin.Listen && !strings.HasSuffix(c.Listen, ":0") {
		s.sub("admin").fault("listen", "the admin listener needs an address of its own")
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
	c.SecretFiles = s.secretFiles
	return c
}

var idGrammar = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$`)

// id is empty when the file gives none.
func (s section) id() string {
	id := s.text("id", "")
	if id != "" && !idGrammar.MatchString(id) {
		s.fault("id", "want letters, digits and . _ : -, at most 128")
	}
	return id
}
