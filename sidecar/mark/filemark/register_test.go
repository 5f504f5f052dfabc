package filemark

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"
	"golang.org/x/sync/errgroup"

	"fenceline/lockd/lock"
	"fenceline/sidecar/config"
	"fenceline/sidecar/mark"
	"fenceline/sidecar/mark/marktest"
)

// effectGuards order effects: one holds, one releases after a moment, one's resource ends with the sidecar.
func effectGuards() []config.Guard {
	guard := func(name string, e config.Effects) config.Guard {
		return config.Guard{Name: name, Mark: config.Mark{KeyType: config.KeyText, Missing: config.MissingInsert}, Order: config.OrderEffects, Advance: config.AdvanceSidecar, Effects: e}
	}
	return append(
		guards(),
		guard("holds", config.Effects{Unsettled: config.Unsettled{Then: config.Hold}}),
		guard("releases", config.Effects{Unsettled: config.Unsettled{Then: config.Release, After: 20 * time.Millisecond}}),
		guard("dies", config.Effects{Unsettled: config.Unsettled{Then: config.Hold}, DiesWithUs: true}),
	)
}

// effects opens a file for guards that order effects, without a life.
func effects(t *testing.T, path string) *Store {
	t.Helper()
	f, err := Open(path, Options{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	s, err := f.Store("box-1", effectGuards(), patience, maxJump)
	require.NoError(t, err)
	return s
}

func alive(t *testing.T) *Store {
	t.Helper()
	s := effects(t, create(t))
	require.NoError(t, s.Begin(t.Context()))
	return s
}

// crashed is the same file as a killed process leaves it: copied as it stands, opened by another process.
func crashed(t *testing.T, s *Store) *Store {
	t.Helper()
	data, err := os.ReadFile(s.file.path)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "copy.db")
	require.NoError(t, os.WriteFile(path, data, 0o600))
	return effects(t, path)
}

func entry(guard, key string, token lock.Token) mark.Entry {
	return mark.Entry{Admission: mark.Admission{Guard: guard, Key: key, Token: token}, Raise: token, Route: "pay", Owner: "ana"}
}

func register(t *testing.T, s *Store, e mark.Entry) mark.Registration {
	t.Helper()
	r, err := s.Register(t.Context(), e)
	require.NoError(t, err)
	require.Equal(t, mark.Admitted, r.Verdict)
	return r
}

func standing(t *testing.T, s *Store) []mark.Standing {
	t.Helper()
	list, err := s.Standing(t.Context(), "", 1000)
	require.NoError(t, err)
	return list
}

func TestOlderRequestStandsInTheWayUntilItIsSettled(t *testing.T) {
	t.Parallel()
	s := alive(t)
	older := register(t, s, entry("holds", "k", 5))
	require.Empty(t, older.Older)
	same := register(t, s, entry("holds", "k", 5))
	require.Empty(t, same.Older, "equal tokens don't wait for each other")
	other := register(t, s, entry("holds", "other", 4))
	newer := register(t, s, entry("holds", "k", 6))
	require.Equal(t, []mark.Row{older.Row, same.Row}, newer.Older)
	refused, err := s.Register(t.Context(), entry("holds", "k", 5))
	require.NoError(t, err)
	require.Equal(t, mark.Decision{Verdict: mark.FencedOut, Highest: 6}, refused.Decision)
	require.Zero(t, refused.Row)
	require.NoError(t, s.Settle(t.Context(), []mark.Row{older.Row, older.Row, 999}))
	sight, err := s.Look(t.Context(), entry("holds", "k", 6), newer.Row)
	require.NoError(t, err)
	require.Equal(t, mark.Sight{Present: true, Mark: 6, Older: []mark.Row{same.Row}}, sight)
	require.NoError(t, s.Unsettle(t.Context(), []mark.Row{same.Row, newer.Row}))
	sight, err = s.Look(t.Context(), entry("holds", "k", 6), newer.Row)
	require.NoError(t, err)
	require.Equal(t, mark.Sight{Mark: 6, Older: []mark.Row{same.Row}}, sight, "an unsettled one stands in the way too, and may not be sent itself")
	require.NoError(t, s.Settle(t.Context(), []mark.Row{same.Row}))
	sight, err = s.Look(t.Context(), entry("holds", "k", 6), newer.Row)
	require.NoError(t, err)
	require.Empty(t, sight.Older)
	require.Len(t, standing(t, s), 2)
	require.Equal(t, other.Row, standing(t, s)[0].Row)
}

func TestBarrierRaisesTheMarkToWhatItSays(t *testing.T) {
	t.Parallel()
	s := alive(t)
	e := entry("holds", "k", 7)
	e.Newer, e.Raise = true, 6
	register(t, s, e)
	token, _, err := s.Read(t.Context(), "holds", "k")
	require.NoError(t, err)
	require.Equal(t, lock.Token(6), token, "its own token may be used still")
	e.Key, e.Raise = "untouched", 0
	register(t, s, e)
	_, found, err := s.Read(t.Context(), "holds", "untouched")
	require.NoError(t, err)
	require.False(t, found)
	require.NoError(t, s.file.verify())
}

func TestNothingIsRegisteredWithoutALife(t *testing.T) {
	t.Parallel()
	s := effects(t, create(t))
	_, err := s.Register(t.Context(), entry("holds", "k", 5))
	require.ErrorIs(t, err, mark.ErrNoLife)
	pulse, err := s.Beat(t.Context())
	require.NoError(t, err)
	require.True(t, pulse.Lost)
	require.NoError(t, s.Begin(t.Context()))
	row := register(t, s, entry("holds", "k", 5)).Row
	require.NoError(t, s.End(t.Context()))
	_, err = s.Register(t.Context(), entry("holds", "k", 6))
	require.ErrorIs(t, err, mark.ErrNoLife)
	require.Equal(t, row, standing(t, s)[0].Row)
	require.False(t, standing(t, s)[0].UnsettledAt.IsZero(), "what stands at the end is unsettled")
}

// requestsOutliveACrash is what the file is for: a killed sidecar's request blocks newer ones after the next start.
func requestsOutliveACrash(ctx context.Context, s *Store, crash func() (*Store, error)) error {
	first, err := s.Register(ctx, entry("holds", "k", 5))
	if err != nil {
		return err
	}
	if s, err = crash(); err != nil {
		return err
	}
	if err := s.Begin(ctx); err != nil {
		return err
	}
	newer, err := s.Register(ctx, entry("holds", "k", 6))
	if err != nil {
		return err
	}
	if !slices.Equal(newer.Older, []mark.Row{first.Row}) {
		return fmt.Errorf("after the crash %v stand in the way, want %d", newer.Older, first.Row)
	}
	if newer.Row <= first.Row {
		return fmt.Errorf("row %d came after row %d", newer.Row, first.Row)
	}
	return nil
}

func TestRequestsOutliveACrash(t *testing.T) {
	t.Parallel()
	s := alive(t)
	require.NoError(t, requestsOutliveACrash(t.Context(), s, func() (*Store, error) { return crashed(t, s), nil }))
}

// The scenario can fail: a file that keeps marks only.
func TestCrashScenarioFindsRequestsThatAreNotPersisted(t *testing.T) {
	t.Parallel()
	s := alive(t)
	err := requestsOutliveACrash(t.Context(), s, func() (*Store, error) {
		path := filepath.Join(t.TempDir(), "copy.db")
		data, err := os.ReadFile(s.file.path)
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			return nil, err
		}
		err = change(path, func(tx *bbolt.Tx) error {
			gone := tx.DeleteBucket(bucketInflight)
			_, err := tx.CreateBucket(bucketInflight)
			return errors.Join(gone, err, tx.Bucket(bucketFormat).Put(keyRegister, census{}.encode()))
		})
		return effects(t, path), err
	})
	require.ErrorContains(t, err, "stand in the way, want")
}

