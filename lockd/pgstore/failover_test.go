package pgstore_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver"
	"fenceline/internal/pgserver/pgtest"
	"fenceline/lockd/lock"
	"fenceline/lockd/pgstore"
	"fenceline/migrations"
)

// jump is how far a new incarnation moves the token source.
const jump = 1_000_000_000

// backup takes a base backup of the server and returns the copy, which isn't running yet.
func backup(t *testing.T, server *pgserver.Server, restore pgserver.Restore) *pgserver.Server {
	t.Helper()
	restore.Name = t.Name()
	replica, err := server.BaseBackup(t.Context(), restore)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		require.NoError(t, replica.Crash(ctx), "quicker than to tidy up")
		require.NoError(t, replica.Stop(ctx))
	})
	return replica
}

// at is the URL of the same database and user on another server.
func at(t *testing.T, database, address string) string {
	t.Helper()
	u, err := url.Parse(database)
	require.NoError(t, err)
	u.Host = address
	return u.String()
}

// incarnationOf reads what is compared: of a cluster, and of the log that it writes.
func incarnationOf(t *testing.T, database string) (system, timeline int64) {
	t.Helper()
	err := pgtest.Connect(t, database).QueryRow(t.Context(), "SELECT system_identifier, timeline FROM token_source_now").Scan(&system, &timeline)
	require.NoError(t, err)
	return system, timeline
}

// A base backup is behind the tokens that were handed out after it. What lockd notices of that depends on how it is restored:
//   - Recovered with recovery.signal, to a target or to the end of the log, it writes a new timeline, and the first token is far above.
//   - Started as it is, it has the same timeline and the same system identifier, like a disk snapshot. Nothing detects that; the tokens come again, and
//     only fast-forward helps.
//   - Recovered a second time it jumps as far as it did the first time, to tokens that the first one may have handed out. Nothing detects that either.
func TestRestoredBaseBackupIsNoticedByItsNewTimelineOnly(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, nil)
	owner := pgtest.DatabaseOn(t, server, migrations.LockDB())
	original := pgstore.New(openPool(t, owner), 10*time.Second)
	next(t, original, "before the backup")
	system, timeline := incarnationOf(t, owner)
	// Without an archive the log ends with the backup.
	toTarget := pgserver.Restore{Signal: "recovery.signal", Settings: map[string]string{
		"restore_command": "false", "recovery_target": "immediate", "recovery_target_action": "promote",
	}}
	toEnd := pgserver.Restore{Signal: "recovery.signal", Settings: map[string]string{"restore_command": "false"}}
	copies := map[string]*pgserver.Server{"recovered": backup(t, server, toTarget), "again": backup(t, server, toEnd), "as it is": backup(t, server, pgserver.Restore{})}
	highest := lock.Token(0)
	for i := range 5 {
		highest = next(t, original, fmt.Sprint("after the backup", i))
	}
	require.NoError(t, server.Crash(t.Context()))
	var log bytes.Buffer
	logger := hclog.New(&hclog.LoggerOptions{Output: &log, JSONFormat: true})
	restart := func(name string) (*pgstore.Store, string) {
		require.NoError(t, copies[name].Restart(t.Context()))
		database := at(t, owner, copies[name].Addr())
		isTrue(t, pgtest.Connect(t, database), "SELECT NOT pg_is_in_recovery()") // a recovering server takes connections to read already
		return pgstore.New(openPool(t, database), 10*time.Second, pgstore.WithLogger(logger)), database
	}

	recovered, database := restart("recovered")
	sameSystem, newTimeline := incarnationOf(t, database)
	require.Equal(t, []int64{system, timeline + 1}, []int64{sameSystem, newTimeline})
	above := next(t, recovered, "recovered")
	require.Greater(t, above, highest+jump*9/10)
	require.Contains(t, log.String(), fmt.Sprintf("timeline %d, was %d", newTimeline, timeline))
	log.Reset()

	again, database := restart("again")
	_, newTimeline = incarnationOf(t, database)
	require.Equal(t, timeline+1, newTimeline, "it knows of no other recovery")
	below := next(t, again, "again")
	require.Greater(t, below, highest+jump*9/10)
	require.LessOrEqual(t, below, above, "the limit: as far as the first recovery, and no farther")
	log.Reset()

	asItIs, database := restart("as it is")
	sameSystem, sameTimeline := incarnationOf(t, database)
	require.Equal(t, []int64{system, timeline}, []int64{sameSystem, sameTimeline})
	require.LessOrEqual(t, next(t, asItIs, "undetected"), highest, "the limit: the token comes again")
	require.Empty(t, log.String())
	_, _, err := asItIs.FastForward(t.Context(), lock.FastForwardRequest{Above: highest, Operator: "op", Reason: "backup restored as it is"})
	require.NoError(t, err)
	require.Greater(t, next(t, asItIs, "fast-forwarded"), highest)
}

// standby starts a copy of the server that follows it.
func standby(t *testing.T, server *pgserver.Server) *pgserver.Server {
	t.Helper()
	u, err := url.Parse(server.URL("postgres"))
	require.NoError(t, err)
	password, _ := u.User.Password()
	replica := backup(t, server, pgserver.Restore{Signal: "standby.signal", Settings: map[string]string{
		"primary_conninfo": fmt.Sprintf("host=%s port=%s user=%s password=%s sslmode=disable", u.Hostname(), u.Port(), u.User.Username(), password),
	}})
	require.NoError(t, replica.Restart(t.Context()))
	return replica
}

