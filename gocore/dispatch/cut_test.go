package dispatch

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/request"
	"github.com/tent-engine/tent/gocore/transport"
)

func TestNothingIsCutBeforeARailHasRoom(t *testing.T) {
	r := newRig(t, Options{})
	b := r.submit(to(r.core, r.link(1, 0, 1, 128*kib)), High, 1000*kib, clock.Never)
	require.Len(t, r.out, 2, "a window of two slices")
	require.EqualValues(t, 128*kib, sum(r.out))
	require.Empty(t, r.step())
	require.Len(t, r.finish(0, nil), 1)
	require.EqualValues(t, 64*kib, r.status(b).Bytes)
	r.drain()
	require.Equal(t, Status{State: Completed, Attempts: 1, Bytes: 1000 * kib}, r.status(b))
}

func TestSlicesFollowEachOtherWithoutGapOrOverlap(t *testing.T) {
	r := newRig(t, Options{})
	r.submit(to(r.core, r.link(1, 0, 2, 1<<20)), High, 1000*kib+7, clock.Never)
	next := uint64(0)
	for next < 1000*kib+7 {
		found := false
		for _, s := range r.out {
			if s.Remote-1<<30 == next && uint64(s.Local)-1<<20 == next {
				next, found = next+s.Length, true
			}
		}
		require.True(t, found, "nobody carries the byte at %d", next)
	}
	require.EqualValues(t, next, sum(r.out))
}

func TestASlowRailTakesLess(t *testing.T) {
	r := newRig(t, Options{})
	id := r.core.AddLink(LinkSpec{Peer: 1, Transport: 0})
	for i, rate := range []float64{3e9, 1e9} {
		r.core.RailUp(id, transport.RailInfo{Rail: railOf(id, i, 1), BytesMax: 4 << 20, Bandwidth: rate}, r.now)
	}
	r.submit(to(r.core, id), High, 16*64*kib, clock.Never)
	var bytes [2]uint64
	for _, s := range r.out {
		bytes[s.Rail.Index] += s.Length
	}
	require.EqualValues(t, [2]uint64{12 * 64 * kib, 4 * 64 * kib}, bytes, "shares are as the rates")
}

func TestLowLeavesRoomForHigh(t *testing.T) {
	r := newRig(t, Options{})
	p := to(r.core, r.link(1, 0, 1, 4<<20))
	r.ruffle(p)
	r.submit(p, Low, 64<<20, clock.Never)
	inFlight := sum(r.out)
	require.LessOrEqual(t, inFlight, uint64(512*kib), "half a millisecond at 1 GB/s")
	before := len(r.out)
	r.submit(p, High, 4*kib, clock.Never)
	require.Len(t, r.out, before+1, "HIGH goes at once")
	require.EqualValues(t, High, r.out[before].Class)
	require.Empty(t, r.finish(before, nil), "and its room is not for LOW, whose window is full")
}

// A NIC on which nothing urgent was wanted for a second is LOW's, until something is.
func TestACalmRailIsLows(t *testing.T) {
	r := newRig(t, Options{})
	id := r.link(1, 0, 1, 8<<20)
	r.measure(id, 1e9)
	p := to(r.core, id)
	r.submit(p, Low, 64<<20, clock.Never)
	require.InDelta(t, 4_000_000, sum(r.out), 1_000_000, "4 ms at 1 GB/s")
	r.submit(p, Medium, 4*kib, clock.Never)
	r.finishOf(Medium)
	for sum(r.out) > 512*kib {
		before := len(r.out)
		require.Empty(t, r.finishOf(Low), "LOW gets nothing before half a millisecond is left of it")
		require.Len(t, r.out, before-1)
	}
}

