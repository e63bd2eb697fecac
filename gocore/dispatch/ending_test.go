package dispatch

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/transport"
)

var withdrawn = errs.New(errs.Withdrawn, "test", "withdrawn")

func TestTheDeadlineDropsWhatWasNotSentAndCallsBackTheRest(t *testing.T) {
	r := newRig(t, Options{SuspectAfter: 20 * ms})
	b := r.submit(to(r.core, r.link(1, 0, 1, 128*kib)), High, 1<<20, r.now.Add(10*ms))
	require.Equal(t, r.now.Add(10*ms), r.core.Deadline())
	r.finish(0, nil)
	require.Empty(t, r.wait(10*ms))
	require.Len(t, r.asked, 2)
	require.Equal(t, Pending, r.status(b).State)
	r.step()
	require.Empty(t, r.asked, "asked once")
	r.finish(0, nil)
	require.Empty(t, r.ended)
	r.finish(0, withdrawn)
	require.Equal(t, Status{State: TimedOut, Attempts: 1, Bytes: 128 * kib, Err: r.core.peers[1].late}, r.status(b))
	require.ErrorContains(t, r.status(b).Err, "peer 10.0.0.1:7000")
	require.Equal(t, []BatchID{b}, r.ended)
	for i := 0; r.core.Deadline() != clock.Never; i++ {
		require.Less(t, i, 3, "a rail, a link and a peer look once more whether something is left to do")
		r.wait(r.core.Deadline().Sub(r.now))
	}
}

func TestATaskWhoseBytesAllArriveIsCompletedAllTheSame(t *testing.T) {
	r := newRig(t, Options{})
	b := r.submit(to(r.core, r.link(1, 0, 1, 1<<20)), High, kib, clock.Never)
	n, err := r.core.Cancel(b, 0, 1, r.now)
	require.Nil(t, err)
	require.Equal(t, 1, n)
	r.finish(0, nil)
	require.Equal(t, Status{State: Completed, Attempts: 1, Bytes: kib}, r.status(b))
	n, err = r.core.Cancel(b, 0, 1, r.now)
	require.Nil(t, err)
	require.Zero(t, n, "it had ended")
}

func TestWaitingTasksAreCanceledAtOnce(t *testing.T) {
	r := newRig(t, Options{})
	b := r.submit(to(r.core, r.link(1, 0, 0, 0)), High, kib, clock.Never)
	_, err := r.core.Cancel(b, 0, 1, r.now)
	require.Nil(t, err)
	require.Equal(t, Canceled, r.status(b).State)
}

func TestTheFenceBoundEndsDirtyAndHoldsThePeer(t *testing.T) {
	r := newRig(t, Options{FenceNetwork: time.Second})
	rdma, tcp, other := r.link(1, 0, 1, 1<<20), r.link(1, 1, 1, 1<<20), r.link(2, 1, 1, 1<<20)
	b := r.submit(to(r.core, rdma), High, kib, r.now.Add(10*ms))
	r.wait(10 * ms)
	require.Len(t, r.asked, 1)
	r.wait(time.Second - 1)
	require.Equal(t, Pending, r.status(b).State)
	r.wait(1)
	s := r.status(b)
	require.Equal(t, TimedOut, s.State)
	require.True(t, s.Dirty)
	require.Equal(t, railOf(rdma, 0, 1), r.fenced[0])

	held := r.submit(to(r.core, tcp), High, kib, clock.Never)
	require.Len(t, r.out, 1, "nothing goes to the peer on any transport")
	r.submit(to(r.core, other), High, kib, clock.Never)
	require.Len(t, r.out, 2, "other peers do not notice")
	require.Len(t, r.finish(0, nil), 1, "the withdrawal is confirmed, its peer goes on")
	require.Equal(t, []event.Kind{event.RailCondemned, event.Dirty, event.DeadlineMissed, event.Withdrawn}, r.kinds())
	require.Zero(t, r.status(b).Bytes, "an ended task does not change")
	r.drain()
	require.Equal(t, Completed, r.status(held).State)
}

