package etcdstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fenceline/internal/etcdtest"
	"fenceline/lockd/etcdstore"
	"fenceline/lockd/lock/locktest"
)

// Each rule broken on purpose fails the scenario that is there for it, so the matrix can fail.
func TestMatrixFindsEveryBrokenRule(t *testing.T) {
	t.Parallel()
	member := etcdtest.Start(t)
	for name, broken := range map[string]struct {
		breaks   func(*etcdstore.Store)
		scenario string
		finding  string
	}{
		"takeover keeps the token":  {etcdstore.WithoutNewTokenOnTakeover, "expiredLeaseIsStolenWithHigherToken", "not above the old one's"},
		"release forgets the token": {etcdstore.WithReleaseByKeyOnly, "staleReleaseLeavesTheNewHolderUntouched", "want stale"},
		"takeover of the living":    {etcdstore.WithTakeoverOfLiveGrants, "heldKeyIsContendedAndStaysWithItsHolder", "want contended"},
		"dead holders stay":         {etcdstore.WithoutEndOfDeadHolders, "takeoverTellsWhichGrantItEnded", "takeover"},
		"renew looks only once":     {etcdstore.WithoutSecondLookOnRenew, "keyOfADeadSessionIsTakenOverWithoutAReaper", "want lock is lost"},
		"dead sessions acquire":     {etcdstore.WithExpiredSessions, "expiredSessionCannotAcquireEvenBeforeItIsReaped", "want session has expired"},
		"revocation draws no token": {etcdstore.WithoutFloorOnRevoke, "tokenAfterARevocationExceedsTheRevokedOne", "revocation of"},
		"acquire compares no grant": {etcdstore.WithBlindAcquire, "tokensIncreaseInTheOrderOfGrantsOnAHotKey", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 110*time.Second)
			defer cancel()
			require.ErrorContains(t, scenario(t, broken.scenario).Run(ctx, open(t, member, broken.breaks)), broken.finding)
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
