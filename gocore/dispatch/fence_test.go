package dispatch

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/request"
	"github.com/tent-engine/tent/gocore/transport"
)

// The holes through which a late slice could slip past its task's end.

func TestASubmitterThatSleptAcrossAFenceBringsNothingPastIt(t *testing.T) {
	r := newRig(t, Options{FenceNetwork: 50 * ms})
	id := r.link(1, 0, 2, 1<<20)
	b := r.submit(to(r.core, id), High, 128*kib, r.now.Add(ms))
	require.Len(t, r.out, 2)
	asleep := r.out[0] // its thread is about to call Submit; the other one is under way
	r.finish(1, nil)
	r.wait(ms)
	require.Equal(t, []*transport.Slice{asleep}, r.asked, "the withdrawal goes the same way, behind it")
	r.core.RailDown(id, asleep.Rail, broken(errs.ScopeRail), r.now)
	r.railUp(id, int(asleep.Rail.Index), 2, 1<<20)
	require.Equal(t, Pending, r.status(b).State)
	r.core.Refuse([]*transport.Slice{asleep}, r.now) // the generation that it names has ended
	r.step()
	s := r.status(b)
	require.Equal(t, TimedOut, s.State)
	require.False(t, s.Dirty, "it was never sent")
	require.Zero(t, r.core.Outstanding())
	fresh := r.submit(to(r.core, id), High, 4<<20, clock.Never)
	r.out = r.out[1:]
	r.drain()
	require.Equal(t, Completed, r.status(fresh).State, "the new generation takes slices")
}

// silence lets some rails fall silent at once and returns the slices that were sent again.
func (r *rig) silence(silent ...transport.Rail) (again []*transport.Slice) {
	for range 40 {
		r.now = r.now.Add(ms)
		for _, l := range r.core.links[1:] {
			for _, x := range l.rails {
				alive := true
				for _, s := range silent {
					alive = alive && x.id != s
				}
				if alive {
					r.core.Progress(l.id, x.id, r.now)
				}
			}
		}
		again = append(again, r.step()...)
	}
	return again
}

func TestTwoRailsThatAreSilentAtOnceHoldNothingUpButTheEnd(t *testing.T) {
	r := newRig(t, Options{})
	id := r.ends(1, 0, [2]string{"a", "A"}, [2]string{"b", "B"}, [2]string{"c", "C"})
	p := to(r.core, id)
	r.warm(p)
	b := r.submit(p, High, 3*64*kib, clock.Never)
	first := append([]*transport.Slice(nil), r.out...)
	require.Len(t, first, 3)
	again := r.silence(first[0].Rail, first[1].Rail)
	require.EqualValues(t, 128*kib, sum(again))
	for _, s := range again {
		require.Equal(t, first[2].Rail, s.Rail)
	}
	for len(r.out) > 2 {
		r.finish(2, nil)
	}
	require.EqualValues(t, 3*64*kib, r.status(b).Bytes)
	require.Equal(t, Pending, r.status(b).State, "the first copies may still land")
	r.finish(0, withdrawn)
	require.Equal(t, Pending, r.status(b).State)
	r.finish(0, withdrawn)
	require.Equal(t, Completed, r.status(b).State)
}

func TestAWithdrawalOutlivesTheLaneThatCarriesIt(t *testing.T) {
	r := newRig(t, Options{FenceNetwork: 200 * ms, Stall: 6 * time.Second})
	id := r.ends(1, 0, [2]string{"a", "A"}, [2]string{"b", "B"})
	p := to(r.core, id)
	r.warm(p)
	b := r.submit(p, High, 128*kib, clock.Never)
	silent, carrier := r.out[0], r.out[1]
	r.silence(silent.Rail)
	require.Len(t, r.out, 3)
	r.core.RailDown(id, carrier.Rail, broken(errs.ScopeRail), r.now) // and with it the withdrawal
	r.step()
	r.finish(2, withdrawn)
	r.finish(1, withdrawn)
	require.Equal(t, Pending, r.status(b).State)
	r.railUp(id, int(carrier.Rail.Index), 2, 1<<20)
	for range 3 {
		r.step()
		for len(r.out) > 1 {
			r.finish(1, nil)
		}
	}
	require.EqualValues(t, 128*kib, r.status(b).Bytes, "all is there")
	require.Equal(t, Pending, r.status(b).State, "and the silent rail has not answered")
	r.wait(3 * time.Second)
	require.Equal(t, Pending, r.status(b).State, "its peer may be pausing, and nobody has asked for the end")
	r.wait(3 * time.Second)
	s := r.status(b)
	require.Equal(t, Failed, s.State, "never COMPLETED while something may still be written")
	require.True(t, s.Dirty)
	require.Equal(t, errs.Lost, s.Err.Code)
	late := r.submit(p, High, kib, clock.Never)
	require.Len(t, r.out, 1, "nothing goes to a peer that may still write for a transfer that has ended")
	for range 4 {
		r.wait(time.Second)
		require.Len(t, r.out, 1, "seconds later, too")
	}
	require.Len(t, r.finish(0, withdrawn), 1, "confirmed at last")
	r.drain()
	require.Equal(t, Completed, r.status(late).State)
}

