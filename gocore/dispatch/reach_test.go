package dispatch

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/rail"
	"github.com/tent-engine/tent/gocore/request"
	"github.com/tent-engine/tent/gocore/transport"
)

// onRails is a plan over links; its first route may use some rails only.
func onRails(c *Core, rails uint64, links ...plan.LinkID) *plan.Plan {
	p := to(c, links...)
	p.Routes[0].Hops[0].Rails = rails
	return p
}

func notHere() *errs.Error {
	return errs.New(errs.NotHere, "test", "no key").WithScope(errs.ScopeRail, errs.SideLocal)
}

// used is the set of rails on which slices are out.
func (r *rig) used() (rails uint64) {
	for _, s := range r.out {
		rails |= 1 << s.Rail.Index
	}
	return rails
}

func TestSlicesAreCutForTheRailsOfTheirKeys(t *testing.T) {
	for _, rails := range []uint64{0b0001, 0b1000, 0b0110, 0b1111} {
		r := newRig(t, Options{})
		id := r.link(1, 1, 4, 1<<20)
		b := r.submit(onRails(r.core, rails, id), High, 4<<20, clock.Never)
		require.Equal(t, rails, r.used())
		free := r.submit(to(r.core, id), High, 4<<20, clock.Never)
		require.Equal(t, uint64(0b1111), r.used(), "others pass those that wait for their rails")
		r.drain()
		require.Equal(t, []State{Completed, Completed}, []State{r.status(b).State, r.status(free).State})
	}
}

// A rail of a worse rank is better than none for a task that may use no other.
func TestPausedRailsAndAlternatesServeTheKeysThatWorkNowhereElse(t *testing.T) {
	r := newRig(t, Options{})
	id := r.link(1, 1, 2, 1<<20)
	r.core.RailUp(id, transport.RailInfo{Rail: railOf(id, 2, 1), Local: "x", Remote: "y", Alternates: true,
		BytesMax: 1 << 20, Bandwidth: 1e9}, r.now)
	r.submit(to(r.core, id), High, 4<<20, clock.Never)
	require.Equal(t, uint64(0b011), r.used())
	r.submit(onRails(r.core, 0b100, id), High, 64*kib, clock.Never)
	require.Equal(t, uint64(0b111), r.used())
	r.drain()
	b := r.submit(onRails(r.core, 0b010, id), High, 512*kib, clock.Never)
	for range 3 { // the threshold
		r.finish(0, broken(errs.ScopeRail))
	}
	require.Equal(t, rail.Paused, r.core.links[id.Slot()].rails[1].life.State())
	for i := 0; i < 10; i++ {
		r.drain()
		r.wait(ms)
	}
	r.drain()
	require.Equal(t, Completed, r.status(b).State)
}

func TestATaskWhoseRailsAreOutTakesItsNextRoute(t *testing.T) {
	for _, used := range []bool{false, true} { // it may have been at any time, compared with the stall limit
		for _, idle := range []time.Duration{0, time.Minute} {
			t.Run(fmt.Sprintf("used %v, idle for %v", used, idle), func(t *testing.T) {
				r := newRig(t, Options{Failovers: 3})
				first, second := r.link(1, 0, 2, 1<<20), r.link(1, 1, 1, 1<<20)
				if used {
					r.submit(to(r.core, first), High, 256*kib, clock.Never)
					r.drain()
				}
				r.wait(idle)
				leaveRailsThatAreOut(t, r, first, second)
			})
		}
	}
}

// leaveRailsThatAreOut takes the second rail of the first link away from a task that may use no other one there.
func leaveRailsThatAreOut(t *testing.T, r *rig, first, second plan.LinkID) {
	b := r.submit(onRails(r.core, 0b10, first, second), High, 256*kib, clock.Never)
	require.Equal(t, uint64(0b10), r.used())
	r.core.RailDown(first, railOf(first, 1, 1), broken(errs.ScopeRail), r.now)
	r.step()
	for _, s := range r.out[4:] {
		require.Equal(t, transport.Link(second), s.Rail.Link, "the other rail of the first link is no use")
	}
	require.Len(t, r.out, 8)
	r.drain()
	require.Equal(t, Completed, r.status(b).State)
	c := r.submit(onRails(r.core, 0b10, first, second), High, 64*kib, clock.Never)
	require.Equal(t, transport.Link(second), r.out[0].Rail.Link, "nor does another task begin there")
	r.drain()
	require.Equal(t, Completed, r.status(c).State)
}

