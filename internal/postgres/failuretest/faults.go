package failuretest

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver"
)

// Fault is one thing that a database does to a daemon.
type Fault struct {
	Name string
	// strike lets it happen to whoever writes to the table from now on, and returns what ends it.
	strike func(ctx context.Context, b *Bench, table string) (heal func(context.Context) error, err error)
	// meanwhile is done once a call is under way.
	meanwhile func(ctx context.Context, b *Bench) error
	// fills says that other calls come first and take the whole pool.
	fills bool
}

type healer = func(context.Context) error

// both ends one thing, then another, whatever becomes of the first.
func both(one, other healer) healer {
	return func(ctx context.Context) error { return errors.Join(one(ctx), other(ctx)) }
}

// trigger lets a function of the apparatus run after each row that is written: at once, or deferred, in the middle of the commit.
func trigger(ctx context.Context, b *Bench, table, function string, deferred bool) (healer, error) {
	kind, when := "TRIGGER", ""
	if deferred {
		kind, when = "CONSTRAINT TRIGGER", "DEFERRABLE INITIALLY DEFERRED"
	}
	err := b.Exec(ctx, fmt.Sprintf("CREATE %s fault AFTER INSERT OR UPDATE OR DELETE ON %s %s FOR EACH ROW EXECUTE FUNCTION fault.%s", kind, table, when, function))
	return func(ctx context.Context) error { return b.Exec(ctx, "DROP TRIGGER fault ON "+table) }, err
}

// byTrigger is a fault that a trigger is.
func byTrigger(name, function string, deferred bool) Fault {
	return Fault{Name: name, strike: func(ctx context.Context, b *Bench, table string) (healer, error) {
		return trigger(ctx, b, table, function, deferred)
	}}
}

// closeGate takes the lock that transactions wait for, until the gate is opened.
func closeGate(ctx context.Context, b *Bench, locks ...int) (open healer, session *pgx.Conn, err error) {
	session, err = pgx.ConnectConfig(ctx, b.owner.Config().ConnConfig)
	if err != nil {
		return nil, nil, fmt.Errorf("close the gate: %w", err)
	}
	for _, lock := range locks {
		if _, err := session.Exec(ctx, "SELECT pg_advisory_lock(7171, $1)", lock); err != nil {
			return nil, nil, errors.Join(err, session.Close(ctx))
		}
	}
	return session.Close, session, nil
}

// gated is a fault with a gate in front of a trigger's function.
func gated(name, function string, deferred bool, meanwhile func(context.Context, *Bench) error) Fault {
	return Fault{Name: name, meanwhile: meanwhile, strike: func(ctx context.Context, b *Bench, table string) (healer, error) {
		drop, err := trigger(ctx, b, table, function, deferred)
		if err != nil {
			return nil, err
		}
		open, _, err := closeGate(ctx, b, 2)
		if err != nil {
			return nil, err
		}
		return both(open, drop), nil
	}}
}

// cutGated is a fault that cuts the network while a transaction stands still. The server goes on with it once the gate opens: a backend
// notices that its client has gone when it next speaks to it.
func cutGated(name string, deferred bool) Fault {
	f := gated(name, "stop_at_gate()", deferred, func(ctx context.Context, b *Bench) error {
		if err := b.awaitTrue(ctx, "SELECT fault.is_held(1)"); err != nil {
			return fmt.Errorf("the call isn't under way: %w", err)
		}
		b.proxy.Cut()
		return nil
	})
	strike := f.strike
	f.strike = func(ctx context.Context, b *Bench, table string) (healer, error) {
		heal, err := strike(ctx, b, table)
		if err != nil {
			return nil, err
		}
		// What the server still does it does before the network is back, so that nobody looks too early.
		return both(both(heal, b.quiet), func(context.Context) error { return b.proxy.Mend() }), nil
	}
	return f
}

// CutInStatement cuts the network while a statement of the transaction is under way.
func CutInStatement() Fault { return cutGated("cutInStatement", false) }

// CutInCommit cuts the network while the commit is under way. The commit succeeds.
func CutInCommit() Fault { return cutGated("cutInCommit", true) }

// EndedInStatement lets the server end the session while a statement is under way (57P01).
func EndedInStatement() Fault { return byTrigger("endedInStatement", "die()", false) }

