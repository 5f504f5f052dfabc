package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"fenceline/internal/measure"
	"fenceline/internal/pgserver"
	"fenceline/internal/process"
	"fenceline/migrations"
)

// bench is what a run has started.
type bench struct {
	opts     *runCmd
	dir      string
	progress io.Writer
	cleanups []func(ctx context.Context) error

	server   *pgserver.Server
	database int    // PostgreSQL's process
	upstream string // its address
}

const stopping = 30 * time.Second

func (b *bench) cleanup(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopping)
	defer cancel()
	for _, one := range slices.Backward(b.cleanups) {
		err = errors.Join(err, one(ctx))
	}
	return err
}

// spawn starts a program and waits until it listens.
func (b *bench) spawn(ctx context.Context, name, program string, env []string, arguments ...string) (*process.Process, string, error) {
	p, err := process.Start(ctx, process.Spec{Name: name, Path: program, Args: arguments, Env: env, LogDir: b.dir})
	if err != nil {
		return nil, "", err
	}
	b.cleanups = append(b.cleanups, p.Stop)
	ctx, cancel := context.WithTimeout(ctx, stopping)
	defer cancel()
	address, err := p.Address(ctx, "api")
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w\n%s", name, errNoAddress, p.Tail())
	}
	return p, address, nil
}

// self starts this program as something else.
func (b *bench) self(ctx context.Context, name string, env []string, arguments ...string) (*process.Process, string, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, "", err
	}
	return b.spawn(ctx, name, program, env, arguments...)
}

// startServer starts PostgreSQL with its defaults, which wait for the disk.
func (b *bench) startServer(ctx context.Context) error {
	server, err := pgserver.Start(ctx, pgserver.Options{Name: "bench", Progress: b.progress, Settings: map[string]string{"max_connections": "200"}})
	if err != nil {
		return err
	}
	b.server = server
	b.cleanups = append(b.cleanups, server.Stop)
	conn, err := pgx.Connect(ctx, server.URL("postgres"))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	var backend int
	if err := conn.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&backend); err != nil {
		return err
	}
	b.database = measure.Parent(backend)
	return nil
}

// makeDatabase makes one with the sidecar's own tables.
func (b *bench) makeDatabase(ctx context.Context, name string) (string, error) {
	admin, err := pgx.Connect(ctx, b.server.URL("postgres"))
	if err != nil {
		return "", err
	}
	_, err = admin.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize())
	if err = errors.Join(err, admin.Close(ctx)); err != nil {
		return "", err
	}
	conn, err := pgx.Connect(ctx, b.server.URL(name))
	if err != nil {
		return "", err
	}
	_, err = migrations.Apply(ctx, conn, migrations.Fence())
	return b.server.URL(name), errors.Join(err, conn.Close(ctx))
}

// execute runs statements on a database.
func execute(ctx context.Context, url string, statements ...string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	for _, sql := range statements {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return errors.Join(err, conn.Close(ctx))
		}
	}
	return conn.Close(ctx)
}

// sidecarConfig has one guarded route and one that passes. Every other setting is the default, but for the room that many connections need.
const sidecarConfig = `
version: 1
id: %[1]s
listen: %[6]s
admin: { listen: "%[7]s" }
upstream: { url: "http://%[2]s" }
store: %[3]s
guards:
  - name: %[4]s
    mark: { key_type: text }
%[5]s
routes:
  - { name: write, match: { methods: [PUT], path: "` + thingsPath + `{id}" }, guard: %[4]s, admit: newer_or_same, key: { path: id } }
  - { name: reads, match: { methods: [GET] }, pass: true }
shutdown: { delay: 1ms, grace: 10s }
`

// Ways to order.
const (
	admissions = "    order: admissions"
	effects    = "    order: effects\n    unsettled: { then: release, after: 30s }"
	exclusive  = effects + "\n    ownership: exclusive"
)

