package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/migrations"
	"fenceline/paysvc/relay"
)

// The relay is killed (kill -9) when the endpoint has taken the event and before that is noted. The next one delivers it again, with the same key.
func TestRelayKilledBetweenDeliveryAndMarkDeliversAgain(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t, migrations.PayDB(), migrations.SeedPayDB())
	owner := pgtest.Connect(t, database)
	var mu sync.Mutex
	var keys []string
	taken, hold := make(chan struct{}, 10), make(chan struct{})
	endpoint := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		keys = append(keys, r.Header.Get(relay.HeaderEventKey))
		first := len(keys) == 1
		mu.Unlock()
		taken <- struct{}{}
		if first {
			<-hold // what was taken isn't acknowledged: the relay dies before
		}
	}))
	t.Cleanup(endpoint.Close)
	t.Cleanup(func() { close(hold) })
	_, err := owner.Exec(t.Context(), "INSERT INTO payout (payout_id, account_id, amount_minor, currency, idempotency_key) VALUES ($1, $1, 5, 'EUR', 'k')", payer)
	require.NoError(t, err)
	_, err = owner.Exec(t.Context(), "UPDATE payout SET state = 'FAILED' WHERE payout_id = $1", payer)
	require.NoError(t, err)

	env := []string{"PAYSVC_DATABASE_URL=" + pgtest.Login(t, database, "relayapp"), "PAYSVC_RELAY_ENDPOINT=" + endpoint.URL + "/events?token=sesame"}
	flags := []string{"relay", "--admin-listen", "127.0.0.1:0", "--timeout", "1s", "--lease", "1500ms", "--poll-interval", "20ms"}
	first := start(t, env, flags...)
	<-taken
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	require.NoError(t, first.Kill(ctx))

	second := start(t, env, flags...)
	until(t, owner, "the event is delivered", "SELECT EXISTS (SELECT FROM outbox WHERE delivered_at IS NOT NULL AND attempts = 2)")
	mu.Lock()
	require.Equal(t, []string{"payout.failed:" + payer, "payout.failed:" + payer}, keys)
	mu.Unlock()

	admin, err := second.Address(ctx, "admin")
	require.NoError(t, err)
	eventually(t, "http://"+admin+"/readyz", 200)
	require.Eventually(t, func() bool {
		_, metrics := call(t, "GET", "http://"+admin+"/metrics", "")
		return containsAll(metrics, `outbox_delivery_total{outcome="delivered"} 1`, `outbox_delivery_total{outcome="failed"} 0`, "outbox_undelivered_current 0",
			"outbox_lag_seconds 0", `outbox_stuck_current{reason="parked"} 0`, `outbox_stuck_current{reason="blocked"} 0`)
	}, 10*time.Second, 20*time.Millisecond)
	require.NoError(t, second.Stop(ctx))
	require.Zero(t, second.ExitCode(), second.Tail())
	require.NotContains(t, second.Tail(), "sesame")
}