// EndedInCommit lets the server end the session while the commit is under way (57P01). The commit fails.
func EndedInCommit() Fault { return byTrigger("endedInCommit", "die()", true) }

// StatementTimeout lets a statement take for ever, until the server ends it (57014).
func StatementTimeout() Fault { return byTrigger("statementTimeout", "sleep()", false) }

// LockTimeout lets somebody else hold what the statement needs, until the server ends the wait (55P03, or 57014 where that limit is the shorter one).
func LockTimeout() Fault { return gated("lockTimeout", "wait_for_lock()", false, nil) }

// LostTwice lets the transaction lose against a concurrent one (40001), twice; the third time it wins.
func LostTwice() Fault { return lost("serializationFailure", 2) }

// LostAlways lets it lose every time.
func LostAlways() Fault { return lost("serializationFailureForever", 1_000_000) }

func lost(name string, times int) Fault {
	return Fault{Name: name, strike: func(ctx context.Context, b *Bench, table string) (healer, error) {
		if err := b.Exec(ctx, "SELECT setval('fault.count', 1, false)"); err != nil {
			return nil, err
		}
		return trigger(ctx, b, table, fmt.Sprintf("lose(%d)", times), false)
	}}
}

// Deadlock lets the transaction and another one wait for each other, until the server ends ours (40P01).
func Deadlock() Fault {
	var session *pgx.Conn
	return Fault{Name: "deadlock", strike: func(ctx context.Context, b *Bench, table string) (healer, error) {
		drop, err := trigger(ctx, b, table, "deadlock()", false)
		if err != nil {
			return nil, err
		}
		var release healer
		release, session, err = closeGate(ctx, b, 4)
		if err != nil {
			return nil, err
		}
		if _, err := session.Exec(ctx, "SET deadlock_timeout = '1h'"); err != nil {
			return nil, err
		}
		return both(release, drop), nil
	}, meanwhile: func(ctx context.Context, b *Bench) error {
		if err := b.awaitTrue(ctx, "SELECT fault.is_held(3)"); err != nil {
			return fmt.Errorf("the call isn't under way: %w", err)
		}
		// It gets the lock when the server has ended the other transaction, and then lets go of everything.
		_, err := session.Exec(ctx, "SELECT pg_advisory_lock(7171, 3), pg_advisory_unlock_all()")
		return err
	}}
}

// ReadOnly lets the server take no writes (25006), though it isn't a standby: that is how hosted servers answer whose disk is nearly full.
func ReadOnly() Fault {
	return ofRole("readOnly", "SET default_transaction_read_only = on", "RESET default_transaction_read_only")
}

// NoConnections lets the server take no connection of this login any more (53300).
func NoConnections() Fault {
	return ofRole("noConnections", "CONNECTION LIMIT 0", "CONNECTION LIMIT -1")
}

// ofRole is a fault that is a setting of the daemon's login.
func ofRole(name, set, reset string) Fault {
	return Fault{Name: name, strike: func(ctx context.Context, b *Bench, _ string) (healer, error) {
		change := func(ctx context.Context, what string) error {
			return errors.Join(b.Exec(ctx, "ALTER ROLE "+b.role+" "+what), b.endSessions(ctx))
		}
		return func(ctx context.Context) error { return change(ctx, reset) }, change(ctx, set)
	}}
}

// PoolExhausted lets other calls hold every connection of the daemon's pool for longer than a statement may take.
func PoolExhausted() Fault {
	f := gated("poolExhausted", "stop_at_gate()", false, nil)
	f.fills = true
	return f
}

// Standby leads the address to a standby, as after a failover elsewhere of which nobody told the daemon (25006). It is a copy of the server as it
// is now.
func Standby(t testing.TB, server *pgserver.Server) Fault {
	t.Helper()
	standby, err := server.BaseBackup(t.Context(), pgserver.Restore{Name: "standby", Signal: "standby.signal"})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		require.NoError(t, standby.Stop(ctx))
	})
	require.NoError(t, standby.Restart(t.Context()))
	return Fault{Name: "standby", strike: func(_ context.Context, b *Bench, _ string) (healer, error) {
		return func(context.Context) error { return b.proxy.Lead(b.primary) }, b.proxy.Lead(standby.Addr())
	}}
}
