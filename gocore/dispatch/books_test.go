package dispatch

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/request"
	"github.com/tent-engine/tent/gocore/transport"
)

// The books survive a transport that does not keep the contract, and say nothing twice.

func TestASliceThatIsBackStaysBack(t *testing.T) {
	r := newRig(t, Options{})
	id := r.link(1, 0, 1, 1<<20)
	p := to(r.core, id)
	first, second := r.submit(p, High, kib, clock.Never), r.submit(p, High, kib, clock.Never)
	s := r.out[0]
	r.finish(0, nil)
	for range 3 {
		r.core.Complete(0, []transport.Completion{{Slice: s, Id: s.Id, Bytes: s.Length}}, r.now)
		r.core.Refuse([]*transport.Slice{s}, r.now)
	}
	require.Empty(t, r.step(), "nothing is sent again")
	require.Equal(t, 1, r.core.Outstanding())
	require.EqualValues(t, kib, r.core.link(id).rails[0].bytes)
	require.Equal(t, Status{State: Completed, Attempts: 1, Bytes: kib}, r.status(first))
	require.Equal(t, Pending, r.status(second).State)
	r.drain()
	require.Equal(t, Completed, r.status(second).State)
	require.Zero(t, r.core.Outstanding())
}

func TestAFailureDeliversNoMoreThanItsSlice(t *testing.T) {
	r := newRig(t, Options{})
	id := r.link(1, 0, 1, 1<<20)
	b := r.submit(to(r.core, id), High, 128*kib, clock.Never)
	s := r.out[0]
	r.out = r.out[1:]
	r.core.Complete(0, []transport.Completion{{Slice: s, Id: s.Id, Bytes: 100 * s.Length,
		Err: broken(errs.ScopeSlice)}}, r.now)
	r.step()
	require.EqualValues(t, 64*kib, r.status(b).Bytes)
	require.EqualValues(t, 64*kib, r.core.link(id).rails[0].carried)
	r.drain()
	require.Equal(t, Status{State: Completed, Attempts: 1, Bytes: 128 * kib}, r.status(b))
}

// A completion without an error and without all bytes is a fault of the transport. The rest is sent again, and a
// transport that never has it fails the request.
func TestASuccessOfFewerBytesIsNone(t *testing.T) {
	for _, bytes := range []uint64{0, 1, 4*kib - 1, 4*kib + 1} {
		r := newRig(t, Options{Retries: 3})
		b := r.submit(to(r.core, r.link(1, 0, 1, 1<<20)), High, 4*kib, clock.Never)
		for i := 0; len(r.out) > 0; i++ {
			require.Less(t, i, 100)
			s := r.out[0]
			r.out = r.out[1:]
			require.Equal(t, Pending, r.status(b).State)
			if i == 0 {
				require.EqualValues(t, 4*kib, s.Length)
			} else if bytes < 4*kib {
				require.EqualValues(t, 4*kib-min(uint64(i)*bytes, bytes), s.Length, "what is missing")
			}
			end := transport.Completion{Slice: s, Id: s.Id, Bytes: s.Length}
			if i == 0 {
				end.Bytes = bytes
			}
			r.core.Complete(0, []transport.Completion{end}, r.now)
			r.step()
			r.wait(ms)
		}
		require.Equal(t, Completed, r.status(b).State)
	}
	r := newRig(t, Options{Retries: 3})
	b := r.submit(to(r.core, r.link(1, 0, 1, 1<<20)), High, 4*kib, clock.Never)
	for i := 0; r.status(b).State == Pending; i++ {
		require.Less(t, i, 100)
		if len(r.out) > 0 {
			s := r.out[0]
			r.out = r.out[1:]
			r.core.Complete(0, []transport.Completion{{Slice: s, Id: s.Id}}, r.now)
		}
		r.wait(ms)
	}
	require.Equal(t, Failed, r.status(b).State)
	require.ErrorContains(t, r.status(b).Err, "delivered less than the slice")
}

func TestAPeerIsHeldUntilTheLastOpenWithdrawal(t *testing.T) {
	r := newRig(t, Options{FenceNetwork: time.Second})
	id := r.link(1, 0, 1, 128*kib)
	other := r.link(1, 1, 1, 1<<20)
	r.submit(to(r.core, id), High, 1<<20, r.now.Add(10*ms))
	r.wait(10 * ms)
	r.wait(time.Second)
	require.Equal(t, 2, r.core.peers[1].open)
	require.Equal(t, []transport.Rail{railOf(id, 0, 1)}, r.fenced)
	r.submit(to(r.core, other), High, kib, clock.Never)
	require.Len(t, r.out, 2, "the peer is held")
	require.Empty(t, r.finish(0, nil), "one of two is still open")
	require.NotContains(t, r.kinds(), event.Withdrawn, "nor does it say otherwise")
	require.Len(t, r.finish(0, nil), 1)
	condemned := 0
	for _, kind := range r.kinds() {
		if kind == event.RailCondemned {
			condemned++
		}
	}
	require.Equal(t, 1, condemned, "both slices were on one rail")
	require.Contains(t, r.kinds(), event.Withdrawn)
}

