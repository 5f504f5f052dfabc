package relay_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/internal/postgres"
	"fenceline/migrations"
	"fenceline/paysvc/paydb"
	"fenceline/paysvc/relay"
	"fenceline/paysvc/relay/event"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const payer = "00000000-0000-4000-8000-000000000101"

// bench is a paydb, the outbox under the role relayapp, and an endpoint that keeps what it is sent.
type bench struct {
	t     *testing.T
	url   string
	owner *pgx.Conn
	store *paydb.Outbox
	inbox *inbox
}

// inbox takes events like somebody else's service: it answers what answer says, and keeps what it took.
type inbox struct {
	*httptest.Server
	mu     sync.Mutex
	answer func(m relay.Message, attempt string) int
	taken  []relay.Message
}

func (i *inbox) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var m relay.Message
	if err := json.NewDecoder(r.Body).Decode(&m); err != nil || m.Key != r.Header.Get(relay.HeaderEventKey) || fmt.Sprint(m.Sequence) != r.Header.Get(relay.HeaderEventSequence) {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	status := i.answer(m, r.Header.Get(relay.HeaderEventAttempt))
	if status < 300 {
		i.taken = append(i.taken, m)
	}
	w.WriteHeader(status)
}

func (i *inbox) set(answer func(m relay.Message, attempt string) int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.answer = answer
}

// keys are those of all deliveries that were taken.
func (i *inbox) keys() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	var keys []string
	for _, m := range i.taken {
		keys = append(keys, m.Key)
	}
	return keys
}

func accept(relay.Message, string) int { return http.StatusNoContent }

func newBench(t *testing.T) *bench {
	t.Helper()
	t.Parallel()
	url := pgtest.Database(t, migrations.PayDB(), migrations.SeedPayDB())
	pool, err := postgres.Open(t.Context(), postgres.Config{URL: pgtest.Login(t, url, "relayapp"), ApplicationName: "relay"})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	b := &bench{t: t, url: url, owner: pgtest.Connect(t, url), store: paydb.NewOutbox(pool, 5*time.Second), inbox: &inbox{answer: accept}}
	require.NoError(t, b.store.Check(t.Context()))
	b.inbox.Server = httptest.NewServer(b.inbox)
	t.Cleanup(b.inbox.Close)
	return b
}

func (b *bench) exec(sql string, args ...any) {
	b.t.Helper()
	_, err := b.owner.Exec(b.t.Context(), sql, args...)
	require.NoError(b.t, err)
}

// payout makes a payout and takes it through the states.
func (b *bench) payout(states ...string) string {
	b.t.Helper()
	id := uuid.NewString()
	b.exec("INSERT INTO payout (payout_id, account_id, amount_minor, currency, idempotency_key) VALUES ($1::uuid, $2, 2500, 'EUR', 'key-' || $1::uuid)", id, payer)
	for _, state := range states {
		b.move(id, state)
	}
	return id
}

func (b *bench) move(id, state string) {
	b.t.Helper()
	b.exec("UPDATE payout SET state = $2, claimed_by = 'w', claim_token = 33 WHERE payout_id = $1", id, state)
}

func (b *bench) number(sql string, args ...any) (n int64) {
	b.t.Helper()
	require.NoError(b.t, b.owner.QueryRow(b.t.Context(), sql, args...).Scan(&n))
	return n
}

// quick are options for a test.
func quick() relay.Options {
	return relay.Options{
		Batch: 10, Lease: 10 * time.Second, Poll: 5 * time.Millisecond, MaxAttempts: 3, MinBackoff: time.Millisecond, MaxBackoff: 2 * time.Millisecond,
	}
}

// counter implements relay.Recorder.
type counter struct {
	mu                sync.Mutex
	delivered, failed int
	backlog           event.Backlog
}

func (c *counter) Delivered() { c.mu.Lock(); defer c.mu.Unlock(); c.delivered++ }
func (c *counter) Failed()    { c.mu.Lock(); defer c.mu.Unlock(); c.failed++ }
func (c *counter) Backlog(b event.Backlog) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.backlog = b
}

func (b *bench) relay(options relay.Options) (*relay.Relay, *counter) {
	b.t.Helper()
	require.NoError(b.t, options.Validate())
	endpoint, err := relay.NewHTTP(b.inbox.URL, 5*time.Second)
	require.NoError(b.t, err)
	recorded := &counter{}
	return relay.New(b.store, endpoint, options, hclog.NewNullLogger(), recorded), recorded
}

// run runs relays until the condition holds.
func (b *bench) run(relays int, options relay.Options, until func() bool) *counter {
	b.t.Helper()
	ctx, stop := context.WithCancel(b.t.Context())
	var all sync.WaitGroup
	var recorded *counter
	for range relays {
		var r *relay.Relay
		r, recorded = b.relay(options)
		all.Go(func() { r.Run(ctx) })
	}
	require.Eventually(b.t, until, 30*time.Second, 5*time.Millisecond)
	stop()
	all.Wait()
	return recorded
}

