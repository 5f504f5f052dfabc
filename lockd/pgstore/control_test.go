package pgstore_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/lockd/lock"
	"fenceline/lockd/lock/locktest"
	"fenceline/lockd/pgstore"
)

// rule is a rule of the database's functions, as a text that breaks it replaces.
type rule struct{ function, text, instead string }

// breaks rewrites the functions of one database.
func breaks(t *testing.T, owner string, rules ...rule) {
	t.Helper()
	admin := pgtest.Connect(t, owner)
	for _, r := range rules {
		var definition string
		require.NoError(t, admin.QueryRow(t.Context(), "SELECT pg_get_functiondef($1::regproc)", r.function).Scan(&definition))
		require.Contains(t, definition, r.text, "the control would break nothing")
		_, err := admin.Exec(t.Context(), strings.Replace(definition, r.text, r.instead, 1))
		require.NoError(t, err)
	}
}

// The rules that a control breaks.
var (
	orderedDraws         = rule{"change_locks", "pg_advisory_xact_lock(number)", "number"} // C1's acquire as it stands
	newTokenOnTakeover   = rule{"change_locks", "               fencing_token = nextval('fencing_token_seq'),\n", ""}
	takeoverOfTheDead    = rule{"change_locks", "WHERE lock_entry.expires_at <= now()", "WHERE true"}
	releaseByToken       = rule{"change_locks", "               AND fencing_token = tokens[i];", ";"}
	renewOfTheLiving     = rule{"renew_locks", "           AND expires_at    > now()\n", ""}
	endOfDeadAcquire     = rule{"change_locks", "AND s.session_id = e.session_id AND s.expires_at <= now()", "AND false"}
	endOfDeadRenew       = rule{"renew_locks", "AND s.session_id = e.session_id AND s.expires_at <= now()", "AND false"}
	liveSession          = rule{"change_locks", "WHEN s.expires_at <= now() THEN", "WHEN false THEN"}
	ownSession           = rule{"change_locks", "WHEN s.owner_id <> c.owner THEN", "WHEN false THEN"}
	durability           = rule{"demand_token_source", "current_setting('fsync') <> 'on' OR current_setting('full_page_writes') <> 'on'", "false"}
	incarnation          = rule{"demand_token_source", "NOT EXISTS", "false AND NOT EXISTS"}
	waitForTheDisk       = rule{"change_locks", "IF NOT p_any", "IF true"}
	noWaitOfTheContended = rule{"change_locks", "IF NOT p_any", "IF false"}
)

// Each rule broken on purpose fails the scenario that is there for it, so the matrix can fail.
func TestMatrixFindsEveryBrokenRule(t *testing.T) {
	t.Parallel()
	for name, broken := range map[string]struct {
		rules    []rule
		scenario string
		finding  string
	}{
		"takeover keeps the token":  {[]rule{newTokenOnTakeover}, "expiredLeaseIsStolenWithHigherToken", "not above the old one's"},
		"release forgets the token": {[]rule{releaseByToken}, "staleReleaseLeavesTheNewHolderUntouched", "want stale"},
		"renew revives the dead":    {[]rule{renewOfTheLiving}, "renewAfterExpiryIsLostEvenIfNobodyTookTheKey", "want lock is lost"},
		"takeover of the living":    {[]rule{takeoverOfTheDead}, "heldKeyIsContendedAndStaysWithItsHolder", "want contended"},
		"dead holders stay":         {[]rule{endOfDeadAcquire, endOfDeadRenew}, "keyOfADeadSessionIsTakenOverWithoutAReaper", "want lock is lost"},
		"dead sessions acquire":     {[]rule{liveSession}, "expiredSessionCannotAcquireEvenBeforeItIsReaped", "want session has expired"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 110*time.Second)
			defer cancel()
			store, owner := open(t)
			breaks(t, owner, broken.rules...)
			require.ErrorContains(t, scenario(t, broken.scenario).Run(ctx, store), broken.finding)
		})
	}
}

// A revocation that names the last token that was drawn, instead of drawing one, gives a floor that isn't above the token it revokes.
func TestMatrixFindsARevocationThatDrawsNoToken(t *testing.T) {
	t.Parallel()
	store, _ := open(t)
	pgstore.WithoutFloorOnRevoke(store.Store.(*pgstore.Store))
	ctx, cancel := context.WithTimeout(t.Context(), 110*time.Second)
	defer cancel()
	require.ErrorContains(t, scenario(t, "tokenAfterARevocationExceedsTheRevokedOne").Run(ctx, store), "revocation of")
}

// replicas spreads the calls over several stores on one database, as several lockd do.
type replicas struct {
	lock.Store
	all  []lock.Store
	next atomic.Int64
}

func (r *replicas) Insert(ctx context.Context, key, owner string, session uuid.UUID, ttl time.Duration) (lock.Acquired, error) {
	return r.all[int(r.next.Add(1))%len(r.all)].Insert(ctx, key, owner, session, ttl)
}

func (r *replicas) Delete(ctx context.Context, key string, token lock.Token) (lock.Released, error) {
	return r.all[int(r.next.Add(1))%len(r.all)].Delete(ctx, key, token)
}

func openReplicas(t *testing.T) (locktest.Store, string) {
	t.Helper()
	store, owner := open(t)
	all := &replicas{Store: store.Store, all: []lock.Store{store.Store}}
	for range 5 {
		all.all = append(all.all, pgstore.New(openPool(t, pgtest.Login(t, owner, "lockapp")), 10*time.Second))
	}
	store.Store = all
	return store, owner
}

// Within one replica a key is at the store once at a time; between replicas only the ordering lock keeps tokens in the order of grants. Without it, which is
// C1's acquire by itself, tokens go backwards on a hot key.
func TestTokensOfAHotKeyIncreaseAcrossReplicasAndOnlyByTheOrderingLock(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	hot := scenario(t, "tokensIncreaseInTheOrderOfGrantsOnAHotKey")
	good, _ := openReplicas(t)
	require.NoError(t, hot.Run(ctx, good))
	broken, owner := openReplicas(t)
	breaks(t, owner, orderedDraws)
	require.ErrorContains(t, hot.Run(ctx, broken), "was granted after")
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
