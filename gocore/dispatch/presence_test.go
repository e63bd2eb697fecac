package dispatch

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/rail"
	"github.com/tent-engine/tent/gocore/transport"
)

// pass lets time pass in steps of the core's own, and answers each doubt with the signs that answer returns.
func (r *rig) pass(d time.Duration, answer func(rail transport.Rail) transport.Signs) {
	for end := r.now.Add(d); r.now < end; {
		r.now = min(end, max(r.core.Deadline(), r.now+1))
		r.step()
		for _, doubt := range r.doubts {
			r.core.Liveness(Question{Link: r.core.links[1].id, Rail: doubt}, answer(doubt), r.now)
		}
	}
}

// nothing was ever heard.
func nothing(transport.Rail) transport.Signs { return transport.Signs{} }

// fill puts a slice on each rail of a warm link, and returns the link.
func (r *rig) fill(rails int) (b BatchID) {
	id := r.link(1, 1, rails, 128*kib)
	r.core.link(id).spec.Probes = true
	p := to(r.core, id)
	r.warm(p)
	b = r.submit(p, High, uint64(rails)*64*kib, clock.Never)
	require.Len(r, r.out, rails)
	r.events = nil
	return b
}

// TestAPausedPeerLosesNothing: its rails have their last words one after the other, and none is suspected for it. Only
// answers of its process end the silence.
func TestAPausedPeerLosesNothing(t *testing.T) {
	for name, sign := range map[string]func(now clock.Time) transport.Signs{
		"it says nothing":         func(clock.Time) transport.Signs { return transport.Signs{} },
		"its kernel acknowledges": func(now clock.Time) transport.Signs { return transport.Signs{Heard: now} },
		"its kernel has no room":  func(clock.Time) transport.Signs { return transport.Signs{Held: true} },
		"its kernel answers probes": func(now clock.Time) transport.Signs {
			return transport.Signs{Heard: now, Held: true}
		},
	} {
		r := newRig(t, Options{})
		b := r.fill(4)
		for _, s := range r.out {
			r.now = r.now.Add(ms)
			r.core.Progress(r.core.links[1].id, s.Rail, r.now)
		}
		r.pass(20*time.Second, func(transport.Rail) transport.Signs { return sign(r.now) })
		require.Equal(t, []event.Kind{event.PeerSilent}, r.kinds(), name)
		require.Less(t, r.events[0].Time.Sub(r.now.Add(-20*time.Second)), time.Second, name)
		require.Equal(t, Pending, r.status(b).State, name)
		require.True(t, r.core.Silent(1))
		require.Len(t, r.out, 4, "nothing was sent again")
		r.finish(0, nil)
		require.Equal(t, []event.Kind{event.PeerSilent, event.PeerBack}, r.kinds(), name)
		r.drain()
		require.Equal(t, Completed, r.status(b).State, name)
		require.False(t, r.core.Silent(1))
		r.pass(2*time.Second, nothing)
		require.Len(t, r.kinds(), 2, "a peer that owes nothing is not silent")
	}
}

// TestAnAnswerOverAPausedRailIsASignOfThePeer: the rail that is out answers a probe while nothing else does.
func TestAnAnswerOverAPausedRailIsASignOfThePeer(t *testing.T) {
	r := newRig(t, Options{Rail: rail.Settings{Threshold: 1}})
	id := r.ends(1, 0, [2]string{"a", "A"}, [2]string{"b", "B"})
	p := to(r.core, id)
	r.warm(p)
	r.submit(p, High, 1<<20, clock.Never)
	first := func(s *transport.Slice) bool { return s.Rail.Index == 0 }
	r.finish(slices.IndexFunc(r.out, first), broken(errs.ScopeRail))
	paused := railOf(id, 0, 1)
	require.Equal(t, rail.Paused, r.core.rail(id, paused).life.State())
	limit := r.core.options.SilentAfter
	r.pass(limit*3/4, nothing)
	r.core.Probed(id, paused, 1000, nil, r.now)
	answered := r.now
	require.Equal(t, answered, r.core.peers[1].spoke)
	r.pass(limit*3/4, nothing)
	require.NotContains(t, r.kinds(), event.PeerSilent, "it was heard %v ago", r.now.Sub(answered))
	r.pass(limit, nothing)
	require.Contains(t, r.kinds(), event.PeerSilent)
}

