package pgmark_test

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/internal/postgres"
	"fenceline/lockd/lock"
	"fenceline/migrations"
	"fenceline/sidecar/config"
	"fenceline/sidecar/mark"
	"fenceline/sidecar/mark/marktest"
	"fenceline/sidecar/mark/pgmark"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const maxJump = 1_000_000

// guards are those of the payment system: account.fence and rail_high_water.highest_token.
func guards() []config.Guard {
	return []config.Guard{
		{Name: "account", Mark: config.Mark{Table: []string{"account"}, Key: "account_id", KeyType: config.KeyUUID, Token: "fence", UpdatedAt: "updated_at", Missing: config.MissingReject}},
		{Name: "rail", Mark: config.Mark{Table: []string{"public", "rail_high_water"}, Key: "account_id", KeyType: config.KeyUUID, Token: "highest_token", UpdatedAt: "updated_at", Missing: config.MissingInsert}},
	}
}

// newEnv opens a store under the sidecars' own roles, not as superuser.
func newEnv(t *testing.T, owner string) marktest.Env {
	t.Helper()
	return envAt(t, owner, pgtest.Login(t, owner, "fence_account", "fence_rail"), "")
}

// envAt is newEnv at another way to the same database.
func envAt(t *testing.T, owner, url, mode string) marktest.Env {
	t.Helper()
	pool, err := postgres.Open(t.Context(), postgres.Config{URL: url, MaxConns: 12, QueryMode: mode})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	exec := func(ctx context.Context, sql string, args ...any) error {
		admin, err := pgx.Connect(ctx, owner)
		if err != nil {
			return err
		}
		defer func() { _ = admin.Close(context.WithoutCancel(ctx)) }()
		_, err = admin.Exec(ctx, sql, args...)
		return err
	}
	return marktest.Env{
		OperatedStore: pgmark.New(pool, guards(), 2*time.Second, maxJump),
		Reject:        "account", Insert: "rail", MaxJump: maxJump,
		Stranger: uuid.NewString(),
		NewKey: func(ctx context.Context) (string, error) {
			id := uuid.NewString()
			return id, exec(ctx, "INSERT INTO account (account_id, currency, balance_minor) VALUES ($1, 'EUR', 100)", id)
		},
		Set: func(ctx context.Context, key string, token lock.Token) error {
			return exec(ctx, "UPDATE account SET fence = $2 WHERE account_id = $1", key, token)
		},
		Block: func(ctx context.Context, key string) (func() error, error) {
			conn, err := pgx.Connect(ctx, owner)
			if err != nil {
				return nil, err
			}
			tx, err := conn.Begin(ctx)
			if err != nil {
				return nil, err
			}
			_, err = tx.Exec(ctx, "SELECT FROM account WHERE account_id = $1 FOR UPDATE", key)
			return func() error { return conn.Close(ctx) }, err
		},
	}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	for name, env := range map[string]func(*testing.T, string) marktest.Env{"columns": newEnv, "fence.mark": newOwnEnv} {
		for _, scenario := range append(marktest.Scenarios(), marktest.SharedScenarios()...) {
			t.Run(name+"/"+scenario.Name, func(t *testing.T) {
				t.Parallel()
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
				defer cancel()
				require.NoError(t, scenario.Run(ctx, env(t, pgtest.Database(t, migrations.PayDB(), migrations.Fence()))))
			})
		}
	}
}

func TestRaisedMarkSurvivesACrashOfTheServer(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, nil)
	env := newEnv(t, pgtest.DatabaseOn(t, server, migrations.PayDB(), migrations.Fence()))
	env.Crash = func(ctx context.Context) error {
		if err := server.Crash(ctx); err != nil {
			return err
		}
		return server.Restart(ctx)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
	defer cancel()
	require.NoError(t, marktest.SurvivesACrash(ctx, env))
}

// Whoever connects as a role whose commits may be lost gets no admission.
func TestNothingIsAdmittedByAStoreThatMayForget(t *testing.T) {
	t.Parallel()
	owner := pgtest.Database(t, migrations.PayDB(), migrations.Fence())
	url := pgtest.Login(t, owner, "fence_account", "fence_rail")
	var user string
	require.NoError(t, pgtest.Connect(t, url).QueryRow(t.Context(), "SELECT current_user").Scan(&user))
	_, err := pgtest.Connect(t, owner).Exec(t.Context(), "ALTER ROLE "+user+" SET synchronous_commit = off")
	require.NoError(t, err)
	pool, err := postgres.Open(t.Context(), postgres.Config{URL: url})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	store := pgmark.New(pool, guards(), time.Second, maxJump)
	require.ErrorIs(t, store.Check(t.Context()), postgres.ErrNotDurable)
	_, err = store.Admit(t.Context(), mark.Admission{Guard: "account", Key: uuid.NewString(), Token: 1})
	require.ErrorIs(t, err, mark.ErrUnavailable)
}