// sidecar starts one with its marks in the database, or in a file where url is empty.
func (b *bench) sidecar(ctx context.Context, id, guard, order, url string) (*process.Process, string, error) {
	store := "{ postgres: { url: \"${BENCH_DATABASE_URL}\", timeout: 5s, query_mode: cache_statement } }"
	if url == "" {
		store = "{ file: { path: " + filepath.Join(b.dir, id+".db") + ", timeout: 5s } }"
	}
	address, err := freeAddress(ctx)
	if err != nil {
		return nil, "", err
	}
	admin, err := freeAddress(ctx)
	if err != nil {
		return nil, "", err
	}
	path := filepath.Join(b.dir, id+".yaml")
	if err := os.WriteFile(path, fmt.Appendf(nil, sidecarConfig, id, b.upstream, store, guard, order, address, admin), 0o600); err != nil {
		return nil, "", err
	}
	if url == "" {
		if out, err := exec.CommandContext(ctx, b.opts.Sidecar, "init", "-c", path).CombinedOutput(); err != nil { //nolint:gosec // the caller's own program
			return nil, "", fmt.Errorf("sidecar init: %w\n%s", err, out)
		}
	}
	// Its log goes to a file: reading the line that each refused request writes would cost this process, and hence the clients, more than it costs the sidecar.
	spec := process.Spec{Name: id, Path: b.opts.Sidecar, Args: []string{"run", "-c", path}, Env: []string{"BENCH_DATABASE_URL=" + url}, LogDir: b.dir, FileOnly: true}
	if b.opts.Profile != "" {
		if spec.Path, err = os.Executable(); err != nil {
			return nil, "", err
		}
		spec.Args = []string{"sidecar", "-c", path, "--profile", filepath.Join(b.opts.Profile, id+".pprof")}
	}
	p, err := process.Start(ctx, spec)
	if err != nil {
		return nil, "", err
	}
	b.cleanups = append(b.cleanups, p.Stop)
	return p, address, b.until(ctx, id+" to be ready", func() error { return ready(ctx, admin) })
}

// ready asks an admin listener.
func ready(ctx context.Context, admin string) error {
	c, err := dial(ctx, admin)
	if err != nil {
		return err
	}
	defer func() { _ = c.conn.Close() }()
	status, err := c.do(func(b []byte) []byte { return append(b, "GET /readyz HTTP/1.1\r\nHost: bench\r\n\r\n"...) })
	if err == nil && status != 200 {
		err = fmt.Errorf("status %d", status)
	}
	return err
}

// until tries again and again.
func (b *bench) until(ctx context.Context, what string, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, stopping)
	defer cancel()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited for %s: %w; its log is in %s", what, err, b.dir)
		case <-ticker.C:
		}
	}
}

// nginx starts it before the upstream and the checker.
func (b *bench) nginx(ctx context.Context, checker string) (*process.Process, string, error) {
	program, err := exec.LookPath(b.opts.Nginx)
	if err != nil {
		program = "/usr/sbin/nginx" // not on everybody's PATH
	}
	address, err := freeAddress(ctx)
	if err != nil {
		return nil, "", err
	}
	user := ""
	if os.Getuid() == 0 {
		user = "user root;" // else its workers couldn't write into our folder
	}
	file := filepath.Join(b.dir, "nginx.conf")
	if err := os.WriteFile(file, fmt.Appendf(nil, nginxConfig, user, b.dir, b.upstream, checker, address), 0o600); err != nil {
		return nil, "", err
	}
	p, err := process.Start(ctx, process.Spec{Name: "nginx", Path: program, Args: []string{"-p", b.dir, "-c", file, "-e", "stderr"}, LogDir: b.dir})
	if err != nil {
		return nil, "", fmt.Errorf("nginx (scripts/deps nginx installs it): %w", err)
	}
	b.cleanups = append(b.cleanups, p.Stop)
	return p, address, b.until(ctx, "nginx to listen", func() error {
		c, err := dial(ctx, address)
		if err != nil {
			return err
		}
		return c.conn.Close()
	})
}
