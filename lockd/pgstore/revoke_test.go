package pgstore_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/lockd/lock"
)

// A heartbeat or a renewal that is under way while an operator revokes keeps the lock alive when it commits. The revocation waits for it: an operator who is told
// "not held" while the holder goes on would let two work at once.
func TestRevocationWaitsForAHeartbeatOrARenewalThatIsUnderWay(t *testing.T) {
	t.Parallel()
	for name, table := range map[string]string{"heartbeat": "lock_session", "renewal": "lock_entry"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, owner := open(t)
			_, grant := held(t, store, "k")
			admin, other := pgtest.Connect(t, owner), pgtest.Connect(t, owner)
			// Expired a moment ago, and prolonged by a transaction that began before and isn't committed.
			_, err := admin.Exec(t.Context(), "UPDATE "+table+" SET expires_at = now() - interval '1 millisecond'")
			require.NoError(t, err)
			tx, err := other.Begin(t.Context())
			require.NoError(t, err)
			_, err = tx.Exec(t.Context(), "UPDATE "+table+" SET expires_at = now() + interval '30 seconds'")
			require.NoError(t, err)

			type answer struct {
				lock.Revocation
				err error
			}
			revoked := make(chan answer, 1)
			go func() {
				r, err := store.Revoke(t.Context(), lock.RevokeRequest{Key: "k", Operator: "carol", Reason: "stuck"})
				revoked <- answer{r, err}
			}()
			require.Eventually(t, func() bool {
				var waiting bool
				err := admin.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database())").Scan(&waiting)
				return err == nil && waiting
			}, 20*time.Second, time.Millisecond)
			require.NoError(t, tx.Commit(t.Context()))
			got := <-revoked
			require.NoError(t, got.err)
			require.Equal(t, grant.Token, got.RevokedToken)
		})
	}
}
