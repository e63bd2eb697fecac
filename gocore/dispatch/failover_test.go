package dispatch

import (
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

// So does a slice that was sent to a generation which had just ended.
func TestCollateralGoesAgainAtOnceAndCountsNothing(t *testing.T) {
	collateral := broken(errs.ScopeRail)
	collateral.Collateral = true
	stale := errs.New(errs.StaleGeneration, "test", "another generation is there").
		WithScope(errs.ScopeSlice, errs.SideRemote)
	for _, e := range []*errs.Error{collateral, stale} {
		r := newRig(t, Options{Retries: 1, Rail: rail.Settings{Threshold: 1}})
		b := r.submit(to(r.core, r.link(1, 0, 1, 1<<20)), High, kib, clock.Never)
		for range 10 {
			require.Len(t, r.finish(0, e), 1)
		}
		r.drain()
		require.Equal(t, Completed, r.status(b).State)
		require.Empty(t, r.kinds())
	}
}

// A slice that comes back refused, after its task has taken another way, goes that way too.
func TestARefusedSliceFollowsItsTask(t *testing.T) {
	r := newRig(t, Options{Failovers: 1})
	first, second := r.link(1, 0, 1, 1<<20), r.link(1, 1, 1, 1<<20)
	b := r.submit(to(r.core, first, second), High, 128*kib, clock.Never)
	require.Len(t, r.out, 2)
	require.Len(t, r.finish(0, broken(errs.ScopeLink)), 1)
	r.core.Refuse([]*transport.Slice{r.out[0]}, r.now)
	r.out = r.out[1:]
	fresh := r.step()
	require.Len(t, fresh, 1)
	require.EqualValues(t, second, fresh[0].Rail.Link)
	r.drain()
	require.Equal(t, Completed, r.status(b).State)
}

func TestCollateralForEverEndsAllTheSame(t *testing.T) {
	r := newRig(t, Options{})
	b := r.submit(to(r.core, r.link(1, 0, 1, 1<<20)), High, kib, clock.Never)
	e := broken(errs.ScopeSlice)
	e.Collateral = true
	for i := 0; r.status(b).State == Pending; i++ {
		require.Less(t, i, 100)
		if len(r.out) == 0 {
			r.wait(time.Second)
			continue
		}
		r.finish(0, e)
	}
	require.Equal(t, Failed, r.status(b).State)
}

func TestPermanentErrorFailsAtOnceAndCallsTheRestBack(t *testing.T) {
	r := newRig(t, Options{})
	tcp := r.link(1, 1, 1, 1<<20)
	b := r.submit(to(r.core, r.link(1, 0, 1, 192*kib), tcp), High, 1<<20, clock.Never)
	require.Len(t, r.out, 3)
	require.Empty(t, r.finish(1, errs.New(errs.PermissionDenied, "test", "read only")))
	require.Len(t, r.asked, 2)
	require.Equal(t, Pending, r.status(b).State, "what is out may still land")
	r.finish(0, nil)
	r.finish(0, errs.New(errs.Withdrawn, "test", "withdrawn"))
	s := r.status(b)
	require.Equal(t, Failed, s.State)
	require.Equal(t, errs.PermissionDenied, s.Err.Code)
	require.Equal(t, "rdma", s.Err.Transport)
	require.Equal(t, "a -> b", s.Err.Rail)
	require.EqualValues(t, 64*kib, s.Bytes)
}

func TestASliceIsRetriedWithGrowingPauses(t *testing.T) {
	r := newRig(t, Options{Retries: 4, RetryAfter: ms, SuspectAfter: time.Second})
	b := r.submit(to(r.core, r.link(1, 0, 1, 1<<20)), High, kib, clock.Never)
	for i := range 4 {
		require.Empty(t, r.finish(0, broken(errs.ScopeSlice)), "attempt %d", i)
		pause := r.core.Deadline().Sub(r.now)
		require.Equal(t, ms<<i, pause)
		require.Empty(t, r.wait(pause-1))
		require.Len(t, r.wait(1), 1)
	}
	r.finish(0, broken(errs.ScopeSlice))
	s := r.status(b)
	require.Equal(t, Failed, s.State)
	require.EqualValues(t, 5, s.Attempts)
	require.Equal(t, []event.Kind{event.FailoverNoRoute}, r.kinds())
}

func TestARailErrorGoesToAnotherRailAtOnce(t *testing.T) {
	r := newRig(t, Options{})
	b := r.submit(to(r.core, r.link(1, 0, 2, 1<<20)), High, kib, clock.Never)
	from := r.out[0].Rail.Index
	again := r.finish(0, broken(errs.ScopeRail))
	require.Len(t, again, 1)
	require.NotEqual(t, from, again[0].Rail.Index)
	r.drain()
	require.Equal(t, Status{State: Completed, Attempts: 2, Bytes: kib}, r.status(b))
	require.EqualValues(t, 1, r.core.Counters(0, High).Reroutes)
}

func TestARailThatKeepsFailingIsPaused(t *testing.T) {
	r := newRig(t, Options{})
	p := to(r.core, r.link(1, 0, 2, 1<<20))
	for failures := 0; failures < 3; {
		r.submit(p, High, 2<<20, clock.Never) // more than one rail takes, or the one that failed would not be used
		for len(r.out) > 0 {
			if r.out[0].Rail.Index == 0 {
				failures++
				r.finish(0, broken(errs.ScopeRail))
			} else {
				r.finish(0, nil)
			}
		}
	}
	require.Equal(t, []event.Kind{event.RailPaused}, r.kinds())
	r.submit(p, High, 1<<20, clock.Never)
	for _, s := range r.out {
		require.EqualValues(t, 1, s.Rail.Index)
	}
	r.drain()
	r.wait(30 * time.Second)
	require.Equal(t, []event.Kind{event.RailPaused, event.RailRecovered}, r.kinds())
	require.Equal(t, "cooldown expired", r.events[len(r.events)-1].Note)
	r.submit(p, High, 2<<20, clock.Never)
	back := uint64(0)
	for _, s := range r.out {
		if s.Rail.Index == 0 {
			back += s.Length
		}
	}
	require.EqualValues(t, 128*kib, back, "it is used again, with care")
}

// A lane that breaks fails all of its slices, before its rail is reported down or behind it. That is one failure. The
// rail has ended by it, and is dialled anew: nobody hears of a pause.
func TestALaneThatBreaksCostsHealthOnce(t *testing.T) {
	for name, c := range map[string]struct {
		before int  // completions that come before RailDown
		each   bool // has an error of its own
	}{
		"slices come back behind the end":       {},
		"each with an error of its own":         {each: true},
		"they come back before it":              {before: 8},
		"some before and some behind, with one": {before: 3},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, Options{Rail: rail.Settings{Threshold: min(c.before, 1) + 1}})
			id := r.link(1, 1, 1, 1<<20)
			r.submit(to(r.core, id), High, 8*64*kib, clock.Never)
			require.Len(t, r.out, 8)
			list, cause := r.out, broken(errs.ScopeRail)
			r.now = r.now.Add(ms)
			r.out = nil
			complete := func(list []*transport.Slice) {
				for _, s := range list {
					if c.each {
						cause = broken(errs.ScopeRail)
					}
					r.core.Complete(0, []transport.Completion{{Slice: s, Id: s.Id, Err: cause}}, r.now)
				}
			}
			complete(list[:c.before])
			r.core.RailDown(id, railOf(id, 0, 1), cause, r.now)
			r.step()
			complete(list[c.before:])
			r.step()
			require.Equal(t, []event.Kind{event.RailDown}, r.kinds())
			require.Zero(t, r.core.totalsFor(1).condemned)
			require.EqualValues(t, 1, r.core.totalsFor(1).errors)
			require.EqualValues(t, 8, r.core.Counters(1, High).AttemptFailures[transport.Write])
			r.railUp(id, 0, 2, 1<<20)
			require.Equal(t, 900, r.core.rail(id, railOf(id, 0, 2)).health.Value())
		})
	}
}