// Slices of some transports cannot be taken back, so HIGH would wait for those of LOW.
func TestSlicesOfLowAreShortWhereHighMayCome(t *testing.T) {
	r := newRig(t, Options{})
	id := r.link(1, 0, 1, 8<<20)
	r.measure(id, 1e9)
	p := to(r.core, id)
	p.Routes[0].SliceLow = 4 * kib
	longest := func() (n uint64) {
		for _, s := range r.out {
			if s.Class == Low {
				n = max(n, s.Length)
			}
		}
		return n
	}
	r.submit(p, Low, 64<<20, clock.Never)
	require.EqualValues(t, 64*kib, longest(), "nobody else wants the NIC")
	r.submit(p, High, 4*kib, clock.Never)
	r.finishOf(High)
	for range 200 {
		r.finishOf(Low)
	}
	require.EqualValues(t, 4*kib, longest())
	r.submit(p, High, 1<<20, clock.Never)
	require.EqualValues(t, 1<<20, classes(r.out)[High])
	for _, s := range r.out {
		require.False(t, s.Class == High && s.Length < 64*kib, "those of HIGH stay long")
	}
}

func TestClassesAreServedInOrder(t *testing.T) {
	r := newRig(t, Options{})
	id := r.core.AddLink(LinkSpec{Peer: 1})
	r.core.RailUp(id, transport.RailInfo{Rail: railOf(id, 0, 1), SlicesMax: 1}, r.now)
	p := to(r.core, id)
	for _, class := range []uint8{Low, Low, Medium, High} {
		r.submit(p, class, 4*kib, clock.Never)
	}
	var order []uint8
	for len(r.out) > 0 {
		order = append(order, r.out[0].Class)
		r.finish(0, nil)
	}
	require.Equal(t, []uint8{Low, High, Medium, Low}, order, "the first one was alone when it was cut")
}

// A request goes behind the one before it in its call only where it is alike.
func TestTheRequestsOfACallAreServedByTheirOwnClasses(t *testing.T) {
	r := newRig(t, Options{})
	id := r.core.AddLink(LinkSpec{Peer: 1})
	r.core.RailUp(id, transport.RailInfo{Rail: railOf(id, 0, 1), SlicesMax: 1}, r.now)
	p := to(r.core, id)
	var specs []TaskSpec
	for _, class := range []uint8{Low, Low, Medium, High, Low} {
		specs = append(specs, TaskSpec{Terms: request.Terms{Op: transport.Write, Class: class}, Plan: p, Local: 1,
			Remote: 1, Length: 4 * kib})
	}
	r.submitAll(specs...)
	var order []uint8
	for len(r.out) > 0 {
		order = append(order, r.out[0].Class)
		r.finish(0, nil)
	}
	require.Equal(t, []uint8{High, Medium, Low, Low, Low}, order)
}

func TestTheRequestsOfACallTakeOnlyRoutesThatFitThem(t *testing.T) {
	r := newRig(t, Options{})
	aligned, every := r.link(1, 0, 1, 1<<20), r.link(1, 1, 1, 1<<20)
	p := to(r.core, aligned, every)
	p.Routes[0].Alignment = 4 * kib
	var specs []TaskSpec
	for _, length := range []uint64{4 * kib, 100, 8 * kib} {
		specs = append(specs, TaskSpec{Terms: request.Terms{Op: transport.Write}, Plan: p, Local: 4 * kib,
			Remote: 4 * kib, Length: length})
	}
	r.submitAll(specs...)
	route := map[uint64]transport.Link{}
	for _, s := range r.out {
		route[s.Length] = s.Rail.Link
	}
	require.Equal(t, map[uint64]transport.Link{4 * kib: transport.Link(aligned), 100: transport.Link(every),
		8 * kib: transport.Link(aligned)}, route)
}

// Expiry gives the head of a class one slice, not the queue.
func TestAgeingGrantsTurns(t *testing.T) {
	r := newRig(t, Options{})
	p := to(r.core, r.link(1, 0, 1, 64*kib))
	r.submit(p, High, 64<<20, clock.Never)
	r.submit(p, Low, 1<<20, clock.Never)
	turns := map[uint8]int{}
	for range 1000 { // 100 ms
		r.now = r.now.Add(ms / 10)
		for _, s := range r.finish(0, nil) {
			turns[s.Class]++
		}
	}
	require.InDelta(t, 10, turns[Low], 2, "one slice for each 10 ms")
	require.Greater(t, turns[High], 900)
}

