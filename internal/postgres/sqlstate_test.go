package postgres_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/internal/postgres"
)

// scene is a database with a few tables, and sessions in it.
type scene struct {
	t     *testing.T
	owner string
	login string // without any right
	admin *pgx.Conn
}

// newScene makes its tables in a schema of their own, in a database that scenes share.
func newScene(t *testing.T, database string) *scene {
	t.Helper()
	schema := "scene_" + strings.ToLower(rand.Text()[:12])
	owner := database + "&search_path=" + schema
	s := &scene{t: t, owner: owner, login: pgtest.Login(t, owner), admin: pgtest.Connect(t, owner)}
	s.do("CREATE SCHEMA " + schema + "; GRANT USAGE ON SCHEMA " + schema + " TO public")
	s.do("CREATE TABLE parent (id int PRIMARY KEY, n int NOT NULL DEFAULT 0); INSERT INTO parent VALUES (1), (2)")
	s.do("CREATE TABLE child (id int REFERENCES parent, n int CHECK (n > 0))")
	return s
}

func (s *scene) do(sql string) {
	s.t.Helper()
	_, err := s.admin.Exec(s.t.Context(), sql)
	require.NoError(s.t, err, sql)
}

// in is the error of a statement, or several, in a session of the owner's.
func in(sql ...string) func(*scene) error {
	return func(s *scene) error {
		conn := pgtest.Connect(s.t, s.owner)
		for _, one := range sql[:len(sql)-1] {
			_, err := conn.Exec(s.t.Context(), one)
			require.NoError(s.t, err, one)
		}
		_, err := conn.Exec(s.t.Context(), sql[len(sql)-1])
		return err
	}
}

// connecting is the error of a connection attempt with the login's URL, changed.
func connecting(alter string, change func(*url.URL)) func(*scene) error {
	return func(s *scene) error {
		u, err := url.Parse(s.login)
		require.NoError(s.t, err)
		if alter != "" {
			s.do("ALTER ROLE " + u.User.Username() + " " + alter)
		}
		if change != nil {
			change(u)
		}
		conn, err := pgx.Connect(s.t.Context(), u.String())
		if err == nil {
			_ = conn.Close(s.t.Context())
		}
		return err
	}
}

// silent is the error of the first statement of a session that was silent for longer than the setting allows.
func silent(setting string, first ...string) func(*scene) error {
	return func(s *scene) error {
		conn := pgtest.Connect(s.t, s.owner)
		for _, sql := range append([]string{"SET " + setting + " = '50ms'"}, first...) {
			if _, err := conn.Exec(s.t.Context(), sql); err != nil {
				return err
			}
		}
		s.eventually("SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)", conn.PgConn().PID())
		_, err := conn.Exec(s.t.Context(), "SELECT 1")
		return err
	}
}

func (s *scene) eventually(sql string, args ...any) {
	s.t.Helper()
	require.Eventually(s.t, func() bool {
		yes := false
		return s.admin.QueryRow(context.Background(), sql, args...).Scan(&yes) == nil && yes
	}, 60*time.Second, 5*time.Millisecond, sql)
}

// lostSnapshot updates a row that was updated since the snapshot.
func lostSnapshot(s *scene) error {
	conn := pgtest.Connect(s.t, s.owner)
	_, err := conn.Exec(s.t.Context(), "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM parent")
	require.NoError(s.t, err)
	s.do("UPDATE parent SET n = 1")
	_, err = conn.Exec(s.t.Context(), "UPDATE parent SET n = 2")
	return err
}

// deadlocked locks two rows crosswise with another session, which is already waiting.
func deadlocked(s *scene) error {
	conn, other := pgtest.Connect(s.t, s.owner), pgtest.Connect(s.t, s.owner)
	for c, sql := range map[*pgx.Conn]string{
		conn:  "SET deadlock_timeout = '10ms'; BEGIN; UPDATE parent SET n = 1 WHERE id = 1",
		other: "SET deadlock_timeout = '1h'; BEGIN; UPDATE parent SET n = 2 WHERE id = 2",
	} {
		_, err := c.Exec(s.t.Context(), sql)
		require.NoError(s.t, err)
	}
	waited := make(chan error, 1)
	go func() {
		_, err := other.Exec(s.t.Context(), "UPDATE parent SET n = 2 WHERE id = 1")
		waited <- err
	}()
	s.eventually("SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1 AND wait_event_type = 'Lock')", other.PgConn().PID())
	_, err := conn.Exec(s.t.Context(), "UPDATE parent SET n = 1 WHERE id = 2")
	require.NoError(s.t, <-waited, "it gets the lock of the one that was ended")
	return err
}

// transactionTimeout came with version 17; before it only a function says so.
func transactionTimeout(s *scene) error {
	var version int
	require.NoError(s.t, s.admin.QueryRow(s.t.Context(), "SELECT current_setting('server_version_num')::int").Scan(&version))
	if version >= 170000 {
		return in("SET transaction_timeout = '50ms'", "SELECT pg_sleep(3600)")(s)
	}
	return in("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '25P04'; END $$")(s)
}

// wrongMessage sends fewer parameters than the statement has.
func wrongMessage(s *scene) error {
	return pgtest.Connect(s.t, s.owner).PgConn().ExecParams(s.t.Context(), "SELECT $1::int + $2::int", [][]byte{[]byte("1")}, nil, nil, nil).Read().Err
}