// One error that a transport uses again, of slices that were sent behind the failure, is another failure.
func TestAnErrorThatComesAgainCountsAgain(t *testing.T) {
	r := newRig(t, Options{RetryAfter: ms, SuspectAfter: time.Second})
	id := r.link(1, 0, 1, 1<<20)
	r.submit(to(r.core, id), High, kib, clock.Never)
	for cause, i := broken(errs.ScopeRail), 0; i < 3; i++ {
		require.Len(t, r.out, 1)
		r.now = r.now.Add(ms)
		r.finish(0, cause)
		r.wait(ms << i)
	}
	require.Equal(t, []event.Kind{event.RailPaused}, r.kinds())
	require.Equal(t, "3 errors", r.events[len(r.events)-1].Note)
}

// A slice of before the pause fails by the trouble that is over.
func TestAStragglerDoesNotPauseARailThatHasRecovered(t *testing.T) {
	r := newRig(t, Options{Rail: rail.Settings{Threshold: 1}})
	id := r.link(1, 0, 1, 1<<20)
	p := to(r.core, id)
	r.submit(p, High, 128*kib, clock.Never)
	require.Len(t, r.out, 2)
	r.finish(0, broken(errs.ScopeRail))
	state := func() rail.State { return r.core.rail(id, railOf(id, 0, 1)).life.State() }
	require.Equal(t, rail.Paused, state())
	straggler := r.out[0]
	r.now = r.now.Add(ms)
	r.core.Probed(id, railOf(id, 0, 1), 1000, nil, r.now)
	r.step()
	require.Equal(t, rail.Up, state())
	require.Same(t, straggler, r.out[0])
	r.finish(0, broken(errs.ScopeRail))
	require.Equal(t, rail.Up, state())
	r.finish(0, broken(errs.ScopeRail))
	require.Equal(t, rail.Paused, state(), "a slice of after the recovery counts")
}