// Without another route it waits for its rails, for as long as for a link, while other rails work on.
func TestATaskWhoseRailsAreOutWaitsForThem(t *testing.T) {
	for _, back := range []bool{true, false} {
		r := newRig(t, Options{LinkWait: 200 * ms, Outage: 200 * ms})
		id := r.link(1, 1, 2, 1<<20)
		b := r.submit(onRails(r.core, 0b100, id), High, 64*kib, clock.Never)
		for range 15 {
			r.submit(to(r.core, id), High, 64*kib, clock.Never)
			require.Zero(t, r.used()&0b100)
			r.drain()
			r.wait(10 * ms)
		}
		require.Equal(t, Pending, r.status(b).State)
		if back {
			r.railUp(id, 2, 1, 1<<20)
			r.step()
			require.Equal(t, uint64(0b100), r.used())
			r.drain()
			require.Equal(t, Completed, r.status(b).State)
			continue
		}
		for range 10 {
			r.wait(10 * ms)
		}
		require.Equal(t, Failed, r.status(b).State)
		require.Equal(t, errs.PeerUnreachable, r.status(b).Err.Code)
	}
}

// stranded is a healthy rail 0 beside n tasks, or pieces of tasks, with keys for rail 1 only, which is out.
func stranded(t *testing.T, n int, pieces bool, deadline clock.Time) (r *rig, id plan.LinkID) {
	r = newRig(t, Options{Rails: []RailOptions{{}, {ByDeadline: deadline != clock.Never}}})
	id = r.link(1, 1, 2, 64<<20)
	specs := []TaskSpec{{Terms: request.Terms{Op: transport.Write, Deadline: deadline}, Local: 1 << 30,
		Plan: onRails(r.core, 0b10, id), Length: uint64(n) * 64 * kib}}
	if pieces {
		for r.submitAll(specs...); len(r.out) < n; r.step() {
		}
	}
	r.core.RailDown(id, railOf(id, 1, 1), broken(errs.ScopeRail), r.now)
	for len(r.out) > 0 {
		r.finish(0, broken(errs.ScopeRail))
	}
	if !pieces {
		specs[0].Length = 64 * kib
		for i := range n {
			specs[0].Remote = uint64(i) * 64 * kib
			r.submitAll(specs...)
		}
	}
	require.Empty(t, r.out)
	return r, id
}

// Work hides nothing while its rails are out, however much there is of it, and goes on in its order when they are back.
func TestAHealthyRailIsUsedBesideAnyAmountOfWorkThatMayNotUseIt(t *testing.T) {
	for _, n := range []int{1, lookBehindMost, lookBehindMost + 1, 200} {
		for _, pieces := range []bool{false, true} {
			for _, urgent := range []bool{false, true} {
				t.Run(fmt.Sprintf("%d, pieces %v, deadlines %v", n, pieces, urgent), func(t *testing.T) {
					deadline := clock.Never
					if urgent {
						deadline = uptime(0).Add(1 << 62)
					}
					r, id := stranded(t, n, pieces, deadline)
					free := r.submit(to(r.core, id), High, 64*kib, deadline)
					require.Equal(t, uint64(0b01), r.used())
					r.finish(0, broken(errs.ScopeSlice)) // a piece waits behind theirs now
					r.wait(2 * ms)
					require.Equal(t, uint64(0b01), r.used())
					r.drain()
					require.Equal(t, Completed, r.status(free).State)

					r.railUp(id, 1, 2, 64<<20)
					var order []uint64
					for r.step(); len(r.out) > 0; r.finish(0, nil) {
						order = append(order, r.out[0].Remote)
					}
					require.Len(t, order, n)
					require.True(t, slices.IsSorted(order))
					require.Zero(t, r.core.Pending())
				})
			}
		}
	}
}