// A server that comes back may be another one, or have been told to forget.
func TestServerThatComesBackIsLookedAtAgain(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, nil)
	owner := pgtest.DatabaseOn(t, server, migrations.PayDB(), migrations.Fence())
	env := newEnv(t, owner)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
	defer cancel()
	key, err := env.NewKey(ctx)
	require.NoError(t, err)
	admission := mark.Admission{Guard: env.Reject, Key: key, Token: 5}
	decision, err := env.Admit(ctx, admission)
	require.NoError(t, err)
	require.Equal(t, mark.Admitted, decision.Verdict)

	_, err = pgtest.Connect(t, owner).Exec(ctx, "ALTER SYSTEM SET fsync = off")
	require.NoError(t, err)
	require.NoError(t, server.Crash(ctx))
	require.NoError(t, server.Restart(ctx))
	require.Eventually(t, func() bool {
		_, err := env.Admit(ctx, admission)
		require.ErrorIs(t, err, mark.ErrUnavailable, "it must never be admitted by this server") //nolint:testifylint // ends the test from here too
		return errors.Is(err, postgres.ErrNotDurable)
	}, 30*time.Second, 10*time.Millisecond)
	_, _, err = env.Lookup(ctx, "SELECT $1", []string{"x"})
	require.ErrorIs(t, err, mark.ErrUnavailable, "what it says about keys isn't believed either")
}

func TestTablesThatDoNotFitAreRefusedByName(t *testing.T) {
	t.Parallel()
	owner := pgtest.Database(t, migrations.PayDB(), migrations.Fence())
	sound := guards()[0]
	for problem, spoil := range map[string]func(*config.Mark){
		"there is no table":              func(m *config.Mark) { m.Table = []string{"acount"} },
		"column fense":                   func(m *config.Mark) { m.Token = "fense" },
		"column currency":                func(m *config.Mark) { m.Token = "currency" },
		"column balance_minor":           func(m *config.Mark) { m.Key = "balance_minor" },
		"want text":                      func(m *config.Mark) { m.KeyType = config.KeyText },
		"our role may not":               func(m *config.Mark) { m.Token = "balance_minor" },
		"has no unique index":            func(m *config.Mark) { m.Table, m.Key, m.Token = []string{"payout"}, "account_id", "amount_minor" },
		"column updated_on":              func(m *config.Mark) { m.UpdatedAt = "updated_on" },
		"is bigint, want a timestamp":    func(m *config.Mark) { m.UpdatedAt = "balance_minor" },
		`there is no table "a;DROP"."b"`: func(m *config.Mark) { m.Table = []string{"a;DROP", "b"} },
	} {
		g := sound
		spoil(&g.Mark)
		pool, err := postgres.Open(t.Context(), postgres.Config{URL: pgtest.Login(t, owner, "fence_account")})
		require.NoError(t, err)
		t.Cleanup(pool.Close)
		require.ErrorContains(t, pgmark.New(pool, []config.Guard{g}, time.Second, maxJump).Check(t.Context()), problem)
	}
}

// either sends each admission to one of several stores, each with connections of its own, as sidecars beside several replicas do.
type either struct {
	mark.OperatedStore
	others []mark.Store
	next   atomic.Uint64
}

func (e *either) Admit(ctx context.Context, a mark.Admission) (mark.Decision, error) {
	return e.others[e.next.Add(1)%uint64(len(e.others))].Admit(ctx, a)
}

func TestSidecarsOnOneTableOrderTheirAdmissionsTogether(t *testing.T) {
	t.Parallel()
	owner := pgtest.Database(t, migrations.PayDB(), migrations.Fence())
	env := newEnv(t, owner)
	env.OperatedStore = &either{OperatedStore: env.OperatedStore, others: []mark.Store{env.OperatedStore, newEnv(t, owner).OperatedStore, newEnv(t, owner).OperatedStore}}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
	defer cancel()
	require.NoError(t, marktest.OrderOfAdmissions(ctx, env))
}

