package gate

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fenceline/lockd/lock"
	"fenceline/sidecar/mark"
)

func at(seconds float64) Instant {
	d := time.Duration(seconds * float64(time.Second))
	return Instant{Mono: d, Wall: d}
}

// waiting is a machine with one request that waits for row 1.
func waiting(t *testing.T, b broken) *Machine {
	t.Helper()
	m := NewMachine(Rules{Wait: 5 * time.Second, Trust: 6 * time.Second, Answer: 2500 * time.Millisecond, Silence: 5 * time.Second, Waiting: 10})
	m.broken = b
	m.Step(LifeBegan{Asked: at(0)})
	e := mark.Entry{Admission: mark.Admission{Guard: "g", Key: "k", Token: 6}, Raise: 6}
	require.Equal(t, []Action{Register{ID: 1, Entry: e}}, m.Step(Arrived{ID: 1, Entry: e, At: at(0)}))
	actions := m.Step(Registered{ID: 1, Result: mark.Registration{Decision: mark.Decision{Verdict: mark.Admitted}, Row: 2, Older: []mark.Row{1}}, At: at(0)})
	require.IsType(t, Sleep{}, actions[0])
	require.IsType(t, Look{}, m.Step(Due{ID: 1, At: at(1)})[0])
	return m
}

func TestAfterTheWaitTheMarkAndTheRowAreLookedAtAgain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sight mark.Sight
		want  Action
	}{
		"in order":                    {mark.Sight{Present: true, Mark: 6}, Forward{ID: 1}},
		"an operator raised the mark": {mark.Sight{Present: true, Mark: 9}, Refuse{ID: 1, Reason: FencedOut, Highest: 9}},
		"somebody lowered the mark":   {mark.Sight{Present: true, Mark: 5}, Refuse{ID: 1, Reason: WentBack, Highest: 5, Err: mark.ErrWentBack}},
		"its row was settled or is of a life that was declared dead": {mark.Sight{Mark: 6}, Refuse{ID: 1, Reason: Unavailable, Err: errNotThere}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := waiting(t, broken{})
			actions := m.Step(Looked{ID: 1, Sight: c.sight, Asked: at(1), At: at(1)})
			require.Equal(t, c.want, actions[len(actions)-1])
			if _, refused := c.want.(Refuse); refused {
				require.Equal(t, SettleRow{Row: 2}, actions[0], "what wasn't sent blocks nobody")
			}
			// Without the re-check it would be sent whatever was found.
			careless := waiting(t, broken{noRecheck: true})
			require.Equal(t, []Action{Forward{ID: 1}}, careless.Step(Looked{ID: 1, Sight: c.sight, Asked: at(1), At: at(1)}))
		})
	}
}

func TestRequestThatWaitedLongEnoughIsBusy(t *testing.T) {
	t.Parallel()
	m := waiting(t, broken{})
	actions := m.Step(Looked{ID: 1, Sight: mark.Sight{Present: true, Mark: 6, Older: []mark.Row{1}}, Asked: at(5), At: at(5)})
	require.Equal(t, []Action{SettleRow{Row: 2}, Refuse{ID: 1, Reason: Busy}}, actions)
}

// The clock that ran further counts: the monotonic one stands still while a machine sleeps, the wall clock can be set back.
func TestFirstByteNeedsAFreshAdmissionAndALifeThatIsCertain(t *testing.T) {
	t.Parallel()
	cleared := func() *Machine {
		m := waiting(t, broken{})
		require.Equal(t, []Action{Forward{ID: 1}}, m.Step(Looked{ID: 1, Sight: mark.Sight{Present: true, Mark: 6}, Asked: at(1), At: at(1)}))
		return m
	}
	require.Equal(t, []Action{Send{ID: 1}}, cleared().Step(FirstByte{ID: 1, At: at(4)}))
	for name, when := range map[string]Instant{
		"no heartbeat for the time of silence": at(5.5), "long after, by the wall clock": {Mono: time.Second, Wall: 8 * time.Second},
		"long after, by the monotonic clock": {Mono: 8 * time.Second},
	} {
		require.IsType(t, Look{}, cleared().Step(FirstByte{ID: 1, At: when})[0], name)
	}
	beating := cleared()
	beating.Step(Beaten{Asked: at(7.5)})
	require.IsType(t, Look{}, beating.Step(FirstByte{ID: 1, At: at(8)})[0], "the life is fresh, the admission isn't")
	require.Equal(t, []Action{Send{ID: 1}}, beating.Step(Looked{ID: 1, Sight: mark.Sight{Present: true, Mark: 6}, Asked: at(8), At: at(8.1)}))
	slow := cleared()
	slow.Step(FirstByte{ID: 1, At: at(8)})
	actions := slow.Step(Looked{ID: 1, Sight: mark.Sight{Present: true, Mark: 6}, Asked: at(8), At: at(15)})
	require.Equal(t, Refuse{ID: 1, Reason: Unavailable, Err: errTooLate}, actions[1], "the look itself took too long")
}

