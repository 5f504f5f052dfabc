package pgserver

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
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
	require.Contains(t, s.Version(), "16.")
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

// What a killed owner leaves, a running server included, goes with the next start. A living owner's stays.
func TestLeftoversOfADeadOwnerAreCleared(t *testing.T) {
	t.Parallel()
	alive := startServer(t, Options{Name: "alive"})
	abandoned, err := Start(t.Context(), Options{Name: "abandoned"})
	require.NoError(t, err)
	require.NoError(t, abandoned.home.lock.Close()) // what the kernel does when the owner dies

	startServer(t, Options{Name: "next"})
	select {
	case <-abandoned.exited:
	case <-time.After(20 * time.Second):
		require.Fail(t, "the abandoned server still runs")
	}
	_, err = os.Stat(abandoned.home.dir)
	require.ErrorIs(t, err, os.ErrNotExist)
	conn, err := pgx.Connect(t.Context(), alive.URL("postgres"))
	require.NoError(t, err)
	require.NoError(t, conn.Close(t.Context()))
}

// A number that outlived its process may be anybody's by now: nobody else is ever signalled.
func TestLeftoverFileNeverPointsAtSomebodyElsesProcess(t *testing.T) {
	t.Parallel()
	s := startServer(t, Options{Name: "innocent"})
	abandoned, err := Start(t.Context(), Options{Name: "rebooted"})
	require.NoError(t, err)
	require.NoError(t, abandoned.Crash(t.Context()))
	// What a reboot leaves: the file, naming a process that is now another server.
	pid := strconv.Itoa(s.cmd.Process.Pid)
	require.NoError(t, abandoned.home.write(filepath.Join(abandoned.home.data(), "postmaster.pid"), pid+"\n"+abandoned.home.data()+"\n"))
	require.NoError(t, abandoned.home.lock.Close())

	startServer(t, Options{Name: "next"})
	_, err = os.Stat(abandoned.home.dir)
	require.ErrorIs(t, err, os.ErrNotExist)
	conn, err := pgx.Connect(t.Context(), s.URL("postgres"))
	require.NoError(t, err, "the innocent server runs on")
	require.NoError(t, conn.Close(t.Context()))
}

func TestSettingsThatTheServerRefusesAreShown(t *testing.T) {
	t.Parallel()
	_, err := Start(t.Context(), Options{Name: "broken", Settings: map[string]string{"max_connections": "many"}})
	require.ErrorContains(t, err, "broken")
	require.ErrorContains(t, err, "max_connections")
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

func TestArchiveCannotLeadOutsideItsFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	archive := writeArchive(t, map[string]string{"../outside": "x"})
	require.ErrorContains(t, unpack(archive, dir), "outside")
	_, err := os.Stat(filepath.Join(filepath.Dir(dir), "outside"))
	require.ErrorIs(t, err, os.ErrNotExist)

	require.NoError(t, unpack(writeArchive(t, map[string]string{"package/native/bin/tool": "x"}), dir))
	info, err := os.Stat(filepath.Join(dir, "package/native/bin/tool"))
	require.NoError(t, err)
	require.NotZero(t, info.Mode().Perm()&0o100, "programs can be run")
}