// states are all SQLSTATEs that Classify tells apart, each as a real server says it.
var states = map[string]struct { //nolint:gochecknoglobals // the test's table
	provoke  func(*scene) error
	identity error
}{
	"25006": {in("BEGIN READ ONLY", "UPDATE parent SET n = 1"), postgres.ErrReadOnly},
	"57014": {in("SET statement_timeout = '10ms'", "SELECT pg_sleep(3600)"), postgres.ErrTimeout},
	"55P03": {func(s *scene) error {
		s.do("BEGIN; UPDATE parent SET n = 1")
		return in("SET lock_timeout = '10ms'", "UPDATE parent SET n = 2")(s)
	}, postgres.ErrTimeout},
	"25P03": {silent("idle_in_transaction_session_timeout", "BEGIN"), postgres.ErrTimeout},
	"25P04": {transactionTimeout, postgres.ErrTimeout},
	"42501": {func(s *scene) error {
		_, err := pgtest.Connect(s.t, s.login).Exec(s.t.Context(), "SELECT FROM parent")
		return err
	}, postgres.ErrPermission},
	"28000": {connecting("NOLOGIN", nil), postgres.ErrPermission},
	"28P01": {connecting("", func(u *url.URL) { u.User = url.UserPassword(u.User.Username(), "wrong") }), postgres.ErrPermission},
	"42P01": {in("SELECT FROM nowhere"), postgres.ErrSchema},
	"42703": {in("SELECT nothing FROM parent"), postgres.ErrSchema},
	"42883": {in("SELECT nothing(1)"), postgres.ErrSchema},
	"3F000": {in("CREATE TABLE nowhere.t (n int)"), postgres.ErrSchema},
	"3D000": {connecting("", func(u *url.URL) { u.Path = "/nowhere" }), postgres.ErrSchema},
	"40001": {lostSnapshot, postgres.ErrSerialization},
	"40P01": {deadlocked, postgres.ErrSerialization},
	"23505": {in("INSERT INTO parent VALUES (1)"), postgres.ErrConstraint},
	"23503": {in("INSERT INTO child VALUES (7, 1)"), postgres.ErrConstraint},
	"23514": {in("INSERT INTO child VALUES (1, 0)"), postgres.ErrConstraint},
	"23502": {in("INSERT INTO parent VALUES (9, NULL)"), postgres.ErrConstraint},
	"08P01": {wrongMessage, postgres.ErrUnavailable},
	"53300": {connecting("CONNECTION LIMIT 0", nil), postgres.ErrUnavailable},
	"53400": {in("SET temp_file_limit = '64kB'", "SET work_mem = '64kB'", "SELECT count(*) FROM (SELECT generate_series(1, 1000000) AS n ORDER BY n) AS sorted"), postgres.ErrUnavailable},
	"57P01": {in("SELECT pg_terminate_backend(pg_backend_pid())"), postgres.ErrUnavailable},
	"57P05": {silent("idle_session_timeout"), postgres.ErrUnavailable},
	"58P01": {in("SELECT pg_read_file('nowhere')"), postgres.ErrUnavailable},
}

func TestEachStateIsProvokedAndHasItsIdentity(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	for code, c := range states {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			err := c.provoke(newScene(t, database))
			require.Equal(t, code, postgres.State(err), "%v", err)
			err = postgres.Classify(t.Context(), err)
			for _, identity := range []error{
				postgres.ErrReadOnly, postgres.ErrTimeout, postgres.ErrPermission, postgres.ErrSchema, postgres.ErrSerialization, postgres.ErrConstraint,
				postgres.ErrUnavailable, postgres.ErrCanceled, postgres.ErrOutcomeUnknown,
			} {
				require.Equal(t, errors.Is(c.identity, identity), errors.Is(err, identity), "%v: %v", identity, err)
			}
		})
	}
}

var quotedCode = regexp.MustCompile(`"([0-9][0-9A-Z](?:P|[0-9A-Z]{3})?)"`)

// No code or class stands in the source that isn't provoked, and each has its row in the document with its identity.
func TestEveryStateOfTheSourceIsProvokedAndDocumented(t *testing.T) {
	t.Parallel()
	names := map[error]string{
		postgres.ErrReadOnly: "ErrReadOnly", postgres.ErrTimeout: "ErrTimeout", postgres.ErrPermission: "ErrPermission", postgres.ErrSchema: "ErrSchema",
		postgres.ErrSerialization: "ErrSerialization", postgres.ErrConstraint: "ErrConstraint", postgres.ErrUnavailable: "ErrUnavailable",
	}
	found := 0
	for _, file := range []string{"errors.go", "tx.go"} {
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, match := range quotedCode.FindAllStringSubmatch(string(source), -1) {
			found++
			provoked := false
			for code := range states {
				provoked = provoked || strings.HasPrefix(code, match[1])
			}
			require.True(t, provoked, "%s: nothing provokes %s", file, match[1])
		}
	}
	require.Greater(t, found, 20)
	document, err := os.ReadFile("../../docs/failures.md")
	require.NoError(t, err)
	for code, c := range states {
		require.Regexp(t, fmt.Sprintf("(?m)^\\| [^|]*`%s`[^|]* \\| [^|]+ \\| `%s` \\|", code, names[c.identity]), string(document))
	}
}