func TestFailoverSendsOnlyWhatIsMissing(t *testing.T) {
	r := newRig(t, Options{Failovers: 3})
	rdma, tcp := r.link(1, 0, 1, 128*kib), r.link(1, 1, 1, 4<<20)
	b := r.submit(to(r.core, rdma, tcp), High, 640*kib, clock.Never)
	r.finish(0, nil)
	r.finish(0, nil)
	late := r.out[0]
	fresh := r.finish(1, broken(errs.ScopeLink))
	require.EqualValues(t, 640*kib-3*64*kib, sum(fresh), "two slices are there, one is on its way over rdma")
	for _, s := range fresh {
		require.EqualValues(t, tcp, s.Rail.Link)
	}
	require.EqualValues(t, 128*kib, r.status(b).Bytes)
	require.Same(t, late, r.out[0])
	r.drain()
	require.Equal(t, Status{State: Completed, Transport: 1, Attempts: 2, Failovers: 1, Bytes: 640 * kib}, r.status(b))
	require.Equal(t, []event.Kind{event.Failover}, r.kinds())
	e := r.events[len(r.events)-1]
	require.Equal(t, []any{"rdma", "tcp", 1, 3}, []any{e.From, e.To, e.N, e.M})
	require.EqualValues(t, 1, r.core.Failovers(0, 1))
}

func TestFailoverBudget(t *testing.T) {
	for budget, want := range map[int]event.Kind{0: event.FailoverExhausted, 1: event.FailoverExhausted,
		3: event.FailoverExhausted} {
		r := newRig(t, Options{Failovers: budget})
		b := r.submit(to(r.core, r.link(1, 0, 1, 1<<20), r.link(1, 1, 1, 1<<20)), High, kib, clock.Never)
		for i := 0; len(r.out) > 0; i++ {
			require.Equal(t, uint16(i), r.status(b).Failovers)
			r.finish(0, broken(errs.ScopeLink))
		}
		s := r.status(b)
		require.Equal(t, Failed, s.State)
		require.EqualValues(t, budget, s.Failovers)
		kinds := r.kinds()
		require.Equal(t, want, kinds[len(kinds)-1])
		require.Len(t, kinds, budget+1)
	}
}

