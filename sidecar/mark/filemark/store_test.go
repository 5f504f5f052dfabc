package filemark

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
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

const (
	maxJump  = 1_000_000
	patience = 30 * time.Second
)

func guards() []config.Guard {
	return []config.Guard{
		{Name: "known", Mark: config.Mark{KeyType: config.KeyText, Missing: config.MissingReject}},
		{Name: "any-key", Mark: config.Mark{KeyType: config.KeyText, Missing: config.MissingInsert}},
	}
}

// create makes an empty file.
func create(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "marks.db")
	require.NoError(t, Create(path))
	return path
}

func open(t *testing.T, path string, o Options) *Store {
	t.Helper()
	f, err := Open(path, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	s, err := f.Store("test", guards(), patience, maxJump)
	require.NoError(t, err)
	return s
}

func newEnv(t *testing.T) marktest.Env {
	t.Helper()
	e := marktest.Env{OperatedStore: open(t, create(t), Options{}), Reject: "known", Insert: "any-key", MaxJump: maxJump, Base: 1, Stranger: "stranger", TakesStrangers: true}
	store := e.OperatedStore
	e.NewKey = func(ctx context.Context) (string, error) {
		key := uuid.NewString()
		_, err := store.Raise(ctx, e.Reject, key, e.Base)
		return key, err
	}
	e.Set = func(ctx context.Context, key string, token lock.Token) error {
		_, err := store.Raise(ctx, e.Reject, key, token)
		return err
	}
	return e
}

func TestConformance(t *testing.T) {
	t.Parallel()
	for _, scenario := range marktest.Scenarios() {
		t.Run(scenario.Name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			require.NoError(t, scenario.Run(ctx, newEnv(t)))
		})
	}
}

// reopened is a store whose file is copied as it stands at a moment and opened from the copy: what a crash of the process leaves.
type reopened struct{ mark.OperatedStore }

func TestRaisedMarkSurvivesACrash(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	current := &reopened{e.OperatedStore}
	e.OperatedStore = current
	e.NewKey = func(ctx context.Context) (string, error) {
		key := uuid.NewString()
		_, err := current.Raise(ctx, e.Reject, key, e.Base)
		return key, err
	}
	e.Crash = func(context.Context) error {
		data, err := os.ReadFile(current.OperatedStore.(*Store).file.path)
		if err != nil {
			return err
		}
		path := filepath.Join(t.TempDir(), "copy.db")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			return err
		}
		current.OperatedStore = open(t, path, Options{})
		return nil
	}
	require.NoError(t, marktest.SurvivesACrash(t.Context(), e))
}

// The crash scenario can fail: marks that the operating system hasn't got yet are gone.
func TestCrashScenarioFindsMarksThatAreOnlyInMemory(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	marks := map[string]lock.Token{}
	e.OperatedStore = forgetful{e.OperatedStore, marks}
	e.Crash = func(context.Context) error { clear(marks); return nil }
	require.ErrorContains(t, marktest.SurvivesACrash(t.Context(), e), "the mark is 0, want 100")
}

type forgetful struct {
	mark.OperatedStore
	marks map[string]lock.Token
}

func (f forgetful) Admit(_ context.Context, a mark.Admission) (mark.Decision, error) {
	d := a.Judge(f.marks[a.Guard+a.Key], true, false, maxJump)
	if d.Verdict == mark.Admitted {
		f.marks[a.Guard+a.Key] = a.Token
	}
	return d, nil
}

func (f forgetful) Read(_ context.Context, guard, key string) (lock.Token, bool, error) {
	token, found := f.marks[guard+key]
	return token, found, nil
}

// The race finds a store that reads and writes in two transactions.
func TestRaceFindsReadThenWrite(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	store := e.OperatedStore.(*Store)
	e.OperatedStore = twoSteps{store, marktest.ReadThenWrite(e, func(_ context.Context, a mark.Admission) error {
		return store.file.db.Update(func(tx *bbolt.Tx) error {
			return tx.Bucket(bucketMarks).Bucket([]byte(a.Guard)).Put([]byte(a.Key), encode(a.Guard, []byte(a.Key), a.Token, time.Now()))
		})
	})}
	require.ErrorIs(t, marktest.OrderOfAdmissions(t.Context(), e), marktest.ErrOutOfOrder)
}

type twoSteps struct {
	*Store
	admit func(context.Context, mark.Admission) (mark.Decision, error)
}