func change(path string, fn func(tx *bbolt.Tx) error) error {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: time.Second})
	if err != nil {
		return err
	}
	return errors.Join(db.Update(fn), db.Close())
}

func TestMomentOfBecomingUnsettledStays(t *testing.T) {
	t.Parallel()
	s := alive(t)
	row := register(t, s, entry("holds", "k", 5)).Row
	require.True(t, standing(t, s)[0].UnsettledAt.IsZero())
	before := time.Now()
	second := crashed(t, s)
	require.NoError(t, second.Begin(t.Context()))
	moment := standing(t, second)[0].UnsettledAt
	require.WithinRange(t, moment, before, time.Now())
	third := crashed(t, second)
	require.Equal(t, moment, standing(t, third)[0].UnsettledAt, "it was durable before the life began")
	require.NoError(t, third.Begin(t.Context()))
	require.NoError(t, third.Unsettle(t.Context(), []mark.Row{row}))
	require.Equal(t, moment, standing(t, third)[0].UnsettledAt)
	shown := standing(t, third)[0]
	require.Equal(t, "box-1 pay ana holds k 5", strings.Join([]string{shown.Sidecar, shown.Route, shown.Owner, shown.Guard, shown.Key, strconv.Itoa(int(shown.Token))}, " "))
}

// A resource that ended with the sidecar can't be at work any more. An earlier life of the same process proves nothing of that kind.
func TestRowsAreSettledAtStartOnlyWhereTheResourceEndedWithTheProcess(t *testing.T) {
	t.Parallel()
	s := alive(t)
	register(t, s, entry("dies", "k", 5))
	held := register(t, s, entry("holds", "k", 5)).Row
	require.NoError(t, s.Begin(t.Context()))
	require.Len(t, standing(t, s), 2, "the process is the same")
	again := crashed(t, s)
	require.NoError(t, again.Begin(t.Context()))
	require.Len(t, standing(t, again), 1)
	require.Equal(t, held, standing(t, again)[0].Row)
	require.NoError(t, again.file.verify())
}