func TestCancelsOfSmallRequestsAreNotNoticedByABulkTransfer(t *testing.T) {
	r := newRig(t, Options{})
	p := to(r.core, r.link(1, 0, 2, 1<<20))
	bulk := r.submit(p, Low, 64<<20, clock.Never)
	for range 100 {
		inFlight := len(r.out)
		small := r.submit(p, High, 4*kib, clock.Never)
		mine := r.out[len(r.out)-1]
		_, err := r.core.Cancel(small, 0, 1, r.now)
		require.Nil(t, err)
		r.step()
		require.Equal(t, []*transport.Slice{mine}, r.asked, "this slice and no other")
		require.Empty(t, r.fenced)
		r.finish(len(r.out)-1, withdrawn)
		require.Equal(t, Canceled, r.status(small).State)
		require.Equal(t, inFlight, len(r.out), "the bulk's slices stay out")
		r.now = r.now.Add(ms / 10)
		r.finish(0, nil)
	}
	require.Empty(t, r.kinds())
	r.drain()
	s := r.status(bulk)
	require.Equal(t, Status{State: Completed, Attempts: 1, Bytes: 64 << 20}, s)
}

// A piece changes rails twice: however the first two copies end, only the last one counts, once.
func TestAPieceThatChangedRailsTwiceIsCountedOnce(t *testing.T) {
	for name, order := range map[string][]int{"oldest first": {0, 0, 0}, "newest first": {2, 1, 0},
		"middle first": {1, 0, 0}} {
		r := newRig(t, Options{})
		id := r.ends(1, 0, [2]string{"a", "A"}, [2]string{"b", "B"}, [2]string{"c", "C"})
		p := to(r.core, id)
		r.warm(p)
		b := r.submit(p, High, kib, clock.Never)
		r.core.RailDown(id, r.out[0].Rail, broken(errs.ScopeRail), r.now)
		r.step()
		require.Len(t, r.out, 2)
		r.core.RailDown(id, r.out[1].Rail, broken(errs.ScopeRail), r.now)
		r.step()
		require.Len(t, r.out, 3)
		other := r.submit(p, High, 2*kib, clock.Never) // takes records that are free
		for _, i := range order {
			r.finish(i, nil)
		}
		s := r.status(b)
		require.Equal(t, Completed, s.State, name)
		require.EqualValues(t, kib, s.Bytes, name)
		require.Zero(t, r.status(other).Bytes, name)
		r.drain()
		require.Equal(t, Completed, r.status(other).State, name)
	}
}

// The second copy's record is free and somebody else's by the time at which the first copy comes back. It must not be
// taken for the piece that replaced the first.
func TestTheFirstCopyForgetsAReplacementThatWasReplaced(t *testing.T) {
	r := newRig(t, Options{LinkWait: time.Second})
	one, two := r.ends(1, 0, [2]string{"a", "A"}, [2]string{"b", "B"}), r.ends(2, 0, [2]string{"a", "C"})
	b := r.submit(to(r.core, one), High, kib, clock.Never)
	for i := range 2 {
		r.core.RailDown(one, r.out[i].Rail, broken(errs.ScopeRail), r.now)
		r.step()
	}
	require.Len(t, r.out, 2, "the third copy has no rail")
	r.finish(1, withdrawn)
	other := r.submit(to(r.core, two), High, kib, clock.Never)
	require.Len(t, r.out, 2)
	r.core.Refuse(r.out[1:], r.now)
	r.out = r.out[:1]
	r.finish(0, nil)
	r.core.Ready(two, railOf(two, 0, 1))
	r.railUp(one, 0, 2, 1<<20)
	r.step()
	require.Len(t, r.out, 2, "both have something to send")
	r.drain()
	for _, id := range []BatchID{b, other} {
		s := r.status(id)
		require.Equal(t, Completed, s.State)
		require.EqualValues(t, kib, s.Bytes)
	}
}

