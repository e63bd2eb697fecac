package dispatch

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/transport"
)

// staged is a plan of three hops: into a local stage, across to the peer's stage, and on by the peer itself.
func staged(r *rig, slots int) (*plan.Plan, [3]plan.LinkID) {
	var links [3]plan.LinkID
	for i := range links {
		links[i] = r.link(uint32(i), 0, 1, 1<<20)
	}
	here, err := r.core.AddStage(StageSpec{Slots: slots, SlotBytes: 16 * kib, Local: 0x1000000, Remote: 0x2000000})
	require.Nil(r, err)
	there, err := r.core.AddStage(StageSpec{Slots: slots, SlotBytes: 32 * kib, Local: 0x3000000, Remote: 0x4000000})
	require.Nil(r, err)
	return &plan.Plan{Routes: []plan.Route{{Alignment: 1, SliceBest: 64 * kib, Hops: []plan.Hop{
		{Link: links[0], Op: transport.Write, Remote: here}, {Link: links[1], Op: transport.Write, Local: here,
			Remote: there},
		{Link: links[2], Op: transport.Write, Local: there}}}}}, links
}

func TestAPieceGoesThroughItsStages(t *testing.T) {
	r := newRig(t, Options{})
	p, links := staged(r, 4)
	b := r.submit(p, High, 24*kib, clock.Never)
	require.Len(t, r.out, 2, "cut by the smaller slot")
	one := *r.out[0]
	require.EqualValues(t, links[0], one.Rail.Link)
	require.EqualValues(t, []uint64{1 << 20, 0x2000000, 16 * kib}, []uint64{uint64(one.Local), one.Remote, one.Length})
	two := *r.finish(0, nil)[0]
	require.EqualValues(t, []uint64{uint64(links[1]), 0x1000000, 0x4000000},
		[]uint64{uint64(two.Rail.Link), uint64(two.Local), two.Remote})
	require.Zero(t, r.status(b).Bytes, "nothing is there before the last hop")
	three := *r.finish(1, nil)[0]
	require.EqualValues(t, []uint64{uint64(links[2]), 0x3000000, 1 << 30},
		[]uint64{uint64(three.Rail.Link), uint64(three.Local), three.Remote})
	r.finish(1, nil)
	require.EqualValues(t, 16*kib, r.status(b).Bytes)
	r.drain()
	require.Equal(t, Completed, r.status(b).State)
}

// A 32nd of the task fills the pipeline, in multiples of the alignment, 256 KiB at least and a slot at most.
func TestPiecesOfSeveralHopsAreSmallPartsOfTheirTask(t *testing.T) {
	for length, piece := range map[uint64]uint64{64 * kib: 64 * kib, 300 * kib: 256 * kib, 8 << 20: 256 * kib,
		16 << 20: 512 * kib, 20<<20 + 4*kib: 640 * kib, 1 << 30: 1 << 20} {
		r := newRig(t, Options{})
		near, far := r.link(0, 0, 1, 64<<20), r.link(1, 0, 1, 64<<20)
		pool, err := r.core.AddStage(StageSpec{Slots: 64, SlotBytes: 1 << 20, Local: 0x1000000, Remote: 0x2000000})
		require.Nil(t, err)
		p := &plan.Plan{Routes: []plan.Route{{Alignment: 4 * kib, Hops: []plan.Hop{
			{Link: near, Op: transport.Write, Remote: pool}, {Link: far, Op: transport.Write, Local: pool}}}}}
		b := r.submit(p, High, length, clock.Never)
		require.Equal(t, piece, r.out[0].Length, "of %d", length)
		r.drain()
		require.Equal(t, Completed, r.status(b).State)
		require.Equal(t, length, r.status(b).Bytes)
	}
}

func TestAFullStageIsBackpressureForItsTasksOnly(t *testing.T) {
	r := newRig(t, Options{})
	p, links := staged(r, 2)
	b := r.submit(p, High, 160*kib, clock.Never)
	require.Len(t, r.out, 2)
	direct := r.submit(to(r.core, links[0]), High, kib, clock.Never)
	require.Len(t, r.out, 3, "who needs no stage passes")
	for range 10 {
		r.finish(0, nil)
		require.LessOrEqual(t, len(r.out), 3)
	}
	r.drain()
	require.Equal(t, Completed, r.status(b).State)
	require.Equal(t, Completed, r.status(direct).State)
	for _, s := range r.core.stages[1:] {
		require.Len(t, s.free, 2)
	}
}