func TestRowIsNeverUsedTwice(t *testing.T) {
	t.Parallel()
	s := alive(t)
	var last mark.Row
	for round := range 4 {
		for i := range 3 {
			row := register(t, s, entry("holds", "k", lock.Token(round*3+i+1))).Row
			require.Greater(t, row, last)
			last = row
			require.NoError(t, s.Settle(t.Context(), []mark.Row{row}))
		}
		s.file.flush()
		require.Eventually(t, func() bool { return len(s.file.flights.pending()) == 0 }, patience, time.Millisecond)
		s = crashed(t, s)
		require.Empty(t, standing(t, s))
		require.NoError(t, s.Begin(t.Context()))
	}
}

// A settled row is gone for everybody at once and from the file soon. If a crash comes first it is unsettled: nothing is let through.
func TestSettledRowsAreWrittenSoonAndACrashBeforeIsHarmless(t *testing.T) {
	t.Parallel()
	s := alive(t)
	row := register(t, s, entry("holds", "k", 5)).Row
	s.file.flights.flushing = true // the timer isn't there
	require.NoError(t, s.Settle(t.Context(), []mark.Row{row}))
	require.Empty(t, standing(t, s))
	early := crashed(t, s)
	require.NoError(t, early.Begin(t.Context()))
	require.Len(t, standing(t, early), 1)
	require.False(t, standing(t, early)[0].UnsettledAt.IsZero())
	writes := pagesWritten(s)
	register(t, s, entry("holds", "other", 5))
	require.Greater(t, pagesWritten(s), writes)
	require.Len(t, standing(t, crashed(t, s)), 1, "the next commit takes it along")

	s.file.flights.flushing = false
	require.NoError(t, s.Settle(t.Context(), []mark.Row{standing(t, s)[0].Row}))
	require.Eventually(t, func() bool { return len(standing(t, crashed(t, s))) == 0 }, patience, 5*time.Millisecond, "by itself")

	row = register(t, s, entry("holds", "k", 6)).Row
	s.file.flights.flushing = true
	require.NoError(t, s.Settle(t.Context(), []mark.Row{row}))
	require.NoError(t, s.file.Close())
	require.Empty(t, standing(t, crashed(t, s)), "closing writes it")
}

