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

// ends adds a link over probing transports with rails between the named ends.
func (r *rig) ends(peer uint32, transports uint8, pairs ...[2]string) plan.LinkID {
	id := r.core.AddLink(LinkSpec{Peer: peer, PeerName: "peer", Transport: transports, Info: &transport.Info{},
		Probes: true})
	for i, p := range pairs {
		r.core.RailUp(id, transport.RailInfo{Rail: railOf(id, i, 1), Local: p[0], Remote: p[1], BytesMax: 1 << 20,
			Bandwidth: 1e9}, r.now)
	}
	return id
}

// warm has every rail of a link deliver something.
func (r *rig) warm(p *plan.Plan) {
	r.submit(p, High, 1<<20, clock.Never)
	r.now = r.now.Add(ms)
	r.drain()
}

// questions of the last step.
func (r *rig) questions() (doubts, probes []transport.Rail) { return r.doubts, r.probes }

func TestSignsOfLifeAreLookedForBeforeARailIsSuspected(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(r *rig, q Question)
		want   []event.Kind
	}{
		"nothing was heard": {func(r *rig, q Question) { r.core.Liveness(q, transport.Signs{}, r.now) },
			[]event.Kind{event.RailSuspected}},
		"nobody answers": {func(*rig, Question) {}, []event.Kind{event.RailSuspected}},
		"something came meanwhile": {func(r *rig, q Question) {
			r.core.Liveness(q, transport.Signs{Heard: r.now.Add(-ms)}, r.now)
		}, nil},
		"the peer does not take it": {func(r *rig, q Question) {
			r.core.Liveness(q, transport.Signs{Held: true}, r.now)
		}, nil},
		"what came, came before": {func(r *rig, q Question) {
			r.core.Liveness(q, transport.Signs{Heard: r.now.Add(-time.Second)}, r.now)
		}, []event.Kind{event.RailSuspected}},
		"an answer for another rail": {func(r *rig, q Question) {
			q.Rail.Generation++
			r.core.Liveness(q, transport.Signs{Heard: r.now, Held: true}, r.now)
		}, []event.Kind{event.RailSuspected}},
		"an answer for a link that was": {func(r *rig, q Question) {
			q.Link = 77
			r.core.Liveness(q, transport.Signs{Heard: r.now, Held: true}, r.now)
		}, []event.Kind{event.RailSuspected}},
	} {
		r := newRig(t, Options{})
		id := r.ends(1, 0, [2]string{"a", "A"}, [2]string{"b", "B"})
		p := to(r.core, id)
		r.warm(p)
		r.submit(p, High, 128*kib, clock.Never)
		require.Len(t, r.out, 2)
		silent, asked := r.out[0].Rail, false
		for range 16 {
			r.now = r.now.Add(ms / 2)
			r.core.Progress(id, r.out[1].Rail, r.now)
			r.step()
			if doubts, _ := r.questions(); len(doubts) > 0 && !asked {
				asked = true
				require.Equal(t, silent, doubts[0], name)
				require.Empty(t, r.kinds(), "%s: asked first", name)
				c.answer(r, Question{0, id, silent})
				r.step()
			}
		}
		require.True(t, asked, name)
		kinds := r.kinds()
		require.Equal(t, c.want, kinds[:min(len(kinds), 1)], name)
	}
}

func TestAnIdleRailIsAskedWhetherThePeerIsThere(t *testing.T) {
	for _, there := range []bool{true, false} {
		r := newRig(t, Options{})
		id := r.ends(1, 0, [2]string{"a", "A"}, [2]string{"b", "B"})
		p := to(r.core, id)
		r.warm(p)
		r.submit(p, High, kib, clock.Never)
		require.Len(t, r.out, 1)
		silent := r.out[0].Rail
		for range 40 {
			r.wait(ms)
			if _, probes := r.questions(); len(probes) > 0 && probes[0] != silent {
				var err *errs.Error
				if !there {
					err = broken(errs.ScopeRail)
				}
				r.core.Probed(id, probes[0], 1000, err, r.now)
			}
		}
		suspected := false
		for _, k := range r.kinds() {
			suspected = suspected || k == event.RailSuspected
		}
		require.Equal(t, there, suspected)
	}
}