// Admitted means committed. A commit that fails after the statement had returned its row (here: a constraint that is checked
// at the end) is no admission, in whatever mode statements are sent.
func TestCommitThatFailsIsNoAdmission(t *testing.T) {
	t.Parallel()
	owner := pgtest.Database(t, migrations.PayDB(), migrations.Fence())
	_, err := pgtest.Connect(t, owner).Exec(t.Context(), `
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'refused at commit' USING ERRCODE = TG_ARGV[0]; END $$;
CREATE CONSTRAINT TRIGGER refuse_rail AFTER INSERT OR UPDATE ON rail_high_water DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse('40001');
CREATE CONSTRAINT TRIGGER refuse_account AFTER UPDATE ON account DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse('P0001');`)
	require.NoError(t, err)
	env := newEnv(t, owner)
	login := pgtest.Login(t, owner, "fence_account", "fence_rail")
	for _, mode := range []string{"cache_describe", "cache_statement", "exec", "simple_protocol"} {
		pool, err := postgres.Open(t.Context(), postgres.Config{URL: login, QueryMode: mode})
		require.NoError(t, err)
		t.Cleanup(pool.Close)
		store := pgmark.New(pool, guards(), 5*time.Second, maxJump)
		for _, guard := range []string{env.Reject, env.Insert} {
			key, err := env.NewKey(t.Context())
			require.NoError(t, err)
			decision, err := store.Admit(t.Context(), mark.Admission{Guard: guard, Key: key, Token: 5})
			require.ErrorIs(t, err, mark.ErrUnavailable, mode)
			require.Equal(t, mark.Decision{}, decision, mode)
			highest, _, err := store.Read(t.Context(), guard, key)
			require.NoError(t, err)
			require.Zero(t, highest, mode)
		}
	}
}

// Some poolers allow only some ways of sending statements; each must decide alike.
func TestEveryQueryModeDecidesAlike(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"cache_statement", "exec", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			owner := pgtest.Database(t, migrations.PayDB(), migrations.Fence())
			env := newEnv(t, owner)
			pool, err := postgres.Open(t.Context(), postgres.Config{URL: pgtest.Login(t, owner, "fence_account", "fence_rail"), QueryMode: mode, MaxConns: 12})
			require.NoError(t, err)
			t.Cleanup(pool.Close)
			env.OperatedStore = pgmark.New(pool, guards(), 2*time.Second, maxJump)
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
			defer cancel()
			for _, scenario := range append(marktest.Scenarios(), marktest.SharedScenarios()...) {
				if scenario.Name == marktest.RaceName {
					continue // one statement is atomic however it is sent, and the race takes long
				}
				require.NoError(t, scenario.Run(ctx, env), scenario.Name)
			}
		})
	}
}

// Keys of the other types, in tables that aren't the payment system's, with names that need quotes.
func TestKeysOfEveryTypeAreTheirColumns(t *testing.T) {
	t.Parallel()
	owner := pgtest.Database(t)
	admin := pgtest.Connect(t, owner)
	_, err := admin.Exec(t.Context(), `
CREATE SCHEMA "odd Schema";
CREATE TABLE "odd Schema"."Things" ("Id" VARCHAR(40) PRIMARY KEY, "Select" BIGINT NOT NULL DEFAULT 0);
CREATE TABLE counted (id INTEGER PRIMARY KEY, mark BIGINT NOT NULL, changed TIMESTAMPTZ NOT NULL);
CREATE TABLE partial (id TEXT, mark BIGINT NOT NULL);
CREATE UNIQUE INDEX ON partial (id) WHERE mark > 0;
CREATE TABLE late (id TEXT UNIQUE DEFERRABLE INITIALLY DEFERRED, mark BIGINT NOT NULL);`)
	require.NoError(t, err)
	pool, err := postgres.Open(t.Context(), postgres.Config{URL: owner})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	guard := func(name string, keyType config.KeyType, key, token string, table ...string) config.Guard {
		return config.Guard{Name: name, Mark: config.Mark{Table: table, Key: key, KeyType: keyType, Token: token, Missing: config.MissingInsert}}
	}
	counted := guard("counted", config.KeyInt, "id", "mark", "counted")
	counted.Mark.UpdatedAt = "changed"
	store := pgmark.New(pool, []config.Guard{guard("things", config.KeyText, "Id", "Select", "odd Schema", "Things"), counted}, 5*time.Second, maxJump)
	for name, key := range map[string]string{"things": `it's "7"; --`, "counted": "-7"} {
		for _, c := range []struct {
			token lock.Token
			want  mark.Verdict
		}{{5, mark.Admitted}, {4, mark.FencedOut}, {6, mark.Admitted}} {
			decision, err := store.Admit(t.Context(), mark.Admission{Guard: name, Key: key, Token: c.token, Newer: true})
			require.NoError(t, err)
			require.Equal(t, c.want, decision.Verdict, "%s: %d", name, c.token)
		}
	}
	// A mark below 0, which only somebody else can have written, makes the distance overflow.
	_, err = admin.Exec(t.Context(), "UPDATE counted SET mark = -5")
	require.NoError(t, err)
	_, err = store.Admit(t.Context(), mark.Admission{Guard: "counted", Key: "-7", Token: math.MaxInt64})
	require.ErrorIs(t, err, mark.ErrUnavailable)

	for _, table := range []string{"partial", "late"} {
		err := pgmark.New(pool, []config.Guard{guard("g", config.KeyText, "id", "mark", table)}, time.Second, maxJump).Check(t.Context())
		require.ErrorContains(t, err, "has no unique index", table)
	}
}

