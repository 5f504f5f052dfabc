package lock

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
)

// reapable is a store with nothing but expired grants; the nil interface answers for the rest by a panic.
type reapable struct {
	Store
	batches [][]Ended
	err     error
	asked   int
}

func (r *reapable) Reap(context.Context, int) ([]Ended, bool, error) {
	r.asked++
	if r.err != nil {
		return nil, false, r.err
	}
	if len(r.batches) == 0 {
		return nil, false, nil
	}
	batch := r.batches[0]
	r.batches = r.batches[1:]
	return batch, len(r.batches) > 0, nil
}

func (r *reapable) CountHeld(context.Context) (int64, error) { return 3, r.err }

type recorded struct {
	expired int
	held    int64
}

func (*recorded) Acquired(string, time.Duration) {}
func (r *recorded) LeasesExpired(n int)          { r.expired += n }
func (r *recorded) Held(n int64)                 { r.held = n }
func (*recorded) Waiting(int)                    {}

func newReaper(store Store) (*Service, *recorded, *bytes.Buffer) {
	log, recorder := &bytes.Buffer{}, &recorded{}
	return NewService(store, "fake", Limits{}, hclog.New(&hclog.LoggerOptions{Output: log, JSONFormat: true}), recorder), recorder, log
}

func TestReaperGoesOnUntilNothingIsLeftAndTellsEachGrant(t *testing.T) {
	t.Parallel()
	// An empty batch in between: sessions that held nothing.
	store := &reapable{batches: [][]Ended{{{Key: "a", Token: 5, OwnerID: "w", Expired: true, Overdue: 1500 * time.Millisecond}}, {}, {{Key: "b", Token: 6, Expired: true}, {Key: "c", Token: 7, Expired: true}, {Key: "d", Token: 8, OwnerID: "w", Held: time.Second}}}}
	service, recorder, log := newReaper(store)
	require.NoError(t, service.ReapOnce(t.Context()))
	require.Equal(t, recorded{expired: 3, held: 3}, *recorder)
	require.Equal(t, 3, store.asked)
	var event map[string]any
	require.NoError(t, json.Unmarshal([]byte(strings.SplitN(log.String(), "\n", 2)[0]), &event))
	require.Equal(t, []any{"warn", "lease_expired", "a", 5.0, 1500.0, "w"}, []any{event["@level"], event["event"], event["lockKey"], event["token"], event["overdueMillis"], event["ownerId"]})
	require.Len(t, event["traceId"], 32, "a round of the reaper has one, too")
	require.Contains(t, log.String(), `"event":"lock_released"`, "what a closed session left behind hasn't expired")
	require.NoError(t, service.ReapOnce(t.Context()))
	require.Equal(t, 3, recorder.expired)
}

func TestReaperSurvivesAStoreThatIsAwayAndEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &reapable{err: errors.New("away")}
		service, _, log := newReaper(store)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); service.Reap(ctx) }()
		time.Sleep(3500 * time.Millisecond) //nolint:forbidigo // the bubble's clock
		cancel()
		<-done
		require.Equal(t, 3, store.asked, "once a second")
		require.Equal(t, 3, strings.Count(log.String(), "reap_failed"))
	})
}

// A session that is closed ends its grants without a release of their own; each is told, and who waits for it here looks at once.
func TestEndOfASessionTellsEachGrant(t *testing.T) {
	t.Parallel()
	service, recorder, log := newReaper(&closing{ended: []Ended{
		{Key: "a", Token: 5, OwnerID: "w", Held: 1500 * time.Millisecond}, {Key: "b", Token: 6, OwnerID: "w", Expired: true, Overdue: time.Second},
	}})
	waiter, err := service.waiting.join("a")
	require.NoError(t, err)
	require.NoError(t, service.CloseSession(WithTraceID(t.Context(), "trace"), uuid.New()))
	require.Equal(t, 1, recorder.expired)
	<-waiter.wake
	lines := strings.SplitN(log.String(), "\n", 2)
	require.Subset(t, fields(t, lines[0]), map[string]any{
		"@level": "info", "event": "lock_released", "lockKey": "a", "token": 5.0, "heldMillis": 1500.0, "stale": false, "ownerId": "w", "traceId": "trace",
	})
	require.Subset(t, fields(t, lines[1]), map[string]any{
		"@level": "warn", "event": "lease_expired", "lockKey": "b", "token": 6.0, "overdueMillis": 1000.0, "ownerId": "w", "traceId": "trace",
	})
}

func fields(t *testing.T, line string) (event map[string]any) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(line), &event))
	return event
}

type closing struct {
	Store
	ended []Ended
}

func (c *closing) CloseSession(context.Context, uuid.UUID) ([]Ended, error) { return c.ended, nil }

func TestTakeoverOfAnExpiredGrantIsSeen(t *testing.T) {
	t.Parallel()
	service, recorder, log := newReaper(&takeover{})
	_, err := service.Acquire(WithTraceID(t.Context(), "trace"), AcquireRequest{Key: "k", OwnerID: "w", SessionID: uuid.New(), TTL: time.Second})
	require.NoError(t, err)
	require.Equal(t, 1, recorder.expired)
	require.Contains(t, log.String(), `"event":"lease_expired"`)
	require.Contains(t, log.String(), `"traceId":"trace"`)
}

type takeover struct{ Store }

func (*takeover) Insert(context.Context, string, string, uuid.UUID, time.Duration) (Acquired, error) {
	return Acquired{Granted: true, Grant: Grant{Token: 8}, Ended: &Ended{Key: "k", Token: 7, Expired: true}}, nil
}

func TestBoundsHoldAtTheirEdges(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"a", "payout:7", "A.b_c-9:", strings.Repeat("k", 128)} {
		require.NoError(t, ValidKey(key))
	}
	for _, key := range []string{"", strings.Repeat("k", 129), "a b", "a/b", "a%b", "ä", "a\n", "a\x00"} {
		require.ErrorIs(t, ValidKey(key), ErrInvalid, "%q", key)
	}
	for _, owner := range []string{"w", strings.Repeat("ä", 64), "a b"} {
		require.NoError(t, ValidOwner("owner", owner))
	}
	for _, owner := range []string{"", strings.Repeat("ä", 65), "a\n", "a\x00", "a\u0085", "\xff"} {
		require.ErrorIs(t, ValidOwner("owner", owner), ErrInvalid, "%q", owner)
	}
	for d, ok := range map[time.Duration]bool{MinLockTTL: true, MaxLockTTL: true, MinLockTTL - 1: false, MaxLockTTL + 1: false, -1: false} {
		require.Equal(t, ok, ValidDuration("ttl", d, MinLockTTL, MaxLockTTL) == nil, d)
	}
	good := RevokeRequest{Key: "k", Operator: "op", Reason: "12345678"}
	require.NoError(t, good.Validate())
	bad := RevokeRequest{Key: "/", Reason: "1234567"}
	for _, name := range []string{"key", "operator", "reason"} {
		require.ErrorContains(t, bad.Validate(), name, "all at once")
	}
}
