package failuretest_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/internal/postgres"
	"fenceline/internal/postgres/failuretest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// shop is a small daemon: POST /N writes the number N into two tables, which belong together. Each of the ways to be wrong can be chosen.
type shop struct {
	pool     *pgxpool.Pool
	timeout  time.Duration
	torn     bool // writes each table in a transaction of its own
	lies     bool // reports success whatever happened
	certain  bool // says that nothing happened also when it can't know
	blind    bool // is always ready
	hopeless bool // gives up for ever after the first failure
	failed   atomic.Bool
}

func (s *shop) write(ctx context.Context, n string, tables ...string) error {
	return postgres.InTx(ctx, s.pool, postgres.TxOptions{StatementTimeout: s.timeout, LockTimeout: s.timeout}, func(ctx context.Context, tx pgx.Tx) error {
		for _, table := range tables {
			if _, err := tx.Exec(ctx, "INSERT INTO "+table+" VALUES ($1::text::int)", n); err != nil {
				return err
			}
		}
		return nil
	})
}

func (s *shop) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), 10*time.Second) // a client that leaves cancels nothing
	defer cancel()
	if r.URL.Path == "/readyz" {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second) // as long as our daemons take
		defer cancel()
		if err := postgres.CheckWritable(ctx, s.pool); err != nil && !s.blind {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
		return
	}
	n := r.URL.Path[1:]
	var err error
	switch {
	case s.hopeless && s.failed.Load():
		err = postgres.ErrUnavailable
	case s.torn:
		if err = s.write(ctx, n, "stock"); err == nil {
			err = s.write(ctx, n, "orders")
		}
	default:
		err = s.write(ctx, n, "stock", "orders")
	}
	if err == nil || s.lies {
		return
	}
	s.failed.Store(true)
	outcome := ""
	if errors.Is(err, postgres.ErrOutcomeUnknown) && !s.certain {
		outcome = "unknown"
	}
	w.WriteHeader(http.StatusServiceUnavailable)
	fmt.Fprintf(w, `{"code":"NO","details":{"outcome":%q}}`, outcome)
}

// open starts the shop on a bench.
func open(t *testing.T, s *shop) (*failuretest.Bench, failuretest.Daemon) {
	t.Helper()
	return openOn(t, s, pgtest.Database(t))
}

func openOn(t *testing.T, s *shop, owner string) (*failuretest.Bench, failuretest.Daemon) {
	t.Helper()
	_, err := pgtest.Connect(t, owner).Exec(t.Context(), "CREATE TABLE stock (n int); CREATE TABLE orders (n int); GRANT ALL ON stock, orders TO public")
	require.NoError(t, err)
	b := failuretest.New(t, owner, pgtest.Login(t, owner))
	if s.timeout == 0 {
		s.timeout = 2 * time.Second
	}
	s.pool, err = postgres.Open(t.Context(), postgres.Config{URL: b.Login, MaxConns: 2, ConnectTimeout: 2 * time.Second})
	require.NoError(t, err)
	t.Cleanup(s.pool.Close)
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	change := failuretest.Call{
		Table: "orders",
		Send: func(ctx context.Context, n int) (failuretest.Answer, error) {
			answer, _, err := failuretest.Send(ctx, http.MethodPost, fmt.Sprint(server.URL, "/", n), "")
			return answer, err
		},
		Effect: func(ctx context.Context, n int) (failuretest.Effect, error) {
			var stock, order bool
			err := b.Row(ctx, "SELECT EXISTS (SELECT FROM stock WHERE n = $1), EXISTS (SELECT FROM orders WHERE n = $1)", []any{n}, &stock, &order)
			return failuretest.All(stock, order), err
		},
	}
	return b, failuretest.Daemon{Name: "shop", Admin: server.URL, MaxConns: 2, Calls: map[string]failuretest.Call{"change": change}}
}