func TestACallBackThatIsAnsweredElsewhereIsNoSignOfLife(t *testing.T) {
	r := newRig(t, Options{})
	id := r.ends(1, 0, [2]string{"a", "A"}, [2]string{"b", "B"})
	p := to(r.core, id)
	r.warm(p)
	r.submit(p, High, 128*kib, clock.Never)
	silent := r.out[0].Rail
	asked := false
	for range 12 {
		r.now = r.now.Add(ms)
		r.core.Progress(id, r.out[1].Rail, r.now)
		r.step()
		asked = asked || slices.Contains(r.probes, silent)
	}
	require.Equal(t, event.RailSuspected, r.kinds()[0])
	require.True(t, asked)
	r.finish(0, nil) // it had landed, says the peer over another lane
	require.NotContains(t, r.kinds(), event.RailRecovered)
	r.core.Probed(id, silent, 1000, nil, r.now)
	r.step()
	require.Contains(t, r.kinds(), event.RailRecovered)
	require.Equal(t, "sign of life", r.events[len(r.events)-1].Note)
}

func TestOnlyAShareOfRailsIsSuspectedAndCondemningIsLate(t *testing.T) {
	r := newRig(t, Options{Rail: rail.Settings{SoftOut: 0.3}})
	id := r.ends(1, 0, [2]string{"a", "A"}, [2]string{"b", "B"}, [2]string{"c", "C"}, [2]string{"d", "D"})
	p := to(r.core, id)
	r.warm(p)
	r.submit(p, High, 4*64*kib, clock.Never)
	require.Len(t, r.out, 4)
	alive := r.out[3].Rail
	suspected := func() (n int) {
		for _, k := range r.kinds() {
			if k == event.RailSuspected {
				n++
			}
		}
		return n
	}
	for range 500 {
		r.now = r.now.Add(ms)
		r.core.Progress(id, alive, r.now)
		r.step()
	}
	require.Equal(t, 1, suspected(), "one of four")
	for range 1600 {
		r.now = r.now.Add(ms)
		r.core.Progress(id, alive, r.now)
		r.step()
	}
	require.Equal(t, 3, suspected(), "those that are silent for as long as a rail may be are given up all the same")
}

func TestAPausedRailIsProbedWhileItsPeerIsWantedAndComesBackByARamp(t *testing.T) {
	r := newRig(t, Options{Rail: rail.Settings{Threshold: 1}})
	id := r.ends(1, 0, [2]string{"a", "A"}, [2]string{"b", "B"})
	p := to(r.core, id)
	r.warm(p)
	for need := 1; need <= 4; need *= 2 {
		r.submit(p, High, 1<<20, clock.Never)
		for i, s := range r.out {
			if s.Rail.Index == 0 {
				r.finish(i, broken(errs.ScopeRail))
				break
			}
		}
		require.Equal(t, event.RailPaused, r.kinds()[len(r.kinds())-1])
		for i, good := 0, 0; good < need; i++ {
			require.Less(t, i, 1000)
			require.NotContains(t, r.kinds()[len(r.kinds())-1:], event.RailRecovered)
			if _, probes := r.questions(); !slices.Contains(probes, railOf(id, 0, 1)) {
				r.wait(ms)
			} else {
				good++
				r.core.Probed(id, railOf(id, 0, 1), 1000, nil, r.now)
				r.step()
			}
		}
		require.Equal(t, event.RailRecovered, r.kinds()[len(r.kinds())-1], "after %d good probes", need)
		require.Equal(t, recoveryNotes[rail.Proved], r.events[len(r.events)-1].Note)
		require.EqualValues(t, 128*kib, r.core.rail(id, railOf(id, 0, 1)).bytesMax)
		r.drain()
		for i := 0; r.core.rail(id, railOf(id, 0, 1)).bytesMax < 1<<20; i++ {
			require.Less(t, i, 10, "trusted again")
			r.warm(p)
		}
	}
	r.submit(p, High, 1<<20, clock.Never)
	for i := 0; i < len(r.out); { // a success would end the pause
		if r.out[i].Rail.Index == 0 {
			r.finish(i, broken(errs.ScopeRail))
		} else {
			i++
		}
	}
	r.core.Probed(id, railOf(id, 0, 1), 1000, broken(errs.ScopeRail), r.now)
	r.drain()
	r.wait(2 * time.Second)
	r.wait(time.Second)
	for range 100 {
		r.wait(10 * ms)
		_, probes := r.questions()
		require.Empty(t, probes, "nobody wants the peer")
	}
	r.submit(p, High, kib, clock.Never)
	_, probes := r.questions()
	require.Equal(t, []transport.Rail{railOf(id, 0, 1)}, probes, "now somebody does")
}