func TestNoTaskEndsBeforeItsWithdrawalHasReachedTheTransport(t *testing.T) {
	r := newRig(t, Options{FenceNetwork: 100 * ms})
	r.asleep = true // the thread that was to call Withdraw; until it has, the source may be read
	b := r.submit(to(r.core, r.link(1, 0, 1, 1<<20)), High, kib, r.now.Add(10*ms))
	r.wait(10 * ms)
	asked := r.asked
	require.Len(t, asked, 1)
	for range 5 {
		r.wait(100 * ms)
		require.Equal(t, Pending, r.status(b).State, "the source is not quiet yet")
	}
	r.core.WithdrawalSent(asked)
	r.wait(100 * ms)
	require.Equal(t, TimedOut, r.status(b).State)
	require.True(t, r.status(b).Dirty)
}

// Nor may it end later: the transport may still be at its memory. An event says so, once until the call has come back.
func TestATransportThatDoesNotComeBackIsNamed(t *testing.T) {
	r := newRig(t, Options{FenceNetwork: 100 * ms, CondemnAfter: time.Second})
	r.asleep = true
	p := to(r.core, r.link(1, 0, 1, 1<<20))
	explained := func() string { return r.core.Explain(p.Routes[0].Hops[0].Link) }
	named := func() (n int) {
		for _, k := range r.kinds() {
			if k == event.TransportStuck {
				n++
			}
		}
		return n
	}
	for round := range 2 {
		b := r.submit(p, High, kib, r.now.Add(10*ms))
		r.wait(10 * ms)
		asked := r.asked
		require.Len(t, asked, 1)
		for range 9 {
			r.wait(100 * ms)
		}
		require.Equal(t, round, named(), "threads sleep at times")
		for range 30 {
			r.wait(100 * ms)
		}
		require.Equal(t, Pending, r.status(b).State)
		require.Equal(t, round+1, named())
		require.Contains(t, explained(), "has not taken the withdrawal of 1 slices")
		if round == 0 { // it comes back with the slice before the call ends
			r.finish(0, withdrawn)
			require.Equal(t, TimedOut, r.status(b).State)
		}
		r.core.WithdrawalSent(asked)
		require.NotContains(t, explained(), "has not taken")
	}
}

func TestAHeldPeerIsWaitedForWithALimit(t *testing.T) {
	r := newRig(t, Options{Stall: 10 * time.Second})
	p := to(r.core, r.link(1, 0, 2, 1<<20))
	r.submit(p, High, kib, r.now.Add(ms))
	r.wait(ms)
	r.wait(2 * time.Second)
	late := r.submit(p, High, kib, clock.Never)
	for range 1000 {
		if r.status(late).State != Pending {
			break
		}
		require.NotEqual(t, clock.Never, r.core.Deadline())
		r.wait(max(0, r.core.Deadline().Sub(r.now)))
	}
	require.Equal(t, Failed, r.status(late).State)
	require.ErrorContains(t, r.status(late).Err, "the peer is silent: last heard 12s ago")
}

func TestTheHostBoundIsShorter(t *testing.T) {
	r := newRig(t, Options{})
	id := r.core.AddLink(LinkSpec{Peer: 1, SameHost: true})
	r.railUp(id, 0, 1, 1<<20)
	b := r.submit(to(r.core, id), High, kib, r.now.Add(ms))
	r.wait(ms)
	r.wait(100 * ms)
	require.True(t, r.status(b).Dirty)
}

