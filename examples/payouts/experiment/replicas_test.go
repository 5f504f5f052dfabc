package experiment

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Each story once, on real processes; the twenty repeats are `make demo-replicas N=20`. The negative control is told last: a set-up that is said to keep the order of effects, and
// doesn't, is found.
// TestTwoReplicas plays the stories in which nobody is killed; those wait for seconds until a killed sidecar is declared dead, and are for make test-long (make
// demo-replicas N=20 judges all of them).
func TestTwoReplicas(t *testing.T) {
	ctx, b, out := newBench(t)
	control := ReplicaStory{Name: "control", Title: "order: admissions that is said to order effects"}
	var results []ReplicaResult
	stories := slices.DeleteFunc(ReplicaStories(), func(s ReplicaStory) bool { return s.Kill })
	require.Len(t, stories, 4)
	err := b.RunReplicas(ctx, append(stories, control), 1, time.Minute, func(r ReplicaResult) error {
		results = append(results, r)
		return nil
	})
	require.NoError(t, err, out)
	last := len(results) - 1
	for _, r := range results[:last] {
		require.NoError(t, JudgeReplicas(r))
	}
	require.ErrorContains(t, JudgeReplicas(results[last]), "took effect after")
	require.NoError(t, PrintReplicas(out, results))
	require.Contains(t, out.String(), "CORRUPTED")
}

func TestReplicasThatDidHarmOrProveNothingAreFound(t *testing.T) {
	t.Parallel()
	effects := ReplicaStory{Name: "effects", Title: "effects", Effects: true, Kill: true}
	takeover := ReplicaStory{Name: "takeover", Title: "takeover", Effects: true, Takeover: true}
	good := func() ReplicaResult {
		return ReplicaResult{Story: effects, TokenA: 2, TokenB: 3, Landed: []int64{1, 2, 3}, Busy: 1}
	}
	require.NoError(t, JudgeReplicas(good()))
	for says, harm := range map[string]func(r *ReplicaResult){
		"token 2 took effect after 3":    func(r *ReplicaResult) { r.Landed = []int64{1, 3, 2} },
		"took effect, want":              func(r *ReplicaResult) { r.Landed = []int64{1, 3} },
		"no takeover happened":           func(r *ReplicaResult) { r.TokenB = 2 },
		"nobody was held up":             func(r *ReplicaResult) { r.Busy = 0 },
		"proves nothing":                 func(r *ReplicaResult) { r.Story.Bad = true },
		"2 transfers for one payout":     func(r *ReplicaResult) { r.Story, r.Transfers = takeover, 2 },
		"takeover: nothing was transfer": func(r *ReplicaResult) { r.Story = takeover },
	} {
		r := good()
		harm(&r)
		require.ErrorContains(t, JudgeReplicas(r), says)
	}
	var out bytes.Buffer
	require.NoError(t, PrintReplicas(&out, []ReplicaResult{good(), {Story: takeover, Transfers: 2}}))
	require.Contains(t, out.String(), "0 of 1")
	require.Contains(t, out.String(), "1 of 1")
}

func TestBytesWaitingAreThoseOfTheListenersConnections(t *testing.T) {
	t.Parallel()
	const table = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000001 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0
   1: 0100007F:1F90 0100007F:D431 01 00000000:00000102 00:00000000 00000000     0        0 0 1 0 20 4 30 10 -1
   2: 0100007F:D431 0100007F:1F90 01 00000007:00000009 00:00000000 00000000     0        0 0 1 0 20 4 30 10 -1
`
	require.Equal(t, int64(0x102), bytesWaiting(table, "8080"))
	require.Zero(t, bytesWaiting(table, "8081"))
}
