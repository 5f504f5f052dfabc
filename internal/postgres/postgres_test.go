package postgres_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/internal/postgres"
	"fenceline/migrations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func open(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := postgres.Open(t.Context(), postgres.Config{URL: url, MaxConns: 4, ConnectTimeout: time.Second})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

func exec(t *testing.T, pool *pgxpool.Pool, sql string) error {
	t.Helper()
	_, err := pool.Exec(t.Context(), sql)
	return postgres.Classify(t.Context(), err)
}

// Each failure is provoked on a real server and told apart by its SQLSTATE, never by its text.
func TestFailuresHaveTheirIdentity(t *testing.T) {
	t.Parallel()
	owner := pgtest.Database(t, migrations.LockDB())
	pool := open(t, owner)
	require.NoError(t, exec(t, pool, "CREATE TABLE parent (id int PRIMARY KEY); CREATE TABLE child (id int CONSTRAINT child_parent_fk REFERENCES parent, n int CONSTRAINT child_n_ck CHECK (n > 0)); INSERT INTO parent VALUES (1)"))
	for name, c := range map[string]struct {
		sql      string
		identity error
	}{
		"no such table":     {"SELECT * FROM nowhere", postgres.ErrSchema},
		"no such column":    {"SELECT nothing FROM parent", postgres.ErrSchema},
		"read-only":         {"BEGIN READ ONLY; INSERT INTO parent VALUES (9)", postgres.ErrReadOnly},
		"statement timeout": {"SET statement_timeout = '10ms'; SELECT pg_sleep(5)", postgres.ErrTimeout},
		"unique":            {"INSERT INTO parent VALUES (1)", postgres.ErrConstraint},
		"foreign key":       {"INSERT INTO child VALUES (7, 1)", postgres.ErrConstraint},
		"check":             {"INSERT INTO child VALUES (1, 0)", postgres.ErrConstraint},
		"killed":            {"SELECT pg_terminate_backend(pg_backend_pid())", postgres.ErrUnavailable},
	} {
		fresh := open(t, owner)
		require.ErrorIs(t, exec(t, fresh, c.sql), c.identity, name)
	}
	code, constraint := postgres.Constraint(exec(t, pool, "INSERT INTO child VALUES (1, 0)"))
	require.Equal(t, []string{postgres.CheckViolation, "child_n_ck"}, []string{code, constraint})
	code, constraint = postgres.Constraint(exec(t, pool, "INSERT INTO child VALUES (7, 1)"))
	require.Equal(t, []string{postgres.ForeignKeyViolation, "child_parent_fk"}, []string{code, constraint})
	code, _ = postgres.Constraint(exec(t, pool, "SELECT 1/0"))
	require.Empty(t, code)
	require.ErrorIs(t, exec(t, open(t, pgtest.Login(t, owner, "lockapp")), "SELECT * FROM parent"), postgres.ErrPermission)

	require.NoError(t, postgres.Classify(t.Context(), nil))
	require.ErrorIs(t, postgres.Classify(t.Context(), pgx.ErrNoRows), pgx.ErrNoRows)
	other := errors.New("something else")
	require.Equal(t, other, postgres.Classify(t.Context(), other))
}

func TestWhoGaveUpIsTold(t *testing.T) {
	t.Parallel()
	pool := open(t, pgtest.Database(t))
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := pool.Exec(canceled, "SELECT 1")
	require.ErrorIs(t, postgres.Classify(canceled, err), postgres.ErrCanceled)
	late, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = pool.Exec(late, "SELECT pg_sleep(5)")
	require.ErrorIs(t, postgres.Classify(late, err), postgres.ErrTimeout)
}

func TestServerThatIsAwayIsUnavailableAndNoPasswordIsShown(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, nil)
	pool := open(t, server.URL("postgres"))
	require.NoError(t, exec(t, pool, "SELECT 1"))
	require.NoError(t, server.Crash(t.Context()))
	for range 3 { // a connection that was open, then ones that can't be made
		require.ErrorIs(t, exec(t, pool, "SELECT 1"), postgres.ErrUnavailable)
	}
	wrong := open(t, server.URLFor("postgres", "nobody", "the-password"))
	require.NoError(t, server.Restart(t.Context()))
	err := exec(t, wrong, "SELECT 1")
	require.Error(t, err)
	require.NotContains(t, err.Error(), "the-password")
	for _, url := range []string{"postgres://u:the-password@h:notaport/d", "host=h password=the-password port=x"} {
		_, err := postgres.Open(t.Context(), postgres.Config{URL: url})
		require.Error(t, err)
		require.NotContains(t, err.Error(), "the-password")
	}
	_, err = postgres.Open(t.Context(), postgres.Config{})
	require.ErrorContains(t, err, "empty")
	_, err = postgres.Open(t.Context(), postgres.Config{URL: "postgres://h/d", QueryMode: "fast"})
	require.ErrorContains(t, err, "cache_describe")
}