// A refusal of keys is not the rail's failure, and no slice of the task comes back to the rail.
func TestARailThatRefusesAKeyKeepsItsHealth(t *testing.T) {
	r := newRig(t, Options{Failovers: 3})
	id, other := r.link(1, 0, 3, 256*kib), r.link(1, 1, 1, 1<<20)
	refuses := map[uint16]bool{0: true, 2: true}
	b := r.submit(to(r.core, id, other), High, 4<<20, clock.Never)
	refused := map[uint16]int{}
	for i := 0; len(r.out) > 0; i++ {
		require.Less(t, i, 1000)
		s := r.out[0]
		require.Equal(t, transport.Link(id), s.Rail.Link)
		if refuses[s.Rail.Index] {
			refused[s.Rail.Index]++
			r.finish(0, notHere())
		} else {
			r.finish(0, nil)
		}
	}
	require.Equal(t, Completed, r.status(b).State)
	require.LessOrEqual(t, refused[0]+refused[2], 8, "those that were out, and none after them")
	for _, rail := range r.core.links[id.Slot()].rails {
		require.Equal(t, 1000, rail.health.Value())
		require.True(t, rail.healthy())
	}
	refuses[1] = true
	b = r.submit(to(r.core, id, other), High, 1<<20, clock.Never)
	for i := 0; len(r.out) > 0; i++ {
		require.Less(t, i, 1000)
		if s := r.out[0]; s.Rail.Link == transport.Link(id) {
			r.finish(0, notHere())
		} else {
			r.finish(0, nil)
		}
	}
	require.Equal(t, Completed, r.status(b).State)
	require.EqualValues(t, 1, r.status(b).Failovers)
}

// Each link of a staged task may refuse its keys on some rails. The last one that did is remembered alone, so the work
// that was set aside on another one goes on there.
func TestWorkThatWasSetAsideGoesOnWhenItsBarIsForgotten(t *testing.T) {
	r := newRig(t, Options{})
	near, far := r.link(0, 0, 2, 64*kib), r.link(1, 0, 2, 1<<20)
	pool, err := r.core.AddStage(StageSpec{Slots: 64, SlotBytes: 64 * kib, Local: 0x1000000, Remote: 0x2000000})
	require.Nil(t, err)
	b := r.submit(&plan.Plan{Routes: []plan.Route{{Alignment: 4 * kib, SliceBest: 32 * kib, Hops: []plan.Hop{
		{Link: near, Op: transport.Write, Remote: pool}, {Link: far, Op: transport.Write, Local: pool}}}}},
		High, 1<<20, clock.Never)
	on := func(link plan.LinkID, index ...uint16) int {
		return slices.IndexFunc(r.out, func(s *transport.Slice) bool {
			return plan.LinkID(s.Rail.Link) == link && slices.Contains(index, s.Rail.Index)
		})
	}
	for i := on(near, 0); i >= 0; i = on(near, 0) {
		r.finish(i, notHere())
	}
	r.finish(on(near, 1), nil)
	lost := errs.New(errs.Lost, "test", "the rail has broken").WithScope(errs.ScopeRail, errs.SideLocal)
	r.core.RailDown(near, railOf(near, 1, 1), lost, r.now)
	r.step()
	r.submit(to(r.core, near), High, 4*kib, clock.Never) // it looks past the work before it
	aside := &r.core.links[near.Slot()].queues[High].aside
	require.Positive(t, aside.tasks.Len()+aside.pieces.Len())
	r.finish(on(far, 0, 1), notHere())
	require.Zero(t, aside.tasks.Len()+aside.pieces.Len())
	r.drain()
	require.Equal(t, Completed, r.status(b).State)
}

func TestATaskWhoseKeysWorkNowhereFails(t *testing.T) {
	r := newRig(t, Options{})
	id := r.link(1, 0, 4, 256*kib)
	b := r.submit(to(r.core, id), High, 4<<20, clock.Never)
	for i := 0; len(r.out) > 0; i++ {
		require.Less(t, i, 100)
		r.finish(0, notHere())
	}
	require.Equal(t, Failed, r.status(b).State)
	require.Equal(t, errs.NotHere, r.status(b).Err.Code)
}

