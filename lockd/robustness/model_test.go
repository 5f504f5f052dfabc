package robustness

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"
)

const ms = time.Millisecond

// at is an operation between two instants, in milliseconds.
func at(from, to int, op Op) Op {
	op.Call, op.Return = time.Duration(from)*ms, time.Duration(to)*ms
	return op
}

func granted(from, to, session int, token int64, ttl int) Op {
	return at(from, to, Op{Kind: Acquire, Key: "k", Session: session, Got: token, TTL: time.Duration(ttl) * ms, Result: OK})
}

func contended(from, to, session int) Op {
	return at(from, to, Op{Kind: Acquire, Key: "k", Session: session, Result: Contended})
}

func renewed(from, to int, token int64, ttl int, result Result) Op {
	return at(from, to, Op{Kind: Renew, Key: "k", Token: token, TTL: time.Duration(ttl) * ms, Result: result})
}

func released(from, to int, token int64, result Result) Op {
	return at(from, to, Op{Kind: Release, Key: "k", Token: token, Result: result})
}

func revoked(from, to int, token, floor int64) Op {
	return at(from, to, Op{Kind: Revoke, Key: "k", Got: token, Floor: floor, Result: OK})
}

func lostAcquire(from, to, session int) Op {
	return at(from, to, Op{Kind: Acquire, Key: "k", Session: session, TTL: 100 * ms, Result: Unknown})
}

func onSession(from, to, session int, kind Kind, result Result) Op {
	return at(from, to, Op{Kind: kind, Session: session, TTL: 1000 * ms, Result: result})
}

func historyOf(ops ...Op) *History {
	h := &History{}
	for _, op := range ops {
		h.Add(op)
	}
	return h
}