// TestBytesThatMoveOweNoAnswer: a long slice on a slow path is no silence.
func TestBytesThatMoveOweNoAnswer(t *testing.T) {
	r := newRig(t, Options{})
	r.fill(1)
	r.pass(5*time.Second, func(transport.Rail) transport.Signs { return transport.Signs{Heard: r.now, Moved: r.now} })
	require.Empty(t, r.kinds())
	r.pass(time.Second, func(transport.Rail) transport.Signs { return transport.Signs{Heard: r.now} })
	require.Equal(t, []event.Kind{event.PeerSilent}, r.kinds())
	r.pass(time.Second, func(transport.Rail) transport.Signs { return transport.Signs{Heard: r.now, Moved: r.now} })
	require.Len(t, r.kinds(), 1, "its kernel takes new bytes; its process says nothing")
	r.pass(100*ms, func(transport.Rail) transport.Signs { return transport.Signs{Spoke: r.now} })
	require.Equal(t, []event.Kind{event.PeerSilent, event.PeerBack}, r.kinds())
}

// TestTheStallLimitEndsWhatWaitsForASilentPeer: also while the peer's kernel goes on to acknowledge. The error says so.
func TestTheStallLimitEndsWhatWaitsForASilentPeer(t *testing.T) {
	for _, signs := range []transport.Signs{{}, {Held: true}} {
		r := newRig(t, Options{Stall: 3 * time.Second, FenceNetwork: 100 * ms})
		b := r.fill(2)
		r.pass(2900*ms, func(transport.Rail) transport.Signs { return signs })
		require.Equal(t, Pending, r.status(b).State)
		r.pass(300*ms, func(transport.Rail) transport.Signs { return signs })
		end := r.status(b)
		require.Equal(t, Failed, end.State)
		require.True(t, end.Dirty, "the peer could not be asked")
		require.Equal(t, errs.PeerUnreachable, end.Err.Code)
		require.ErrorContains(t, end.Err, "the peer is silent: last heard 3")
	}
}

// TestAnOutageEndsEarlierForThoseWhoWantThat: a request of before the silence, and one of within, each after its time;
// one with another way takes it.
func TestAnOutageEndsEarlierForThoseWhoWantThat(t *testing.T) {
	r := newRig(t, Options{Outage: 2 * time.Second, FenceNetwork: 10 * ms, Failovers: 1})
	first := r.fill(1)
	id := r.core.links[1].id
	other := r.core.AddLink(LinkSpec{Peer: 1, Transport: 2, Info: &transport.Info{SameHost: true}})
	r.railUp(other, 0, 1, 1<<20)
	r.pass(1500*ms, nothing)
	second := r.submit(to(r.core, id), High, kib, clock.Never)
	third := r.submit(to(r.core, id, other), High, kib, clock.Never)
	r.pass(1200*ms, nothing)
	require.Equal(t, Failed, r.status(first).State)
	require.Equal(t, Pending, r.status(second).State)
	r.pass(1500*ms, nothing)
	require.Equal(t, Failed, r.status(second).State)
	require.ErrorContains(t, r.status(second).Err, "peer_outage_timeout")
	require.Equal(t, Pending, r.status(third).State)
	for len(r.out) > 0 && r.out[0].Rail.Link != transport.Link(other) { // then the peer's withdrawals are confirmed
		r.finish(0, withdrawn)
	}
	require.Len(t, r.out, 1)
}