func (s twoSteps) Admit(ctx context.Context, a mark.Admission) (mark.Decision, error) {
	return s.admit(ctx, a)
}

func pagesWritten(s *Store) int64 {
	stats := s.file.db.Stats()
	return stats.TxStats.GetWrite()
}

// Admissions that arrive while the disk is busy share one commit.
func TestAdmissionsAreCommittedInGroups(t *testing.T) {
	t.Parallel()
	s := open(t, create(t), Options{})
	before := pagesWritten(s)
	var admitted atomic.Int64
	var group errgroup.Group
	const clients, each = 64, 10
	for c := range clients {
		group.Go(func() error {
			for i := range each {
				d, err := s.Admit(t.Context(), mark.Admission{Guard: "any-key", Key: strconv.Itoa(c), Token: lock.Token(i + 1), Newer: true})
				if err != nil {
					return err
				}
				if d.Verdict == mark.Admitted {
					admitted.Add(1)
				}
			}
			return nil
		})
	}
	require.NoError(t, group.Wait())
	require.Equal(t, int64(clients*each), admitted.Load())
	// A commit of its own would write four pages at least: marks, root, free pages, head.
	require.Less(t, pagesWritten(s)-before, int64(clients*each*2))
	require.False(t, s.file.db.NoSync, "never off")
}

// A refusal and an equal token write nothing.
func TestDecisionsThatRaiseNothingDoNotWaitForTheDisk(t *testing.T) {
	t.Parallel()
	s := open(t, create(t), Options{})
	admit := func(token lock.Token) mark.Verdict {
		d, err := s.Admit(t.Context(), mark.Admission{Guard: "any-key", Key: "k", Token: token})
		require.NoError(t, err)
		return d.Verdict
	}
	require.Equal(t, mark.Admitted, admit(5))
	writes := pagesWritten(s)
	require.Equal(t, mark.Admitted, admit(5))
	require.Equal(t, mark.FencedOut, admit(4))
	require.Equal(t, writes, pagesWritten(s))
}

func TestCloseAnswersEverybody(t *testing.T) {
	t.Parallel()
	f, err := Open(create(t), Options{})
	require.NoError(t, err)
	s, err := f.Store("test", guards(), patience, maxJump)
	require.NoError(t, err)
	var clients sync.WaitGroup
	for c := range 16 {
		clients.Go(func() {
			for i := lock.Token(1); ; i++ {
				d, err := s.Admit(context.Background(), mark.Admission{Guard: "any-key", Key: strconv.Itoa(c), Token: i})
				if err != nil {
					return
				}
				if d.Verdict != mark.Admitted {
					t.Errorf("%s", d.Verdict)
				}
			}
		})
	}
	require.NoError(t, f.Close())
	clients.Wait()
	_, err = s.Admit(t.Context(), mark.Admission{Guard: "any-key", Key: "k", Token: 1})
	require.ErrorIs(t, err, mark.ErrUnavailable)
}

func TestGuardsKeepTheirKeyType(t *testing.T) {
	t.Parallel()
	f, err := Open(create(t), Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	_, err = f.Store("test", guards(), patience, maxJump)
	require.NoError(t, err)
	other := guards()
	other[0].Mark.KeyType = config.KeyUUID
	_, err = f.Store("test", other, patience, maxJump)
	require.ErrorContains(t, err, "guard known has keys of type text")
}

func TestResetNeedsTheExpectedMarkAndIsRecorded(t *testing.T) {
	t.Parallel()
	s := open(t, create(t), Options{})
	_, err := s.Raise(t.Context(), "any-key", "k", 1<<62)
	require.NoError(t, err)
	change := Change{At: time.Now().UTC(), Guard: "any-key", Key: "k", From: 7, To: 5, Operator: "ana", Reason: "typo"}
	require.ErrorIs(t, s.file.Reset(change), ErrUnexpected)
	change.From = 1 << 62
	require.NoError(t, s.file.Reset(change))
	token, found, err := s.Read(t.Context(), "any-key", "k")
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, lock.Token(5), token)
	list, err := s.file.Changes()
	require.NoError(t, err)
	require.Equal(t, []Change{change}, list)
	for _, c := range []Change{{Guard: "none", Key: "k"}, {Guard: "any-key", Key: "nobody"}} {
		require.Error(t, s.file.Reset(c))
	}
	require.NoError(t, s.file.verify(), "the file is in order afterwards")
}