// Histories whose verdict is known. The names of the legal ones say why they are.
func TestHistoriesWithKnownVerdicts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		legal bool
		ops   []Op
	}{
		"one after the other":                              {true, []Op{granted(0, 1, 1, 1, 100), released(2, 3, 1, OK), granted(4, 5, 2, 2, 100)}},
		"two holders at once":                              {false, []Op{granted(0, 1, 1, 1, 100), granted(2, 3, 2, 2, 100)}},
		"the same at the same time, released in between":   {true, []Op{granted(0, 9, 1, 1, 100), granted(0, 9, 2, 2, 100), released(0, 9, 1, OK)}},
		"the same at the same time, none released":         {false, []Op{granted(0, 9, 1, 1, 100), granted(0, 9, 2, 2, 100)}},
		"token goes back":                                  {false, []Op{granted(0, 1, 1, 5, 100), released(2, 3, 5, OK), granted(4, 5, 2, 4, 100)}},
		"token stays":                                      {false, []Op{granted(0, 1, 1, 5, 100), released(2, 3, 5, OK), granted(4, 5, 2, 5, 100)}},
		"re-entry with a new token":                        {true, []Op{granted(0, 1, 1, 1, 100), granted(2, 3, 1, 2, 100), renewed(4, 5, 1, 100, Lost)}},
		"old token lives on after re-entry":                {false, []Op{granted(0, 1, 1, 1, 100), granted(2, 3, 1, 2, 100), renewed(4, 5, 1, 100, OK)}},
		"contended while held":                             {true, []Op{granted(0, 1, 1, 1, 100), contended(2, 3, 2)}},
		"contended while free":                             {false, []Op{granted(0, 1, 1, 1, 100), released(2, 3, 1, OK), contended(4, 5, 2)}},
		"contended by one's own grant":                     {false, []Op{granted(0, 1, 1, 1, 100), contended(2, 3, 1)}},
		"contended by one that has expired":                {false, []Op{granted(0, 1, 1, 1, 100), contended(102, 103, 2)}},
		"takeover at the earliest possible expiry":         {true, []Op{granted(0, 5, 1, 1, 100), granted(98, 100, 2, 2, 100)}},
		"takeover before the earliest possible expiry":     {false, []Op{granted(0, 5, 1, 1, 100), granted(97, 99, 2, 2, 100)}},
		"takeover before the end of a renewal":             {false, []Op{granted(0, 1, 1, 1, 100), renewed(50, 51, 1, 100, OK), granted(120, 130, 2, 2, 100)}},
		"takeover after the end of a renewal":              {true, []Op{granted(0, 1, 1, 1, 100), renewed(50, 51, 1, 100, OK), granted(150, 151, 2, 2, 100)}},
		"a renewal may shorten a lease":                    {true, []Op{granted(0, 1, 1, 1, 1000), renewed(50, 51, 1, 100, OK), granted(150, 151, 2, 2, 100)}},
		"lease of a waiter counts from its grant":          {false, []Op{at(0, 501, Op{Kind: Acquire, Key: "k", Session: 1, Got: 1, TTL: 100 * ms, Waited: 500 * ms, Result: OK}), granted(590, 599, 2, 2, 100)}},
		"renewal at the last instant":                      {true, []Op{granted(0, 5, 1, 1, 100), renewed(105, 106, 1, 100, OK)}},
		"renewal after expiry":                             {false, []Op{granted(0, 5, 1, 1, 100), renewed(106, 107, 1, 100, OK)}},
		"renewal lost too soon":                            {false, []Op{granted(0, 5, 1, 1, 100), renewed(50, 51, 1, 100, Lost)}},
		"renewal after it was lost":                        {false, []Op{granted(0, 50, 1, 1, 100), renewed(100, 110, 1, 100, Lost), renewed(111, 112, 1, 100, OK)}},
		"stale release":                                    {true, []Op{granted(0, 1, 1, 1, 100), granted(101, 102, 2, 2, 100), released(103, 104, 1, Stale), renewed(105, 106, 2, 100, OK)}},
		"stale release frees the new holder's key":         {false, []Op{granted(0, 1, 1, 1, 100), granted(101, 102, 2, 2, 100), released(103, 104, 1, Stale), granted(105, 106, 3, 3, 100)}},
		"release of another's grant":                       {false, []Op{granted(0, 1, 1, 1, 100), granted(101, 102, 2, 2, 100), released(103, 104, 1, OK)}},
		"release of a lapsed grant that nobody took":       {true, []Op{granted(0, 1, 1, 1, 100), released(200, 201, 1, OK)}},
		"stale though alive":                               {false, []Op{granted(0, 1, 1, 1, 100), released(50, 51, 1, Stale)}},
		"revocation":                                       {true, []Op{granted(0, 1, 1, 1, 100), revoked(2, 3, 1, 2), renewed(4, 5, 1, 100, Lost), granted(6, 7, 2, 3, 100)}},
		"renewal after a revocation":                       {false, []Op{granted(0, 1, 1, 1, 100), revoked(2, 3, 1, 2), renewed(4, 5, 1, 100, OK)}},
		"token at the floor":                               {false, []Op{granted(0, 1, 1, 1, 100), revoked(2, 3, 1, 2), granted(6, 7, 2, 2, 100)}},
		"floor that isn't above":                           {false, []Op{granted(0, 1, 1, 5, 100), revoked(2, 3, 5, 5)}},
		"revocation of another token":                      {false, []Op{granted(0, 1, 1, 5, 100), revoked(2, 3, 4, 6)}},
		"nothing to revoke though held":                    {false, []Op{granted(0, 1, 1, 5, 100), at(2, 3, Op{Kind: Revoke, Key: "k", Result: NotHeld})}},
		"mismatch with the holder's own token":             {false, []Op{granted(0, 1, 1, 5, 100), at(2, 3, Op{Kind: Revoke, Key: "k", Token: 5, Result: Mismatch})}},
		"acquire of unknown outcome may have happened":     {true, []Op{lostAcquire(0, 1, 1), contended(2, 3, 2)}},
		"acquire of unknown outcome may not have happened": {true, []Op{lostAcquire(0, 1, 1), granted(2, 3, 2, 1, 100)}},
		"acquire of unknown outcome may happen later":      {true, []Op{lostAcquire(0, 1, 1), granted(2, 3, 2, 1, 100), released(4, 5, 1, OK), contended(6, 7, 3)}},
		"acquire of unknown outcome happens once":          {false, []Op{lostAcquire(0, 1, 1), contended(2, 3, 2), granted(4, 5, 2, 1, 100), released(6, 7, 1, OK), contended(8, 9, 3)}},
		"unknown acquire doesn't take from the living":     {false, []Op{granted(0, 1, 1, 1, 100), lostAcquire(2, 3, 2), renewed(50, 51, 1, 100, Lost)}},
		"unknown acquire takes from the dead":              {true, []Op{granted(0, 1, 1, 1, 100), lostAcquire(2, 3, 2), contended(150, 151, 3)}},
		"unknown re-entry ends one's own grant":            {true, []Op{granted(0, 1, 1, 1, 100), lostAcquire(2, 3, 1), renewed(50, 51, 1, 100, Lost)}},
		"unseen grant is revoked":                          {true, []Op{lostAcquire(0, 1, 1), revoked(2, 3, 7, 8)}},
		"unseen grant has an old token":                    {false, []Op{granted(0, 1, 1, 9, 100), released(2, 3, 9, OK), lostAcquire(4, 5, 1), revoked(6, 7, 7, 10)}},
		"release of unknown outcome may have happened":     {true, []Op{granted(0, 1, 1, 1, 100), released(2, 3, 1, Unknown), granted(4, 5, 2, 2, 100)}},
		"release of unknown outcome may not have happened": {true, []Op{granted(0, 1, 1, 1, 100), released(2, 3, 1, Unknown), contended(4, 5, 2)}},
		"release of unknown outcome frees nobody else":     {false, []Op{granted(0, 1, 1, 1, 100), released(2, 3, 1, Unknown), granted(4, 5, 2, 2, 100), granted(6, 7, 3, 3, 100)}},
		"renewal of unknown outcome may have happened":     {true, []Op{granted(0, 1, 1, 1, 100), renewed(50, 51, 1, 100, Unknown), contended(140, 141, 2)}},
		"renewal of unknown outcome may not have happened": {true, []Op{granted(0, 1, 1, 1, 100), renewed(50, 51, 1, 100, Unknown), granted(101, 102, 2, 2, 100)}},
		"unknown renewal doesn't raise the dead":           {false, []Op{granted(0, 1, 1, 1, 100), renewed(150, 151, 1, 100, Unknown), renewed(160, 161, 1, 100, OK)}},
		"revocation of unknown outcome may have happened":  {true, []Op{granted(0, 1, 1, 1, 100), at(2, 3, Op{Kind: Revoke, Key: "k", Result: Unknown}), renewed(4, 5, 1, 100, Lost)}},
		"takeover from a dead session":                     {true, []Op{onSession(0, 1, 1, Open, OK), granted(2, 3, 1, 1, 9000), granted(1000, 1001, 2, 2, 100)}},
		"takeover from a living session":                   {false, []Op{onSession(0, 1, 1, Open, OK), onSession(500, 501, 1, Heartbeat, OK), granted(2, 3, 1, 1, 9000), granted(1001, 1002, 2, 2, 100)}},
		"takeover from a closed session":                   {true, []Op{onSession(0, 1, 1, Open, OK), granted(2, 3, 1, 1, 9000), onSession(4, 5, 1, Close, OK), granted(5, 6, 2, 2, 100)}},
		"takeover before the close":                        {false, []Op{onSession(0, 1, 1, Open, OK), granted(2, 3, 1, 1, 9000), onSession(6, 7, 1, Close, OK), granted(4, 5, 2, 2, 100)}},
		"takeover during a close of unknown outcome":       {true, []Op{onSession(0, 1, 1, Open, OK), granted(2, 3, 1, 1, 9000), onSession(4, 5, 1, Close, Unknown), granted(9, 10, 2, 2, 100)}},
		"renewal under a dead session":                     {false, []Op{onSession(0, 1, 1, Open, OK), granted(2, 3, 1, 1, 9000), renewed(1002, 1003, 1, 9000, OK)}},
		"grant under a dead session":                       {false, []Op{onSession(0, 1, 1, Open, OK), granted(1002, 1003, 1, 1, 9000)}},
		"contended by a dead session":                      {false, []Op{onSession(0, 1, 1, Open, OK), granted(2, 3, 1, 1, 9000), contended(1002, 1003, 2)}},
		"heartbeat revives a dead session":                 {false, []Op{onSession(0, 1, 1, Open, OK), onSession(1002, 1003, 1, Heartbeat, OK)}},
		"session said to be over while it lives":           {false, []Op{onSession(0, 1, 1, Open, OK), onSession(500, 501, 1, Heartbeat, Expired)}},
		"session is over after its time":                   {true, []Op{onSession(0, 1, 1, Open, OK), onSession(999, 1000, 1, Heartbeat, Expired)}},
		"session dead for one is dead for another":         {false, []Op{onSession(0, 1, 1, Open, OK), onSession(1000, 1001, 1, Heartbeat, Expired), granted(1002, 1003, 1, 1, 9000)}},
		"heartbeat under way keeps a session that was said to have expired": {true, []Op{
			onSession(0, 10, 1, Open, OK), onSession(500, 501, 1, Heartbeat, Unknown), at(1009, 1020, Op{Kind: Acquire, Key: "k", Session: 1, Result: Expired}),
			onSession(1030, 1031, 1, Heartbeat, OK), granted(1032, 1033, 1, 1, 9000),
		}},
		"no heartbeat brings back a session that is gone": {false, []Op{
			onSession(0, 10, 1, Open, OK), onSession(500, 501, 1, Heartbeat, Unknown), at(1009, 1020, Op{Kind: Acquire, Key: "k", Session: 1, Result: Gone}),
			onSession(1030, 1031, 1, Heartbeat, OK), granted(1032, 1033, 1, 1, 9000),
		}},
		"not held, before a late heartbeat took effect": {true, []Op{
			onSession(0, 1, 1, Open, OK), granted(2, 3, 1, 1, 9000), onSession(990, 1010, 1, Heartbeat, OK),
			at(1002, 1003, Op{Kind: Revoke, Key: "k", Result: NotHeld}), renewed(1011, 1012, 1, 9000, OK),
		}},
		"not held, after a heartbeat took effect": {false, []Op{
			onSession(0, 1, 1, Open, OK), granted(2, 3, 1, 1, 9000), onSession(980, 990, 1, Heartbeat, OK),
			at(1002, 1003, Op{Kind: Revoke, Key: "k", Result: NotHeld}), renewed(1011, 1012, 1, 9000, OK),
		}},
		"takeover, before a late heartbeat took effect": {false, []Op{
			onSession(0, 1, 1, Open, OK), granted(2, 3, 1, 1, 9000), onSession(990, 1010, 1, Heartbeat, OK), granted(1002, 1003, 2, 2, 100),
		}},
		"session closed twice":                               {false, []Op{onSession(0, 1, 1, Open, OK), onSession(2, 3, 1, Close, OK), onSession(4, 5, 1, Close, OK)}},
		"heartbeat of unknown outcome may have happened":     {true, []Op{onSession(0, 1, 1, Open, OK), granted(2, 3, 1, 1, 9000), onSession(500, 501, 1, Heartbeat, Unknown), contended(1400, 1401, 2)}},
		"heartbeat of unknown outcome may not have happened": {true, []Op{onSession(0, 1, 1, Open, OK), granted(2, 3, 1, 1, 9000), onSession(500, 501, 1, Heartbeat, Unknown), granted(1000, 1001, 2, 2, 100)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := historyOf(c.ops...).Check(10 * time.Second).Err()
			if c.legal {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, ErrViolation)
			}
		})
	}
}

