package pgserver

import (
	"context"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

func startServer(t *testing.T, opts Options) *Server {
	t.Helper()
	s, err := Start(t.Context(), opts)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		require.NoError(t, s.Stop(ctx))
	})
	return s
}

// A test that needs an owner which is killed starts this binary again as one.
const ownerVariable = "PGSERVER_TEST_OWNER"

func TestMain(m *testing.M) {
	if os.Getenv(ownerVariable) != "" {
		s, err := Start(context.Background(), Options{Name: "owner"})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(s.Addr() + " " + s.home.dir) //nolint:forbidigo // the parent reads it
		select {}
	}
	os.Exit(m.Run())
}

func count(t *testing.T, s *Server) (n int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.URL("postgres"))
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(t.Context())) }()
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT count(*) FROM kept").Scan(&n))
	return n
}

func TestCommittedRowsSurviveACrashAndUncommittedOnesDoNot(t *testing.T) {
	t.Parallel()
	s := startServer(t, Options{Name: "crash"})
	require.Contains(t, s.Version(), fmt.Sprint(majorOf(t.Context(), s.bin)))
	conn, err := pgx.Connect(t.Context(), s.URL("postgres"))
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), "CREATE TABLE kept (n int); INSERT INTO kept VALUES (1)")
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), "BEGIN; INSERT INTO kept VALUES (2)")
	require.NoError(t, err)

	before := s.Addr()
	require.NoError(t, s.Crash(t.Context()))
	_, err = pgx.Connect(t.Context(), s.URL("postgres"))
	require.Error(t, err)
	require.NoError(t, s.Restart(t.Context()))
	require.Equal(t, before, s.Addr())
	require.Equal(t, 1, count(t, s))
	require.NoError(t, s.Restart(t.Context()), "a running server can be restarted")
	require.Equal(t, 1, count(t, s))
}

func TestServersStartedAtOnceDoNotDisturbEachOther(t *testing.T) {
	t.Parallel()
	servers := make([]*Server, 4)
	group, ctx := errgroup.WithContext(t.Context())
	for i := range servers {
		group.Go(func() (err error) {
			servers[i], err = Start(ctx, Options{Name: "many"})
			return err
		})
	}
	require.NoError(t, group.Wait())
	for _, s := range servers {
		conn, err := pgx.Connect(t.Context(), s.URL("postgres"))
		require.NoError(t, err)
		require.NoError(t, conn.Close(t.Context()))
	}
	for _, s := range servers {
		dir := s.home.dir
		require.NoError(t, s.Stop(t.Context()))
		_, err := os.Stat(dir)
		require.ErrorIs(t, err, os.ErrNotExist, "nothing is left")
	}
}

func TestSettingsThatTheServerRefusesAreShown(t *testing.T) {
	t.Parallel()
	_, err := Start(t.Context(), Options{Name: "broken", Settings: map[string]string{"max_connections": "many"}})
	require.ErrorContains(t, err, "broken")
	require.ErrorContains(t, err, "max_connections")
}

func TestPortTakenBetweenChoiceAndStartIsReplaced(t *testing.T) {
	t.Parallel()
	taken, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	defer func() { require.NoError(t, taken.Close()) }()
	asked := 0
	s, err := start(t.Context(), Options{Name: "port"}, func() (int, error) {
		if asked++; asked == 1 {
			return taken.Addr().(*net.TCPAddr).Port, nil
		}
		return freePort()
	})
	require.NoError(t, err)
	require.Equal(t, 2, asked)
	require.NotEqual(t, taken.Addr().String(), s.Addr())
	require.NoError(t, s.Stop(t.Context()))
	require.NoError(t, s.Stop(t.Context()), "a second stop does nothing")
}

// A password that isn't the server's own is refused, over the loopback interface too.
func TestStrangersAreNotLetIn(t *testing.T) {
	t.Parallel()
	s := startServer(t, Options{Name: "strangers"})
	for _, password := range []string{"", "postgres"} {
		_, err := pgx.Connect(t.Context(), s.URLFor("postgres", superuser, password))
		require.ErrorContains(t, err, "28P01", "%q", password)
	}
	info, err := os.Stat(s.home.dir)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
}

func TestWrongMajorAndExternalURLAreRefusedClearly(t *testing.T) {
	_, err := External(t.Context(), "not a url with secret")
	require.ErrorContains(t, err, "want a URL")
	require.NotContains(t, err.Error(), "secret")
	t.Setenv("PG_MAJOR", "nine")
	_, err = Start(t.Context(), Options{})
	require.ErrorContains(t, err, "PG_MAJOR")
}

func TestExternalServerIsNeverStopped(t *testing.T) {
	t.Parallel()
	own := startServer(t, Options{Name: "external"})
	external, err := External(t.Context(), own.URL("postgres"))
	require.NoError(t, err)
	require.Equal(t, own.Version(), external.Version())
	require.ErrorIs(t, external.Crash(t.Context()), errExternal)
	require.Error(t, external.Restart(t.Context()))
	require.NoError(t, external.Stop(t.Context()))
	conn, err := pgx.Connect(t.Context(), external.URL("postgres"))
	require.NoError(t, err)
	require.NoError(t, conn.Close(t.Context()))
}