// TestARailThatWasSuspectedIsNotCondemnedWhileItsPeerIsSilent: nor right after.
func TestARailThatWasSuspectedIsNotCondemnedWhileItsPeerIsSilent(t *testing.T) {
	r := newRig(t, Options{})
	r.fill(2)
	id := r.core.links[1].id
	for range 20 { // one goes on for a while
		r.pass(ms, nothing)
		r.core.Progress(id, railOf(id, 1, 1), r.now)
	}
	require.Equal(t, []event.Kind{event.RailSuspected}, r.kinds())
	r.pass(10*time.Second, nothing)
	require.Equal(t, []event.Kind{event.RailSuspected, event.PeerSilent}, r.kinds())
	r.core.Progress(id, railOf(id, 1, 1), r.now)
	for range 90 {
		r.pass(10*ms, nothing)
		r.core.Progress(id, railOf(id, 1, 1), r.now)
	}
	require.NotContains(t, r.kinds(), event.RailCondemned)
	for range 90 {
		r.pass(10*ms, nothing)
		r.core.Progress(id, railOf(id, 1, 1), r.now)
	}
	require.Contains(t, r.kinds(), event.RailCondemned, "beside a rail that lives it is")
}

// TestALinkOfASilentPeerIsWaitedFor plays the causes of a link without rails.
func TestALinkOfASilentPeerIsWaitedFor(t *testing.T) {
	unanswered := errs.New(errs.Timeout, "call", "no answer").WithScope(errs.ScopeLink, errs.SideUnknown)
	path := errs.New(errs.PeerUnreachable, "dial", "no route").WithScope(errs.ScopeLink, errs.SidePath)
	refused := errs.New(errs.PeerUnreachable, "dial", "refused").WithScope(errs.ScopeLink, errs.SideRemote)
	for _, c := range []struct {
		cause  *errs.Error
		worked bool
		waits  bool
	}{
		{nil, false, true}, {unanswered, false, true}, {unanswered, true, true}, {path, true, true},
		{path, false, false}, {refused, true, false}, {refused, false, false},
	} {
		r := newRig(t, Options{Stall: 10 * time.Second, LinkWait: 500 * ms})
		rails := 0
		if c.worked {
			rails = 1
		}
		id := r.link(1, 1, rails, 1<<20)
		if c.cause != nil {
			r.core.DropLink(id, c.cause, r.now)
		}
		b := r.submit(to(r.core, id), High, kib, clock.Never)
		r.pass(9*time.Second, nothing)
		require.Equal(t, c.waits, r.status(b).State == Pending, "%+v: %+v", c, r.status(b))
		r.pass(2*time.Second, nothing)
		require.Equal(t, Failed, r.status(b).State, "%+v", c)
	}
}

// TestASilentPeersErrorHasTheCauseOfItsLink: a closed port of data looks like a peer that is stopped.
func TestASilentPeersErrorHasTheCauseOfItsLink(t *testing.T) {
	r := newRig(t, Options{Stall: 10 * time.Second, LinkWait: 500 * ms})
	id := r.link(1, 1, 0, 1<<20)
	b := r.submit(to(r.core, id), High, kib, clock.Never)
	r.pass(time.Second, nothing)
	require.Equal(t, Pending, r.status(b).State)
	r.core.DropLink(id, errs.New(errs.PeerUnreachable, "dial", "connect 10.0.0.5:41201: connection timed out").
		WithScope(errs.ScopeLink, errs.SidePath).WithHint("open the port"), r.now)
	r.pass(time.Second, nothing)
	require.Equal(t, Failed, r.status(b).State)
	require.ErrorContains(t, r.status(b).Err, "the peer is silent")
	require.ErrorContains(t, r.status(b).Err, "connect 10.0.0.5:41201: connection timed out")
	require.ErrorContains(t, r.status(b).Err, "open the port")
}

