package paydb_test

import (
	"context"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"fenceline/internal/daemon"
	"fenceline/internal/pgserver/pgtest"
	"fenceline/lockd/lock"
	"fenceline/paysvc/paydb"
	"fenceline/paysvc/payout"
	"fenceline/paysvc/railproxy"
	"fenceline/paysvc/railproxy/submission"
	"fenceline/paysvc/railstub"
)

// The negative controls of statement (d), on the real database and with a rail that pays whatever it is told.

// railBench is a paydb with a rail.
type railBench struct {
	*bench
	pool  *pgxpool.Pool // as railapp
	store *paydb.FencedRail
	rail  *railproxy.Client
	log   *railstub.Log
}

func newRailBench(t *testing.T, plan railstub.Plan) *railBench {
	t.Helper()
	b := newBench(t)
	pool := openPool(t, pgtest.Login(t, b.url, "railapp"))
	log, _, err := railstub.OpenLog(filepath.Join(t.TempDir(), "transfers.jsonl"))
	require.NoError(t, err)
	rail, err := railstub.New(log, plan, hclog.NewNullLogger())
	require.NoError(t, err)
	l, err := daemon.Listen(t.Context(), "127.0.0.1:0")
	require.NoError(t, err)
	server := rail.Server()
	daemon.ServeHTTP("api", l, server, hclog.NewNullLogger(), make(chan error, 1))
	t.Cleanup(func() {
		require.NoError(t, server.Shutdown())
		require.NoError(t, log.Close())
	})
	client, err := railproxy.NewClient("http://"+l.Addr().String(), time.Second, 10*time.Second)
	require.NoError(t, err)
	return &railBench{bench: b, pool: pool, store: paydb.NewFencedRail(pool, 3*time.Second), rail: client, log: log}
}

// counting is a recorder that counts nothing.
type counting struct{}

func (counting) Submitted(submission.Outcome) {}
func (counting) Duplicate()                   {}
func (counting) FencedOut()                   {}
func (counting) TransitionRefused()           {}

// proxy is a rail-proxy over the store.
func (b *railBench) proxy(store railproxy.FencedStore) *railproxy.Service {
	return railproxy.NewFencedService(store, b.rail, 3*time.Second, hclog.NewNullLogger(), counting{})
}

func (b *railBench) submit(proxy *railproxy.Service, p payout.Payout, token int64) error {
	_, err := proxy.Submit(b.t.Context(), railproxy.Instruction{
		PayoutID: p.ID, AccountID: p.AccountID, Money: p.Money, BeneficiaryRef: "b", IdempotencyKey: "k", Holder: holder("worker", token),
	})
	return err
}

// claimed makes a payout that is claimed under the token.
func (b *railBench) claimed(token int64) payout.Payout {
	b.t.Helper()
	p := b.create(2500)
	b.claimedAgain(p.ID, token)
	return p
}

func (b *railBench) claimedAgain(id uuid.UUID, token int64) {
	b.exec("UPDATE payout SET state = 'CLAIMED', claimed_by = 'x', claim_token = $2 WHERE payout_id = $1", id, token)
}

func (b *railBench) transfers(id uuid.UUID) int {
	b.t.Helper()
	list, _, err := b.log.Page(id.String(), "", 10)
	require.NoError(b.t, err)
	return len(list)
}

// memoryMark is a rail-proxy's store whose mark lives in its memory: right as long as there is one process that never ends.
type memoryMark struct {
	*paydb.FencedRail
	mu    sync.Mutex
	marks map[uuid.UUID]lock.Token
}

// anyToken replaces (d)'s comparison: every token advances the mark, so the database keeps none back.
const (
	comparison = "rail_high_water.highest_token < EXCLUDED.highest_token"
	anyToken   = "true"
)

func newMemoryMark(inner *paydb.FencedRail) *memoryMark {
	return &memoryMark{FencedRail: inner, marks: map[uuid.UUID]lock.Token{}}
}