// A withdrawal that is open when its peer goes is never confirmed: the last slice is news of nobody.
func TestAPeerThatHasGoneConfirmsNothing(t *testing.T) {
	r := newRig(t, Options{FenceNetwork: time.Second})
	r.submit(to(r.core, r.link(1, 0, 1, 128*kib)), High, kib, r.now.Add(10*ms))
	r.wait(10 * ms)
	r.wait(time.Second)
	require.Equal(t, 1, r.core.peers[1].open)
	r.core.PeerGone(1, broken(errs.ScopeLink), r.now)
	r.finish(0, withdrawn)
	require.NotContains(t, r.kinds(), event.Withdrawn)
	require.Zero(t, r.core.Outstanding())
}

func TestTheFirstVerdictStays(t *testing.T) {
	r := newRig(t, Options{})
	id := r.link(1, 0, 1, 1<<20)
	b := r.submit(to(r.core, id), High, kib, r.now.Add(10*ms))
	_, err := r.core.Cancel(b, 0, 1, r.now)
	require.Nil(t, err)
	r.wait(10 * ms) // the deadline
	r.core.PeerGone(1, broken(errs.ScopeLink), r.now)
	r.finish(0, withdrawn)
	require.Equal(t, Status{State: Canceled, Attempts: 1, Err: errCanceled}, r.status(b))
}

func TestAReservationKeepsToTheRoomOfItsBatch(t *testing.T) {
	r := newRig(t, Options{})
	p := to(r.core, r.direct(1<<20))
	b, err := r.core.NewBatch(2)
	require.Nil(t, err)
	three := []TaskSpec{small(p, High, 1), small(p, High, 1), small(p, High, 1)}
	_, ok := r.core.Reserve(b, three, r.now)
	require.False(t, ok)
	held, ok := r.core.Reserve(b, three[:2], r.now)
	require.True(t, ok)
	_, ok = r.core.Reserve(b, three[:1], r.now)
	require.False(t, ok, "the room is reserved")
	r.core.Unreserve(&held)
}

func TestTasksOfTwoBatchesAreNotMerged(t *testing.T) {
	r := newRig(t, Options{Merge: true})
	p := to(r.core, r.link(1, 0, 1, 1<<20))
	s := TaskSpec{Terms: request.Terms{Op: transport.Write}, Plan: p, Local: 1 << 20, Remote: 1 << 30, Length: kib}
	for range 2 { // both wait before the next step
		b, err := r.core.NewBatch(1)
		require.Nil(t, err)
		_, err = r.core.Submit(b, []TaskSpec{s}, r.now)
		require.Nil(t, err)
		s.Local, s.Remote = s.Local+kib, s.Remote+kib
	}
	require.Len(t, r.step(), 2, "a cancel of one would call the other back")
}

func TestMergedSlicesKeepToTheRoute(t *testing.T) {
	r := newRig(t, Options{Merge: true})
	p := to(r.core, r.link(1, 0, 1, 1<<20))
	s := TaskSpec{Terms: request.Terms{Op: transport.Write}, Plan: p, Local: 1 << 20, Remote: 1 << 30, Length: 40 * kib}
	next := s
	next.Local, next.Remote = s.Local+40*kib, s.Remote+40*kib
	r.submitAll(s, next)
	require.Len(t, r.out, 2, "together they are longer than a slice")
	r.drain()
	p.Routes[0].SliceMax, p.Routes[0].SliceBest = 10*kib, 0
	r.submitAll(s)
	require.Len(t, r.out, 4)
}

// TestATaskThatHasBegunIsNotMerged cuts a task on a rail of short slices. The slice before it comes back, and goes to a
// rail of slices so long that the task would have fitted.
func TestATaskThatHasBegunIsNotMerged(t *testing.T) {
	r := newRig(t, Options{Merge: true})
	id := r.link(1, 0, 1, 64*kib)
	p := to(r.core, id)
	p.Routes[0].SliceBest = 1 << 20
	first := TaskSpec{Terms: request.Terms{Op: transport.Write}, Plan: p, Local: 1 << 20, Remote: 1 << 30,
		Length: 32 * kib}
	second := first
	second.Local, second.Remote, second.Length = first.Local+32*kib, first.Remote+32*kib, 64*kib
	b := r.submitAll(first, second)
	require.Len(t, r.out, 2)
	require.EqualValues(t, 32*kib, r.out[1].Length, "half of the second task")
	r.core.RailUp(id, transport.RailInfo{Rail: railOf(id, 1, 1), BytesMax: 4 << 20, Bandwidth: 1e10}, r.now)
	collateral := broken(errs.ScopeSlice)
	collateral.Collateral = true
	again := r.finish(0, collateral)
	require.EqualValues(t, 64*kib, sum(again), "the first task once more, and the rest of the second")
	r.drain()
	for i, length := range []uint64{32 * kib, 64 * kib} {
		s, err := r.core.Status(b, i)
		require.Nil(t, err)
		require.Equal(t, Completed, s.State)
		require.Equal(t, length, s.Bytes)
	}
}