func TestTransactionRollsBackOnErrorAndCommitsDurably(t *testing.T) {
	t.Parallel()
	owner := pgtest.Database(t)
	pool := open(t, owner)
	require.NoError(t, exec(t, pool, "CREATE TABLE t (n int)"))
	stop := errors.New("stop")
	err := postgres.InTx(t.Context(), pool, postgres.TxOptions{}, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO t VALUES (1)")
		return errors.Join(err, stop)
	})
	require.ErrorIs(t, err, stop)
	var n int
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT count(*) FROM t").Scan(&n))
	require.Zero(t, n)

	lax := open(t, owner+"&options=-c%20synchronous_commit%3Doff")
	var before, inside, lockTimeout string
	require.NoError(t, lax.QueryRow(t.Context(), "SHOW synchronous_commit").Scan(&before))
	require.NoError(t, postgres.InTx(t.Context(), lax, postgres.TxOptions{LockTimeout: 700 * time.Millisecond}, func(ctx context.Context, tx pgx.Tx) error {
		return errors.Join(tx.QueryRow(ctx, "SHOW synchronous_commit").Scan(&inside), tx.QueryRow(ctx, "SHOW lock_timeout").Scan(&lockTimeout))
	}))
	require.Equal(t, []string{"off", "on", "700ms"}, []string{before, inside, lockTimeout}, "a lax default doesn't reach our transactions")
}

// Two transactions that lock two rows crosswise: the server ends one of them, and it is run again, whole.
func TestDeadlockedTransactionIsRunAgain(t *testing.T) {
	t.Parallel()
	pool := open(t, pgtest.Database(t))
	require.NoError(t, exec(t, pool, "CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t VALUES (1, 0), (2, 0)"))
	var meet sync.WaitGroup
	meet.Add(2)
	var runs [2]int
	var group sync.WaitGroup
	errs := make([]error, 2)
	for i, order := range [][2]int{{1, 2}, {2, 1}} {
		group.Go(func() {
			errs[i] = postgres.InTx(t.Context(), pool, postgres.TxOptions{LockTimeout: 20 * time.Second, StatementTimeout: 20 * time.Second}, func(ctx context.Context, tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, "UPDATE t SET n = n + 1 WHERE id = $1", order[0]); err != nil {
					return err
				}
				if runs[i]++; runs[i] == 1 {
					meet.Done()
					meet.Wait()
				}
				_, err := tx.Exec(ctx, "UPDATE t SET n = n + 1 WHERE id = $1", order[1])
				return err
			})
		})
	}
	group.Wait()
	require.NoError(t, errors.Join(errs...))
	// At least: the second run may meet the other transaction crosswise once more, before that has woken up.
	require.GreaterOrEqual(t, runs[0]+runs[1], 3, "one of them ran twice")
	var sum int
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT sum(n) FROM t").Scan(&sum))
	require.Equal(t, 4, sum, "each took effect once")
}

// Someone else's open transaction: a bounded wait for its lock is a timeout, a snapshot that it outdates a lost race.
func TestWaitForALockIsBoundedAndALostSnapshotIsTold(t *testing.T) {
	t.Parallel()
	owner := pgtest.Database(t)
	pool := open(t, owner)
	require.NoError(t, exec(t, pool, "CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t VALUES (1, 0)"))
	holder := pgtest.Connect(t, owner)
	held, err := holder.Begin(t.Context())
	require.NoError(t, err)
	_, err = held.Exec(t.Context(), "UPDATE t SET n = 1 WHERE id = 1")
	require.NoError(t, err)

	update := func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "UPDATE t SET n = n + 10 WHERE id = 1")
		return err
	}
	err = postgres.InTx(t.Context(), pool, postgres.TxOptions{LockTimeout: 50 * time.Millisecond}, update)
	require.ErrorIs(t, err, postgres.ErrTimeout)
	require.Equal(t, "55P03", postgres.State(err))
	require.NotErrorIs(t, err, postgres.ErrOutcomeUnknown)

	snapshot, err := pgtest.Connect(t, owner).BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	require.NoError(t, err)
	var n int
	require.NoError(t, snapshot.QueryRow(t.Context(), "SELECT n FROM t").Scan(&n))
	require.NoError(t, held.Commit(t.Context()))
	require.ErrorIs(t, postgres.Classify(t.Context(), update(t.Context(), snapshot)), postgres.ErrSerialization)
	require.NoError(t, snapshot.Rollback(t.Context()))

	runs := 0
	err = postgres.InTx(t.Context(), pool, postgres.TxOptions{Attempts: 3}, func(ctx context.Context, tx pgx.Tx) error {
		runs++
		_, err := tx.Exec(ctx, "DO $$ BEGIN RAISE EXCEPTION 'lost' USING ERRCODE = '40001'; END $$")
		return err
	})
	require.ErrorIs(t, err, postgres.ErrSerialization)
	require.ErrorContains(t, err, "gave up after 3 attempts")
	require.Equal(t, 3, runs)
}