func TestBudgetsAreByTask(t *testing.T) {
	r := newRig(t, Options{Failovers: 1})
	p := to(r.core, r.link(1, 0, 1, 1<<20), r.link(1, 1, 1, 1<<20))
	for range 5 {
		b := r.submit(p, High, kib, clock.Never)
		r.finish(0, broken(errs.ScopeTransport))
		r.drain()
		require.Equal(t, Completed, r.status(b).State)
	}
}

func TestALinkWithoutRailsIsWaitedForThenFailsWithItsCause(t *testing.T) {
	r := newRig(t, Options{LinkWait: 500 * ms})
	id := r.link(1, 0, 1, 1<<20)
	cause := errs.New(errs.PeerUnreachable, "dial", "connection refused").WithScope(errs.ScopeLink, errs.SideRemote)
	r.core.DropLink(id, cause, r.now)
	b := r.submit(to(r.core, id), High, kib, clock.Never)
	r.wait(499 * ms)
	require.Equal(t, Pending, r.status(b).State)
	r.wait(2 * ms)
	require.Equal(t, Failed, r.status(b).State)
	named := *cause
	require.Equal(t, (&named).WithPeer("10.0.0.1:7000", "rdma", ""), r.status(b).Err)
	late := r.submit(to(r.core, id), High, kib, clock.Never)
	r.wait(100 * ms)
	r.railUp(id, 0, 2, 1<<20)
	require.Len(t, r.step(), 1)
	r.drain()
	require.Equal(t, Completed, r.status(late).State)
}

func TestWaitingTasksLeaveALinkThatDrops(t *testing.T) {
	r := newRig(t, Options{Failovers: 3})
	rdma, tcp := r.link(1, 0, 1, 64*kib), r.link(1, 1, 1, 1<<20)
	p := to(r.core, rdma, tcp)
	r.submit(p, High, 64*kib, clock.Never)
	b := r.submit(p, High, 64*kib, clock.Never)
	require.EqualValues(t, 64*kib, sum(r.out))
	r.core.DropLink(rdma, broken(errs.ScopeLink), r.now)
	fresh := r.step()
	require.EqualValues(t, 128*kib, sum(fresh), "what waited and what was out")
	for _, s := range fresh {
		require.EqualValues(t, tcp, s.Rail.Link)
	}
	r.drain()
	require.Equal(t, Completed, r.status(b).State)
	require.Len(t, r.ended, 2)
}

func TestNewTasksBeginWhereARailIsUp(t *testing.T) {
	r := newRig(t, Options{})
	rdma, tcp := r.link(1, 0, 1, 1<<20), r.link(1, 1, 1, 1<<20)
	r.core.RailDown(rdma, railOf(rdma, 0, 1), broken(errs.ScopeRail), r.now)
	b := r.submit(to(r.core, rdma, tcp), High, kib, clock.Never)
	require.Len(t, r.out, 1)
	r.drain()
	require.Equal(t, Status{State: Completed, Transport: 1, Attempts: 1, Bytes: kib}, r.status(b))
}

func TestALinkThatDialsIsPreferredUntilItsTimeIsUp(t *testing.T) {
	r := newRig(t, Options{Failovers: 3})
	rdma, tcp := r.link(1, 0, 0, 0), r.link(1, 1, 0, 0)
	b := r.submit(to(r.core, rdma, tcp), High, kib, clock.Never)
	r.railUp(tcp, 0, 1, 1<<20)
	require.Empty(t, r.step(), "tcp was there first, but rdma is better")
	require.Len(t, r.wait(500*ms), 1)
	r.drain()
	require.Equal(t, Completed, r.status(b).State)
}