func TestOtherDefinitionIsRefusedWhileRequestsAreInFlight(t *testing.T) {
	t.Parallel()
	s := alive(t)
	row := register(t, s, entry("releases", "k", 5)).Row
	again := crashed(t, s)
	other := effectGuards()
	other[3].Unsettled.After = time.Hour
	changed, err := again.file.Store("box-1", other, patience, maxJump)
	require.NoError(t, err)
	require.ErrorIs(t, changed.Begin(t.Context()), mark.ErrOtherDefinition)
	_, err = changed.Register(t.Context(), entry("holds", "k", 5))
	require.ErrorIs(t, err, mark.ErrNoLife)
	require.False(t, standing(t, changed)[0].UnsettledAt.IsZero(), "it is unsettled all the same")
	found, err := changed.SettleUnsettled(t.Context(), row, "ana", "the resource's log shows that it ended")
	require.NoError(t, err)
	require.True(t, found)
	require.NoError(t, changed.Begin(t.Context()))

	// After a reload nothing is begun anew.
	register(t, changed, entry("releases", "k", 6))
	_, err = again.Register(t.Context(), entry("releases", "k", 7))
	require.ErrorIs(t, err, mark.ErrOtherDefinition)
	register(t, again, entry("holds", "k", 7))
}

func TestTimeReleasesWhereTheGuardSaysSo(t *testing.T) {
	t.Parallel()
	s := alive(t)
	rows := []mark.Row{register(t, s, entry("releases", "k", 5)).Row, register(t, s, entry("holds", "k", 5)).Row, register(t, s, entry("releases", "way", 5)).Row}
	require.NoError(t, s.Unsettle(t.Context(), rows[:2]))
	require.Eventually(t, func() bool {
		_, err := s.Beat(t.Context())
		return err == nil && len(standing(t, s)) == 2
	}, patience, time.Millisecond)
	require.Equal(t, rows[1], standing(t, s)[0].Row, "held")
	require.Equal(t, rows[2], standing(t, s)[1].Row, "under way")
	require.Len(t, standing(t, crashed(t, s)), 2)
}

// Whichever clock jumps, and in whatever direction: a row never goes before its time.
func TestClockThatJumpsReleasesLaterNeverEarlier(t *testing.T) {
	t.Parallel()
	s := alive(t)
	now := time.Now()
	at := func(mono, wall time.Duration) *flight {
		return &flight{flightRecord: flightRecord{Guard: "releases", UnsettledAt: now.Round(0).Add(-wall)}, unsettled: now.Add(-mono)}
	}
	require.True(t, s.released(at(time.Second, time.Second), now))
	require.False(t, s.released(at(time.Millisecond, 1000*time.Hour), now), "set forward, or a former process's moment that another clock wrote")
	require.False(t, s.released(at(time.Hour, -time.Hour), now), "set back")
	require.False(t, s.released(&flight{flightRecord: flightRecord{Guard: "releases"}}, now))
}