func TestADeviceHasMoreTimeToGiveBack(t *testing.T) {
	r := newRig(t, Options{})
	id := r.core.AddLink(LinkSpec{Peer: 1, SameHost: true, Info: &transport.Info{Files: true}})
	r.railUp(id, 0, 1, 1<<20)
	b := r.submit(to(r.core, id), High, kib, r.now.Add(ms))
	r.wait(ms)
	r.wait(4999 * ms)
	require.Equal(t, Pending, r.status(b).State)
	r.wait(ms)
	require.Equal(t, TimedOut, r.status(b).State)
	require.True(t, r.status(b).Dirty)
	require.Equal(t, 1, r.core.peers[1].open)
	r.finish(0, nil)
	require.Zero(t, r.core.peers[1].open)
}

// A task on several links has the patience of the slowest, whichever of its slices was cut last.
func TestTheLongerFenceBoundCountsForATaskOnTwoLinks(t *testing.T) {
	for _, op := range []transport.Op{transport.Write, transport.Read} {
		r := newRig(t, Options{FenceHost: 100 * ms, FenceNetwork: time.Second})
		p := crossing(r, op, 2)
		r.core.link(p.Routes[0].Hops[1-p.Routes[0].Crossing].Link).spec.SameHost = true
		b := r.submit(p, High, 128*kib, r.now.Add(10*ms))
		require.Len(t, r.out, 2)
		r.finish(0, nil) // the first piece is on its second hop, the other one on its first
		require.NotEqual(t, r.out[0].Rail.Link, r.out[1].Rail.Link)
		r.wait(10 * ms)
		require.Len(t, r.asked, 2)
		r.wait(time.Second - 1)
		require.Equal(t, Pending, r.status(b).State, "%v", op)
		r.wait(1)
		require.True(t, r.status(b).Dirty, "%v", op)
	}
}

func TestStallLimitCountsFromTheLastProgress(t *testing.T) {
	r := newRig(t, Options{Stall: 10 * time.Second})
	id := r.link(1, 0, 1, 128*kib)
	b := r.submit(to(r.core, id), High, 1<<20, clock.Never)
	r.now = r.now.Add(9 * time.Second)
	r.finish(0, nil)
	r.wait(9 * time.Second)
	r.core.Progress(id, railOf(id, 0, 1), r.now) // a long slice moves on
	r.wait(9 * time.Second)
	require.Equal(t, Pending, r.status(b).State)
	require.Empty(t, r.asked)
	r.wait(time.Second)
	require.Len(t, r.asked, 2)
	r.finish(0, withdrawn)
	r.finish(0, withdrawn)
	s := r.status(b)
	require.Equal(t, Failed, s.State)
	require.Equal(t, errs.Timeout, s.Err.Code)
	require.ErrorContains(t, s.Err, "no progress for 10s")
	require.Equal(t, []event.Kind{event.SlowPath, event.Stalled}, r.kinds())
}

func TestATaskThatWaitsForItsClassDoesNotStall(t *testing.T) {
	r := newRig(t, Options{Stall: time.Second, Ageing: time.Hour})
	p := to(r.core, r.link(1, 0, 1, 256*kib))
	low := r.submit(p, Low, 16<<20, clock.Never)
	r.submit(p, High, 64<<20, clock.Never)
	for range 50 { // 5 s of HIGH
		r.now = r.now.Add(100 * ms)
		r.finish(0, nil)
	}
	require.Equal(t, Pending, r.status(low).State)
}

func TestPeerGoneFailsEverythingOfThePeer(t *testing.T) {
	r := newRig(t, Options{})
	id, other := r.link(1, 0, 1, 64*kib), r.link(2, 0, 1, 64*kib)
	p := to(r.core, id)
	under, waiting, elsewhere := r.submit(p, High, 128*kib, clock.Never), r.submit(p, High, kib, clock.Never),
		r.submit(to(r.core, other), High, kib, clock.Never)
	cause := errs.New(errs.PeerRestarted, "hello", "another incarnation")
	r.core.PeerGone(1, cause, r.now)
	r.step()
	require.Equal(t, Status{State: Failed, Err: cause}, r.status(waiting))
	require.Equal(t, Pending, r.status(under).State, "its slices are out")
	require.Equal(t, Pending, r.status(elsewhere).State)
	require.Same(t, cause, func() *errs.Error { s := r.status(r.submit(p, High, kib, clock.Never)); return s.Err }())
	for r.core.LinkBusy(id) {
		r.finish(0, withdrawn)
	}
	require.Equal(t, Failed, r.status(under).State)
	require.Same(t, cause, r.status(under).Err)
	r.core.RemoveLink(id)
	r.drain()
	require.Equal(t, Completed, r.status(elsewhere).State)
}

