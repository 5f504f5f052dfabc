package failuretest

import (
	"context"
	"fmt"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"fenceline/internal/faultnet"
)

// Bench is a database whose faults can be had at will, and the way to it.
type Bench struct {
	// Login is the daemon's connection URL. It leads through a proxy.
	Login string
	// Patience bounds every wait for something that must come. It is long, for a machine that is busy with other things; a control whose wait is in vain sets it.
	Patience time.Duration

	role    string
	proxy   *faultnet.Proxy
	primary string // address of the server
	owner   *pgxpool.Pool
	number  atomic.Int64
}

// The advisory locks that faults work with, all of one class. They are the database's own, so benches on one server don't meet.
//
//	1 is held by every transaction that has arrived in the middle of its work
//	2 is held by us while the gate is closed
//	3 and 4 are taken crosswise for a deadlock
//
// apparatus are the triggers' functions. They run as their owner, since a daemon's role has no right to any of this.
const apparatus = `
CREATE SCHEMA fault;
CREATE SEQUENCE fault.count;
CREATE TABLE fault.filler (filling text);
ALTER TABLE fault.filler ALTER filling SET STORAGE PLAIN;

-- By somebody else.
CREATE FUNCTION fault.is_held(lock int, waited bool DEFAULT false) RETURNS bool LANGUAGE sql AS $$
  SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND classid = 7171 AND objid = lock AND granted <> waited AND pid <> pg_backend_pid()
                    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())) $$;

CREATE FUNCTION fault.stop_at_gate() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  PERFORM pg_advisory_xact_lock_shared(7171, 1);
  WHILE fault.is_held(2) LOOP PERFORM pg_sleep(0.005); END LOOP;
  RETURN NULL;
END $$;

CREATE FUNCTION fault.wait_for_lock() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  PERFORM pg_advisory_xact_lock_shared(7171, 2);
  RETURN NULL;
END $$;

CREATE FUNCTION fault.sleep() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  PERFORM pg_sleep(3600);
  RETURN NULL;
END $$;

CREATE FUNCTION fault.die() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  PERFORM pg_terminate_backend(pg_backend_pid());
  PERFORM pg_sleep(3600);
  RETURN NULL;
END $$;

CREATE FUNCTION fault.deadlock() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  PERFORM pg_advisory_xact_lock(7171, 3);
  WHILE fault.is_held(4) AND NOT fault.is_held(3, waited => true) LOOP PERFORM pg_sleep(0.005); END LOOP;
  PERFORM pg_advisory_xact_lock(7171, 4);
  RETURN NULL;
END $$;

CREATE FUNCTION fault.lose() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  IF nextval('fault.count') <= TG_ARGV[0]::int THEN
    RAISE EXCEPTION 'could not serialize access due to concurrent update' USING ERRCODE = '40001';
  END IF;
  RETURN NULL;
END $$;

CREATE FUNCTION fault.fill() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  INSERT INTO fault.filler SELECT repeat('x', 7000) FROM generate_series(1, 1000);
  RETURN NULL;
END $$;
`

// New builds the apparatus into a database. owner is its superuser's URL, login the daemon's.
func New(t testing.TB, owner, login string) *Bench {
	t.Helper()
	u, err := url.Parse(login)
	require.NoError(t, err)
	b := &Bench{Patience: patience, role: pgx.Identifier{u.User.Username()}.Sanitize(), primary: u.Host, proxy: faultnet.New(t, u.Host)}
	b.owner, err = pgxpool.New(t.Context(), owner)
	require.NoError(t, err)
	t.Cleanup(b.owner.Close)
	// The daemon's sessions look for deadlocks at once, so that one of them is the victim and not the session that made the deadlock.
	_, err = b.owner.Exec(t.Context(), apparatus+"ALTER ROLE "+b.role+" SET deadlock_timeout = '30ms'")
	require.NoError(t, err)
	u.Host = b.proxy.Addr()
	b.Login = u.String()
	return b
}

// Exec runs a statement as the database's owner, past the daemon and the proxy.
func (b *Bench) Exec(ctx context.Context, sql string, args ...any) error {
	if _, err := b.owner.Exec(ctx, sql, args...); err != nil {
		return fmt.Errorf("%s: %w", sql, err)
	}
	return nil
}

// Row reads one row as the database's owner.
func (b *Bench) Row(ctx context.Context, sql string, args []any, into ...any) error {
	if err := b.owner.QueryRow(ctx, sql, args...).Scan(into...); err != nil {
		return fmt.Errorf("%s: %w", sql, err)
	}
	return nil
}

// Next is a number that no change had yet.
func (b *Bench) Next() int { return int(b.number.Add(1)) }

// awaitTrue waits until a query says true.
func (b *Bench) awaitTrue(ctx context.Context, sql string, args ...any) error {
	err := b.await(ctx, func(ctx context.Context) (bool, error) {
		yes := false
		err := b.owner.QueryRow(ctx, sql, args...).Scan(&yes)
		return yes, err
	})
	if err != nil {
		return fmt.Errorf("never true: %s: %w", sql, err)
	}
	return nil
}

// endSessions ends the daemon's sessions, so that it makes new ones.
func (b *Bench) endSessions(ctx context.Context) error {
	return b.Exec(ctx, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND usename = $1", b.roleName())
}

func (b *Bench) roleName() string { return b.role[1 : len(b.role)-1] } // test logins need no escapes

// quiet waits until nothing is under way any more that the daemon had begun by now, so that what is in the tables stays.
func (b *Bench) quiet(ctx context.Context) error {
	var moment time.Time
	if err := b.Row(ctx, "SELECT clock_timestamp()", nil, &moment); err != nil {
		return err
	}
	return b.awaitTrue(ctx, "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND usename = $1 AND xact_start <= $2)",
		b.roleName(), moment)
}