// A caller that doesn't wait for its answer has sent nothing. If the row becomes durable all the same it blocks nobody.
func TestRegistrationWithoutAnAnswerIsSettledByTheFile(t *testing.T) {
	t.Parallel()
	s := alive(t)
	tx, err := s.file.db.Begin(true) // as a disk that hangs would
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var late sync.WaitGroup
	late.Go(func() {
		_, err := s.Register(ctx, entry("holds", "k", 5))
		if !errors.Is(err, mark.ErrUnavailable) {
			t.Errorf("%v", err)
		}
	})
	op := &operation{ctx: context.Background(), done: make(chan struct{}), admission: entry("holds", "k", 6).Admission, entry: &mark.Entry{Raise: 6}, maxJump: maxJump, definition: definition(effectGuards()[2])}
	require.NoError(t, s.file.queue.add(op))
	require.True(t, op.abandon())
	cancel()
	late.Wait()
	require.NoError(t, tx.Rollback())
	<-op.done
	require.NoError(t, op.err)
	require.NotZero(t, op.row)
	require.Empty(t, register(t, s, entry("holds", "k", 7)).Older)
	require.Len(t, standing(t, s), 1)
	require.NoError(t, s.file.verify())
}

func TestOperatorSettlesOnlyWhatIsUnsettled(t *testing.T) {
	t.Parallel()
	s := alive(t)
	row := register(t, s, entry("holds", "k", 5)).Row
	found, err := s.SettleUnsettled(t.Context(), row, "ana", "why not")
	require.NoError(t, err)
	require.False(t, found, "it is under way")
	require.NoError(t, s.Unsettle(t.Context(), []mark.Row{row}))
	_, err = s.SettleUnsettled(t.Context(), row, " ", "")
	require.ErrorContains(t, err, "operator")
	for _, want := range []bool{true, false} {
		found, err = s.SettleUnsettled(t.Context(), row, "ana", "checked by hand")
		require.NoError(t, err)
		require.Equal(t, want, found)
	}
	list, err := crashed(t, s).file.Changes()
	require.NoError(t, err)
	require.Len(t, list, 1)
	list[0].At = time.Time{}
	require.Equal(t, Change{Guard: "holds", Key: "k", Operator: "ana", Reason: "checked by hand", Settled: row, Token: 5}, list[0])
}

// Operations on one row in one transaction: whatever their order, the number of records stays right.
func TestRowThatEndsTwiceInOneTransactionIsCountedOnce(t *testing.T) {
	t.Parallel()
	s := alive(t)
	row := register(t, s, entry("holds", "k", 5)).Row
	require.NoError(t, s.Unsettle(t.Context(), []mark.Row{row}))
	tx, err := s.file.db.Begin(true)
	require.NoError(t, err)
	var group errgroup.Group
	for range 4 {
		group.Go(func() error {
			_, err := s.SettleUnsettled(t.Context(), row, "ana", "twice")
			return err
		})
		group.Go(func() error { return s.Unsettle(t.Context(), []mark.Row{row}) })
		group.Go(func() error { return s.End(t.Context()) })
	}
	require.NoError(t, s.Settle(t.Context(), []mark.Row{row}))
	require.NoError(t, tx.Rollback())
	require.NoError(t, group.Wait())
	require.NoError(t, s.file.verify())
	require.Empty(t, standing(t, s))
}

func TestFullDiskRegistersNothingAndRecovers(t *testing.T) {
	t.Parallel()
	dir, o := smallDisk(t)
	path := filepath.Join(dir, "marks.db")
	require.NoError(t, Create(path))
	f, err := Open(path, o)
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	s, err := f.Store("box-1", effectGuards(), patience, maxJump)
	require.NoError(t, err)
	require.NoError(t, s.Begin(t.Context()))
	var rows []mark.Row
	for faults := 0; faults < 20; {
		r, err := s.Register(t.Context(), entry("holds", strings.Repeat("long ", 80)+strconv.Itoa(len(rows)%7), lock.Token(len(rows)+1)))
		if err != nil {
			require.ErrorIs(t, err, mark.ErrUnavailable)
			faults++
			continue
		}
		rows = append(rows, r.Row)
	}
	require.Greater(t, len(rows), 50)
	shown := func(s *Store) (out []mark.Row) {
		for _, one := range standing(t, s) {
			out = append(out, one.Row)
		}
		return out
	}
	require.Equal(t, rows, shown(s))
	require.Subset(t, shown(crashed(t, s)), rows, "none is lost; one whose registration failed may be left behind")
	require.NoError(t, s.Settle(t.Context(), rows[1:]))
	require.NoError(t, f.Close())
	roomy := crashed(t, s)
	require.NoError(t, roomy.Begin(t.Context()))
	require.Contains(t, shown(roomy), rows[0])
	fresh := register(t, roomy, entry("holds", "fresh", 5))
	require.Greater(t, fresh.Row, rows[len(rows)-1])
	require.NoError(t, roomy.file.verify())
}