func (b *bench) undelivered() int64 {
	return b.number("SELECT count(*) FROM outbox WHERE delivered_at IS NULL")
}

func TestEventsComeWithTheChangeOfStateAndWithNothingElse(t *testing.T) {
	b := newBench(t)
	id := b.payout("CLAIMED", "RAIL_SUBMITTED", "RAIL_AMBIGUOUS", "RAIL_ACKED", "POSTED")
	failed := b.payout("FAILED")
	b.payout("CLAIMED")
	b.payout("ABANDONED")
	b.move(id, "POSTED") // no change
	tx, err := b.owner.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "UPDATE payout SET state = 'FAILED' WHERE state = 'PENDING'")
	require.NoError(t, err)
	require.NoError(t, tx.Rollback(t.Context()))

	b.run(1, quick(), func() bool { return b.undelivered() == 0 })
	require.ElementsMatch(t, []string{"payout.ambiguous:" + id, "payout.posted:" + id, "payout.failed:" + failed}, b.inbox.keys())
	for _, m := range b.inbox.taken {
		var payload map[string]any
		require.NoError(t, json.Unmarshal(m.Payload, &payload))
		require.Equal(t, strings.SplitN(m.Key, ":", 2)[0], m.Type)
		require.Equal(t, strings.SplitN(m.Key, ":", 2)[1], payload["payoutId"])
		require.Equal(t, payer, payload["accountId"])
		require.EqualValues(t, 2500, payload["amountMinor"])
		require.Equal(t, "EUR", payload["currency"])
		require.EqualValues(t, 33, payload["fencingToken"])
		require.NotEmpty(t, payload["state"])
		require.NotEmpty(t, payload["previousState"])
	}
	require.Less(t, slices.Index(b.inbox.keys(), "payout.ambiguous:"+id), slices.Index(b.inbox.keys(), "payout.posted:"+id), "a payout's events keep their order")
}

func TestFailedDeliveryIsRepeatedWithTheSameKey(t *testing.T) {
	b := newBench(t)
	id := b.payout("FAILED")
	attempts := []string{}
	b.inbox.set(func(_ relay.Message, attempt string) int {
		attempts = append(attempts, attempt)
		return map[string]int{"1": 500, "2": 302}[attempt] + map[bool]int{true: 200}[attempt == "3"]
	})
	recorded := b.run(1, quick(), func() bool { return b.undelivered() == 0 })
	require.Equal(t, []string{"1", "2", "3"}, attempts)
	require.Equal(t, []string{"payout.failed:" + id}, b.inbox.keys())
	require.Equal(t, 1, recorded.delivered)
	require.Equal(t, 2, recorded.failed)
}

