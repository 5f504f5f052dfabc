package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/internal/process"
	"fenceline/lockd/lockclient"
	"fenceline/migrations"
	"fenceline/paysvc/payout"
)

// The operator's move: from the states from which the machine has it, under the account's lock, with the token stamped and the reason kept. Any other state is refused.
func TestOperatorAbandonsUnderTheLock(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t, migrations.PayDB(), migrations.SeedPayDB())
	owner := pgtest.Connect(t, database)
	lockd := process.StartForTest(t, "fenceline/lockd", []string{"serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"},
		"LOCKD_DATABASE_URL="+pgtest.Login(t, pgtest.Database(t, migrations.LockDB()), "lockapp"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	address, err := lockd.Address(ctx, "api")
	require.NoError(t, err)
	env := []string{"PAYSVC_DATABASE_URL=" + pgtest.Login(t, database, "payoperator"), "LOCKD_URL=http://" + address}
	abandon := func(id string, flags ...string) (int, string) {
		return run(t, env, append([]string{"abandon", "--payout", id, "--operator", "operator-7", "--reason", "the account is closed"}, flags...)...)
	}

	for _, state := range payout.States() {
		id := uuid.NewString()
		_, err := owner.Exec(ctx, "INSERT INTO payout (payout_id, account_id, amount_minor, currency, idempotency_key) VALUES ($1::uuid, $2, 5, 'EUR', 'k' || $1::uuid)", id, payer)
		require.NoError(t, err)
		if state != payout.Pending {
			_, err = owner.Exec(ctx, "UPDATE payout SET state = $2, claimed_by = 'w', claim_token = 1 WHERE payout_id = $1", id, state)
			require.NoError(t, err)
		}
		var token int64
		if state == payout.Pending { // tokens begin at 1: the first grant isn't newer than the claims above
			_, output := abandon(id)
			require.Contains(t, output, "is ABANDONED under token")
		} else {
			code, output := abandon(id)
			_, refused := payout.Next(state, payout.Abandon)
			require.Equal(t, refused != nil, code != 0, output)
		}
		var now, by, reason, from string
		err = owner.QueryRow(ctx, `SELECT p.state, p.claimed_by, p.claim_token, a.reason, a.from_state
			FROM payout p JOIN payout_abandonment a ON a.payout_id = p.payout_id AND a.fencing_token = p.claim_token AND a.operator = p.claimed_by WHERE p.payout_id = $1`, id).
			Scan(&now, &by, &token, &reason, &from)
		if _, refused := payout.Next(state, payout.Abandon); refused != nil {
			require.Error(t, err, "nothing is kept of what didn't happen")
			continue
		}
		require.NoError(t, err)
		require.Equal(t, []string{"ABANDONED", "operator-7", "the account is closed", string(state)}, []string{now, by, reason, from})
		require.Positive(t, token)
	}

	// A worker at the account keeps the operator waiting, and away.
	id := uuid.NewString()
	_, err = owner.Exec(ctx, "INSERT INTO payout (payout_id, account_id, amount_minor, currency, idempotency_key) VALUES ($1::uuid, $2, 5, 'EUR', 'k' || $1::uuid)", id, payer)
	require.NoError(t, err)
	session, err := lockclient.Open(ctx, "worker", lockclient.Options{HTTPClient: http.DefaultClient, URL: "http://" + address})
	require.NoError(t, err)
	held, err := session.Acquire(ctx, "payout:"+payer, lockclient.AcquireOptions{})
	require.NoError(t, err)
	code, output := abandon(id, "--wait", "100ms")
	require.Equal(t, 1, code, output)
	require.NoError(t, held.Release(ctx))
	require.NoError(t, session.Close(ctx))

	// A payout that a newer grant has claimed is not the operator's.
	_, err = owner.Exec(ctx, fmt.Sprintf("UPDATE payout SET state = 'RAIL_AMBIGUOUS', claimed_by = 'w', claim_token = %d WHERE payout_id = '%s'", int64(1)<<62, id))
	require.NoError(t, err)
	code, output = abandon(id)
	require.Equal(t, 1, code, output)

	for says, flags := range map[string][]string{"reason": {"--reason", ""}, "operator": {"--operator", strings.Repeat("o", 65)}, "payout": {"--payout", "1"}} {
		code, output := abandon(id, flags...)
		require.NotZero(t, code)
		require.Contains(t, output, says)
	}
}