// Where the transport knows how far its rails are, that counts instead of the NUMA node.
func TestTheTransportSaysHowFarItsRailsAre(t *testing.T) {
	r := newRig(t, Options{})
	id := r.onNodes(0, 0, 0)
	p := from(r.core, 0, id)
	p.Routes[0].Hops[0].Near = []uint8{transport.Farthest, transport.Nearest, transport.Far}
	r.submit(p, High, 384*kib, clock.Never)
	require.ElementsMatch(t, []int{1, 1, 2, 2, 0, 0}, r.taken())
	first := map[int]uint64{}
	for _, s := range r.out {
		if i := int(s.Rail.Index); first[i] == 0 || s.Id < first[i] {
			first[i] = s.Id
		}
	}
	require.Less(t, first[1], first[2])
	require.Less(t, first[2], first[0])
	r.drain()
}

// Both ends of a rail have a distance, and the farther one counts: by the transport's word, or by the nodes here.
func TestTheFartherEndOfARailCounts(t *testing.T) {
	for _, c := range []struct {
		name        string
		near, there []uint8
		nodes       [3]int // of the rails; the memory is on node 0
		first       int    // the rail that is near at both ends
	}{
		{"the transport knows both", []uint8{transport.Nearest, transport.Far, transport.Nearest},
			[]uint8{transport.Farthest, transport.Nearest, transport.Nearest}, [3]int{0, 0, 0}, 2},
		{"nodes here", nil, []uint8{transport.Farthest, transport.Nearest, transport.Nearest}, [3]int{0, 0, 1}, 1},
		{"only there", nil, []uint8{transport.Nearest, transport.Far, transport.Far}, [3]int{0, 0, 0}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, Options{})
			p := from(r.core, 0, r.onNodes(c.nodes[:]...))
			p.Routes[0].Hops[0].Near, p.Routes[0].Hops[0].There = c.near, c.there
			r.submit(p, High, 128*kib, clock.Never)
			require.Equal(t, []int{c.first, c.first}, r.taken())
			r.drain()
		})
	}
}

// Calls that are carried out at once go over a rail of the keys, too.
func TestInlineCallsKeepToTheRailsOfTheirKeys(t *testing.T) {
	r := newRig(t, Options{})
	id := r.core.AddLink(LinkSpec{Peer: 1, PeerName: "peer", Info: &transport.Info{SliceMax: 1 << 20}})
	for i := range 3 {
		r.railUp(id, i, 1, 1<<20)
	}
	for rails, want := range map[uint64]int{0: 0, 0b100: 2, 0b110: 1, 0b1000: -1} {
		b, err := r.core.NewBatch(1)
		require.Nil(t, err)
		specs := []TaskSpec{{Terms: request.Terms{Op: transport.Write, Deadline: r.now.Add(time.Second)},
			Plan: onRails(r.core, rails, id), Local: 1 << 20, Remote: 1 << 20, Length: 64}}
		held, ok := r.core.Reserve(b, specs, r.now)
		require.Equal(t, want >= 0, ok)
		if ok {
			require.EqualValues(t, want, held.Rail.Index)
			r.core.Unreserve(&held)
		}
	}
}

// A fast rail without a window of its own has half a millisecond of its bandwidth in flight.
func TestTheWindowFollowsTheBandwidth(t *testing.T) {
	for bandwidth, want := range map[float64]uint64{0: 4 << 20, 1e9: 4 << 20, 50e9: 25e6, 450e9: 225e6} {
		r := newRig(t, Options{})
		id := r.core.AddLink(LinkSpec{Peer: 1, PeerName: "peer", Info: &transport.Info{}})
		r.core.RailUp(id, transport.RailInfo{Rail: railOf(id, 0, 1), Bandwidth: bandwidth}, r.now)
		require.Equal(t, want, r.core.links[id.Slot()].rails[0].bytesMax)
	}
}