func TestAllRailsDownAbandonsAndWaitsForTheOldSlices(t *testing.T) {
	r := newRig(t, Options{})
	id := r.link(1, 0, 2, 1<<20)
	b := r.submit(to(r.core, id), High, 64*kib, clock.Never)
	old := r.out[0]
	r.core.RailDown(id, old.Rail, broken(errs.ScopeRail), r.now)
	again := r.step()
	require.Len(t, again, 1, "sent again at once on the other rail")
	require.NotEqual(t, old.Rail.Index, again[0].Rail.Index)
	r.finish(1, nil)
	require.Equal(t, Pending, r.status(b).State, "the first copy may still land")
	require.EqualValues(t, 64*kib, r.status(b).Bytes)
	require.Len(t, r.asked, 1)
	r.finish(0, broken(errs.ScopeRail))
	require.Equal(t, Status{State: Completed, Attempts: 2, Bytes: 64 * kib}, r.status(b))
}

func TestAnAbandonedSliceThatArrivesIsNotSentAgain(t *testing.T) {
	r := newRig(t, Options{})
	id := r.link(1, 0, 1, 1<<20)
	b := r.submit(to(r.core, id), High, 64*kib, clock.Never)
	r.core.RailDown(id, r.out[0].Rail, broken(errs.ScopeRail), r.now)
	r.step()
	r.finish(0, nil)
	require.Equal(t, Completed, r.status(b).State)
	r.railUp(id, 0, 2, 1<<20)
	require.Empty(t, r.step())
}

// A transport that loses a rail need not name the peer in its cause. The failover names it, as does the failure where
// there is no other route, and a hop of our own names the peer that the task is for.
func TestACauseOfALinkNamesThePeer(t *testing.T) {
	for name, hops := range map[string]int{"across": 1, "a hop of our own": 2} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, Options{Failovers: 3, LinkWait: ms, Outage: ms})
			own := r.core.AddLink(LinkSpec{Peer: 9, PeerName: "ourselves", Info: &transport.Info{}})
			r.railUp(own, 0, 1, 64*kib)
			lost, wire, tcp := r.link(1, 0, 1, 64*kib), r.link(1, 2, 1, 64*kib), r.link(1, 1, 1, 64*kib)
			p := to(r.core, lost, tcp)
			if hops == 2 {
				pool, err := r.core.AddStage(StageSpec{Slots: 4, SlotBytes: 64 * kib})
				require.Nil(t, err)
				lost = own
				p.Routes[0].Crossing, p.Routes[0].Hops = 1, []plan.Hop{{Link: own, Op: transport.Write, Remote: pool},
					{Link: wire, Op: transport.Write, Local: pool}}
			}
			moves := r.submit(p, High, 256*kib, clock.Never)
			alone := r.submit(&plan.Plan{Routes: p.Routes[:1]}, High, 256*kib, clock.Never)
			r.core.RailDown(lost, railOf(lost, 0, 1), errs.New(errs.CudaError, "copy", "lost").WithScope(errs.ScopeLink,
				errs.SideLocal), r.now)
			r.step()
			require.Positive(t, r.status(moves).Failovers)
			for _, e := range r.events {
				if e.Kind == event.Failover {
					require.Equal(t, []string{"10.0.0.1:7000", "rdma", "10.0.0.1:7000", "rdma"},
						[]string{e.Peer, e.Transport, e.Err.Peer, e.Err.Transport})
				}
			}
			for range 100 {
				r.wait(ms)
				r.drain()
			}
			require.Equal(t, Completed, r.status(moves).State)
			s := r.status(alone)
			require.Equal(t, Failed, s.State)
			require.Equal(t, "10.0.0.1:7000", s.Err.Peer)
		})
	}
}