// A row of a registration that failed is settled when it shows up, and rows in memory that the file has lost don't stay.
func TestAfterAFailedCommitTheRegisterIsReadAnew(t *testing.T) {
	t.Parallel()
	s := alive(t)
	kept := register(t, s, entry("holds", "k", 5)).Row
	require.NoError(t, s.file.db.Update(func(tx *bbolt.Tx) error { // as if a commit had failed after it was written
		changes := s.file.stage(tx, time.Now())
		op := &operation{admission: entry("holds", "k", 6).Admission, entry: &mark.Entry{}}
		return errors.Join(changes.register(op), changes.finish())
	}))
	s.file.afterLostChanges()
	require.Len(t, standing(t, s), 1)
	require.Equal(t, kept, standing(t, s)[0].Row)
	require.Equal(t, kept+2, register(t, s, entry("holds", "k", 7)).Row)
	require.NoError(t, s.file.verify())
}

// firstFormatFile is a file as the program wrote it before requests in flight were kept.
func firstFormatFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "marks.db")
	db, err := bbolt.Open(path, 0o600, nil)
	require.NoError(t, err)
	require.NoError(t, db.Update(func(tx *bbolt.Tx) error {
		for _, name := range []string{"format", "marks", "guards", "changes"} {
			if _, err := tx.CreateBucket([]byte(name)); err != nil {
				return err
			}
		}
		marks, err := tx.Bucket(bucketMarks).CreateBucket([]byte("holds"))
		if err != nil {
			return err
		}
		return errors.Join(
			tx.Bucket(bucketFormat).Put(keyFormat, []byte(`{"version":1,"created":"2026-01-02T03:04:05Z"}`)),
			tx.Bucket(bucketGuards).Put([]byte("holds"), []byte(`{"keyType":"text","count":1}`)),
			marks.Put([]byte("k"), encode("holds", []byte("k"), 41, time.Unix(1_700_000_000, 0))),
			tx.Bucket(bucketResets).Put([]byte{0, 0, 0, 0, 0, 0, 0, 1}, []byte(`{"at":"2026-01-02T03:04:05Z","guard":"holds","key":"k","from":7,"to":5,"operator":"ana","reason":"typo"}`)),
		)
	}))
	require.NoError(t, db.Close())
	return path
}

func TestFileOfTheFirstFormatIsBroughtUpAndKeepsItsMarks(t *testing.T) {
	t.Parallel()
	path := firstFormatFile(t)
	s := effects(t, path)
	token, _, err := s.Read(t.Context(), "holds", "k")
	require.NoError(t, err)
	require.Equal(t, lock.Token(41), token)
	require.NoError(t, s.Begin(t.Context()))
	refused, err := s.Register(t.Context(), entry("holds", "k", 40))
	require.NoError(t, err)
	require.Equal(t, mark.FencedOut, refused.Verdict)
	row := register(t, s, entry("holds", "k", 42)).Row
	list, err := s.file.Changes()
	require.NoError(t, err)
	require.Equal(t, lock.Token(7), list[0].From)
	again := crashed(t, s)
	require.Equal(t, row, standing(t, again)[0].Row)
	var said format
	require.NoError(t, again.file.db.View(func(tx *bbolt.Tx) error { return json.Unmarshal(tx.Bucket(bucketFormat).Get(keyFormat), &said) }))
	require.Equal(t, formatVersion, said.Version)
	require.Equal(t, 2026, said.Created.Year())
}

