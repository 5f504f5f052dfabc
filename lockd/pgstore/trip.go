package pgstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sys/unix"

	"fenceline/internal/postgres"
	"fenceline/lockd/lock"
)

// errUndone means that the server has rolled the transaction back, or never began it: nothing has happened, for certain.
var errUndone = errors.New("nothing was changed")

// inOneTrip runs a transaction in a single round trip: one pipeline with BEGIN at its head, COMMIT at its end, and one Sync. Nobody looks at an answer
// before the commit, so whatever must prevent it raises an error on the server; the server then skips everything up to the Sync, the COMMIT too.
//
// BEGIN and COMMIT are spelled out although a pipeline with one Sync is a transaction by itself: they fix READ COMMITTED, whatever the role's
// default is; COMMIT's own answer is the proof that it was done; and the same holds in every query mode and behind every pooler.
//
// The error is errUndone, ErrUnavailable (the server wasn't reached) or ErrUnknownOutcome.
func (s *Store) inOneTrip(ctx context.Context, fill func(*pgx.Batch)) error {
	conn, err := s.liveConnection(ctx)
	if err != nil {
		return fmt.Errorf("%w: %w", lock.ErrUnavailable, postgres.Classify(ctx, err))
	}
	defer conn.Release()
	batch := &pgx.Batch{}
	begun, committed := false, false
	batch.Queue("BEGIN ISOLATION LEVEL READ COMMITTED").Exec(func(pgconn.CommandTag) error { begun = true; return nil })
	fill(batch)
	batch.Queue("COMMIT").Exec(func(tag pgconn.CommandTag) error { committed = tag.String() == "COMMIT"; return nil })
	err = conn.SendBatch(ctx, batch).Close()
	if committed {
		return nil
	}
	if conn.Conn().PgConn().TxStatus() != 'I' && !conn.Conn().IsClosed() {
		_, _ = conn.Exec(ctx, "ROLLBACK") // its locks are gone already; a connection that doesn't manage it is thrown away
	}
	return judge(ctx, err, begun)
}

// judge says what is known of a transaction whose COMMIT wasn't answered. Only the server's plain ERROR proves that it was rolled back: it ends the
// transaction, and after a commit there is none. A FATAL one is proof as long as BEGIN wasn't answered, since answers come in order. A pooler's errors
// (class 08) prove nothing, and neither does silence.
func judge(ctx context.Context, err error, begun bool) error {
	if err == nil {
		return fmt.Errorf("%w: the server didn't confirm the commit", lock.ErrUnknownOutcome)
	}
	if _, ok := errors.AsType[pgx.ErrPreprocessingBatch](err); ok || pgconn.SafeToRetry(err) {
		return fmt.Errorf("%w: %w", errUndone, err) // it wasn't sent
	}
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		ending := strings.HasPrefix(pgErr.Code, "57P") && !begun
		if pgErr.SeverityUnlocalized == "ERROR" && !strings.HasPrefix(pgErr.Code, "08") || ending {
			return fmt.Errorf("%w: %w", errUndone, err)
		}
	}
	return fmt.Errorf("%w: %w", lock.ErrUnknownOutcome, postgres.Classify(ctx, err))
}

// deadConnections is how many dead connections are thrown away in a row: as many as a pool may have after the server was restarted.
const deadConnections = 100

// liveConnection takes a connection from the pool that hasn't been closed by the other side. Once a transaction has been sent, a
// connection that was dead all along can't be told from one that died over the commit.
func (s *Store) liveConnection(ctx context.Context) (*pgxpool.Conn, error) {
	for range deadConnections {
		conn, err := s.pool.Acquire(ctx)
		if err != nil || !hungUp(conn.Conn().PgConn().Conn()) {
			return conn, err
		}
		_ = conn.Conn().PgConn().Conn().Close() // at once, and without a farewell that nobody reads
		_ = conn.Conn().Close(ctx)
		conn.Release()
	}
	return nil, postgres.ErrUnavailable
}

// hungUp looks at an idle connection without reading from it. The server is silent between transactions, so whatever is there to read
// is its farewell.
func hungUp(conn net.Conn) bool {
	if secured, ok := conn.(*tls.Conn); ok {
		conn = secured.NetConn()
	}
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return true
	}
	silent := false
	// Not raw.Read: the driver may have a read of its own pending on the connection, after a slow write, and raw.Read would wait for that.
	err = raw.Control(func(fd uintptr) {
		var b [1]byte
		_, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		silent = errors.Is(err, unix.EAGAIN)
	})
	return err != nil || !silent
}