// A body isn't sent on once its row may have been released.
func TestBodyStopsWhenTheLifeOrTheRowMayBeGone(t *testing.T) {
	t.Parallel()
	begun := func(b broken) *Machine {
		m := waiting(t, b)
		m.Step(Looked{ID: 1, Sight: mark.Sight{Present: true, Mark: 6}, Asked: at(1), At: at(1)})
		require.Equal(t, []Action{Send{ID: 1}}, m.Step(FirstByte{ID: 1, At: at(2)}))
		return m
	}
	m := begun(broken{})
	require.True(t, m.MayContinue(1, at(4), 0))
	require.False(t, m.MayContinue(1, at(5), 0), "others may have declared the life dead, and an operator settled its requests")
	require.True(t, m.MayContinue(1, at(30), 30*time.Second), "time releases it later")
	require.False(t, m.MayContinue(1, at(35), 30*time.Second))
	m.Step(Beaten{Asked: at(6), Pulse: mark.Pulse{Own: []mark.Row{2}}})
	require.True(t, m.MayContinue(1, at(7), 0))
	m.Step(Beaten{Asked: at(8)})
	require.False(t, m.MayContinue(1, at(8), 0), "its row was settled by somebody else")
	lost := begun(broken{})
	lost.Step(Beaten{Asked: at(3), Pulse: mark.Pulse{Lost: true}})
	require.False(t, lost.MayContinue(1, at(3), time.Hour))
	require.True(t, begun(broken{keepSending: true}).MayContinue(1, at(100), 0), "the broken one")
}

func TestRegistrationWhoseAnswerWasLostIsSettledByAHeartbeat(t *testing.T) {
	t.Parallel()
	m := waiting(t, broken{})
	require.Equal(t, []Action{SettleRow{Row: 7}}, m.Step(Beaten{Asked: at(1), Pulse: mark.Pulse{Own: []mark.Row{2, 7}}}))
	require.Empty(t, m.Step(Beaten{Asked: at(2), Pulse: mark.Pulse{Own: []mark.Row{2, 7}}}), "once")
}

// A heartbeat shows rows that are older than any answer that is still taken. Whatever became of the row since then, also when the store has removed it, nothing is sent.
func TestAnswerThatComesAfterItsRowMayHaveBeenSweptSendsNothing(t *testing.T) {
	t.Parallel()
	for _, removed := range []bool{false, true} {
		m := waiting(t, broken{})
		m.rules.Trust = time.Hour
		m.Step(Arrived{ID: 2, Entry: mark.Entry{Admission: mark.Admission{Guard: "g", Key: "k", Token: lock.Token(6)}, Raise: 6}, At: at(1)})
		require.Equal(t, []Action{SettleRow{Row: 3}}, m.Step(Beaten{Asked: at(7), Pulse: mark.Pulse{Own: []mark.Row{2, 3}}}))
		if removed {
			m.Step(Removed{Rows: []mark.Row{3}})
		}
		actions := m.Step(Registered{ID: 2, Result: mark.Registration{Decision: mark.Decision{Verdict: mark.Admitted}, Row: 3}, At: at(7.1)})
		require.Equal(t, Refuse{ID: 2, Reason: Unavailable, Err: errLateAnswer}, actions[len(actions)-1])
	}
}

func TestUnsettledRequestsAreCountedUntilSomebodySettlesThem(t *testing.T) {
	t.Parallel()
	unsettled := func() *Machine {
		m := waiting(t, broken{})
		m.Step(Looked{ID: 1, Sight: mark.Sight{Present: true, Mark: 6}, Asked: at(1), At: at(1)})
		m.Step(FirstByte{ID: 1, At: at(2)})
		require.Equal(t, []Action{UnsettleRow{Row: 2}, Counted{Guard: "g", Unsettled: 1}}, m.Step(Ended{ID: 1, Outcome: OutcomeUnknown}))
		require.Empty(t, m.Step(Ended{ID: 1, Outcome: OutcomeUnknown}))
		return m
	}
	none := Counted{Guard: "g"}
	require.Equal(t, []Action{none, SettleRow{Row: 2}}, unsettled().Step(Ended{ID: 1, Outcome: OutcomeSettled}), "a late response")
	m := unsettled()
	m.Step(Beaten{Asked: at(3), Pulse: mark.Pulse{Own: []mark.Row{2}}})
	require.Equal(t, []Action{none}, m.Step(Beaten{Asked: at(4)}), "an operator, or time")
	require.Equal(t, []Action{none}, unsettled().Step(LifeBegan{Asked: at(9)}), "another life: it is the store's business")
}

func TestOneKeyHoldsOnlyItsShareOfWaitingRequests(t *testing.T) {
	t.Parallel()
	m := waiting(t, broken{})
	m.rules.Waiting = 1
	m.Step(Arrived{ID: 2, Entry: mark.Entry{Admission: mark.Admission{Guard: "g", Key: "k", Token: lock.Token(6)}, Raise: 6}, At: at(1)})
	actions := m.Step(Registered{ID: 2, Result: mark.Registration{Decision: mark.Decision{Verdict: mark.Admitted}, Row: 3, Older: []mark.Row{1}}, At: at(1)})
	require.Equal(t, Refuse{ID: 2, Reason: Busy, Err: errTooManyWait}, actions[1])
}