// A fence of the peer ends the tasks of before, waiting or under way, also where the news comes over another route.
// Later ones, and those of other regions, go on.
func TestAFenceOfThePeerEndsWhatBeganBefore(t *testing.T) {
	r := newRig(t, Options{Failovers: 3})
	fast, slow := r.link(1, 0, 1, 128*kib), r.link(1, 1, 1, 128*kib)
	region, other := to(r.core, fast, slow), to(r.core, fast)
	region.Region = "kv"
	other.Routes[0].Hops[0].RemoteKey = 2
	spec := func(p *plan.Plan, epoch transport.Epoch) TaskSpec {
		return TaskSpec{Terms: request.Terms{Op: transport.Write, Deadline: clock.Never}, Plan: p, Local: 1 << 20,
			Remote: 1 << 30, Length: 128 * kib, Epoch: epoch}
	}
	b := r.submitAll(spec(region, 4), spec(region, 4), spec(other, 4), spec(region, 5))
	freed := r.submitAll(spec(region, 4))
	require.Nil(t, r.core.FreeBatch(freed))
	require.Len(t, r.out, 2, "the others wait")
	// The news comes over the link that none of them takes, beside news of nobody's region.
	r.core.Fenced(map[RegionKey]transport.Epoch{{slow, 1}: 5, {slow, 9}: 9, {77, 1}: 9, {fast, 0}: 9}, r.now)
	r.step()
	require.Len(t, r.asked, 2, "slices that are out are asked back")
	r.finish(0, withdrawn)
	r.finish(0, withdrawn)
	for len(r.out) > 0 {
		require.True(t, r.out[0].RemoteKey == 2 || r.out[0].Epoch == 5, "a slice of before the fence is cut after it")
		r.finish(0, nil)
	}
	for i, want := range []State{Failed, Failed, Completed, Completed} {
		s, err := r.core.Status(b, i)
		require.Nil(t, err)
		require.Equal(t, want, s.State, "task %d", i)
		require.False(t, s.Dirty)
		if want == Failed {
			require.Equal(t, errs.AddressNotRegistered, s.Err.Code)
			require.ErrorContains(t, s.Err, `region "kv": the region was fenced`)
			require.Zero(t, s.Failovers)
		}
	}
	require.Zero(t, r.core.Pending())
}

// One look at the tasks ends those of all regions that were fenced, each by its own epoch.
func TestFencesOfSeveralRegionsEndTheirTasksInOneLook(t *testing.T) {
	r := newRig(t, Options{})
	link := r.link(1, 0, 1, 64*kib)
	var specs []TaskSpec
	for key := range transport.RemoteKey(4) {
		p := to(r.core, link)
		p.Routes[0].Hops[0].RemoteKey = key + 1
		specs = append(specs, TaskSpec{Terms: request.Terms{Op: transport.Write, Deadline: clock.Never}, Plan: p,
			Local: 1 << 20, Remote: 1 << 30, Length: 64 * kib, Epoch: 4})
	}
	b := r.submitAll(specs...)
	r.core.Fenced(map[RegionKey]transport.Epoch{{link, 2}: 5, {link, 3}: 4, {link, 4}: 6}, r.now)
	r.step()
	for i, live := range []bool{true, false, true, false} {
		s, err := r.core.Status(b, i)
		require.Nil(t, err)
		require.Equal(t, live, s.State == Pending, "the region with key %d", i+1)
	}
	r.drain()
}

// A slice that the owner refuses because of a fence ends its task: no other route may revive it.
func TestATaskThatAFenceRefusedDoesNotFailOver(t *testing.T) {
	r := newRig(t, Options{Failovers: 3})
	p := to(r.core, r.link(1, 0, 1, 128*kib), r.link(1, 1, 1, 128*kib))
	p.Region = "kv"
	b := r.submit(p, High, 128*kib, clock.Never)
	r.finish(0, transport.Fenced("test"))
	for len(r.out) > 0 {
		require.Contains(t, r.asked, r.out[0])
		r.finish(0, withdrawn)
	}
	s := r.status(b)
	require.Equal(t, Failed, s.State)
	require.Zero(t, s.Failovers)
	require.ErrorContains(t, s.Err, `region "kv": the region was fenced by its owner after the transfer had begun`)
}

// News of one region may come by its key of before and by its key of now. The newest fence counts, in any order.
func TestTheNewestFenceOfARegionCounts(t *testing.T) {
	for range 32 { // the order is that of a map
		r := newRig(t, Options{})
		id := r.link(1, 0, 1, kib)
		r.core.Rekey(id, 1, 2, nil, r.now)
		spec := TaskSpec{Terms: request.Terms{Op: transport.Write}, Plan: to(r.core, id), Local: 1 << 20,
			Remote: 1 << 30, Length: 8 * kib, Epoch: 7}
		b := r.submitAll(spec)
		r.core.Fenced(map[RegionKey]transport.Epoch{{id, 1}: 9, {id, 2}: 5}, r.now)
		r.step()
		r.refuse(withdrawn)
		require.Equal(t, Failed, r.status(b).State)
	}
}