var (
	done    = failuretest.Answer{Status: http.StatusOK}
	refused = failuretest.Answer{Status: http.StatusServiceUnavailable, Code: "NO"}
	unknown = failuretest.Answer{Status: http.StatusServiceUnavailable, Code: "NO", Outcome: "unknown"}
)

// A daemon that does everything right passes, and each fault does happen: its answers differ.
func TestDaemonThatIsInOrderMeetsEveryFault(t *testing.T) {
	t.Parallel()
	for name, one := range map[string]struct {
		shop  *shop
		table []failuretest.Row
	}{
		"failures": {&shop{}, []failuretest.Row{
			{Fault: failuretest.EndedInStatement(), Want: refused},
			{Fault: failuretest.EndedInCommit(), Want: unknown},
			{Fault: failuretest.CutInStatement(), Want: refused, During: "unavailable"},
			{Fault: failuretest.CutInCommit(), Want: unknown, During: "unavailable"},
			{Fault: failuretest.ReadOnly(), Want: refused, During: "read-only"},
			{Fault: failuretest.NoConnections(), Want: refused, During: "unavailable"},
			{Fault: failuretest.Deadlock(), Want: done},
			{Fault: failuretest.LostTwice(), Want: done},
			{Fault: failuretest.LostAlways(), Want: refused},
		}},
		"time-outs": {&shop{timeout: 700 * time.Millisecond}, []failuretest.Row{
			{Fault: failuretest.StatementTimeout(), Want: refused},
			{Fault: failuretest.LockTimeout(), Want: refused},
			{Fault: failuretest.PoolExhausted(), Want: refused, During: "timed out"},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, d := open(t, one.shop)
			for _, row := range one.table {
				row.Call = "change"
				require.NoError(t, b.Meet(t.Context(), d, row))
			}
		})
	}
}

// The table finds what is wrong.
func TestDaemonsThatAreWrongAreFound(t *testing.T) {
	t.Parallel()
	for name, one := range map[string]struct {
		shop *shop
		row  failuretest.Row
		says string
	}{
		"half of a change":              {&shop{torn: true}, failuretest.Row{Fault: failuretest.EndedInStatement(), Want: refused}, "a part of the change is there"},
		"success that is none":          {&shop{lies: true, timeout: 700 * time.Millisecond}, failuretest.Row{Fault: failuretest.StatementTimeout(), Want: done}, "yet the change isn't there"},
		"certainty after a lost commit": {&shop{certain: true}, failuretest.Row{Fault: failuretest.CutInCommit(), Want: refused, During: "unavailable"}, "says that nothing happened, yet the change is there"},
		"another answer":                {&shop{}, failuretest.Row{Fault: failuretest.EndedInCommit(), Want: refused}, "want 503 `NO`"},
		"ready without a database":      {&shop{blind: true}, failuretest.Row{Fault: failuretest.NoConnections(), Want: refused, During: "unavailable"}, "want readiness"},
		"no recovery":                   {&shop{hopeless: true}, failuretest.Row{Fault: failuretest.EndedInStatement(), Want: refused}, "afterwards: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, d := open(t, one.shop)
			one.row.Call = "change"
			if one.shop.blind || one.shop.hopeless {
				b.Patience = 4 * time.Second // for what never comes
			}
			require.ErrorContains(t, b.Meet(t.Context(), d, one.row), one.says)
		})
	}
}

// The same of a server that is restarted while clients are served.
func TestServerThatIsRestartedUnderLoad(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, nil)
	b, d := openOn(t, &shop{}, pgtest.DatabaseOn(t, server))
	require.NoError(t, b.RestartUnderLoad(t.Context(), d, "change", server, failuretest.Cleanly, refused, unknown))
	lying, d := openOn(t, &shop{lies: true}, pgtest.DatabaseOn(t, server))
	require.ErrorContains(t, lying.RestartUnderLoad(t.Context(), d, "change", server, failuretest.ByCrash), "yet the change isn't there")
}