func TestHealthThenNodeThenFinishThenTheLeastLatelyUsed(t *testing.T) {
	r := newRig(t, Options{})
	id := r.core.AddLink(LinkSpec{Peer: 1, Info: &transport.Info{}})
	for i, node := range []int{0, 1, 1} {
		r.core.RailUp(id, transport.RailInfo{Rail: railOf(id, i, 1), Local: string(rune('a' + i)),
			Remote: string(rune('A' + i)),
			Node:   node, BytesMax: 1 << 20, Bandwidth: 1e9}, r.now)
	}
	p := to(r.core, id)
	p.Node = 2 // node 1
	var order []uint16
	send := func(n int) []uint16 {
		order = nil
		for range n {
			r.submit(p, High, kib, clock.Never)
		}
		for _, s := range r.out {
			order = append(order, s.Rail.Index)
		}
		r.drain()
		return order
	}
	require.Equal(t, []uint16{1, 2, 1, 2}, send(4), "the near ones in turn")
	near := r.core.rail(id, railOf(id, 1, 1))
	near.health.Lower(100)
	r.core.rerank(near.link)
	require.Equal(t, []uint16{2, 2}, send(2), "the healthy one of them, although the other would be quicker")
	r.core.rail(id, railOf(id, 2, 1)).health.Lower(100)
	r.core.rerank(near.link)
	require.Equal(t, []uint16{0}, send(1), "health comes before nearness")
}

// The LNet seed's health_value_range: a range of 0 takes the best rail alone, and the greatest one leaves health out.
func TestTheRangeOfHealthSaysWhichRailsAreEquals(t *testing.T) {
	for _, test := range []struct{ step, lost, shared int }{{1, 1, 0}, {100, 99, 2}, {100, 100, 0}, {1001, 1000, 2}} {
		r := newRig(t, Options{Rail: rail.Settings{Step: test.step}})
		id := r.link(1, 0, 2, 1<<20)
		worse := r.core.rail(id, railOf(id, 1, 1))
		worse.health.Lower(test.lost)
		r.core.rerank(worse.link)
		shared := 0
		for range 4 {
			r.submit(to(r.core, id), High, kib, clock.Never)
		}
		for _, s := range r.out {
			shared += int(s.Rail.Index)
		}
		require.Equal(t, test.shared, shared, "%+v", test)
	}
}

func TestAlternatesStandInForAnEndThatIsLeftOverOnceTheyAreProven(t *testing.T) {
	r := newRig(t, Options{})
	id := r.ends(1, 0, [2]string{"a", "A"}, [2]string{"b", "B"})
	r.core.RailUp(id, transport.RailInfo{Rail: railOf(id, 2, 1), Local: "a", Remote: "B", Alternates: true,
		BytesMax: 1 << 20, Bandwidth: 1e9}, r.now)
	r.step()
	_, probes := r.questions()
	require.Equal(t, []transport.Rail{railOf(id, 2, 1)}, probes, "asked before it is needed")
	p := to(r.core, id)
	used := func() bool {
		r.submit(p, High, 4<<20, clock.Never)
		defer r.drain()
		for _, s := range r.out {
			if s.Rail.Index == 2 {
				return true
			}
		}
		return false
	}
	require.False(t, used(), "both ends are in use")
	r.core.RailDown(id, railOf(id, 0, 1), broken(errs.ScopeRail), r.now)
	require.False(t, used(), "end a is left over, but nobody knows whether this way works")
	r.core.Probed(id, railOf(id, 2, 1), 1000, broken(errs.ScopeRail), r.now)
	require.False(t, used(), "it does not")
	for i := 0; !slices.Contains(r.probes, railOf(id, 2, 1)); i++ {
		require.Less(t, i, 20, "asked again while the peer is wanted")
		r.submit(p, High, kib, clock.Never)
		r.drain()
		r.wait(10 * ms)
	}
	r.core.Probed(id, railOf(id, 2, 1), 1000, nil, r.now)
	require.True(t, used())
	r.core.RailUp(id, transport.RailInfo{Rail: railOf(id, 0, 2), Local: "a", Remote: "A", BytesMax: 1 << 20,
		Bandwidth: 1e9}, r.now)
	require.False(t, used(), "its end is in use again")
}