// The answer to a commit that never came is neither success nor failure.
func TestCommitWhoseAnswerIsLostIsUnknown(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, nil)
	pool := open(t, server.URL("postgres"))
	require.NoError(t, exec(t, pool, "CREATE TABLE t (n int)"))
	err := postgres.InTx(t.Context(), pool, postgres.TxOptions{}, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO t VALUES (1)")
		return errors.Join(err, server.Crash(ctx)) // between the last statement and the commit
	})
	require.ErrorIs(t, err, postgres.ErrOutcomeUnknown)
	require.ErrorIs(t, err, postgres.ErrUnavailable)
}

// A process that is stopped within a transaction, by a debugger or a SIGSTOP, loses its locks soon: its session is ended, and
// the commit that it sends later is known not to have happened.
func TestSilentTransactionIsEndedAndItsLocksAreFree(t *testing.T) {
	t.Parallel()
	owner := pgtest.Database(t)
	pool := open(t, owner)
	require.NoError(t, exec(t, pool, "CREATE TABLE t (n int); INSERT INTO t VALUES (1)"))
	other := open(t, owner)
	err := postgres.InTx(t.Context(), pool, postgres.TxOptions{StatementTimeout: 100 * time.Millisecond}, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "UPDATE t SET n = 2"); err != nil {
			return err
		}
		waitCtx, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		_, err := other.Exec(waitCtx, "UPDATE t SET n = 3") // waits for the row until the silent transaction is ended
		return err
	})
	require.ErrorIs(t, err, postgres.ErrTimeout)
	require.NotErrorIs(t, err, postgres.ErrOutcomeUnknown)
	var n int
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT n FROM t").Scan(&n))
	require.Equal(t, 3, n)
}

func TestServersThatMayForgetAreRefusedByTheSettingsName(t *testing.T) {
	t.Parallel()
	pool := open(t, pgtest.Database(t)+"&options=-c%20synchronous_commit%3Doff")
	err := postgres.CheckDurability(t.Context(), pool)
	require.ErrorIs(t, err, postgres.ErrNotDurable)
	require.ErrorContains(t, err, "synchronous_commit=off")
	owner := pgtest.Database(t)
	login := pgtest.Login(t, owner)
	require.NoError(t, postgres.CheckDurability(t.Context(), open(t, login)))
	name := pgtest.Connect(t, login).Config().User
	require.NoError(t, exec(t, open(t, owner), "ALTER ROLE "+name+" SET synchronous_commit = off"))
	require.ErrorContains(t, postgres.CheckDurability(t.Context(), open(t, login)), "synchronous_commit=off", "the role's own default counts")

	lax := pgtest.Server(t, map[string]string{"fsync": "off", "full_page_writes": "off"})
	err = postgres.CheckDurability(t.Context(), open(t, lax.URL("postgres")))
	require.ErrorContains(t, err, "fsync=off, full_page_writes=off")
	require.NoError(t, postgres.CheckDurability(t.Context(), open(t, pgtest.Database(t))))
}

func TestContractTellsAnotherDatabaseFromAnOldOne(t *testing.T) {
	t.Parallel()
	pool := open(t, pgtest.Database(t, migrations.LockDB()))
	contract := postgres.Contract{Table: pgx.Identifier{"public", "schema_contract"}, Name: "lockdb", Min: 3, Max: 3}
	require.NoError(t, postgres.CheckContract(t.Context(), pool, contract))
	require.NoError(t, postgres.CheckWritable(t.Context(), pool))

	other := contract
	other.Name = "paydb"
	require.ErrorContains(t, postgres.CheckContract(t.Context(), pool, other), "wrong database?")
	newer := contract
	newer.Min, newer.Max = 4, 5
	require.ErrorContains(t, postgres.CheckContract(t.Context(), pool, newer), "at version 3, this binary works with 4 to 5")
	missing := contract
	missing.Table = pgx.Identifier{"fence", "schema_contract"}
	require.ErrorContains(t, postgres.CheckContract(t.Context(), pool, missing), "run the migrations")
	require.NoError(t, exec(t, pool, "DELETE FROM schema_contract"))
	require.ErrorContains(t, postgres.CheckContract(t.Context(), pool, contract), "is empty")
}

// A server that is set to take no writes would be found out by the first write only: 25006. It isn't ready.
func TestServerWhoseTransactionsAreReadOnlyIsNotWritable(t *testing.T) {
	t.Parallel()
	owner := pgtest.Database(t)
	require.NoError(t, postgres.CheckWritable(t.Context(), open(t, owner)))
	readOnly := open(t, owner+"&options=-c%20default_transaction_read_only%3Don")
	require.ErrorIs(t, exec(t, readOnly, "CREATE TABLE t (n int)"), postgres.ErrReadOnly)
	err := postgres.CheckWritable(t.Context(), readOnly)
	require.ErrorIs(t, err, postgres.ErrReadOnly)
	require.ErrorContains(t, err, "default_transaction_read_only")
}
