package dispatch

import (
	"math"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/plan"
)

// Predict returns how long the tasks of a batch from index first on should take. It follows from the bytes that wait
// before them and the rates of their rails. It stops looking once it has found more than enough. A route without rails
// takes math.MaxInt64, as does a gate.
func (c *Core) Predict(id BatchID, first int, enough time.Duration, now clock.Time) (longest time.Duration) {
	b, err := c.findBatch(id)
	if err != nil || first >= len(b.tasks) {
		return 0
	}
	var last *plan.Route
	for _, t := range b.tasks[first:] {
		if t.spec.Gate != 0 && c.gated(t) {
			return math.MaxInt64
		}
		route := t.path()
		if route == last || !t.live() { // neighbours usually share it, and wait in the same queue
			continue
		}
		last = route
		took := 0.0
		for i := range route.Hops {
			took += c.predictHop(&route.Hops[i], t.spec.Class, now)
		}
		if took >= math.MaxInt64 {
			return math.MaxInt64
		}
		if longest = max(longest, time.Duration(took)); longest > enough {
			return longest
		}
	}
	return longest
}

// predictHop returns when everything of a class and of those before it should have left a link, in ns. An assumed rate
// predicts nothing: a rail that carried only short bursts has none of its own, and may be done at any moment.
func (c *Core) predictHop(hop *plan.Hop, class uint8, now clock.Time) float64 {
	best := math.Inf(1)
	l := c.link(hop.Link)
	if l == nil || l.rank >= rankPaused {
		return best
	}
	waiting := uint64(0)
	for k := range l.queues[:class+1] {
		waiting += l.queues[k].bytes
	}
	share := waiting / uint64(max(l.good, 1))
	for _, r := range l.rails {
		if r != nil && r.rank == l.rank {
			if !r.meter.Measured() {
				return 0
			}
			best = min(best, r.predictFinish(share, now))
		}
	}
	return best
}