func TestSlotsOfADirtyPieceAreNotUsedAgain(t *testing.T) {
	r := newRig(t, Options{FenceNetwork: 10 * ms})
	p, _ := staged(r, 1)
	b := r.submit(p, High, kib, r.now.Add(ms))
	r.wait(ms)
	r.wait(10 * ms)
	require.True(t, r.status(b).Dirty)
	require.Empty(t, r.core.stages[1].free, "somebody may still write there")
	r.finish(0, withdrawn)
	require.Len(t, r.core.stages[1].free, 1)
}

func TestAFailedHopIsRepeatedNotTheWholeWay(t *testing.T) {
	r := newRig(t, Options{})
	p, links := staged(r, 1)
	b := r.submit(p, High, kib, clock.Never)
	r.finish(0, nil)
	r.finish(0, broken(errs.ScopeSlice))
	again := r.wait(ms)
	require.Len(t, again, 1)
	require.EqualValues(t, links[1], again[0].Rail.Link)
	r.drain()
	require.Equal(t, Completed, r.status(b).State)
}

// The end of a task takes its other pieces out of the list that is walked.
func TestPiecesThatWaitForASlotEndWithTheirPeer(t *testing.T) {
	r := newRig(t, Options{Failovers: 3})
	way := crossing(r, transport.Read, 2)
	direct := r.link(2, 2, 1, 1<<20)
	r.submit(way, High, 128*kib, clock.Never)
	holders := slices.Clone(r.out)
	require.Len(t, holders, 2, "they hold both slots")
	both := &plan.Plan{Routes: []plan.Route{to(r.core, direct).Routes[0], way.Routes[0]}}
	b := r.submit(both, High, 192*kib, clock.Never)
	for len(r.out) > len(holders) {
		r.finish(len(r.out)-1, broken(errs.ScopeTransport))
	}
	waiting := &r.core.stages[1].waiting[High].pieces
	require.Equal(t, 3, waiting.Len())
	r.core.PeerGone(2, broken(errs.ScopeLink), r.now)
	for _, s := range holders { // both slots are free before the next step
		r.core.Complete(1, []transport.Completion{{Slice: s, Id: s.Id, Err: withdrawn}}, r.now)
	}
	r.out = nil
	r.step()
	r.drain()
	require.Equal(t, Failed, r.status(b).State)
	require.Zero(t, waiting.Len())
}

// crossing is a plan of two hops over links of two peers: a copy of our own, and the way to the peer.
func crossing(r *rig, op transport.Op, slots int) *plan.Plan {
	info := &transport.Info{Vectors: true}
	own := r.core.AddLink(LinkSpec{Peer: 1, PeerName: "ourselves", Info: info})
	wire := r.core.AddLink(LinkSpec{Peer: 2, PeerName: "the peer", Transport: 1, Info: info})
	r.railUp(own, 0, 1, 8<<20)
	r.railUp(wire, 0, 1, 8<<20)
	stage, err := r.core.AddStage(StageSpec{Slots: slots, SlotBytes: 64 * kib, Local: 0x1000000, Remote: 0x2000000})
	require.Nil(r, err)
	route := plan.Route{Transport: 1, Crossing: 1, Vectors: true, Alignment: 1, Hops: []plan.Hop{
		{Link: own, Op: op, LocalKey: 1, Remote: stage}, {Link: wire, Op: op, LocalKey: 2, Local: stage}}}
	if op == transport.Read {
		route.Crossing, route.Hops[0], route.Hops[1] = 0, route.Hops[1], route.Hops[0]
	}
	return &plan.Plan{Routes: []plan.Route{route}}
}

// parts returns the ends of a slice's parts here and there.
func parts(s *transport.Slice) (local, remote []uint64) {
	for i := uint64(s.First); i < uint64(s.First)+s.Length/s.Pieces.Bytes; i++ {
		local = append(local, uint64(s.Local)+s.Pieces.LocalAt[i])
		remote = append(remote, s.Remote+s.Pieces.RemoteAt[i])
	}
	return local, remote
}