func TestMergedTasksReportApart(t *testing.T) {
	r := newRig(t, Options{Merge: true, RetryAfter: ms})
	p := to(r.core, r.link(1, 0, 1, 1<<20))
	var specs []TaskSpec
	for i := range 4 {
		offset := uint64(i) * 4 * kib
		if i == 3 {
			offset += 1 // does not continue
		}
		specs = append(specs, TaskSpec{Terms: request.Terms{Op: transport.Write}, Plan: p,
			Local: 1<<20 + uintptr(offset), Remote: 1<<30 + offset,
			Length: 4 * kib})
	}
	b := r.submitAll(specs...)
	require.Len(t, r.out, 2)
	require.EqualValues(t, 12*kib, r.out[0].Length)
	r.finish(0, broken(0))
	_, err := r.core.Cancel(b, 1, 1, r.now)
	require.Nil(t, err)
	r.wait(2 * ms)
	require.Len(t, r.out, 3, "each on its own now")
	r.drain()
	for i, want := range []Status{{State: Completed, Attempts: 2, Bytes: 4 * kib},
		{State: Canceled, Attempts: 1, Err: errCanceled},
		{State: Completed, Attempts: 2, Bytes: 4 * kib}, {State: Completed, Attempts: 1, Bytes: 4 * kib}} {
		got, err := r.core.Status(b, i)
		require.Nil(t, err)
		require.Equal(t, want, got, "task %d", i)
	}
}

func TestTasksThatDifferAreNotMerged(t *testing.T) {
	for name, change := range map[string]func(*TaskSpec){
		"class": func(s *TaskSpec) { s.Class = Low }, "deadline": func(s *TaskSpec) { s.Deadline = 1 << 60 },
		"operation": func(s *TaskSpec) { s.Op = transport.Read }, "remote": func(s *TaskSpec) { s.Remote++ },
		"plan": func(s *TaskSpec) { other := *s.Plan; s.Plan = &other }, "nothing": func(*TaskSpec) {},
		"integrity": func(s *TaskSpec) { s.Integrity = request.IntegrityCRC32C },
		"epoch":     func(s *TaskSpec) { s.Epoch = 1 },
	} {
		r := newRig(t, Options{Merge: true})
		p := to(r.core, r.link(1, 0, 1, 1<<20))
		a := TaskSpec{Terms: request.Terms{Op: transport.Write}, Plan: p, Local: 1 << 20, Remote: 1 << 30, Length: kib}
		b := a
		b.Local, b.Remote = a.Local+kib, a.Remote+kib
		change(&b)
		r.submitAll(a, b)
		want := 2
		if name == "nothing" {
			want = 1
		}
		require.Len(t, r.out, want, name)
	}
}

func TestRefusedSlicesGoBackInOrder(t *testing.T) {
	r := newRig(t, Options{})
	id := r.link(1, 0, 1, 1<<20)
	b := r.submit(to(r.core, id), High, 4*64*kib, clock.Never)
	first := append([]transport.Slice(nil), *r.out[1], *r.out[2], *r.out[3])
	r.core.Refuse(r.out[1:], r.now)
	r.out = r.out[:1]
	require.Equal(t, 1, r.core.Outstanding())
	require.Empty(t, r.step(), "the rail is full until it says otherwise")
	require.Empty(t, r.finish(0, nil))
	r.core.Ready(id, railOf(id, 0, 1))
	for i, s := range r.step() {
		require.Equal(t, first[i].Remote, s.Remote)
		require.Greater(t, s.Id, first[2].Id, "it is another attempt")
	}
	r.drain()
	require.Equal(t, Status{State: Completed, Attempts: 1, Bytes: 256 * kib}, r.status(b))
}

func TestAlignmentOfCuts(t *testing.T) {
	r := newRig(t, Options{})
	p := to(r.core, r.link(1, 0, 1, 1<<20))
	p.Routes[0].Alignment, p.Routes[0].SliceBest = 4*kib, 10*kib
	r.submit(p, High, 64*kib, clock.Never)
	for _, s := range r.out {
		require.EqualValues(t, 8*kib, s.Length)
	}
	id, err := r.core.NewBatch(1)
	require.Nil(t, err)
	_, err = r.core.Submit(id, []TaskSpec{{Plan: p, Local: 1, Length: 4 * kib}}, r.now)
	require.ErrorContains(t, err, "alignment")
}