func (m *memoryMark) Admit(ctx context.Context, s submission.Submission, account uuid.UUID) (submission.Admission, error) {
	m.mu.Lock()
	highest := m.marks[account]
	m.marks[account] = max(highest, s.Token)
	m.mu.Unlock()
	if s.Token <= highest {
		return submission.Admission{Fenced: &submission.FencedOut{Highest: highest}}, nil
	}
	return m.FencedRail.Admit(ctx, s, account)
}

// lateMark is a store that compares before the presentation and advances after it.
type lateMark struct {
	*paydb.FencedRail
	pool *pgxpool.Pool
}

func (l *lateMark) Admit(ctx context.Context, s submission.Submission, account uuid.UUID) (submission.Admission, error) {
	var highest int64
	if err := l.pool.QueryRow(ctx, "SELECT coalesce(max(highest_token), 0) FROM rail_high_water WHERE account_id = $1", account).Scan(&highest); err != nil {
		return submission.Admission{}, err
	}
	if s.Token <= lock.Token(highest) {
		return submission.Admission{Fenced: &submission.FencedOut{Highest: lock.Token(highest)}}, nil
	}
	return l.FencedRail.Admit(ctx, s, account)
}

func (l *lateMark) Resolve(ctx context.Context, s submission.Submission) (submission.Recorded, error) {
	recorded, err := l.FencedRail.Resolve(ctx, s)
	if err != nil {
		return recorded, err
	}
	_, err = l.pool.Exec(ctx, `INSERT INTO rail_high_water (account_id, highest_token) SELECT account_id, $2 FROM payout WHERE payout_id = $1
		ON CONFLICT (account_id) DO UPDATE SET highest_token = EXCLUDED.highest_token`, s.PayoutID, int64(s.Token))
	return recorded, err
}

// withoutMark is (d) without its effect: it finds a row for every token and keeps none.
func (b *railBench) withoutMark() *paydb.FencedRail {
	b.t.Helper()
	return b.store.Broken(b.t, "advance", "INSERT INTO rail_high_water (account_id, highest_token, updated_at)\nVALUES (@account_id, @token, now())\nON CONFLICT (account_id) DO UPDATE\n   SET highest_token = EXCLUDED.highest_token,\n       updated_at    = now()\n WHERE rail_high_water.highest_token < EXCLUDED.highest_token\nRETURNING highest_token",
		"SELECT @token::bigint WHERE @account_id::uuid IS NOT NULL")
}

// forgetful is the store without the question for an earlier submission, on a database without the index that is the same question again.
func (b *railBench) forgetful(store *paydb.FencedRail) *paydb.FencedRail {
	b.t.Helper()
	b.exec("DROP INDEX rail_submission_attempt_uidx")
	return store.Broken(b.t, "earlier", "outcome IS DISTINCT FROM 'FENCED'", "false")
}

// With a mark in memory a stale holder passes after a restart, or through a second replica, which is the same: nobody there remembers.
func TestControlMarkInMemoryIsGoneAfterARestartAndUnknownToAnotherReplica(t *testing.T) {
	b := newRailBench(t, railstub.Plan{})
	inner := b.withoutMark()
	first, restarted := b.proxy(newMemoryMark(inner)), b.proxy(newMemoryMark(inner))
	p, other := b.claimed(33), b.claimed(33)
	require.NoError(t, b.submit(first, p, 34))
	require.ErrorIs(t, b.submit(first, p, 33), payout.ErrFencedOut, "the process that remembers")

	// What it does: the stale holder of 33 presents another payout of the account, after 34 has been seen.
	require.ErrorIs(t, b.submit(first, other, 33), payout.ErrFencedOut)
	require.NoError(t, b.submit(restarted, other, 33))
	require.Equal(t, 1, b.transfers(other.ID), "a transfer by a holder whose lease is over")

	// For one payout the question for an earlier submission covers it.
	var duplicate *railproxy.DuplicateError
	require.ErrorAs(t, b.submit(restarted, p, 35), &duplicate)
	require.Equal(t, 1, b.transfers(p.ID))
}