// TestOurOwnPauseEndsNothing: the stall limit and the fence bound count while this process runs.
func TestOurOwnPauseEndsNothing(t *testing.T) {
	r := newRig(t, Options{Stall: 3 * time.Second, FenceNetwork: 100 * ms})
	b := r.fill(1)
	r.pass(time.Second, nothing)
	r.core.Deadline()
	r.wait(time.Minute)
	require.Equal(t, Pending, r.status(b).State)
	late := r.submit(to(r.core, r.core.links[1].id), High, kib, r.now.Add(50*ms))
	r.core.Deadline()
	r.wait(time.Minute)
	r.pass(200*ms, nothing)
	require.Equal(t, TimedOut, r.status(late).State, "a deadline is its user's")
	r.finish(0, nil)
	require.Equal(t, Completed, r.status(b).State)
}

// TestOurOwnPauseEndsNothingDirty: the answer to a withdrawal may lie in the socket that nobody has read meanwhile.
func TestOurOwnPauseEndsNothingDirty(t *testing.T) {
	r := newRig(t, Options{FenceNetwork: time.Second})
	b := r.submit(to(r.core, r.link(1, 0, 1, 1<<20)), High, kib, r.now.Add(10*ms))
	r.wait(10 * ms)
	require.Len(t, r.asked, 1)
	r.submit(to(r.core, r.link(2, 1, 1, 1<<20)), High, kib, r.now.Add(100*ms)) // a step is due soon
	r.core.Deadline()
	r.wait(time.Minute)
	require.Equal(t, Pending, r.status(b).State)
	r.finish(0, withdrawn)
	require.Equal(t, TimedOut, r.status(b).State)
	require.False(t, r.status(b).Dirty)
	require.NotContains(t, r.kinds(), event.Dirty)
}

// TestOurOwnPauseEndsNothingThatWaits: for room on a rail, for a rail, for a rail on which its keys work, or for a peer
// that was silent before.
func TestOurOwnPauseEndsNothingThatWaits(t *testing.T) {
	wait := func(r *rig, id plan.LinkID) BatchID { return r.submit(to(r.core, id), High, kib, clock.Never) }
	for name, begin := range map[string]func(r *rig) BatchID{
		"for room": func(r *rig) BatchID {
			r.fill(1)
			r.submit(to(r.core, r.core.links[1].id), High, 128*kib, clock.Never)
			return wait(r, r.core.links[1].id)
		},
		"for the first rail": func(r *rig) BatchID { return wait(r, r.link(1, 1, 0, kib)) },
		"for a rail": func(r *rig) BatchID {
			id := r.link(1, 1, 1, kib)
			r.core.RailDown(id, railOf(id, 0, 1), broken(errs.ScopeRail), r.now)
			return wait(r, id)
		},
		"for a silent peer": func(r *rig) BatchID {
			b := r.fill(1)
			r.pass(time.Second, nothing)
			require.Contains(r, r.kinds(), event.PeerSilent)
			return b
		},
	} {
		r := newRig(t, Options{Stall: 3 * time.Second, Outage: 2500 * ms})
		b := begin(r)
		r.pass(500*ms, nothing)
		r.core.Deadline()
		r.wait(time.Minute)
		r.pass(500*ms, nothing)
		require.Equal(t, Pending, r.status(b).State, "%s: %v", name, r.status(b).Err)
		r.pass(3*time.Second, nothing)
		require.False(t, r.core.batches[b.Slot()].tasks[0].live(), "%s: the rest of its time is over", name)
	}
}

