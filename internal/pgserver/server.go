// Package pgserver gets a real PostgreSQL for the demonstration and for tests: found on the machine or fetched, started with its
// data in a folder of its own, stopped and removed at the end, also after a crash of ours.
package pgserver

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	superuser    = "postgres"
	startTimeout = 60 * time.Second
	portAttempts = 5
)

// Options say which server is wanted.
type Options struct {
	// Name is shown in progress lines and errors, such as "lockdb".
	Name string
	// Major is the major version; 0 means PG_MAJOR, else 16.
	Major int
	// Settings are written to postgresql.conf after the defaults, so they win.
	Settings map[string]string
	// Progress gets a line for each step that can take long; nil means silence.
	Progress io.Writer
}

// Server is one running PostgreSQL. Its methods aren't for concurrent use, but for URL, URLFor, Addr and Version.
type Server struct {
	name     string
	bin      string
	home     *home
	port     int
	password string
	version  string
	cmd      *exec.Cmd
	exited   chan struct{}
	external *url.URL          // set for a server that isn't ours
	settings map[string]string // of a copy that hasn't been started yet
}

// Start finds or fetches the server programs, makes a fresh cluster and starts it. Commits are durable, as
// everywhere: fsync stays on.
func Start(ctx context.Context, opts Options) (*Server, error) {
	return start(ctx, opts, freePort)
}

func start(ctx context.Context, opts Options, pickPort func() (int, error)) (*Server, error) {
	if opts.Progress == nil {
		opts.Progress = io.Discard
	}
	major, err := wantedMajor(opts.Major)
	if err != nil {
		return nil, err
	}
	bin, err := findBinaries(ctx, major, opts.Progress)
	if err != nil {
		return nil, err
	}
	runner, err := serverUser()
	if err != nil {
		return nil, err
	}
	home, err := newHome(ctx, bin, runner)
	if err != nil {
		return nil, err
	}
	s := &Server{name: opts.Name, bin: bin, home: home, password: rand.Text()}
	if err := s.create(ctx, opts.Settings, pickPort); err != nil {
		stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
		defer cancel()
		return nil, fmt.Errorf("start PostgreSQL for %s: %w", opts.Name, errors.Join(err, s.Stop(stopCtx)))
	}
	return s, nil
}

// External wraps a server that somebody else runs. Stop leaves it alone; Crash and Restart are refused.
func External(ctx context.Context, serverURL string) (*Server, error) {
	parsed, err := url.Parse(serverURL)
	if err != nil || parsed.Host == "" {
		return nil, errors.New("want a URL such as postgres://user:password@host:5432/postgres") // the text could hold a password
	}
	s := &Server{name: "external", external: parsed}
	if err := s.readVersion(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// create makes the cluster and opens it, on another port when the chosen one was taken meanwhile.
func (s *Server) create(ctx context.Context, settings map[string]string, pickPort func() (int, error)) error {
	if err := s.initialise(ctx); err != nil {
		return err
	}
	return s.open(ctx, settings, pickPort)
}

// open starts the cluster for the first time.
func (s *Server) open(ctx context.Context, settings map[string]string, pickPort func() (int, error)) error {
	var err error
	for range portAttempts {
		if s.port, err = pickPort(); err != nil {
			return err
		}
		if err = s.configure(settings); err != nil {
			return err
		}
		if err = s.launch(ctx); err == nil {
			return s.readVersion(ctx)
		}
		if !strings.Contains(err.Error(), "could not bind") {
			return err
		}
	}
	return err
}

func (s *Server) initialise(ctx context.Context) error {
	secret := filepath.Join(s.home.dir, "password")
	if err := s.home.write(secret, s.password+"\n"); err != nil {
		return err
	}
	defer func() { _ = os.Remove(secret) }()
	// --no-sync only concerns the making of the empty cluster; the running server syncs as it should.
	cmd := s.home.command(ctx, filepath.Join(s.bin, "initdb"), "-D", s.home.data(), "-U", superuser, "-A", "scram-sha-256",
		"--pwfile", secret, "-E", "UTF8", "--locale", "C", "--no-sync")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, lastLines(string(out), 5))
	}
	return nil
}

// configure writes the whole configuration file.
func (s *Server) configure(settings map[string]string) error {
	all := map[string]string{
		"listen_addresses":        "127.0.0.1",
		"port":                    strconv.Itoa(s.port),
		"unix_socket_directories": "",
		"max_connections":         "400",
		"shared_buffers":          "64MB",
		"logging_collector":       "off",
		"log_timezone":            "UTC",
		"timezone":                "UTC",
	}
	maps.Copy(all, settings)
	var out strings.Builder
	for _, name := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&out, "%s = '%s'\n", name, strings.ReplaceAll(all[name], "'", "''"))
	}
	return s.home.write(filepath.Join(s.home.data(), "postgresql.conf"), out.String())
}

