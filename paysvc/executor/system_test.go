package executor_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/internal/process"
	"fenceline/migrations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// patience bounds every wait for a process.
const patience = 30 * time.Second

// system is the payment system as real processes, with lockd, a rail and both sidecars. Scenarios have accounts of their own.
type system struct {
	bin, dir, root string
	railLog        string
	pay            *pgxpool.Pool // as the owner
	lockdURL       string        // of the database
	lockd          string
	resource, rail string // without sidecars
	guardedAccount string // the sidecar before the resource
	guardedRail    string // the sidecar before the rail-proxy
}

// faultyPayout is a payout for which the rail has a fault in store.
func faultyPayout(kind string) string {
	return map[string]string{
		"decline": "00000000-0000-4000-8000-00000000f001",
		"lost":    "00000000-0000-4000-8000-00000000f002",
		"drop":    "00000000-0000-4000-8000-00000000f003",
	}[kind]
}

func startSystem(t *testing.T) *system {
	t.Helper()
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	s := &system{bin: t.TempDir(), dir: t.TempDir(), root: root}
	build := exec.CommandContext(t.Context(), "go", "build", "-o", s.bin+"/", "./lockd", "./paysvc", "./sidecar")
	build.Dir = root
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)

	lockdb, paydb := pgtest.Database(t, migrations.LockDB()), pgtest.Database(t, migrations.PayDB(), migrations.SeedPayDB(), migrations.Fence())
	s.lockdURL = pgtest.Login(t, lockdb, "lockapp")
	s.pay, err = pgxpool.New(t.Context(), paydb)
	require.NoError(t, err)
	t.Cleanup(s.pay.Close)
	s.railLog = filepath.Join(s.dir, "transfers.jsonl")

	s.lockd, _ = s.daemon(t, "lockd", "lockd", []string{"serve"}, "LOCKD_DATABASE_URL="+s.lockdURL)
	railStub, _ := s.daemon(t, "rail-stub", "paysvc", []string{
		"rail-stub", "--log", s.railLog,
		"--fault", faultyPayout("decline") + "=decline", "--fault", faultyPayout("lost") + "=lost", "--fault", faultyPayout("drop") + "=drop",
	})
	s.resource, _ = s.daemon(t, "resource", "paysvc", []string{"resource"}, "PAYSVC_DATABASE_URL="+pgtest.Login(t, paydb, "payapp"))
	s.rail, _ = s.daemon(t, "rail-proxy", "paysvc", []string{"rail-proxy", "--rail", railStub}, "PAYSVC_DATABASE_URL="+pgtest.Login(t, paydb, "railapp"))
	s.guardedAccount = s.sidecar(t, "account", s.resource, pgtest.Login(t, paydb, "fence_account"))
	s.guardedRail = s.sidecar(t, "rail", s.rail, pgtest.Login(t, paydb, "fence_rail"))
	return s
}

// daemon starts a daemon on a free port and returns its base URL.
func (s *system) daemon(t *testing.T, name, program string, args []string, env ...string) (string, *process.Process) {
	t.Helper()
	args = append(args, "--listen", "127.0.0.1:0")
	if name != "rail-stub" {
		args = append(args, "--admin-listen", "127.0.0.1:0")
	}
	p := s.process(t, name, program, args, env...)
	return "http://" + s.address(t, p), p
}

func (s *system) sidecar(t *testing.T, name, upstream, databaseURL string) string {
	t.Helper()
	p := s.process(t, "sidecar-"+name, "sidecar", []string{"run", "--config", filepath.Join(s.root, "configs", "sidecar."+name+".yaml")},
		"PAYDB_URL="+databaseURL, "SIDECAR_ID=test-"+name, "SIDECAR_LISTEN=127.0.0.1:0", "SIDECAR_ADMIN=127.0.0.1:0", "SIDECAR_UPSTREAM="+upstream)
	return "http://" + s.address(t, p)
}

func (s *system) address(t *testing.T, p *process.Process) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	address, err := p.Address(ctx, "api")
	require.NoError(t, err)
	return address
}