// broken replaces a store's admission.
type broken struct {
	mark.OperatedStore
	admit func(ctx context.Context, a mark.Admission) (mark.Decision, error)
}

func (b broken) Admit(ctx context.Context, a mark.Admission) (mark.Decision, error) {
	return b.admit(ctx, a)
}

// The suite can fail: stores that break one rule each are found out.
func TestConformanceFindsBrokenStores(t *testing.T) {
	t.Parallel()
	for name, control := range map[string]struct {
		env      func(t *testing.T, owner string) marktest.Env
		scenario func(ctx context.Context, e marktest.Env) error
		breakIt  func(t *testing.T, owner string, e marktest.Env) mark.OperatedStore
		finding  string
	}{
		"read, then write":                {newEnv, marktest.OrderOfAdmissions, readThenWrite, marktest.ErrOutOfOrder.Error()},
		"read, then write, in fence.mark": {newOwnEnv, marktest.OrderOfAdmissions, ownReadThenWrite, marktest.ErrOutOfOrder.Error()},
		"equal counts as newer": {newEnv, byName("equalTokenIsAdmittedOnlyWhereTheRouteSaysSo"), func(_ *testing.T, _ string, e marktest.Env) mark.OperatedStore {
			return broken{e.OperatedStore, func(ctx context.Context, a mark.Admission) (mark.Decision, error) {
				a.Newer = false
				return e.Admit(ctx, a)
			}}
		}, "want fenced out"},
		"everything is admitted": {newEnv, byName("higherTokenIsAdmittedAndLowerFencedOut"), func(_ *testing.T, _ string, e marktest.Env) mark.OperatedStore {
			return broken{e.OperatedStore, func(context.Context, mark.Admission) (mark.Decision, error) {
				return mark.Decision{Verdict: mark.Admitted}, nil
			}}
		}, "want fenced out"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
			defer cancel()
			owner := pgtest.Database(t, migrations.PayDB(), migrations.Fence())
			env := control.env(t, owner)
			env.OperatedStore = control.breakIt(t, owner, env)
			err := control.scenario(ctx, env)
			require.Error(t, err)
			require.Regexp(t, control.finding, err.Error())
		})
	}
}

func byName(name string) func(ctx context.Context, e marktest.Env) error {
	for _, s := range marktest.Scenarios() {
		if s.Name == name {
			return s.Run
		}
	}
	return nil
}

// readThenWrite is what a check-then-act sidecar would do.
func readThenWrite(t *testing.T, owner string, e marktest.Env) mark.OperatedStore {
	t.Helper()
	pool, err := postgres.Open(t.Context(), postgres.Config{URL: owner, MaxConns: 12})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return broken{e.OperatedStore, marktest.ReadThenWrite(e, func(ctx context.Context, a mark.Admission) error {
		_, err := pool.Exec(ctx, "UPDATE account SET fence = $2 WHERE account_id = $1", a.Key, a.Token)
		return err
	})}
}

// In-memory marks are the commonest home-made fence: a restart forgets them.
func TestCrashScenarioFindsMarksInMemory(t *testing.T) {
	t.Parallel()
	env := newEnv(t, pgtest.Database(t, migrations.PayDB(), migrations.Fence()))
	marks := map[string]lock.Token{}
	env.OperatedStore = memory{broken{env.OperatedStore, func(_ context.Context, a mark.Admission) (mark.Decision, error) {
		if highest := marks[a.Guard+a.Key]; highest >= a.Token {
			return mark.Decision{Verdict: mark.FencedOut, Highest: highest}, nil
		}
		marks[a.Guard+a.Key] = a.Token
		return mark.Decision{Verdict: mark.Admitted}, nil
	}}, marks}
	env.Crash = func(context.Context) error { clear(marks); return nil }
	require.ErrorContains(t, marktest.SurvivesACrash(t.Context(), env), "the mark is 0, want 100")
}

type memory struct {
	broken
	marks map[string]lock.Token
}

func (m memory) Read(_ context.Context, guard, key string) (lock.Token, bool, error) {
	token, found := m.marks[guard+key]
	return token, found, nil
}
