package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"fenceline/internal/postgres/failuretest"
	"fenceline/lockd/lockapi"
	"fenceline/migrations"
)

// Answers of a lockd whose database fails.
var (
	lockGranted = failuretest.Answer{Status: http.StatusOK}
	lockNothing = failuretest.Answer{Status: http.StatusServiceUnavailable, Code: lockapi.CodeBackendUnavailable}
	lockUnknown = failuretest.Answer{Status: http.StatusServiceUnavailable, Code: lockapi.CodeBackendUnavailable, Outcome: lockapi.OutcomeUnknown}
)

// lockFailures is the table of docs/failures.md. An acquire is one round trip with its commit inside, so what cuts that short is unknown; a
// revocation is a transaction of several steps.
func lockFailures() []failuretest.Row {
	return []failuretest.Row{
		{Fault: failuretest.EndedInStatement(), Call: "acquire", Want: lockUnknown},
		{Fault: failuretest.EndedInStatement(), Call: "revoke", Want: lockNothing},
		{Fault: failuretest.EndedInCommit(), Call: "acquire", Want: lockUnknown},
		{Fault: failuretest.EndedInCommit(), Call: "revoke", Want: lockUnknown},
		{Fault: failuretest.CutInStatement(), Call: "acquire", Want: lockUnknown, During: "database unavailable"},
		{Fault: failuretest.CutInStatement(), Call: "revoke", Want: lockNothing, During: "database unavailable"},
		{Fault: failuretest.CutInCommit(), Call: "acquire", Want: lockUnknown, During: "database unavailable"},
		{Fault: failuretest.CutInCommit(), Call: "revoke", Want: lockUnknown, During: "database unavailable"},
		{Fault: failuretest.ReadOnly(), Call: "acquire", Want: lockNothing, During: "read-only"},
		{Fault: failuretest.NoConnections(), Call: "acquire", Want: lockNothing, During: "database unavailable"},
		{Fault: failuretest.Deadlock(), Call: "acquire", Want: lockGranted},
		{Fault: failuretest.Deadlock(), Call: "revoke", Want: lockGranted},
		{Fault: failuretest.LostTwice(), Call: "acquire", Want: lockGranted},
		{Fault: failuretest.LostTwice(), Call: "revoke", Want: lockGranted},
		{Fault: failuretest.LostAlways(), Call: "acquire", Want: lockNothing},
	}
}

// lockTimeouts are those that last as long as the store's time-out.
func lockTimeouts() []failuretest.Row {
	return []failuretest.Row{
		{Fault: failuretest.PoolExhausted(), Call: "revoke", Want: lockNothing, During: "timed out"},
		{Fault: failuretest.StatementTimeout(), Call: "acquire", Want: lockNothing},
		{Fault: failuretest.StatementTimeout(), Call: "revoke", Want: lockNothing},
		{Fault: failuretest.LockTimeout(), Call: "acquire", Want: lockNothing},
	}
}

func TestLockdInEachFailureOfItsDatabase(t *testing.T) {
	t.Parallel()
	lockdMeets(t, "2s", lockFailures())
}

func TestLockdWhoseDatabaseTakesTooLong(t *testing.T) {
	t.Parallel()
	lockdMeets(t, "700ms", lockTimeouts())
}

func TestLockdWhoseDatabaseIsRestartedUnderLoad(t *testing.T) {
	t.Parallel()
	b, server := deployment().OwnServer(t)
	d := lockdOn(t, b, "2s")
	for _, end := range []failuretest.End{failuretest.ByCrash, failuretest.Cleanly} {
		require.NoError(t, b.RestartUnderLoad(t.Context(), d, "acquire", server, end, lockNothing, lockUnknown))
	}
}

// deployment is the database of these tests.
func deployment() failuretest.Deployment {
	return failuretest.Deployment{Section: "lockd", Role: "lockapp", Sets: []migrations.Set{migrations.LockDB()}}
}

func lockdMeets(t *testing.T, timeout string, table []failuretest.Row) {
	t.Helper()
	b := deployment().Bench(t)
	deployment().Meet(t, b, lockdOn(t, b, timeout), table...)
}

// lockdOn starts lockd on the bench's database. Its n-th change is about the key kN.
func lockdOn(t *testing.T, b *failuretest.Bench, timeout string) failuretest.Daemon {
	t.Helper()
	_, api, admin := serve(t, b.Login, "--store-timeout", timeout, "--max-conns", "2")
	send := func(ctx context.Context, method, path, body string) (failuretest.Answer, []byte, error) {
		return failuretest.Send(ctx, method, api+path, body, lockapi.HeaderOwner, "worker")
	}
	var session atomic.Value // the latest one's id
	open := func(ctx context.Context, _ int) error {
		answer, body, err := send(ctx, http.MethodPost, "/v1/sessions", `{"ownerId":"worker","ttlMillis":60000}`)
		if err != nil || answer.Status != http.StatusCreated {
			return fmt.Errorf("no session: %s: %w", body, err)
		}
		var opened lockapi.Session
		if err := json.Unmarshal(body, &opened); err != nil {
			return err
		}
		session.Store(opened.SessionID)
		return nil
	}
	acquire := func(ctx context.Context, n int) (failuretest.Answer, error) {
		answer, _, err := send(ctx, http.MethodPost, fmt.Sprintf("/v1/locks/k%d/acquire", n), fmt.Sprintf(`{"sessionId":%q,"ttlMillis":300000}`, session.Load()))
		return answer, err
	}
	held := func(ctx context.Context, n int) error {
		if err := open(ctx, n); err != nil {
			return err
		}
		answer, err := acquire(ctx, n)
		if err == nil && answer != lockGranted {
			err = fmt.Errorf("no grant: %s", answer)
		}
		return err
	}
	return failuretest.Daemon{Name: "lockd", Admin: admin, MaxConns: 2, Calls: map[string]failuretest.Call{
		"acquire": {Table: "lock_entry", Prepare: open, Send: acquire, Effect: func(ctx context.Context, n int) (failuretest.Effect, error) {
			var there bool
			err := b.Row(ctx, "SELECT EXISTS (SELECT FROM lock_entry WHERE lock_key = 'k' || $1::int)", []any{n}, &there)
			return failuretest.All(there), err
		}},
		"revoke": {
			Table: "lock_revocation", Prepare: held,
			Send: func(ctx context.Context, n int) (failuretest.Answer, error) {
				answer, _, err := send(ctx, http.MethodPost, fmt.Sprintf("/v1/locks/k%d/revoke", n), `{"operator":"op","reason":"the worker is stuck"}`)
				return answer, err
			},
			Effect: func(ctx context.Context, n int) (failuretest.Effect, error) {
				var gone, recorded bool
				err := b.Row(ctx, `SELECT NOT EXISTS (SELECT FROM lock_entry WHERE lock_key = 'k' || $1::int),
					(SELECT count(*) FROM lock_revocation WHERE lock_key = 'k' || $1::int) = 1`, []any{n}, &gone, &recorded)
				return failuretest.All(gone, recorded), err
			},
		},
	}}
}