func (s *system) process(t *testing.T, name, program string, args []string, env ...string) *process.Process {
	t.Helper()
	p, err := process.Start(t.Context(), process.Spec{Name: name, Path: filepath.Join(s.bin, program), Args: args, Env: env, LogDir: s.dir})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		require.NoError(t, p.Stop(ctx))
	})
	return p
}

// worker starts an executor against the unguarded system; flags given later win.
func (s *system) worker(t *testing.T, owner string, flags ...string) *process.Process {
	t.Helper()
	args := append([]string{"executor", "--owner", owner, "--lockd", s.lockd, "--resource", s.resource, "--rail-proxy", s.rail, "--lock-ttl", "2s"}, flags...)
	return s.process(t, owner, "paysvc", args)
}

// ends waits for the worker's end and returns what it says of its one payout.
func (s *system) ends(t *testing.T, p *process.Process, wantCode int) process.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	code, err := p.Wait(ctx)
	require.NoError(t, err)
	require.Equal(t, wantCode, code, p.Tail())
	events := p.Events("payout_outcome")
	require.Len(t, events, 1, p.Tail())
	for _, field := range []string{"payoutId", "outcome", "step", "token", "ownerId", "elapsedMillis"} {
		require.Contains(t, events[0], field)
	}
	return events[0]
}

// paused waits for the pause point.
func (s *system) paused(t *testing.T, p *process.Process, step string) process.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	e, err := p.WaitEvent(ctx, "its pause point", func(e process.Event) bool { return e.Name() == "pause_point" })
	require.NoError(t, err)
	require.Equal(t, step, e.Text("step"))
	require.EqualValues(t, p.PID(), e.Int("pid"))
	return e
}

// freeze stops the process with SIGSTOP and waits until its lease has run out.
func (s *system) freeze(t *testing.T, p *process.Process, account string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, p.Suspend(ctx))
	s.untilFree(t, account)
}

func (s *system) untilFree(t *testing.T, account string) {
	t.Helper()
	require.Eventually(t, func() bool { return !s.held(t, account) }, patience, 20*time.Millisecond)
}

func (s *system) held(t *testing.T, account string) bool {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.lockd+"/v1/locks/payout:"+account, nil)
	require.NoError(t, err)
	response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	var info struct{ Held bool }
	require.NoError(t, json.NewDecoder(response.Body).Decode(&info))
	return info.Held
}

// account makes an account with money in it.
func (s *system) account(t *testing.T, balance int64) string {
	t.Helper()
	id := uuid.NewString()
	_, err := s.pay.Exec(t.Context(), `INSERT INTO account (account_id, currency, balance_minor) VALUES ($1, 'EUR', $2)`, id, balance)
	require.NoError(t, err)
	return id
}

// payout makes a PENDING payout of 25.00 EUR.
func (s *system) payout(t *testing.T, account string) string {
	t.Helper()
	id := uuid.NewString()
	s.insertPayout(t, id, account)
	return id
}

func (s *system) insertPayout(t *testing.T, id, account string) {
	t.Helper()
	_, err := s.pay.Exec(t.Context(), `INSERT INTO payout (payout_id, account_id, amount_minor, currency, idempotency_key) VALUES ($1, $2, 2500, 'EUR', $3)`,
		id, account, "key-"+id)
	require.NoError(t, err)
}

// truth is what a payout came to.
type truth struct {
	State     string
	Transfers int
	Debits    int
	Balance   int64
}

func (s *system) truth(t *testing.T, payoutID string) truth {
	t.Helper()
	var got truth
	err := s.pay.QueryRow(t.Context(), `SELECT p.state, a.balance_minor, (SELECT count(*) FROM ledger_entry l WHERE l.payout_id = p.payout_id AND direction = 'DEBIT')
		FROM payout p JOIN account a USING (account_id) WHERE p.payout_id = $1`, payoutID).Scan(&got.State, &got.Balance, &got.Debits)
	require.NoError(t, err)
	log, err := os.ReadFile(s.railLog)
	require.NoError(t, err)
	got.Transfers = strings.Count(string(log), fmt.Sprintf(`"clientReference":%q`, payoutID))
	return got
}

func posted(balance int64) truth {
	return truth{State: "POSTED", Transfers: 1, Debits: 1, Balance: balance}
}
