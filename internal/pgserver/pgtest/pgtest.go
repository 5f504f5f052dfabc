// Package pgtest gives tests real PostgreSQL: one server for each run, one fresh database for each test, cloned from a
// template with the project's own migrations.
package pgtest

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver"
	"fenceline/migrations"
)

// shared is the server of this test binary.
var shared struct { //nolint:gochecknoglobals // a test binary has one server, whoever asks first starts it
	once   sync.Once
	server *pgserver.Server
	err    error
}

// Main runs a package's tests and stops the server that they started. Use it in TestMain.
func Main(m *testing.M) {
	code := m.Run()
	if shared.server != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		if err := shared.server.Stop(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "pgtest:", err)
			code = max(code, 1)
		}
		cancel()
	}
	os.Exit(code)
}

func sharedServer(t testing.TB) *pgserver.Server {
	t.Helper()
	shared.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
		defer cancel()
		if given := os.Getenv("TEST_POSTGRES_URL"); given != "" {
			shared.server, shared.err = pgserver.External(ctx, given)
			return
		}
		shared.server, shared.err = pgserver.Start(ctx, pgserver.Options{Name: "tests", Progress: os.Stderr})
	})
	require.NoError(t, shared.err, "tests need a PostgreSQL server")
	return shared.server
}

// Server starts a server for this test alone, to crash and restart at will. It is stopped when the test ends.
func Server(t testing.TB, settings map[string]string) *pgserver.Server {
	t.Helper()
	server, err := pgserver.Start(t.Context(), pgserver.Options{Name: t.Name(), Progress: os.Stderr, Settings: settings})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		require.NoError(t, server.Stop(ctx))
	})
	return server
}

// Database returns the superuser URL of a fresh database on the run's shared server, with the migrations applied. It is dropped when the
// test ends.
func Database(t testing.TB, sets ...migrations.Set) string {
	t.Helper()
	return DatabaseOn(t, sharedServer(t), sets...)
}

// DatabaseOn is Database on another server.
func DatabaseOn(t testing.TB, server *pgserver.Server, sets ...migrations.Set) string {
	t.Helper()
	admin, err := pgx.Connect(t.Context(), server.URL("postgres"))
	require.NoError(t, err)
	defer func() { _ = admin.Close(context.Background()) }()

	template := ensureTemplate(t, admin, server, sets)
	name := "test_" + strings.ToLower(rand.Text()[:12])
	clone := fmt.Sprintf("CREATE DATABASE %s TEMPLATE %s", pgx.Identifier{name}.Sanitize(), pgx.Identifier{template}.Sanitize())
	// No lock: once a template has its name nobody connects to it, and the server itself waits a while for its own workers there.
	_, err = admin.Exec(t.Context(), clone)
	require.NoError(t, err)
	t.Cleanup(func() {
		execute(server.URL("postgres"), "DROP DATABASE IF EXISTS "+pgx.Identifier{name}.Sanitize()+" WITH (FORCE)")
	})
	return server.URL(name)
}

// execute tidies up as far as it can: a crashed server has nothing left to drop.
func execute(url, sql string) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	admin, err := pgx.Connect(ctx, url)
	if err != nil {
		return
	}
	defer func() { _ = admin.Close(ctx) }()
	_, _ = admin.Exec(ctx, sql)
}

// underLock runs fn while no other test binary makes a template.
func underLock(ctx context.Context, admin *pgx.Conn, fn func() error) error {
	if _, err := admin.Exec(ctx, "SELECT pg_advisory_lock(hashtextextended('fenceline test templates', 0))"); err != nil {
		return fmt.Errorf("lock templates: %w", err)
	}
	defer func() {
		_, _ = admin.Exec(context.WithoutCancel(ctx), "SELECT pg_advisory_unlock(hashtextextended('fenceline test templates', 0))")
	}()
	return fn()
}

// ensureTemplate makes the template for these migrations once for each server. Its name carries a hash of their text.
func ensureTemplate(t testing.TB, admin *pgx.Conn, server *pgserver.Server, sets []migrations.Set) string {
	t.Helper()
	hash := sha256.New()
	for _, set := range sets {
		hash.Write([]byte(set.Name() + migrations.SQL(set)))
	}
	name := "template_" + hex.EncodeToString(hash.Sum(nil))[:16]
	require.NoError(t, underLock(t.Context(), admin, func() error {
		var exists bool
		if err := admin.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", name).Scan(&exists); err != nil || exists {
			return err
		}
		// Built under another name, so that a half-made template is never cloned.
		building := name + "_building"
		for _, sql := range []string{"DROP DATABASE IF EXISTS " + building, "CREATE DATABASE " + building} {
			if _, err := admin.Exec(t.Context(), sql); err != nil {
				return err
			}
		}
		if err := migrate(t.Context(), server.URL(building), sets); err != nil {
			return err
		}
		_, err := admin.Exec(t.Context(), "ALTER DATABASE "+building+" RENAME TO "+name)
		return err
	}))
	return name
}

func migrate(ctx context.Context, databaseURL string, sets []migrations.Set) error {
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	for _, set := range sets {
		if _, err := migrations.Apply(ctx, conn, set); err != nil {
			return err
		}
	}
	return nil
}

// Login makes a login role that is a member of the groups and returns the URL with which to connect to the database as it. The
// role is dropped when the test ends.
// With TEST_POSTGRES_POOLED in the environment the URL leads through a PgBouncer of the login's own.
func Login(t testing.TB, databaseURL string, groups ...string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), databaseURL)
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	name, password := "test_"+strings.ToLower(rand.Text()[:12]), rand.Text()
	_, err = conn.Exec(t.Context(), fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD '%s'", name, password))
	require.NoError(t, err)
	for _, group := range groups {
		_, err = conn.Exec(t.Context(), fmt.Sprintf("GRANT %s TO %s", pgx.Identifier{group}.Sanitize(), name))
		require.NoError(t, err)
	}
	u, err := url.Parse(databaseURL)
	require.NoError(t, err)
	maintenance := *u
	maintenance.Path = "/postgres" // the test's own database may be gone by then
	t.Cleanup(func() { execute(maintenance.String(), "DROP ROLE IF EXISTS "+name) })
	u.User = url.UserPassword(name, password)
	if os.Getenv("TEST_POSTGRES_POOLED") != "" {
		return Pooler(t, u.String())
	}
	return u.String()
}

// Connect opens a connection that is closed when the test ends.
func Connect(t testing.TB, databaseURL string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), databaseURL)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}