// ordered plays the gate's part for many requests with one key, and says whether an effect came out of order.
func ordered(ctx context.Context, s mark.Register, wait bool) error {
	const clients, each = 8, 12
	var mu sync.Mutex
	var next, landed lock.Token
	group, ctx := errgroup.WithContext(ctx)
	for range clients {
		group.Go(func() error {
			for range each {
				mu.Lock()
				next++
				e := entry("holds", "k", next)
				mu.Unlock()
				r, err := s.Register(ctx, e)
				if err != nil {
					return err
				}
				if r.Verdict != mark.Admitted {
					continue
				}
				for older := r.Older; wait && len(older) > 0; {
					sight, err := s.Look(ctx, e, r.Row)
					if err != nil {
						return err
					}
					if older = sight.Older; sight.Mark != e.Token {
						break
					}
				}
				sight, err := s.Look(ctx, e, r.Row) // the request's way through the resource, if the mark is still its own
				if err != nil {
					return err
				}
				if sight.Mark == e.Token || !wait {
					mu.Lock()
					if e.Token < landed {
						err = fmt.Errorf("%d landed after %d", e.Token, landed)
					}
					landed = max(landed, e.Token)
					mu.Unlock()
				}
				if err := errors.Join(err, s.Settle(ctx, []mark.Row{r.Row})); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

func TestEffectsOfManyRequestsKeepTheirOrder(t *testing.T) {
	t.Parallel()
	s := alive(t)
	require.NoError(t, ordered(t.Context(), s, true))
	require.Eventually(t, func() bool { return len(standing(t, crashed(t, s))) == 0 }, patience, 20*time.Millisecond)
	require.NoError(t, s.file.verify())
	require.ErrorContains(t, ordered(t.Context(), alive(t), false), "landed after", "the check can fail")
}

func registerEnv(t *testing.T) marktest.RegisterEnv {
	t.Helper()
	s := alive(t)
	return marktest.RegisterEnv{
		Open: func(context.Context, string) (mark.Register, error) { return s, nil }, Hold: "holds", Release: "releases",
		NewKey: func(context.Context) (string, error) { return uuid.NewString(), nil },
		Age: func(ctx context.Context) error {
			ageAll(&s.file.flights)
			_, err := s.Beat(ctx)
			return err
		},
	}
}

// ageAll lets an hour pass, on both clocks.
func ageAll(f *flights) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, one := range f.standing("") {
		older := *one
		older.known, older.unsettled = one.known.Add(-time.Hour), one.unsettled.Add(-time.Hour)
		if !one.UnsettledAt.IsZero() {
			older.UnsettledAt = one.UnsettledAt.Add(-time.Hour)
		}
		f.replace(&older)
	}
}

func TestRegisterConformance(t *testing.T) {
	t.Parallel()
	for _, scenario := range marktest.RegisterScenarios() {
		t.Run(scenario.Name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			require.NoError(t, scenario.Run(ctx, registerEnv(t)))
		})
	}
}

// The scenarios find a register that forgets what it was told to keep.
func TestRegisterConformanceFindsARegisterThatForgets(t *testing.T) {
	t.Parallel()
	env := registerEnv(t)
	open := env.Open
	env.Open = func(ctx context.Context, id string) (mark.Register, error) {
		r, err := open(ctx, id)
		return forgetting{r.(*Store)}, err
	}
	require.ErrorContains(t, marktest.OrderOfEffects(t.Context(), env), "token")
}

// forgetting is a register whose rows stand in nobody's way.
type forgetting struct{ *Store }

func (f forgetting) Register(ctx context.Context, e mark.Entry) (mark.Registration, error) {
	r, err := f.Store.Register(ctx, e)
	r.Older = nil
	return r, err
}
