package dispatch

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/rail"
	"github.com/tent-engine/tent/gocore/transport"
)

// slowPaths counts the events about slow paths.
func (r *race) slowPaths() (began, over int) {
	return r.check.seen["slow_path"], r.check.seen["slow_path_over"]
}

func TestAFullRailBelowHalfOfItsRateIsASlowPath(t *testing.T) {
	r := newRace(t, Options{}, 100*megabyte)
	r.took(r.start(300<<20, High)) // its usual rate is known
	began, _ := r.slowPaths()
	require.Zero(t, began)
	require.False(t, r.core.Rails()[0].Slow)
	r.wire(0).rate = 30 * megabyte
	r.took(r.start(100<<20, High))
	began, over := r.slowPaths()
	require.Equal(t, [2]int{1, 0}, [2]int{began, over}, "one event, however long it lasts")
	require.True(t, r.core.Rails()[0].Slow)
	require.Equal(t, uint64(1), r.core.Gauges(0).SlowPaths)
	slow := r.core.link(r.link).rails[0]
	require.Contains(t, slow.whySlow(100*megabyte), "MB/s of usual 100.0 MB/s; the path itself: look at speed")
	r.wire(0).rate = 100 * megabyte
	r.took(r.start(300<<20, High))
	began, over = r.slowPaths()
	require.Equal(t, [2]int{1, 1}, [2]int{began, over})
	require.False(t, r.core.Rails()[0].Slow)
}

// A GPU copies its own memory a hundred times faster than memory that crosses the processor.
func TestARailWhoseRateIsThatOfTheMemoryIsNoSlowPath(t *testing.T) {
	r := newRace(t, Options{}, 100*megabyte)
	r.core.link(r.link).rails[0].info.Varied = true
	r.took(r.start(300<<20, High))
	r.wire(0).rate = 3 * megabyte
	r.took(r.start(10<<20, High))
	began, _ := r.slowPaths()
	require.Zero(t, began)
	require.False(t, r.core.Rails()[0].Slow)
}

// The rate of a rail with little to do, or of LOW in its small window, is the caller's and not the path's.
func TestARailWithLittleToDoIsNoSlowPath(t *testing.T) {
	r := newRace(t, Options{}, 100*megabyte)
	r.took(r.start(300<<20, High))
	for range 300 {
		r.took(r.start(64<<10, High))
		r.run(r.now.Add(10*time.Millisecond), func() bool { return false })
	}
	began, _ := r.slowPaths()
	require.Zero(t, began)
}

// Two peers on one NIC have half of it each. That is no slow path; half of that is one.
func TestAShareOfAFullNICIsNoSlowPath(t *testing.T) {
	r := newRace(t, Options{}, 100*megabyte)
	other := r.core.AddLink(LinkSpec{Peer: 1, PeerName: "other", Info: &transport.Info{}, Probes: true})
	r.check.links[other], r.check.probes[other] = &linkFacts{}, true
	r.addRail(other, 0, 100*megabyte, 50*time.Microsecond, 4<<20, 256)
	both := []*plan.Plan{r.plan, {Routes: []plan.Route{{Hops: []plan.Hop{{Link: other, Op: transport.Write}},
		SliceMax: 1 << 20, SliceBest: 1 << 20, Alignment: unit}}}}
	load := func(rate float64) {
		var waits []*known
		for i, p := range both {
			r.wire(i).rate = rate
			r.plan = p
			waits = append(waits, r.start(uint64(4*rate)&^(1<<20-1), High))
		}
		for _, k := range waits {
			r.took(k)
		}
	}
	for _, p := range both { // each alone has the whole NIC
		r.plan = p
		r.took(r.start(300<<20, High))
	}
	load(45 * megabyte)
	began, _ := r.slowPaths()
	require.Zero(t, began)
	load(15 * megabyte)
	began, _ = r.slowPaths()
	require.Equal(t, 2, began)
}

// A window that is too small for the delay is a cause of its own: its knob is the window.
func TestASmallWindowIsTheCauseOfASlowPath(t *testing.T) {
	r := newRace(t, Options{})
	r.addRail(r.link, 0, 1000*megabyte, 20*time.Millisecond, 256<<10, 256)
	slow := r.core.link(r.link).rails[0]
	slow.pace.Reset(1000 * megabyte)
	r.took(r.start(1<<20, High))
	r.took(r.start(64<<10, High)) // alone on the rail: the delay is known
	r.took(r.start(64<<20, High))
	began, _ := r.slowPaths()
	require.Equal(t, 1, began)
	require.Contains(t, slow.whySlow(1000*megabyte),
		"MB/s of nominal 1000.0 MB/s; the window of 262144 bytes allows no more")
}

// A fast rail that refuses at once has room for each try. Before that ends a task, a slow rail of the same health has
// its chance.
func TestASlowRailIsTriedBeforeATaskFails(t *testing.T) {
	for _, rounds := range []int{1, 8} {
		r := newRig(t, Options{Retries: rounds, RetryAfter: ms, SuspectAfter: time.Second,
			Rail: rail.Settings{Threshold: 100, Step: 1001}})
		id := r.link(1, 0, 1, 1<<20)
		r.core.RailUp(id, transport.RailInfo{Rail: railOf(id, 1, 1), Local: "a", Remote: "c", BytesMax: 1 << 20,
			Bandwidth: 1e7}, r.now)
		b := r.submit(to(r.core, id), High, 64*kib, clock.Never)
		for tries := 0; r.status(b).State == Pending; r.wait(ms) {
			for len(r.out) > 0 {
				if r.out[0].Rail.Index == 1 {
					r.finish(0, nil)
					continue
				}
				tries++
				require.Less(t, tries, 20)
				r.finish(0, broken(errs.ScopeRail))
			}
		}
		require.Equal(t, Completed, r.status(b).State, "%d rounds", rounds)
	}
}