func TestRemovedLinksAreNeverUsed(t *testing.T) {
	r := newRig(t, Options{Failovers: 3})
	rdma, tcp := r.link(1, 0, 0, 0), r.link(1, 1, 0, 0)
	moved := r.submit(to(r.core, rdma, tcp), High, kib, clock.Never)
	r.railUp(tcp, 0, 1, 1<<20)
	only := to(r.core, rdma)
	stuck := r.submit(only, High, kib, clock.Never)
	require.Empty(t, r.out)
	r.core.RemoveLink(rdma)
	require.Len(t, r.step(), 1)
	require.Equal(t, Failed, r.status(stuck).State)
	r.drain()
	require.Equal(t, Completed, r.status(moved).State)
	late := r.submit(only, High, kib, clock.Never)
	require.Equal(t, Failed, r.status(late).State)
	require.Equal(t, "closed", r.core.Explain(rdma))
}

func TestASilentRailIsSuspectedWhileOthersGoOn(t *testing.T) {
	r := newRig(t, Options{SuspectAfter: 20 * ms, CondemnAfter: time.Second})
	id := r.link(1, 0, 2, 1<<20)
	p := to(r.core, id)
	warm := func() { // both rails have delivered before
		r.submit(p, High, 1<<20, clock.Never)
		r.now = r.now.Add(ms)
		r.drain()
	}
	warm()
	b := r.submit(p, High, 128*kib, clock.Never)
	require.Len(t, r.out, 2)
	silent := r.out[0]
	for i := range 200 { // the other rail goes on
		r.now = r.now.Add(ms)
		r.core.Progress(id, railOf(id, 1-int(silent.Rail.Index), 1), r.now)
		if fresh := r.step(); len(fresh) > 0 {
			require.Equal(t, silent.Remote, fresh[0].Remote)
			require.NotEqual(t, silent.Rail, fresh[0].Rail)
			require.GreaterOrEqual(t, i, 18)
			break
		}
	}
	require.Equal(t, []event.Kind{event.RailSuspected}, r.kinds())
	require.Equal(t, silent, r.asked[0])
	r.finish(1, nil)
	r.finish(1, nil)
	require.Equal(t, Pending, r.status(b).State)
	r.finish(0, withdrawn)
	require.Equal(t, Completed, r.status(b).State)
	for i := 0; len(r.fenced) == 0; i++ {
		require.Less(t, i, 1100)
		r.wait(ms)
	}
	require.Equal(t, silent.Rail, r.fenced[0])
	r.submit(p, High, 256*kib, clock.Never)
	for _, s := range r.out {
		require.NotEqual(t, silent.Rail, s.Rail)
	}
	r.core.RailDown(id, silent.Rail, nil, r.now)
	r.railUp(id, int(silent.Rail.Index), 2, 1<<20)
	r.submit(p, High, 2<<20, clock.Never)
	fresh := uint64(0)
	for _, s := range r.out {
		if s.Rail == railOf(id, int(silent.Rail.Index), 2) {
			fresh += s.Length
		}
	}
	require.EqualValues(t, 128*kib, fresh, "the new generation is trusted little by little")
}

func TestASilentPeerIsNotReroutedWithin(t *testing.T) {
	r := newRig(t, Options{})
	p := to(r.core, r.link(1, 0, 2, 1<<20))
	r.submit(p, High, 1<<20, clock.Never)
	r.drain()
	r.submit(p, High, 1<<20, clock.Never)
	for range 500 {
		require.Empty(t, r.wait(10*ms))
	}
	require.Equal(t, []event.Kind{event.PeerSilent}, r.kinds(), "when all are silent it is the peer")
}