// TestOurOwnPauseCondemnsNoRail: the answer of a rail that was suspected may lie in the socket that nobody has read.
func TestOurOwnPauseCondemnsNoRail(t *testing.T) {
	r := newRig(t, Options{})
	r.fill(2)
	id := r.core.links[1].id
	for i := 0; i < 100 && !slices.Contains(r.kinds(), event.RailSuspected); i++ {
		r.core.Progress(id, railOf(id, 1, 1), r.now)
		r.pass(ms, nothing)
	}
	require.Contains(t, r.kinds(), event.RailSuspected)
	r.core.Deadline()
	r.wait(time.Minute)
	require.NotContains(t, r.kinds(), event.RailCondemned)
	for range 1200 {
		r.core.Progress(id, railOf(id, 1, 1), r.now)
		r.pass(ms, nothing)
	}
	require.Contains(t, r.kinds(), event.RailCondemned, "it counts on behind the stop")
}

// TestADeadRailIsFoundAfterOurOwnPause: the clock of its silence goes on at once.
func TestADeadRailIsFoundAfterOurOwnPause(t *testing.T) {
	r := newRig(t, Options{})
	r.fill(2)
	id := r.core.links[1].id
	r.core.Deadline()
	r.now = r.now.Add(time.Minute)
	for i := range 2 {
		r.core.Progress(id, railOf(id, i, 1), r.now)
	}
	r.step()
	for range 40 {
		r.pass(ms, nothing)
		r.core.Progress(id, railOf(id, 1, 1), r.now)
	}
	require.Equal(t, []event.Kind{event.RailSuspected}, r.kinds())
}

// TestOurOwnShortPausesTeachNoPatience: they were not the rail's silence. One that breaks behind them is found in less
// time than one of them took, where three times that was the limit; the time until a step was due does count.
func TestOurOwnShortPausesTeachNoPatience(t *testing.T) {
	const pause = 80 * ms
	for _, pauses := range []int{0, 1, 3} {
		r := newRig(t, Options{})
		id := r.ends(1, 0, [2]string{"a", "A"}, [2]string{"b", "B"})
		p := to(r.core, id)
		r.warm(p)
		r.submit(p, High, 128*kib, clock.Never)
		require.Len(t, r.out, 2)
		silent := int(r.out[0].Rail.Index)
		for range pauses {
			r.pass(ms, nothing)
			r.core.Deadline()
			r.now = r.now.Add(pause)
			for i := range 2 {
				r.core.Progress(id, railOf(id, i, 1), r.now)
			}
			r.step()
		}
		broke := r.now
		for len(r.kinds()) == 0 {
			require.Less(t, r.now.Sub(broke), pause, "%d pauses", pauses)
			r.pass(ms/2, nothing)
			r.core.Progress(id, railOf(id, 1-silent, 1), r.now)
		}
		require.Equal(t, []event.Kind{event.RailSuspected}, r.kinds())
	}
}

// An idle rail owes nothing, so the time before a word of it is no silence.
func TestAWordOfAnIdleRailTeachesNoPatience(t *testing.T) {
	for _, idle := range []time.Duration{10 * ms, time.Second, time.Hour} {
		var limits []time.Duration
		for _, words := range []int{0, 1, 3} {
			r := newRig(t, Options{})
			id := r.link(1, 0, 1, 1<<20)
			p := to(r.core, id)
			r.submit(p, High, 64<<20, clock.Never)
			r.carry(time.Second)
			for range words {
				r.now = r.now.Add(idle)
				r.core.Progress(id, railOf(id, 0, 1), r.now)
			}
			r.submit(p, High, 64<<20, clock.Never)
			r.carry(10 * ms)
			limits = append(limits, r.core.silenceOf(r.core.link(id).rails[0]))
		}
		require.Equal(t, slices.Repeat(limits[:1], 3), limits)
	}
}