// Pages that lie apart fill a slot together: one slice gathers them there, and one scatters them.
func TestPagesShareASlot(t *testing.T) {
	const page = 16 * kib
	for _, op := range []transport.Op{transport.Write, transport.Read} {
		r := newRig(t, Options{})
		spec := withParts(crossing(r, op, 4), page, places(0, 9, 3*page), places(7, 9, 2*page))
		spec.Op = op
		b := r.submitAll(spec)
		require.Len(t, r.out, 3, "%v: of four pages, four and one", op)
		at := func(offset, stride uint64) (list []uint64) {
			for i := range uint64(4) {
				list = append(list, offset+i*stride)
			}
			return list
		}
		apart := func(s *transport.Slice) { // the end of a slice that is the region's
			local, remote := parts(s)
			if s.LocalKey == 1 {
				require.Equal(t, at(1<<20, 3*page), local)
				require.Equal(t, at(0x2000000, page), remote)
			} else {
				require.Equal(t, at(0x1000000, page), local)
				require.Equal(t, at(1<<30+7*2*page, 2*page), remote)
			}
		}
		first := r.out[0].LocalKey
		apart(r.out[0])
		next := r.finish(0, nil)[0]
		require.NotEqual(t, first, next.LocalKey)
		apart(next)
		r.drain()
		require.Equal(t, Completed, r.status(b).State)
		require.EqualValues(t, 9*page, r.status(b).Bytes)
		require.Len(t, r.core.stages[1].free, 4)
	}
}

// An error of our own copy names the peer that the transfer is for.
func TestAnErrorOfALocalHopNamesThePeer(t *testing.T) {
	r := newRig(t, Options{})
	b := r.submit(crossing(r, transport.Write, 1), High, kib, clock.Never)
	r.finish(0, errs.New(errs.AddressNotRegistered, "copy", "freed").WithScope(errs.ScopeSlice, errs.SideLocal))
	r.drain()
	require.Equal(t, Failed, r.status(b).State)
	require.Equal(t, "the peer", r.status(b).Err.Peer)
	late := r.submit(crossing(r, transport.Write, 1), High, kib, r.now.Add(ms))
	r.wait(ms)
	r.drain()
	require.Equal(t, "the peer", r.status(late).Err.Peer)
}

// A task is not stalled while others before it take turns at the slots, although its own links carry nothing.
func TestATaskThatWaitsForASlotDoesNotStallWhileSlotsMove(t *testing.T) {
	const turn, turns = 60 * ms, 5
	r := newRig(t, Options{Stall: 2 * turn, SilentAfter: time.Second, CondemnAfter: time.Second})
	own := r.link(0, 0, 1, 1<<20)
	stage, err := r.core.AddStage(StageSpec{Slots: 1, SlotBytes: kib, Local: 1 << 40})
	require.Nil(t, err)
	way := func(peer uint32) *plan.Plan {
		return &plan.Plan{Routes: []plan.Route{{Alignment: 1, SliceBest: kib, Hops: []plan.Hop{
			{Link: r.link(peer, 0, 1, 1<<20), Op: transport.Read, Local: stage},
			{Link: own, Op: transport.Write, Local: stage}}}}}
	}
	before := way(1)
	for range turns {
		r.submit(before, High, kib, clock.Never)
	}
	b := r.submit(way(2), High, kib, clock.Never)
	for range turns {
		require.Len(t, r.out, 1)
		r.finish(0, nil)
		r.wait(turn)
		require.Equal(t, Pending, r.status(b).State, "%v", r.status(b).Err)
		r.finish(0, nil)
	}
	r.drain()
	require.Equal(t, Completed, r.status(b).State)

	r.submit(before, High, kib, clock.Never)
	b = r.submit(way(3), High, kib, clock.Never)
	r.wait(2 * turn)
	require.Equal(t, Failed, r.status(b).State, "nothing moves")
	require.ErrorContains(t, r.status(b).Err, "no progress")
}

// A peer that holds its slots of a shared stage for ever leaves some to the others, which pass one after the other. It
// gets the rest as before, and all waiters are served when it goes on.
func TestAPeerLeavesSlotsOfASharedStageToOthers(t *testing.T) {
	const slots, spared = 16, 2
	r := newRig(t, Options{})
	own := r.link(0, 0, 1, 1<<20)
	stage, err := r.core.AddStage(StageSpec{Slots: slots, SlotBytes: kib, Local: 1 << 40, Shared: true})
	require.Nil(t, err)
	var plans [2]*plan.Plan
	var wires [2]plan.LinkID
	for i := range plans {
		wires[i] = r.link(uint32(i+1), 0, 1, 1<<20)
		plans[i] = &plan.Plan{Routes: []plan.Route{{Alignment: 1, SliceBest: kib, Hops: []plan.Hop{
			{Link: wires[i], Op: transport.Read, Local: stage}, {Link: own, Op: transport.Write, Local: stage}}}}}
	}
	stopped := r.submit(plans[0], High, 4*slots*kib, clock.Never)
	held := r.core.stages[stage]
	require.Len(t, held.free, spared)
	other := r.submit(plans[1], High, slots*kib, clock.Never)
	for !r.status(other).State.Terminal() {
		at := slices.IndexFunc(r.out, func(s *transport.Slice) bool { return s.Rail.Link != transport.Link(wires[0]) })
		require.GreaterOrEqual(t, at, 0, "the other peer waits for the one that has stopped")
		r.finish(at, nil)
	}
	require.Equal(t, Completed, r.status(other).State)
	require.Len(t, held.free, spared)
	r.drain()
	require.Equal(t, Completed, r.status(stopped).State)
	require.Len(t, held.free, slots)
}