func TestWhoSleptDoesNotSuspect(t *testing.T) {
	r := newRig(t, Options{})
	id := r.link(1, 0, 2, 1<<20)
	p := to(r.core, id)
	r.submit(p, High, 1<<20, clock.Never)
	r.now = r.now.Add(ms)
	r.drain()
	r.submit(p, High, 128*kib, clock.Never)
	r.now = r.now.Add(10 * time.Second) // stopped, or the machine slept
	r.core.Progress(id, r.out[1].Rail, r.now)
	r.step()
	require.Empty(t, r.kinds())
}

// Memory of a transport that goes on behind Withdraw is in use until every slice has come back or was refused. So it is
// when the batch was freed and the peer is gone.
func TestTheRemainsOfADirtyBatch(t *testing.T) {
	for _, quiesces := range []bool{false, true} {
		r := newRig(t, Options{})
		id := r.core.AddLink(LinkSpec{Peer: 1, SameHost: true, Info: &transport.Info{Quiesces: quiesces}})
		r.railUp(id, 0, 1, 1<<20)
		b := r.submit(to(r.core, id), High, 3*64*kib, r.now.Add(ms))
		require.Len(t, r.out, 3)
		require.Nil(t, r.core.Remains(b))
		r.wait(ms)
		r.finish(0, nil)
		r.wait(100 * ms)
		require.True(t, r.status(b).Dirty)
		remains := r.core.Remains(b)
		require.Equal(t, quiesces, remains == nil)
		if quiesces {
			continue
		}
		require.Nil(t, r.core.FreeBatch(b))
		require.Nil(t, r.core.Remains(b), "it was freed")
		r.core.PeerGone(1, nil, r.now)
		r.finish(0, nil)
		require.True(t, remains.Out())
		r.core.Refuse(r.out, r.now)
		require.False(t, remains.Out())
	}
}

// Where a peer has ended, none of its rails is out: people would look for a broken path.
func TestRailsOfAPeerThatHasGoneCountNowhere(t *testing.T) {
	r := newRig(t, Options{})
	r.link(1, 0, 2, 64*kib)
	r.link(2, 0, 1, 64*kib)
	g := r.core.Gauges(0)
	require.Equal(t, [2]int{3, 0}, [2]int{g.RailsUp, g.RailsDown})
	r.core.PeerGone(1, errs.New(errs.PeerRestarted, "hello", "another incarnation"), r.now)
	g = r.core.Gauges(0)
	require.Equal(t, [2]int{1, 0}, [2]int{g.RailsUp, g.RailsDown})
	require.Len(t, r.core.Rails(), 1)
}

// A path may lose all payload and let handshakes pass. Each new generation of its rail has moved bytes just before.
func TestAHandshakeIsNoProgress(t *testing.T) {
	r := newRig(t, Options{Stall: 5 * time.Second})
	id := r.link(1, 1, 1, 1<<20)
	b := r.submit(to(r.core, id), High, kib, clock.Never)
	for generation, begun := 1, r.now; r.status(b).State == Pending; generation++ {
		require.Less(t, r.now.Sub(begun), 10*time.Second)
		up := r.now
		r.wait(10 * ms)
		require.Len(t, r.out, 1)
		r.pass(990*ms, func(transport.Rail) transport.Signs { return transport.Signs{Moved: up, Spoke: up, Heard: up} })
		r.core.RailDown(id, railOf(id, 0, generation), broken(errs.ScopeRail), r.now)
		r.step()
		r.finish(0, broken(errs.ScopeRail))
		if r.status(b).State == Pending {
			r.railUp(id, 0, generation+1, 1<<20)
			r.step()
		}
	}
	require.Equal(t, Failed, r.status(b).State)
	require.ErrorContains(t, r.status(b).Err, "transfer_stall_timeout")
}
