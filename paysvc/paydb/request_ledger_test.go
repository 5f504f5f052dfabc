package paydb

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/internal/postgres"
	"fenceline/lockd/lock"
	"fenceline/migrations"
	"fenceline/paysvc/payout"
)

// Negative controls of the ledger of requests: what a replay before the fence check, and a claim's fingerprint without its token, would do.
func TestWhatALedgerThatIsWrongOnPurposeDoes(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t, migrations.PayDB(), migrations.SeedPayDB())
	pool, err := postgres.Open(t.Context(), postgres.Config{URL: pgtest.Login(t, url, "payapp_fenced")})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	payer := uuid.MustParse("00000000-0000-4000-8000-000000000101")
	store := NewFenced(pool, uuid.MustParse("00000000-0000-4000-8000-000000000001"), 3*time.Second)
	create := func() payout.Payout {
		id := uuid.New()
		p, _, err := store.Create(t.Context(), payout.Draft{ID: id, AccountID: payer, Money: payout.Money{Minor: 5, Currency: "EUR"}, IdempotencyKey: id.String()})
		require.NoError(t, err)
		return p
	}
	request := func(p payout.Payout, token lock.Token) *payout.Request {
		return &payout.Request{
			Operation: payout.OperationClaim, Key: "payout-" + p.ID.String(), Subject: p.ID.String(), Token: token, Content: []string{"PENDING"},
			Render: func(result any) (payout.Answer, error) {
				return payout.Answer{Status: 200, Body: []byte(result.(payout.Payout).ClaimedBy)}, nil
			},
		}
	}
	claim := func(p payout.Payout, owner string, token lock.Token) (*payout.Request, error) {
		r := request(p, token)
		_, err := store.Claim(t.Context(), p.ID, payout.Pending, payout.Holder{Owner: owner, Token: token, Request: r})
		return r, err
	}
	// begin asks the ledger alone, under the scope, and takes everything back.
	begin := func(s scope, r *payout.Request) (done bool, err error) {
		_ = postgres.InTx(t.Context(), pool, postgres.TxOptions{}, func(ctx context.Context, tx pgx.Tx) error {
			done, err = s.begin(ctx, tx, r)
			return pgx.ErrTxClosed
		})
		return done, err
	}

	first, second := create(), create()
	_, err = claim(first, "a", 33)
	require.NoError(t, err)
	_, err = claim(second, "b", 35) // the account's fence is 34 now: whoever has 33 is out
	require.NoError(t, err)

	_, err = claim(first, "a", 33)
	require.ErrorIs(t, err, payout.ErrFencedOut)
	stale := request(first, 33)
	done, err := begin(scope{perGrant: true}, stale) // no fence: replay first
	require.NoError(t, err)
	require.True(t, done)
	require.Equal(t, "a", string(stale.Replayed.Body), "the stale holder is told that the payout is its")

	later := request(first, 36)
	done, err = begin(scope{}, request(first, 36)) // no token in the fingerprint: stored ones have it, so nobody can take over
	require.ErrorIs(t, err, payout.ErrIdempotencyConflict)
	require.False(t, done)
	_, err = pgtest.Connect(t, url).Exec(t.Context(), "UPDATE request_ledger SET fingerprint = $1 WHERE key = $2", later.Fingerprint(false), later.Key)
	require.NoError(t, err)
	done, err = begin(scope{}, later)
	require.NoError(t, err)
	require.True(t, done)
	require.Equal(t, "a", string(later.Replayed.Body), "the later holder is answered with the earlier one's claim")
}