// Tokens of a history are above those of the one before it.
func TestTokensRiseAcrossHistories(t *testing.T) {
	t.Parallel()
	h := historyOf(granted(0, 1, 1, 5, 100))
	h.Above = 5
	require.ErrorIs(t, h.Check(time.Second).Err(), ErrViolation)
	h.Above = 4
	require.NoError(t, h.Check(time.Second).Err())
}

// Where clients wait, "contended" is the queue's answer.
func TestContendedSaysNothingWhereClientsWait(t *testing.T) {
	t.Parallel()
	h := historyOf(contended(0, 1, 1))
	require.ErrorIs(t, h.Check(time.Second).Err(), ErrViolation)
	h.Queued = true
	require.NoError(t, h.Check(time.Second).Err())
}

func TestKeysAreJudgedOneByOne(t *testing.T) {
	t.Parallel()
	other := granted(2, 3, 2, 2, 100)
	other.Key = "other"
	verdict := historyOf(granted(0, 1, 1, 1, 100), other, granted(4, 5, 3, 3, 100)).Check(time.Second)
	require.ErrorContains(t, verdict.Err(), "key k")
	require.NotContains(t, verdict.Err().Error(), "other")
}

// What ran out of time has no verdict, and that isn't a success.
func TestUndecidedIsAFailure(t *testing.T) {
	t.Parallel()
	verdict := Verdict{Partitions: []Partition{{Name: "key k", Result: porcupine.Unknown}}}
	require.ErrorIs(t, verdict.Err(), ErrUndecided)
}

func TestUnexpectedAnswerIsAFailure(t *testing.T) {
	t.Parallel()
	h := historyOf(at(0, 1, Op{Kind: Revoke, Key: "k", Result: Unexpected, Detail: "FORBIDDEN: ask somebody else"}))
	require.ErrorContains(t, h.Check(time.Second).Err(), "FORBIDDEN")
}

func TestReportShowsKeyOperationsAndTokens(t *testing.T) {
	t.Parallel()
	h := historyOf(granted(0, 1, 1, 17, 100), granted(2, 3, 2, 18, 100))
	dir := t.TempDir()
	var out strings.Builder
	require.NoError(t, h.Report(h.Check(time.Second), dir, time.Second, &out))
	for _, want := range []string{"key k", "acquire s1", "17", "acquire s2", "18", "history.jsonl", "key-k.html"} {
		require.Contains(t, out.String(), want)
	}
	for _, name := range []string{"history.jsonl", "key-k.html"} {
		data, err := os.ReadFile(dir + "/" + name)
		require.NoError(t, err)
		require.Contains(t, string(data), "acquire", name)
	}
}
