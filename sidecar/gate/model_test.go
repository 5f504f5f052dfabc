//go:build !race

package gate

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// systems are small enough to be tried wholly: two requests with everything that can go wrong, three with one thing at a time. The larger ones are
// for make test-long.
func systems() map[string]model {
	out := smallSystems()
	if os.Getenv("FENCELINE_MODEL") != "all" {
		for _, name := range []string{"both behind one sidecar, the same", "the new holder's second request, a stop", "three holders, a stop"} {
			delete(out, name)
		}
	}
	return out
}

func smallSystems() map[string]model {
	old, next, same := planned{0, 5, true, false}, planned{1, 6, false, false}, planned{0, 6, false, false}
	return map[string]model{
		"two holders, a kill, a stop, a late answer":  {plan: []planned{old, next}, kills: 1, stops: 1, unclear: 1},
		"a holder and a barrier, the same":            {plan: []planned{old, {1, 6, false, true}}, kills: 1, stops: 1, unclear: 1},
		"both behind one sidecar, the same":           {plan: []planned{old, same}, kills: 1, stops: 1, unclear: 1},
		"the new holder's second request, a kill":     {plan: []planned{old, next, same}, kills: 1},
		"the new holder's second request, a stop":     {plan: []planned{old, next, same}, stops: 1},
		"three holders, a stop":                       {plan: []planned{old, next, {0, 7, true, false}}, stops: 1},
		"three holders, a late answer":                {plan: []planned{old, next, {0, 7, true, false}}, unclear: 1},
		"a barrier and a write after it, late answer": {plan: []planned{old, {1, 6, false, true}, next}, unclear: 1},
	}
}

// TestEveryInterleavingKeepsTheOrderOfEffects is the model check.
func TestEveryInterleavingKeepsTheOrderOfEffects(t *testing.T) {
	t.Parallel()
	for name, system := range systems() {
		for _, releases := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, released by time %t", name, releases), func(t *testing.T) {
				t.Parallel()
				m := system
				m.releases, m.seen = releases, map[string]bool{}
				require.NoError(t, m.explore(m.start()))
				t.Logf("%d states, %d ends", m.states, m.ends)
			})
		}
	}
}

// TestModelFindsBrokenGates breaks the gate in one way after the other.
func TestModelFindsBrokenGates(t *testing.T) {
	t.Parallel()
	const outOfOrder = "forwarded while|took effect after"
	for name, c := range map[string]struct {
		model model
		says  string
	}{
		"it doesn't wait":                      {model{broken: broken{neverWait: true}}, outOfOrder},
		"nothing is registered":                {model{unlisted: true, broken: broken{noRecheck: true}}, outOfOrder},
		"the store looks before it raises":     {model{blind: true}, outOfOrder},
		"an unknown outcome counts as settled": {model{broken: broken{settleAll: true}}, outOfOrder},
		"no look at the clock":                 {model{broken: broken{noClock: true}}, outOfOrder},
		"it sends under a life that was lost":  {model{broken: broken{anyLife: true}}, outOfOrder},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var found error
			for _, system := range smallSystems() {
				m := c.model
				m.plan, m.kills, m.stops, m.unclear, m.seen = system.plan, system.kills, system.stops, system.unclear, map[string]bool{}
				if found = m.explore(m.start()); found != nil {
					break
				}
			}
			require.Error(t, found)
			require.Regexp(t, c.says, found.Error())
		})
	}
}
