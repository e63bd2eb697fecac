package tests

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
)

const (
	crowdEngines = 1000
	crowdActions = 1500
)

// circle is the near of a crowd: each engine has four peers, two beside it and two far away, and is theirs.
func circle(i int) (list []int) {
	for _, step := range []int{1, 61} {
		list = append(list, (i+step)%crowdEngines, (i+crowdEngines-step)%crowdEngines)
	}
	return list
}

// A thousand engines that come and go keep the promises of three. Each transfer ends, with its bytes or a reason, and
// every pair that is left makes progress. make sim runs more seeds.
func TestSimulationOfAThousandEnginesThatComeAndGo(t *testing.T) {
	first, n := simSeeds(1)
	arena := memory(t, crowdEngines*2*simSlots*simSlot)
	seen = map[string]int{}
	for seed := first; seed < first+max(1, n/1500); seed++ {
		r := newSimRun(t, uint64(seed), arena, crowdEngines, circle)
		t.Logf("seed %d", seed)
		r.advance(clock.Time(time.Millisecond))
		for range crowdActions {
			r.act()
			if r.random.IntN(50) == 0 {
				r.churn()
			}
			if r.random.IntN(8) == 0 {
				r.advance(clock.Time(r.random.IntN(int(time.Millisecond))))
			}
		}
		r.heal()
		r.settle("after the world was healed")
		r.demandProgress()
		r.secondLook()
	}
	t.Logf("%d transfers: %v", seen["COMPLETED"], seen)
	for _, what := range []string{"COMPLETED", "FAILED", "restart", "rerouted"} {
		require.NotZero(t, seen[what], "no run has seen it, so nothing was proved about it: %s", what)
	}
}

// churn ends some engines, and opens others in the places of those that ended before.
func (r *simRun) churn() {
	for range 5 {
		e := r.engines[r.random.IntN(len(r.engines))]
		if e.dead {
			r.restart(e)
		} else {
			r.kill(e)
		}
	}
	r.runAll()
}