func TestARoundGivesEveryRailItsChanceBeforeThePause(t *testing.T) {
	r := newRig(t, Options{Retries: 3, RetryAfter: ms, SuspectAfter: time.Second, Rail: rail.Settings{Threshold: 100}})
	b := r.submit(to(r.core, r.link(1, 0, 3, 1<<20)), High, kib, clock.Never)
	for round := range 4 {
		seen := map[uint16]bool{}
		for range 3 {
			require.Len(t, r.out, 1)
			seen[r.out[0].Rail.Index] = true
			r.finish(0, broken(errs.ScopeRail))
		}
		require.Len(t, seen, 3, "round %d", round)
		require.Empty(t, r.out)
		if round < 3 {
			require.Equal(t, ms<<round, r.core.Deadline().Sub(r.now))
			r.wait(ms << round)
		}
	}
	s := r.status(b)
	require.Equal(t, Failed, s.State)
	require.EqualValues(t, 12, s.Attempts)
}

func TestATimeOutOfAnAttemptTakesPartInFailover(t *testing.T) {
	r := newRig(t, Options{Failovers: 3})
	b := r.submit(to(r.core, r.link(1, 0, 1, 1<<20), r.link(1, 1, 1, 1<<20)), High, kib, clock.Never)
	late := errs.New(errs.Timeout, "test", "no completion").WithScope(errs.ScopeLink, errs.SideUnknown)
	require.Len(t, r.finish(0, late), 1)
	r.drain()
	require.Equal(t, Status{State: Completed, Transport: 1, Attempts: 2, Failovers: 1, Bytes: kib}, r.status(b))
}

func TestASilentPeerIsTriedOverTheNextTransportAfterTheLimitOfAnAttempt(t *testing.T) {
	r := newRig(t, Options{Failovers: 3, AttemptLimit: 2 * time.Second, Stall: 10 * time.Second})
	rdma, tcp := r.link(1, 0, 1, 1<<20), r.link(1, 1, 1, 1<<20)
	b := r.submit(to(r.core, rdma, tcp), High, 128*kib, clock.Never)
	r.finish(0, nil)
	for range 190 {
		require.Empty(t, r.wait(10*ms))
	}
	var fresh []*transport.Slice
	for i := 0; len(fresh) == 0; i++ {
		require.Less(t, i, 100)
		fresh = r.wait(10 * ms)
	}
	require.EqualValues(t, tcp, fresh[0].Rail.Link)
	require.EqualValues(t, 64*kib, sum(fresh), "what was acknowledged is not sent again")
	require.Len(t, r.asked, 1)
	r.finish(1, nil)
	require.Equal(t, Pending, r.status(b).State, "the first copy may still land")
	r.finish(0, withdrawn)
	require.Equal(t, Completed, r.status(b).State)
	require.EqualValues(t, 1, r.status(b).Failovers)
}

// A rail that is paused may be the only one. Its slices are watched from the start, not from the end of the pause.
func TestAPausedRailIsWatchedWhileItCarriesSomething(t *testing.T) {
	r := newRig(t, Options{Failovers: 3})
	first, second := r.link(1, 0, 1, 128*kib), r.link(1, 1, 0, 128*kib)
	r.core.DropLink(second, broken(errs.ScopeLink), r.now)
	r.submit(to(r.core, first, second), High, 64*kib, clock.Never)
	for range 3 { // its breaker opens
		require.Len(t, r.out, 1)
		r.finish(0, broken(errs.ScopeRail))
		r.wait(10 * ms)
	}
	require.Len(t, r.out, 1, "there is nothing better")
	r.railUp(second, 0, 1, 128*kib)
	for begun := r.now; len(r.out) == 1; r.wait(50 * ms) {
		require.Less(t, r.now.Sub(begun), r.core.options.AttemptLimit*3/2)
	}
	require.EqualValues(t, second, r.out[1].Rail.Link)
}

// A task that waits behind others is not stalled while its link delivers, however long that takes.
func TestATaskBehindOthersIsNotStalled(t *testing.T) {
	r := newRig(t, Options{Stall: time.Second, Ageing: time.Hour})
	p := to(r.core, r.link(1, 0, 1, 64*kib))
	r.submit(p, High, 2*64*kib, clock.Never)
	low := r.submit(p, Low, kib, clock.Never)
	for range 50 {
		r.submit(p, High, 64*kib, clock.Never)
		r.now = r.now.Add(100 * ms)
		r.finish(0, nil)
	}
	require.Equal(t, Pending, r.status(low).State)
	require.Zero(t, r.status(low).Attempts)
	r.drain()
	require.Equal(t, Completed, r.status(low).State)
}