// TestAnErrorSaysWhatBecameOfTheBytes: nothing was sent, some may have landed, or some may still land.
func TestAnErrorSaysWhatBecameOfTheBytes(t *testing.T) {
	cause := errs.New(errs.PeerUnreachable, "peer", "the peer has gone").WithScope(errs.ScopeLink, errs.SideRemote)
	r := newRig(t, Options{Stall: 3 * time.Second, FenceNetwork: 100 * ms})
	sent := r.fill(1)
	p := to(r.core, r.core.links[1].id)
	r.submit(p, High, 64*kib, clock.Never) // fills the window
	waiting := r.submit(p, High, 64*kib, clock.Never)
	r.core.PeerGone(1, cause, r.now)
	r.step()
	r.finish(0, broken(errs.ScopeRail))
	require.ErrorContains(t, r.status(sent).Err,
		"the peer has gone; some of its bytes may have landed, and none does any more")
	require.ErrorContains(t, r.status(waiting).Err, "the peer has gone; nothing of this was sent")

	r = newRig(t, Options{Stall: 3 * time.Second, FenceNetwork: 100 * ms})
	open := r.fill(1)
	r.pass(3500*ms, nothing)
	require.ErrorContains(t, r.status(open).Err, "; some of its bytes may still land")
}

// TestADeadRailIsNotTakenForASilentPeer: a rail that has never delivered says nothing, and the others have ended their
// work. Probes over these, or the control plane, show that the peer is there, also where answers take long.
func TestADeadRailIsNotTakenForASilentPeer(t *testing.T) {
	for _, answers := range []time.Duration{0, 20 * ms, 200 * ms, 600 * ms} {
		r := newRig(t, Options{})
		id := r.link(1, 1, 2, 128*kib)
		r.core.link(id).spec.Probes = true
		r.submit(to(r.core, id), High, 4*64*kib, clock.Never)
		for i := len(r.out) - 1; i >= 0; i-- {
			if r.out[i].Rail.Index == 0 {
				r.finish(i, nil)
			}
		}
		require.Len(t, r.out, 2)
		due, answered := clock.Never, r.now // the answer to a probe, and that of the control plane
		for end := r.now.Add(4 * time.Second); r.now < end && len(r.out) == 2; {
			r.now = min(end, due, max(r.core.Deadline(), r.now+1))
			if r.now == due {
				r.core.Probed(id, railOf(id, 0, 1), clock.Time(answers), nil, r.now)
				due = clock.Never
			}
			if r.core.Silent(1) && r.now >= answered.Add(400*ms) {
				r.core.Answered(1, r.now)
				answered = r.now
			}
			r.step()
			for _, probe := range r.probes {
				if probe.Index == 0 {
					due = min(due, r.now.Add(answers+1))
				}
			}
		}
		require.Contains(t, r.kinds(), event.RailSuspected, answers)
		require.Len(t, r.out, 4, "its slices go over the other rail as well")
		if answers < silenceLook {
			require.NotContains(t, r.kinds(), event.PeerSilent, answers)
		}
	}
}

// The first that this process does after it was stopped may be no step. An answer, or a request to a peer that has no
// rail, counts as of now by the detector's clock: else a silence that begins there would be noticed later, by all of
// the stop.
func TestNewsBehindOurOwnPauseDoesNotDelayTheDetector(t *testing.T) {
	for name, first := range map[string]func(r *rig, fallen plan.LinkID){
		"an answer": func(r *rig, _ plan.LinkID) { r.core.Answered(1, r.now) },
		"a request": func(r *rig, fallen plan.LinkID) { r.submit(to(r.core, fallen), High, kib, clock.Never) },
	} {
		r := newRig(t, Options{})
		r.fill(1)
		fallen := r.link(2, 1, 1, kib)
		r.core.RailDown(fallen, railOf(fallen, 0, 1), broken(errs.ScopeRail), r.now)
		r.step()
		require.Less(t, r.core.Deadline(), r.now.Add(time.Second), "a step is promised")
		r.now = r.now.Add(10 * time.Second)
		first(r, fallen)
		r.step()
		r.pass(2*time.Second, nothing)
		silent := 0
		for _, kind := range r.kinds() {
			if kind == event.PeerSilent {
				silent++
			}
		}
		want := map[string]int{"an answer": 1, "a request": 2}[name]
		require.Equal(t, want, silent, name)
	}
}