func TestAFailureOfATransportLeavesAllItsRoutes(t *testing.T) {
	r := newRig(t, Options{Failovers: 1})
	rdma, second, tcp := r.link(1, 0, 1, 1<<20), r.link(1, 0, 1, 1<<20), r.link(1, 1, 1, 1<<20)
	b := r.submit(to(r.core, rdma, second, tcp), High, kib, clock.Never)
	again := r.finish(0, broken(errs.ScopeTransport))
	require.Len(t, again, 1)
	require.Equal(t, transport.Link(tcp), again[0].Rail.Link)
	r.drain()
	require.Equal(t, Status{State: Completed, Transport: 1, Attempts: 2, Failovers: 1, Bytes: kib}, r.status(b))
}

func TestAFailoverSkipsRoutesThatTheRequestDoesNotFit(t *testing.T) {
	r := newRig(t, Options{Failovers: 3})
	rdma, file, tcp := r.link(1, 0, 1, 1<<20), r.link(1, 2, 1, 1<<20), r.link(1, 1, 1, 1<<20)
	p := to(r.core, rdma, file, tcp)
	p.Routes[1].Alignment = 4 * kib
	b := r.submit(p, High, kib, clock.Never)
	again := r.finish(0, broken(errs.ScopeLink))
	require.Len(t, again, 1)
	require.Equal(t, transport.Link(tcp), again[0].Rail.Link)
	r.drain()
	require.Equal(t, Completed, r.status(b).State)
}

func TestNewsOfAnOldGenerationOrOfAPeerThatHasEndedComeTooLate(t *testing.T) {
	r := newRig(t, Options{})
	id := r.link(1, 0, 0, 0)
	r.railUp(id, 0, 2, 1<<20)
	r.railUp(id, 0, 1, 1<<20)
	require.Equal(t, railOf(id, 0, 2), r.core.link(id).rails[0].id)
	require.Equal(t, 1, r.core.link(id).up)
	r.core.PeerGone(1, broken(errs.ScopeLink), r.now)
	r.railUp(id, 0, 3, 1<<20)
	require.Equal(t, railOf(id, 0, 2), r.core.link(id).rails[0].id)
	require.Zero(t, r.core.link(id).up)
}

// One engine may be open under two addresses, or was closed and opened again. A slice of before may land in the same
// memory, so nothing goes there by any of its peers.
func TestAnEngineIsHeldUnderEachOfItsAddresses(t *testing.T) {
	for name, end := range map[string]func(r *rig){
		"it confirms": func(r *rig) { r.finish(0, withdrawn) },
		"it has gone": func(r *rig) { r.core.PeerGone(1, broken(errs.ScopeLink), r.now); r.step() },
	} {
		r := newRig(t, Options{FenceNetwork: time.Second})
		open := func(peer uint32, engine uint64) plan.LinkID {
			id := r.core.AddLink(LinkSpec{Peer: peer, Engine: transport.NumberedID(engine), Info: &transport.Info{}})
			r.railUp(id, 0, 1, 128*kib)
			return id
		}
		first, other := open(1, 1), open(3, 2)
		r.submit(to(r.core, first), High, kib, r.now.Add(10*ms))
		r.wait(10 * ms)
		r.wait(time.Second)
		require.Contains(t, r.kinds(), event.Dirty)
		second := open(2, 1)
		r.submit(to(r.core, other), High, kib, clock.Never)
		require.Len(t, r.out, 2, "another engine")
		b := r.submit(to(r.core, second), High, kib, clock.Never)
		require.Len(t, r.out, 2, "the same engine, opened under another address")
		require.Contains(t, r.core.Explain(second), "waits for the peer to confirm the withdrawal of 1 slices")
		end(r)
		require.NotEmpty(t, r.out, name)
		r.drain()
		require.Equal(t, Completed, r.status(b).State, name)
		for _, id := range []plan.LinkID{first, second, other} {
			r.core.RemoveLink(id)
		}
		require.Empty(t, r.core.engines, "nothing is left of it")
	}
}