// A silence is reason to leave once. A task that comes back, since the other way has failed, is not sent to and fro.
func TestASilentRailIsLeftOnceInASilence(t *testing.T) {
	r := newRig(t, Options{Failovers: 9, AttemptLimit: 2 * time.Second, Stall: 20 * time.Second})
	silent, other := r.link(1, 0, 1, 1<<20), r.link(1, 1, 1, 1<<20)
	b := r.submit(to(r.core, silent, other), High, 64*kib, clock.Never)
	for len(r.out) == 1 {
		r.wait(10 * ms)
	}
	require.EqualValues(t, 1, r.status(b).Failovers)
	r.finish(1, broken(errs.ScopeLink))
	require.EqualValues(t, 2, r.status(b).Failovers)
	for range 300 {
		r.wait(10 * ms)
	}
	require.EqualValues(t, 2, r.status(b).Failovers)
}

func TestALinkThatHasWorkedIsWaitedForLonger(t *testing.T) {
	r := newRig(t, Options{LinkWait: 500 * ms, Outage: 2 * time.Second})
	id := r.link(1, 1, 1, 1<<20)
	p := to(r.core, id)
	r.warm(p)
	r.core.DropLink(id, broken(errs.ScopeLink), r.now)
	b := r.submit(p, High, kib, clock.Never)
	r.wait(time.Second)
	r.core.Deadline()
	r.wait(time.Minute) // this process was stopped
	r.wait(400 * ms)
	require.Equal(t, Pending, r.status(b).State)
	r.railUp(id, 0, 2, 1<<20)
	r.step()
	r.drain()
	require.Equal(t, Completed, r.status(b).State)

	r.core.DropLink(id, broken(errs.ScopeLink), r.now)
	b = r.submit(p, High, kib, clock.Never)
	r.wait(4*500*ms + ms)
	require.Equal(t, Failed, r.status(b).State)
}

// Whether its old connections broke, or new ones took over from them because they were stuck.
func TestARailThatWasDialledAnewComesBackByARamp(t *testing.T) {
	for _, cause := range []*errs.Error{nil, broken(errs.ScopeRail)} {
		r := newRig(t, Options{})
		id := r.ends(1, 0, [2]string{"a", "A"}, [2]string{"b", "B"})
		p := to(r.core, id)
		r.warm(p)
		for generation := 2; generation < 4; generation++ {
			r.core.RailDown(id, railOf(id, 0, generation-1), cause, r.now)
			r.railUp(id, 0, generation, 1<<20)
			again := r.core.rail(id, railOf(id, 0, generation))
			require.EqualValues(t, 128*kib, again.bytesMax)
			for want := uint64(128 * kib); ; want *= 2 { // slow start: each delivered byte widens the window
				r.submit(p, High, 4<<20, clock.Never)
				require.Equal(t, min(want, 1<<20), again.bytes)
				if want > 1<<20 {
					break
				}
				for i := 0; i < len(r.out); {
					if r.out[i].Rail == again.id {
						s := r.out[i]
						r.core.Complete(0, []transport.Completion{{Slice: s, Id: s.Id, Bytes: s.Length}}, r.now)
						r.out = append(r.out[:i], r.out[i+1:]...)
					} else {
						i++
					}
				}
			}
			r.drain()
		}
		require.NotContains(t, r.kinds(), event.RailSuspected)
	}
}

func TestAFailureInTheRampBeginsItAnew(t *testing.T) {
	r := newRig(t, Options{})
	id := r.ends(1, 0, [2]string{"a", "A"}, [2]string{"b", "B"})
	p := to(r.core, id)
	r.core.RailDown(id, railOf(id, 0, 1), nil, r.now)
	r.railUp(id, 0, 2, 1<<20)
	again := r.core.rail(id, railOf(id, 0, 2))
	r.submit(p, High, 128*kib, clock.Never)
	r.drain()
	require.Greater(t, again.bytesMax, uint64(128*kib))
	r.submit(p, High, 1<<20, clock.Never)
	i := slices.IndexFunc(r.out, func(s *transport.Slice) bool { return s.Rail == again.id })
	r.finish(i, broken(errs.ScopeRail))
	require.EqualValues(t, 128*kib, again.bytesMax)
	r.drain()
}
