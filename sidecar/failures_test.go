package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"fenceline/internal/postgres/failuretest"
	"fenceline/migrations"
)

// Answers of a sidecar whose database fails. Whatever becomes of the mark, a request that isn't admitted isn't forwarded.
var (
	fenceDone        = failuretest.Answer{Status: http.StatusOK}
	fenceUnavailable = failuretest.Answer{Status: http.StatusServiceUnavailable, Code: "FENCE_UNAVAILABLE", Outcome: "not_sent"}
	fenceBusy        = failuretest.Answer{Status: http.StatusServiceUnavailable, Code: "FENCE_BUSY", Outcome: "not_sent"}
)

// fenceFailures is the table of docs/failures.md. A row that somebody else holds is a busy key.
func fenceFailures() []failuretest.Row {
	return []failuretest.Row{
		{Fault: failuretest.EndedInStatement(), Want: fenceUnavailable},
		{Fault: failuretest.EndedInCommit(), Want: fenceUnavailable},
		{Fault: failuretest.CutInStatement(), Want: fenceUnavailable, During: "database unavailable"},
		{Fault: failuretest.CutInCommit(), Want: fenceUnavailable, During: "database unavailable"},
		{Fault: failuretest.ReadOnly(), Want: fenceUnavailable, During: "read-only"},
		{Fault: failuretest.NoConnections(), Want: fenceUnavailable, During: "database unavailable"},
		{Fault: failuretest.Deadlock(), Want: fenceDone},
		{Fault: failuretest.LostTwice(), Want: fenceDone},
		{Fault: failuretest.LostAlways(), Want: fenceUnavailable},
		{Fault: failuretest.LockTimeout(), Want: fenceBusy},
	}
}

// fenceTimeouts are those that last as long as the store's time-out. That bounds the wait for a connection, too, so a probe of /readyz outlasts it.
func fenceTimeouts() []failuretest.Row {
	return []failuretest.Row{
		{Fault: failuretest.StatementTimeout(), Want: fenceUnavailable},
		{Fault: failuretest.PoolExhausted(), Want: fenceUnavailable},
	}
}

func TestSidecarInEachFailureOfItsDatabase(t *testing.T) {
	t.Parallel()
	for _, order := range []string{"effects", "exclusive", "admissions"} {
		t.Run(order, func(t *testing.T) {
			t.Parallel()
			table := fenceFailures()
			if order == "effects" {
				// The registration whose answer was lost stands in the way of the key's next token until a heartbeat takes it back.
				table = append(table, failuretest.Row{Fault: failuretest.CutInCommit(), Call: "effects of one key", Want: fenceUnavailable, During: "database unavailable"})
			}
			sidecarMeets(t, order, "2s", table)
		})
	}
}

func TestSidecarWhoseDatabaseTakesTooLong(t *testing.T) {
	t.Parallel()
	for _, order := range []string{"effects", "exclusive", "admissions"} {
		t.Run(order, func(t *testing.T) {
			t.Parallel()
			sidecarMeets(t, order, "700ms", fenceTimeouts())
		})
	}
}

func TestSidecarWhoseDatabaseIsRestartedUnderLoad(t *testing.T) {
	t.Parallel()
	b, server := deployment().OwnServer(t)
	d := sidecarOn(t, b, "effects", "2s")
	for _, end := range []failuretest.End{failuretest.ByCrash, failuretest.Cleanly} {
		require.NoError(t, b.RestartUnderLoad(t.Context(), d, "effects", server, end, fenceUnavailable))
	}
}

// deployment is the database of these tests.
func deployment() failuretest.Deployment {
	return failuretest.Deployment{Section: "sidecar", Role: "fence_account", Sets: []migrations.Set{migrations.PayDB(), migrations.Fence()}}
}

func sidecarMeets(t *testing.T, order, timeout string, table []failuretest.Row) {
	t.Helper()
	b := deployment().Bench(t)
	for i := range table {
		if table[i].Call == "" {
			table[i].Call = order
		}
	}
	deployment().Meet(t, b, sidecarOn(t, b, order, timeout), table...)
}

// forwarded are the requests that reached a resource, by their tokens.
type forwarded struct {
	mu     sync.Mutex
	tokens map[string]int
}

func (f *forwarded) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tokens[r.Header.Get("X-Fencing-Token")]++
	_, _ = io.WriteString(w, "done")
}

func (f *forwarded) times(token int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.tokens[fmt.Sprint(token)]
}

// sidecarOn starts a sidecar on the bench's database. Its n-th change is a write to the n-th account under the token n.
func sidecarOn(t *testing.T, b *failuretest.Bench, order, timeout string) failuretest.Daemon {
	t.Helper()
	guard := map[string]string{
		"admissions": "order: admissions",
		"effects":    "order: effects\n    unsettled: { then: hold }",
		"exclusive":  "order: effects\n    ownership: exclusive\n    unsettled: { then: release, after: 7s }",
	}[order]
	reached := &forwarded{tokens: map[string]int{}}
	text := strings.NewReplacer("order: admissions", guard, "timeout: 1s", "timeout: "+timeout+", max_conns: 2",
		"response_timeout: 10s", "connect_timeout: 500ms, response_timeout: 2s").Replace(configText) + "limits: { wait: 3s }\n"
	s := &sidecar{Process: spawn(t, map[string]string{"PAYDB_URL": b.Login, "UPSTREAM": resource(t, reached.ServeHTTP)}, "run", "-c", write(t, text))}
	s.listening(t)
	account := func(n int) string { return fmt.Sprintf("00000000-0000-4000-c000-%012d", n) }
	write := func(account func(n int) string) failuretest.Call {
		return failuretest.Call{
			Table: "account",
			Prepare: func(ctx context.Context, n int) error {
				return b.Exec(ctx, "INSERT INTO account (account_id, currency) VALUES ($1, 'EUR') ON CONFLICT DO NOTHING", account(n))
			},
			Send: func(ctx context.Context, n int) (failuretest.Answer, error) {
				answer, _, err := failuretest.Send(ctx, http.MethodPost, "http://"+s.api+"/accounts/"+account(n), "", "X-Fencing-Token", fmt.Sprint(n), "X-Owner-Id", "worker")
				return answer, err
			},
			// A mark without its request is nothing: nobody is told that it was admitted, and nothing older is any more. A request without its mark is the one thing
			// that must not be.
			Effect: func(ctx context.Context, n int) (failuretest.Effect, error) {
				var marked bool
				err := b.Row(ctx, "SELECT fence >= $2 FROM account WHERE account_id = $1", []any{account(n), n}, &marked)
				switch times := reached.times(n); {
				case times == 0:
					return failuretest.Nothing, err
				case times == 1 && marked:
					return failuretest.Whole, err
				}
				return failuretest.Part, err
			},
		}
	}
	return failuretest.Daemon{Name: "sidecar, order: " + order, Admin: "http://" + s.admin, MaxConns: 2, Calls: map[string]failuretest.Call{
		order: write(account), "effects of one key": write(func(int) string { return account(0) }),
	}}
}