// And the second transfer itself, once every other line is gone as well, one after the other.
func TestControlWithoutAMarkThreeOtherLinesStandBeforeASecondTransfer(t *testing.T) {
	b := newRailBench(t, railstub.Plan{})
	noMark := b.withoutMark()
	p := b.claimed(33)
	require.NoError(t, b.submit(b.proxy(newMemoryMark(noMark)), p, 34))
	stale := func(store *paydb.FencedRail) error { return b.submit(b.proxy(newMemoryMark(store)), p, 33) }

	var duplicate *railproxy.DuplicateError
	require.ErrorAs(t, stale(noMark), &duplicate, "first line: the earlier submission")
	noQuestion := noMark.Broken(t, "earlier", "outcome IS DISTINCT FROM 'FENCED'", "false")
	var wrong *payout.WrongStateError
	require.ErrorAs(t, stale(noQuestion), &wrong, "second line: the state machine")
	b.claimedAgain(p.ID, 33)
	require.ErrorContains(t, stale(noQuestion), "rail_submission_attempt_uidx", "third line: the index")
	require.Equal(t, 1, b.transfers(p.ID))
	b.exec("DROP INDEX rail_submission_attempt_uidx")
	require.NoError(t, stale(noQuestion))
	require.Equal(t, 2, b.transfers(p.ID), "paid twice")
}

// With the mark alone, and every other line gone, one transfer is made: (d) does its work by itself.
func TestControlTheMarkAloneStopsTheSecondTransfer(t *testing.T) {
	b := newRailBench(t, railstub.Plan{})
	alone := b.forgetful(b.store)
	p := b.claimed(33)
	require.NoError(t, b.submit(b.proxy(alone), p, 34))
	b.claimedAgain(p.ID, 33)
	require.ErrorIs(t, b.submit(b.proxy(alone), p, 33), payout.ErrFencedOut, "also after a restart: a new service on the same database")
	require.Equal(t, 1, b.transfers(p.ID))

	broken := alone.Broken(t, "advance", comparison, anyToken)
	require.NoError(t, b.submit(b.proxy(broken), p, 33))
	require.Equal(t, 2, b.transfers(p.ID), "without (d)'s comparison the rail pays twice")
}

// A mark that is advanced after the presentation doesn't know of the newer holder's submission while that is at the rail.
func TestControlMarkAdvancedAfterForwardingLetsAStaleHolderPassMeanwhile(t *testing.T) {
	b := newRailBench(t, railstub.Plan{Latency: time.Second})
	late := func(inner *paydb.FencedRail) *railproxy.Service {
		return b.proxy(&lateMark{FencedRail: inner, pool: b.pool})
	}
	noMark := b.withoutMark()
	p := b.claimed(33)
	inFlight := func(proxy *railproxy.Service, p payout.Payout) chan error {
		answered := make(chan error, 1)
		before := b.transfers(p.ID)
		go func() { answered <- b.submit(proxy, p, 34) }()
		require.Eventually(t, func() bool { return b.transfers(p.ID) > before }, 10*time.Second, time.Millisecond)
		return answered
	}

	// As it stands the intent of the newer holder covers it: it was on record before the presentation.
	newer := inFlight(late(noMark), p)
	var duplicate *railproxy.DuplicateError
	require.ErrorAs(t, b.submit(late(noMark), p, 33), &duplicate)
	require.True(t, duplicate.Ambiguous(), "nobody knows yet")
	require.NoError(t, <-newer)
	require.Equal(t, 1, b.transfers(p.ID))

	// Without that line the rail pays twice.
	forgetful := b.forgetful(noMark)
	q := b.claimed(33)
	b.exec("DELETE FROM rail_high_water")
	newer = inFlight(late(forgetful), q)
	b.claimedAgain(q.ID, 33)
	require.NoError(t, b.submit(late(forgetful), q, 33))
	require.NoError(t, <-newer)
	require.Equal(t, 2, b.transfers(q.ID))
}