// Several pieces of a task wait for a rail that goes. The task moves once for that: a budget that is used up in one
// moment fails it at the next error.
func TestARailThatGoesMovesATaskOnce(t *testing.T) {
	r := newRig(t, Options{Failovers: 3})
	rdma, tcp, shm := r.link(1, 0, 1, 256*kib), r.link(1, 1, 1, 256*kib), r.link(1, 2, 1, 256*kib)
	b := r.submit(to(r.core, rdma, tcp, shm), High, 512*kib, clock.Never)
	require.Len(t, r.out, 4)
	r.core.RailDown(rdma, railOf(rdma, 0, 1), broken(errs.ScopeRail), r.now)
	r.step()
	require.Equal(t, []event.Kind{event.RailDown, event.Failover}, r.kinds())
	r.drain()
	require.Equal(t, Completed, r.status(b).State)
	require.EqualValues(t, 1, r.status(b).Failovers)
	require.EqualValues(t, 1, r.status(b).Transport)
}

// The same of a link that is removed just when the other route is back.
func TestALinkThatIsRemovedMovesATaskOnce(t *testing.T) {
	r := newRig(t, Options{Failovers: 3, Outage: time.Minute})
	rdma, tcp := r.link(1, 0, 1, 256*kib), r.link(1, 1, 0, 0)
	r.core.DropLink(tcp, broken(errs.ScopeLink), r.now)
	b := r.submit(to(r.core, rdma, tcp), High, 512*kib, clock.Never)
	require.Len(t, r.out, 4)
	r.core.RailDown(rdma, railOf(rdma, 0, 1), broken(errs.ScopeRail), r.now)
	for len(r.out) > 0 {
		r.finish(0, errs.New(errs.Withdrawn, "test", "withdrawn"))
	}
	r.railUp(tcp, 0, 1, 1<<20)
	r.core.RemoveLink(rdma)
	r.step()
	r.drain()
	require.Equal(t, Completed, r.status(b).State)
	require.EqualValues(t, 1, r.status(b).Failovers)
}

// The most rounds that a setting allows end, too.
func TestTheMostRoundsEnd(t *testing.T) {
	r := newRig(t, Options{Retries: 255, Stall: time.Hour})
	b := r.submit(to(r.core, r.link(1, 0, 1, 1<<20)), High, kib, clock.Never)
	for range 256 {
		require.Len(t, r.out, 1)
		r.finish(0, broken(errs.ScopeSlice))
		r.wait(time.Second)
	}
	require.Equal(t, Failed, r.status(b).State)
}

// A suspected rail may work, so a task that has no other way waits for the verdict, however fast its last rail refuses.
func TestATaskThatHasNoOtherWayOutlivesASuspicion(t *testing.T) {
	for _, speaks := range []bool{true, false} {
		r := newRig(t, Options{Retries: 1, CondemnAfter: time.Second})
		id := r.link(1, 0, 2, 1<<20)
		r.warm(to(r.core, id))
		r.submit(to(r.core, id), High, 128*kib, clock.Never)
		silent := r.out[0].Rail
		r.silence(silent)
		require.Equal(t, []event.Kind{event.RailSuspected}, r.kinds())
		for len(r.out) > 0 {
			if r.out[0].Rail == silent {
				r.finish(0, withdrawn)
			} else {
				r.finish(0, nil)
			}
		}
		b := r.submit(to(r.core, id), High, kib, clock.Never)
		refuse := func(d time.Duration) {
			for end := r.now.Add(d); r.now < end; r.wait(ms) {
				for len(r.out) > 0 {
					require.NotEqual(t, silent, r.out[0].Rail)
					r.finish(0, broken(errs.ScopeRail))
				}
			}
		}
		refuse(500 * ms)
		require.Equal(t, Pending, r.status(b).State)
		require.Less(t, r.status(b).Attempts, uint16(20), "nothing spins")
		if !speaks {
			refuse(time.Second)
			require.Equal(t, Failed, r.status(b).State, "the rail was condemned")
			continue
		}
		r.core.Progress(id, silent, r.now)
		for r.step(); r.status(b).State == Pending; r.wait(ms) {
			for len(r.out) > 0 {
				require.Equal(t, silent, r.out[0].Rail)
				r.finish(0, nil)
			}
		}
		require.Equal(t, Completed, r.status(b).State)
	}
}