// After too many attempts an event is parked, and holds back what comes after it for the same payout, for which it would else be out of order; other payouts go
// on. A person makes it due again.
func TestEventIsParkedAfterTooManyAttemptsAndOthersGoOn(t *testing.T) {
	b := newBench(t)
	stuck := b.payout("CLAIMED", "RAIL_SUBMITTED", "RAIL_AMBIGUOUS", "RAIL_ACKED", "POSTED")
	other := b.payout("FAILED")
	b.inbox.set(func(m relay.Message, _ string) int {
		if strings.HasSuffix(m.Key, stuck) {
			return 503
		}
		return 200
	})
	recorded := b.run(1, quick(), func() bool {
		return b.number("SELECT count(*) FROM outbox WHERE parked_at IS NOT NULL") == 1 && b.undelivered() == 2
	})
	require.Equal(t, 3, recorded.failed)
	require.Equal(t, []string{"payout.failed:" + other}, b.inbox.keys())
	backlog, err := b.store.Backlog(t.Context())
	require.NoError(t, err)
	require.Positive(t, backlog.Lag)
	backlog.Lag = 0
	require.Equal(t, event.Backlog{Waiting: 2, Parked: 1, Blocked: 1}, backlog)
	var why string
	require.NoError(t, b.owner.QueryRow(t.Context(), "SELECT last_error FROM outbox WHERE parked_at IS NOT NULL").Scan(&why))
	require.Equal(t, "status 503", why)

	b.inbox.set(accept)
	n, err := b.store.Unpark(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
	b.run(1, quick(), func() bool { return b.undelivered() == 0 })
	require.Equal(t, []string{"payout.failed:" + other, "payout.ambiguous:" + stuck, "payout.posted:" + stuck}, b.inbox.keys())
}

// Three relays at once: each event is delivered, each once, since nothing failed, and each payout's events in their order.
func TestRelaysShareTheWork(t *testing.T) {
	b := newBench(t)
	const payouts = 40
	for range payouts {
		b.payout("CLAIMED", "RAIL_SUBMITTED", "RAIL_AMBIGUOUS", "RAIL_ACKED", "POSTED")
	}
	b.run(3, quick(), func() bool { return b.undelivered() == 0 })
	last := map[any]int64{}
	seen := map[string]int{}
	for _, m := range b.inbox.taken {
		var payload map[string]any
		require.NoError(t, json.Unmarshal(m.Payload, &payload))
		require.Less(t, last[payload["payoutId"]], m.Sequence, "out of order: %s", m.Key)
		last[payload["payoutId"]] = m.Sequence
		seen[m.Key]++
	}
	require.Len(t, seen, 2*payouts)
	require.Equal(t, 1, slices.Max(slices.Collect(maps.Values(seen))))
}

// While the endpoint takes its time the relay has no transaction open.
func TestNoTransactionIsOpenDuringADelivery(t *testing.T) {
	b := newBench(t)
	b.payout("FAILED")
	looker := pgtest.Connect(t, b.url)
	open := int64(-1)
	b.inbox.set(func(relay.Message, string) int {
		if looker.QueryRow(context.Background(), "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'relay' AND datname = current_database() AND xact_start IS NOT NULL").Scan(&open) != nil {
			return 500
		}
		return 200
	})
	b.run(1, quick(), func() bool { return b.undelivered() == 0 })
	require.Zero(t, open)
}

// A relay that was away so long that its lease ended, and another one delivered: its failure takes nothing back, its success is noted.
func TestRelayWhoseLeaseIsOverTakesNothingBack(t *testing.T) {
	b := newBench(t)
	b.payout("FAILED")
	late, newer := uuid.New(), uuid.New()
	events, err := b.store.Claim(t.Context(), late, 10, time.Millisecond)
	require.NoError(t, err)
	require.Len(t, events, 1)
	require.Eventually(t, func() bool {
		again, err := b.store.Claim(t.Context(), newer, 10, time.Minute)
		require.NoError(t, err)
		return len(again) == 1 && again[0].Key == events[0].Key && again[0].Attempt == 2
	}, 10*time.Second, 5*time.Millisecond)
	require.NoError(t, b.store.Failed(t.Context(), events[0].ID, late, 0, true, "late"))
	require.Zero(t, b.number("SELECT count(*) FROM outbox WHERE parked_at IS NOT NULL"))
	none, err := b.store.Claim(t.Context(), uuid.New(), 10, time.Minute)
	require.NoError(t, err)
	require.Empty(t, none, "the newer relay's lease holds")
	require.NoError(t, b.store.Delivered(t.Context(), events[0].ID))
	require.NoError(t, b.store.Failed(t.Context(), events[0].ID, newer, 0, true, "newer"))
	require.Zero(t, b.undelivered())
}

// Negative control: a relay that marks before it delivers loses the event for good when it dies in between. The order in relay.go, deliver then mark, doesn't.
func TestMarkingBeforeDeliveringLosesEvents(t *testing.T) {
	b := newBench(t)
	b.payout("FAILED")
	events, err := b.store.Claim(t.Context(), uuid.New(), 1, time.Millisecond)
	require.NoError(t, err)
	require.NoError(t, b.store.Delivered(t.Context(), events[0].ID)) // and here it dies
	r, _ := b.relay(quick())
	n, err := r.Once(t.Context())
	require.NoError(t, err)
	require.Zero(t, n)
	require.Empty(t, b.inbox.keys(), "nobody will ever hear of it")
}

func TestDatabaseThatIsAwayOnlyMakesTheRelayWait(t *testing.T) {
	b := newBench(t)
	b.payout("FAILED")
	flaky := &flakyStore{Store: b.store, failures: 3}
	endpoint, err := relay.NewHTTP(b.inbox.URL, 5*time.Second)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() { relay.New(flaky, endpoint, quick(), hclog.NewNullLogger(), &counter{}).Run(ctx) })
	require.Eventually(t, func() bool { return b.undelivered() == 0 }, 30*time.Second, 5*time.Millisecond)
	stop()
	done.Wait()
}

type flakyStore struct {
	relay.Store
	failures int
}

func (s *flakyStore) Claim(ctx context.Context, claim uuid.UUID, limit int, lease time.Duration) ([]event.Event, error) {
	if s.failures--; s.failures >= 0 {
		return nil, errors.New("away")
	}
	return s.Store.Claim(ctx, claim, limit, lease)
}

// The relay's role changes nothing but how far delivery has come.
func TestRelaysRoleCannotWriteEventsOrPayouts(t *testing.T) {
	b := newBench(t)
	b.payout("FAILED")
	login := pgtest.Connect(t, pgtest.Login(t, b.url, "relayapp"))
	for _, sql := range []string{
		"UPDATE payout SET state = 'POSTED'", "DELETE FROM outbox", "UPDATE outbox SET payload = '{}'", "UPDATE outbox SET event_key = 'x'",
		"INSERT INTO outbox (event_key, event_type, payout_id, payload) SELECT 'x', 'payout.posted', payout_id, '{}' FROM outbox",
		"SELECT * FROM account",
	} {
		_, err := login.Exec(t.Context(), sql)
		require.Equal(t, "42501", postgres.State(err), sql)
	}
}
