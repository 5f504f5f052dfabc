package pgstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fenceline/lockd/lock/locktest"
	"fenceline/lockd/pgstore"
)

// Each rule broken on purpose fails the scenario that is there for it, so the matrix can fail.
func TestMatrixFindsEveryBrokenRule(t *testing.T) {
	t.Parallel()
	for name, broken := range map[string]struct {
		breaks   func(*pgstore.Store)
		scenario string
		finding  string
	}{
		"takeover keeps the token":  {pgstore.WithoutNewTokenOnTakeover, "expiredLeaseIsStolenWithHigherToken", "not above the old one's"},
		"release forgets the token": {pgstore.WithReleaseByKeyOnly, "staleReleaseLeavesTheNewHolderUntouched", "want stale"},
		"renew revives the dead":    {pgstore.WithRenewAfterExpiry, "renewAfterExpiryIsLostEvenIfNobodyTookTheKey", "want lock is lost"},
		"takeover of the living":    {pgstore.WithTakeoverOfLiveGrants, "heldKeyIsContendedAndStaysWithItsHolder", "want contended"},
		"dead holders stay":         {pgstore.WithoutEndOfDeadHolders, "keyOfADeadSessionIsTakenOverWithoutAReaper", "want lock is lost"},
		"dead sessions acquire":     {pgstore.WithExpiredSessions, "expiredSessionCannotAcquireEvenBeforeItIsReaped", "want session has expired"},
		"revocation draws no token": {pgstore.WithoutFloorOnRevoke, "tokenAfterARevocationExceedsTheRevokedOne", "revocation of"},
		"C1's acquire by itself":    {pgstore.WithoutOrderedGrants, "tokensIncreaseInTheOrderOfGrantsOnAHotKey", "was granted after"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 110*time.Second)
			defer cancel()
			store, _ := open(t, broken.breaks)
			require.ErrorContains(t, scenario(t, broken.scenario).Run(ctx, store), broken.finding)
		})
	}
}

func scenario(t *testing.T, name string) locktest.Scenario {
	t.Helper()
	for _, s := range locktest.Scenarios() {
		if s.Name == name {
			return s
		}
	}
	require.Fail(t, "no such scenario", name)
	return locktest.Scenario{}
}