// launch starts the postmaster as our child and waits until it takes connections.
func (s *Server) launch(ctx context.Context) error {
	log, err := os.Create(s.logFile())
	if err != nil {
		return fmt.Errorf("make the server's log: %w", err)
	}
	defer func() { _ = log.Close() }()
	// The server outlives the call that starts it; Stop ends it.
	s.cmd = s.home.command(context.WithoutCancel(ctx), filepath.Join(s.bin, "postgres"), "-D", s.home.data())
	s.cmd.Stdout, s.cmd.Stderr = log, log
	dieWithParent(s.cmd.SysProcAttr)
	if err := s.cmd.Start(); err != nil {
		return fmt.Errorf("start the server: %w", err)
	}
	exited, cmd := make(chan struct{}), s.cmd
	s.exited = exited
	go func() {
		_ = cmd.Wait()
		close(exited)
	}()
	return s.awaitConnections(ctx)
}

func (s *Server) awaitConnections(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	// Whoever took our port may accept and say nothing: an attempt must not outlast the server that it is for.
	exited := s.exited // a later Restart replaces it
	go func() {
		select {
		case <-exited:
			cancel()
		case <-ctx.Done():
		}
	}()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		conn, err := pgx.Connect(ctx, s.URL("postgres"))
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-s.exited:
		case <-ctx.Done():
		case <-ticker.C:
			continue
		}
		select {
		case <-s.exited: // also when that is what ended ctx
			return fmt.Errorf("the server ended at once: %s", s.logTail())
		default:
			return fmt.Errorf("the server takes no connections: %w: %s", err, s.logTail())
		}
	}
}

func (s *Server) readVersion(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.URL("postgres"))
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if err := conn.QueryRow(ctx, "SHOW server_version").Scan(&s.version); err != nil {
		return fmt.Errorf("read version: %w", err)
	}
	return nil
}

// Version is the server's version, such as "16.14".
func (s *Server) Version() string { return s.version }

// Addr is host:port.
func (s *Server) Addr() string {
	if s.external != nil {
		return s.external.Host
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port))
}

// URL is a superuser's (or, for an external server, its given user's) connection URL for a database.
func (s *Server) URL(database string) string {
	if s.external != nil {
		u := *s.external
		u.Path = "/" + database
		return u.String()
	}
	return s.URLFor(database, superuser, s.password)
}

// URLFor is the connection URL for a database and another user.
func (s *Server) URLFor(database, user, password string) string {
	u := url.URL{Scheme: "postgres", User: url.UserPassword(user, password), Host: s.Addr(), Path: "/" + database, RawQuery: "sslmode=disable"}
	if s.external != nil {
		u.RawQuery = s.external.RawQuery
	}
	return u.String()
}

var errExternal = errors.New("this server isn't ours to stop")

// Crash ends the server without letting it tidy up (immediate shutdown): what wasn't durable is lost, the next
// start recovers from the log. The data stays.
func (s *Server) Crash(ctx context.Context) error { return s.end(ctx, syscall.SIGQUIT) }

// Restart starts the server again on the same port with the same data; a running one is shut down cleanly first.
func (s *Server) Restart(ctx context.Context) error {
	if err := s.end(ctx, syscall.SIGINT); err != nil {
		return err
	}
	start := s.launchAfter
	if s.settings != nil {
		start = s.openCopy
	}
	if err := start(ctx); err != nil {
		return fmt.Errorf("restart PostgreSQL for %s: %w", s.name, err)
	}
	return nil
}

// Stop shuts the server down and removes its data. A second call does nothing.
func (s *Server) Stop(ctx context.Context) error {
	if s.external != nil {
		return nil
	}
	err := s.end(ctx, syscall.SIGINT)
	return errors.Join(err, s.home.remove())
}

// end signals the postmaster and waits; at the end of ctx it is killed.
func (s *Server) end(ctx context.Context, signal os.Signal) error {
	if s.external != nil {
		return errExternal
	}
	if s.cmd == nil || s.cmd.Process == nil {
		return nil
	}
	if err := s.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal the server: %w", err)
	}
	select {
	case <-s.exited:
		return nil
	case <-ctx.Done():
		_ = s.cmd.Process.Kill()
		<-s.exited
		return fmt.Errorf("the server didn't stop in time and was killed: %w", context.Cause(ctx))
	}
}

func (s *Server) logFile() string { return filepath.Join(s.home.dir, "server.log") }

func (s *Server) logTail() string {
	data, err := os.ReadFile(s.logFile())
	if err != nil {
		return "no log: " + err.Error()
	}
	return lastLines(string(data), 6)
}

// freePort asks the kernel for a port that nobody uses at this moment.
func freePort() (int, error) {
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	port := l.Addr().(*net.TCPAddr).Port // a TCP listener has no other
	return port, l.Close()
}
