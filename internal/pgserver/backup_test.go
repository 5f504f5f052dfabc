package pgserver

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// A copy has what was there when the backup ended and goes its own way. A server that was killed while it worked can be started again.
func TestBaseBackupIsAServerOfItsOwnAndAKilledServerStartsAgain(t *testing.T) {
	t.Parallel()
	s := startServer(t, Options{Name: "backed up"})
	conn, err := pgx.Connect(t.Context(), s.URL("postgres"))
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), "CREATE TABLE kept (n int); INSERT INTO kept VALUES (1)")
	require.NoError(t, err)
	replica, err := s.BaseBackup(t.Context(), Restore{Name: "copy"})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		require.NoError(t, replica.Stop(ctx))
	})
	_, err = conn.Exec(t.Context(), "INSERT INTO kept VALUES (2)")
	require.NoError(t, err)
	require.NoError(t, replica.Restart(t.Context()))
	require.NotEqual(t, s.Addr(), replica.Addr())
	require.Equal(t, 1, count(t, replica))
	require.Equal(t, 2, count(t, s))

	go func() {
		_, _ = conn.Exec(context.WithoutCancel(t.Context()), "SELECT sum(n) FROM generate_series(1, 5000000) n")
	}()
	require.NoError(t, s.Kill(t.Context()))
	require.NoError(t, s.Restart(t.Context()))
	require.Equal(t, 2, count(t, s))

	external, err := External(t.Context(), s.URL("postgres"))
	require.NoError(t, err)
	_, err = external.BaseBackup(t.Context(), Restore{Name: "refused"})
	require.ErrorContains(t, err, "isn't ours")
}