// isTrue waits until the query says so.
func isTrue(t *testing.T, conn *pgx.Conn, query string, args ...any) {
	t.Helper()
	require.Eventually(t, func() bool {
		var yes bool
		return conn.QueryRow(t.Context(), query, args...).Scan(&yes) == nil && yes
	}, 20*time.Second, 10*time.Millisecond, query)
}

// detour is an address that leads to one server and later to another, as a virtual address or a pooler does.
type detour struct {
	listener net.Listener
	mu       sync.Mutex
	to       string
}

func newDetour(t *testing.T, to string) *detour {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	d := &detour{listener: listener, to: to}
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go d.pass(client)
		}
	}()
	return d
}

// pass joins the client with the server until either goes.
func (d *detour) pass(client net.Conn) {
	defer func() { _ = client.Close() }()
	d.mu.Lock()
	to := d.to
	d.mu.Unlock()
	server, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", to)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	go func() {
		_, _ = io.Copy(server, client)
		_ = server.Close()
	}()
	_, _ = io.Copy(client, server)
}

// lead lets new connections go elsewhere.
func (d *detour) lead(to string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.to = to
}

// A standby that lags is promoted under a running lockd: it never saw the last tokens, and the first one that it gives is far above them. In
// the other database the look at the incarnation is broken, and its tokens go back.
func TestPromotedStandbyThatLaggedHandsOutNoTokenTwice(t *testing.T) {
	t.Parallel()
	primary := pgtest.Server(t, nil)
	good, bad := pgtest.DatabaseOn(t, primary, migrations.LockDB()), pgtest.DatabaseOn(t, primary, migrations.LockDB())
	breaks(t, bad, incarnation)
	address := newDetour(t, primary.Addr())
	through := func(database string, options ...pgstore.Option) *pgstore.Store {
		return pgstore.New(openPool(t, at(t, database, address.listener.Addr().String())), 10*time.Second, options...)
	}
	var log bytes.Buffer
	store := through(pgtest.Login(t, good, "lockapp"), pgstore.WithLogger(hclog.New(&hclog.LoggerOptions{Output: &log, JSONFormat: true})))
	broken := through(bad)
	first := next(t, store, "seen by the standby")
	next(t, broken, "seen by the standby")
	session, err := store.OpenSession(t.Context(), "bob", 60*time.Second)
	require.NoError(t, err)

	replica := standby(t, primary)
	admin := pgtest.Connect(t, replica.URL("postgres"))
	isTrue(t, admin, "SELECT count(*) = 1 FROM pg_stat_wal_receiver WHERE status = 'streaming'")
	var lsn string
	require.NoError(t, pgtest.Connect(t, good).QueryRow(t.Context(), "SELECT pg_current_wal_flush_lsn()::text").Scan(&lsn))
	isTrue(t, admin, "SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn", lsn)
	onStandby := pgtest.Connect(t, at(t, good, replica.Addr()))
	var seen lock.Token
	require.NoError(t, onStandby.QueryRow(t.Context(), "SELECT max(fencing_token) FROM lock_entry").Scan(&seen))
	require.Equal(t, first, seen, "it does follow")
	for _, sql := range []string{"ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()"} {
		_, err := admin.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	isTrue(t, admin, "SELECT count(*) = 0 FROM pg_stat_wal_receiver")

	log.Reset()
	var highest, highestBroken lock.Token
	for i := range 50 { // more than the sequence logs ahead
		key := fmt.Sprint("never seen", i)
		a, err := store.Insert(t.Context(), key, "bob", session.ID, 60*time.Second)
		require.NoError(t, err)
		highest, highestBroken = a.Grant.Token, next(t, broken, key)
	}
	require.Empty(t, log.String())
	require.NoError(t, primary.Kill(t.Context()))
	_, err = store.Insert(t.Context(), "nobody there", "bob", session.ID, 30*time.Second)
	require.Error(t, err)
	address.lead(replica.Addr())
	_, err = store.Insert(t.Context(), "not promoted", "bob", session.ID, 30*time.Second)
	require.Error(t, err, "a standby gives no token")

	isTrue(t, admin, "SELECT pg_promote(true, 20)")
	require.NoError(t, onStandby.QueryRow(t.Context(), "SELECT max(fencing_token) FROM lock_entry").Scan(&seen))
	require.Equal(t, first, seen, "it did lag")
	require.Eventually(t, func() bool { // whoever opens a session may meet one more dead connection
		_, err := broken.OpenSession(t.Context(), "bob", 30*time.Second)
		return err == nil
	}, 20*time.Second, 10*time.Millisecond)
	require.LessOrEqual(t, next(t, broken, "after"), highestBroken, "the control: the token goes back")
	after, err := store.Insert(t.Context(), "after", "bob", session.ID, 30*time.Second)
	require.NoError(t, err)
	require.Greater(t, after.Grant.Token, highest+jump*9/10)
	require.Less(t, after.Grant.Token, highest+jump*11/10)
	require.Equal(t, 1, bytes.Count(log.Bytes(), []byte(`"event":"token_source_advanced"`)), log.String())
	require.Contains(t, log.String(), "timeline 2, was 1")
}