func TestAlternatesAreForWhenTheOthersAreOut(t *testing.T) {
	r := newRig(t, Options{})
	id := r.link(1, 0, 1, 1<<20)
	r.core.RailUp(id, transport.RailInfo{Rail: railOf(id, 1, 1), Alternates: true, BytesMax: 1 << 20}, r.now)
	p := to(r.core, id)
	r.submit(p, High, 4<<20, clock.Never)
	for _, s := range r.out {
		require.Zero(t, s.Rail.Index, "not even when the main rail is full")
	}
	r.core.RailDown(id, railOf(id, 0, 1), broken(1), r.now)
	fresh := r.step()
	require.NotEmpty(t, fresh)
	require.EqualValues(t, 1, fresh[0].Rail.Index)
}

// A piece was cut for a rail, and is sent again on one that takes less.
func TestAPieceIsCutAgainForARouteOfShorterSlices(t *testing.T) {
	r := newRig(t, Options{Failovers: 1, Retries: 1})
	p := to(r.core, r.link(1, 0, 1, 1<<20), r.link(1, 1, 1, 1<<20))
	p.Routes[1].SliceMax, p.Routes[1].SliceBest = 16*kib, 16*kib
	b := r.submit(p, High, 100*kib, clock.Never)
	require.EqualValues(t, 64*kib, r.out[0].Length)
	r.core.DropLink(p.Routes[0].Hops[0].Link, broken(errs.ScopeLink), r.now)
	for len(r.out) > 0 && r.out[0].Length > 16*kib {
		r.finish(0, broken(errs.ScopeRail))
	}
	sent := uint64(0)
	for len(r.out) > 0 {
		require.LessOrEqual(t, r.out[0].Length, uint64(16*kib))
		sent += r.out[0].Length
		r.finish(0, nil)
	}
	require.EqualValues(t, 100*kib, sent)
	require.Equal(t, Completed, r.status(b).State)
}

func TestATransportsLimitOfSlicesHoldsOnEachRail(t *testing.T) {
	r := newRig(t, Options{})
	id := r.core.AddLink(LinkSpec{Peer: 1, PeerName: "peer", Info: &transport.Info{SlicesMax: 3}})
	r.railUp(id, 0, 1, 1<<20)
	b := r.submit(to(r.core, id), High, 1<<20, clock.Never)
	for len(r.out) > 0 {
		require.LessOrEqual(t, len(r.out), 3)
		r.finish(0, nil)
	}
	require.Equal(t, Completed, r.status(b).State)
}

// A link uses up a step where its slices come back as quickly as a step cuts new ones. The next step begins with the
// others: the transport of one peer is not served at the cost of all the rest.
func TestALinkThatUsesUpEachStepLeavesOthersTheirTurn(t *testing.T) {
	r := newRig(t, Options{WindowSlices: 1 << 20})
	busy := r.core.AddLink(LinkSpec{Peer: 1, PeerName: "busy", Info: &transport.Info{}})
	r.railUp(busy, 0, 1, 1<<40)
	quiet := r.link(2, 1, 1, 1<<20) // on another NIC
	r.step()
	flood := to(r.core, busy)
	flood.Routes[0].SliceBest = kib
	id, err := r.core.NewBatch(2)
	require.Nil(t, err)
	for i, p := range []*plan.Plan{to(r.core, quiet), flood} { // no step between: both links wait for the next one
		_, err := r.core.Submit(id, []TaskSpec{{Terms: request.Terms{Op: transport.Write, Class: uint8(2 * i)}, Plan: p,
			Local: 1 << 20, Remote: 1 << 30, Length: kib << (20 * i)}}, r.now)
		require.Nil(t, err)
	}
	r.step()
	for range 8 {
		for _, s := range r.out {
			r.core.Complete(0, []transport.Completion{{Slice: s, Id: s.Id, Bytes: s.Length}}, r.now)
		}
		r.out = nil
		r.now++
		r.step()
	}
	require.Equal(t, Completed, r.status(id).State)
}