// Tasks that wait for slots have them in the order in which they began to wait, however many come free at once.
func TestTasksThatWaitForSlotsHaveThemInTurn(t *testing.T) {
	const tasks, slots = 3, 2
	r := newRig(t, Options{})
	way := crossing(r, transport.Write, slots)
	batches := make([]BatchID, tasks)
	for i := range batches {
		batches[i] = r.submit(way, High, 64*64*kib, clock.Never)
	}
	for i := 0; ; i++ {
		require.Less(t, i, 1000)
		for _, s := range r.out {
			r.core.Complete(0, []transport.Completion{{Slice: s, Id: s.Id, Bytes: s.Length}}, r.now)
		}
		r.out = nil
		r.now++
		r.step()
		least, most := uint64(1<<63), uint64(0)
		for _, b := range batches {
			least, most = min(least, r.status(b).Bytes), max(most, r.status(b).Bytes)
		}
		require.LessOrEqual(t, most-least, uint64(2*slots*64*kib), "one task has the slots of another one")
		if least == 64*64*kib {
			return
		}
	}
}

// Order is strict where slots are waited for, too: a HIGH request does not wait until each LOW one has had a slot.
func TestSlotsGoToTheMostUrgentFirst(t *testing.T) {
	r := newRig(t, Options{})
	way := crossing(r, transport.Write, 2)
	for range 50 {
		r.submit(way, Low, 640*kib, clock.Never)
	}
	urgent := r.submit(way, High, 256*kib, clock.Never)
	require.Zero(t, r.status(urgent).Attempts, "no slot is free")
	for steps := 0; !r.status(urgent).State.Terminal(); steps++ {
		require.Less(t, steps, 10)
		r.finishAll()
	}
	require.Equal(t, Completed, r.status(urgent).State)
}

// A flood of HIGH leaves LOW its turns: a slot in each time-out of ageing.
func TestUrgentFloodsLeaveTurnsForSlots(t *testing.T) {
	r := newRig(t, Options{})
	way := crossing(r, transport.Write, 2)
	for range 50 {
		r.submit(way, High, 64<<20, clock.Never)
	}
	patient := r.submit(way, Low, 4*64*kib, clock.Never)
	begun := r.now
	for !r.status(patient).State.Terminal() {
		require.Less(t, r.now.Sub(begun), 100*ms, "four pieces, one in 10 ms")
		r.finishAll()
	}
	require.Greater(t, r.now.Sub(begun), 20*ms, "turns, and no more")
}

// A class may be unable to use the slot that is kept for its turn, since its link takes nothing. Others have it then,
// after a time, though nothing else happens meanwhile.
func TestASlotIsKeptForATurnForAWhile(t *testing.T) {
	r := newRig(t, Options{})
	way := crossing(r, transport.Write, 1)
	blocked := r.link(3, 0, 1, 1<<20)
	other := &plan.Plan{Routes: []plan.Route{way.Routes[0]}}
	other.Routes[0].Hops = slices.Clone(way.Routes[0].Hops)
	other.Routes[0].Hops[0].Link = blocked
	r.submit(way, High, 128*kib, clock.Never)
	patient := r.submit(other, Low, kib, clock.Never)
	r.core.link(blocked).rails[0].full = true
	r.now = r.now.Add(20 * ms)
	for len(r.out) > 0 {
		r.finish(0, nil)
	}
	urgent := r.submit(way, High, kib, clock.Never)
	require.Zero(t, r.status(urgent).Attempts, "the slot is kept")
	for kept := r.now; len(r.out) == 0; {
		r.now = r.core.Deadline()
		require.Less(t, r.now.Sub(kept), 100*ms)
		r.step()
	}
	r.drain()
	r.core.Ready(blocked, railOf(blocked, 0, 1))
	r.step()
	r.drain()
	require.Equal(t, Completed, r.status(urgent).State)
	require.Equal(t, Completed, r.status(patient).State)
}

// finishAll completes everything that is out, some time later.
func (r *rig) finishAll() {
	for _, s := range r.out {
		r.core.Complete(0, []transport.Completion{{Slice: s, Id: s.Id, Bytes: s.Length}}, r.now)
	}
	r.out = nil
	r.now = r.now.Add(100 * time.Microsecond)
	r.step()
}
