package dispatch

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/request"
	"github.com/tent-engine/tent/gocore/transport"
)

// race is a world without chance: one link with rails of given rates, which carry one slice after the other.
type race struct {
	*model
	plan *plan.Plan
	link plan.LinkID
}

func newRace(t *testing.T, options Options, rates ...float64) *race {
	m := &model{world: newWorld(1, options), next: 1 << 30}
	m.calm = true
	m.check = newChecker(t, 1, m.world)
	r := &race{model: m, link: m.core.AddLink(LinkSpec{Peer: 0, PeerName: "peer", Info: &transport.Info{},
		Probes: true})}
	m.check.links[r.link], m.check.probes[r.link] = &linkFacts{}, true
	for i, rate := range rates {
		m.addRail(r.link, uint16(i), rate, 50*time.Microsecond, 4<<20, 256)
	}
	r.plan = &plan.Plan{Routes: []plan.Route{{Hops: []plan.Hop{{Link: r.link, Op: transport.Write}},
		SliceMax: 1 << 20, SliceBest: 1 << 20, Alignment: unit}}}
	return r
}

// start submits one request.
func (r *race) start(length uint64, class uint8) *known {
	id, err := r.core.NewBatch(1)
	require.Nil(r.check.t, err)
	k := &known{batch: id, local: r.next, length: length, window: length, deadline: clock.Never}
	k.learn()
	r.check.tasks = append(r.check.tasks, k)
	r.check.batches[id] = []*known{k}
	_, err = r.core.Submit(id, []TaskSpec{{Terms: request.Terms{Op: transport.Write, Class: class}, Plan: r.plan,
		Local: r.next, Remote: uint64(r.next),
		Length: length}}, r.now)
	require.Nil(r.check.t, err)
	r.next += uintptr(length)
	return k
}

// took runs until a request has ended and says how long that was.
func (r *race) took(k *known) time.Duration {
	begun := r.now
	r.run(r.now.Add(time.Minute), func() bool { return k.ended })
	require.Equal(r.check.t, Completed, k.state)
	return r.now.Sub(begun)
}

func (r *race) wire(i int) *wire { return r.rails[r.order[i]] }

const megabyte = 1e6

func TestRailsOfRatesOneToFourGiveTheirSum(t *testing.T) {
	r := newRace(t, Options{}, 100*megabyte, 200*megabyte, 400*megabyte)
	r.took(r.start(64<<20, High)) // the rates are learned
	const bytes = 256 << 20
	ideal := idealTime(bytes, 700*megabyte)
	took := r.took(r.start(bytes, High))
	t.Logf("%v, ideal %v, %d slices hedged; %v", took, ideal, r.core.hedged, r.check.seen)
	require.Less(t, took, ideal*100/98)
}

func TestARailAtATenthDoesNotHoldTheTransferUp(t *testing.T) {
	r := newRace(t, Options{}, 100*megabyte, 100*megabyte, 100*megabyte, 100*megabyte)
	r.took(r.start(64<<20, High))
	r.wire(3).rate = 10 * megabyte
	const bytes = 256 << 20
	ideal := idealTime(bytes, 310*megabyte)
	took := r.took(r.start(bytes, High))
	t.Logf("%v, ideal %v, %d slices hedged; %v", took, ideal, r.core.hedged, r.check.seen)
	require.Less(t, took, ideal*100/95)
	require.Less(t, r.core.hedged, uint64(64), "only what the slow rail held")
	require.Zero(t, r.check.seen["rail_condemned"]+r.check.seen["rail_paused"], "the lane lives on")
}

// A queue pair does not give a posted READ back. So bytes that were left on the slow rail hold the transfer up, however
// often they are sent elsewhere.
func TestASlowRailTakesNoMoreThanItEndsInTime(t *testing.T) {
	for _, rates := range [][]float64{{40, 4}, {4, 40}, {40, 40, 4}, {100, 10, 30}} {
		sum := 0.0
		for i := range rates {
			rates[i] *= megabyte
			sum += rates[i]
		}
		r := newRace(t, Options{}, rates...)
		r.keeps = true
		r.took(r.start(64<<20, High)) // the rates are learned
		hedged := r.core.hedged
		const bytes = 64 << 20
		ideal := idealTime(bytes, sum)
		took := r.took(r.start(bytes, High))
		t.Logf("%v MB/s: %v, ideal %v, %d slices hedged; %v", rates, took, ideal, r.core.hedged-hedged, r.check.seen)
		require.Less(t, took, ideal*100/98)
		require.Equal(t, hedged, r.core.hedged)
	}
}

// The last bytes of a request wait for the fast rail, which ends them before the slow one ends a slice.
func TestTheEndOfARequestWaitsForTheFastRail(t *testing.T) {
	r := newRace(t, Options{}, 40*megabyte, megabyte)
	r.keeps = true
	for range 2 { // a rail of which nothing was heard for a second is tried
		r.took(r.start(64<<20, High))
	}
	took := r.took(r.start(8<<20, High))
	t.Log(took)
	require.Less(t, took, idealTime(8<<20, 41*megabyte)*105/100)
}

// A rail that becomes slower in the middle has little in flight, so little comes late.
func TestARailThatBecomesSlowerHoldsLittle(t *testing.T) {
	r := newRace(t, Options{}, 40*megabyte, 4*megabyte)
	r.keeps = true
	r.took(r.start(64<<20, High))
	k := r.start(64<<20, High)
	r.run(r.now.Add(200*time.Millisecond), func() bool { return false })
	r.wire(1).rate = megabyte / 2
	took := r.took(k)
	require.Less(t, took, idealTime(56<<20, 40*megabyte)*110/100)
}

// The delay of a path becomes 600 times as long while LOW keeps it busy, and the window of LOW follows. The rail's
// window of 4 MiB, of which LOW has three quarters, carries 100 MB/s then.
func TestLowFollowsAPathThatBecomesLonger(t *testing.T) {
	r := newRace(t, Options{SuspectAfter: time.Second}, 1000*megabyte)
	r.took(r.start(64<<20, Low))
	k := r.start(1<<30, Low)
	r.run(r.now.Add(100*time.Millisecond), func() bool { return false })
	r.wire(0).delay = 30 * time.Millisecond
	require.Less(t, r.took(k), 15*time.Second)
}

func TestSmallRequestsAvoidASlowRail(t *testing.T) {
	r := newRace(t, Options{}, 100*megabyte, 100*megabyte, 100*megabyte, 10*megabyte)
	var slow, all int
	for range 1000 {
		if r.took(r.start(64<<10, High)) > 3*time.Millisecond {
			slow++
		}
		all++
		r.run(r.now.Add(time.Millisecond), func() bool { return false })
	}
	require.Less(t, slow, all/100, "%d of %d took as long as the slow rail takes", slow, all)
}

func TestASilentRailCostsMilliseconds(t *testing.T) {
	r := newRace(t, Options{}, 50*megabyte, 50*megabyte, 50*megabyte, 50*megabyte)
	r.took(r.start(64<<20, High))
	var all []time.Duration
	for i := range 20 {
		bulk := r.start(64<<20, Low)
		r.run(r.now.Add(10*time.Millisecond+time.Duration(i)*time.Millisecond/3), func() bool { return false })
		small := r.start(64<<10, High)
		r.step()
		silent := r.railWith(small)
		silent.silent = true
		for _, q := range r.outOn(silent) {
			q.due = clock.Never // everything that is out is lost
		}
		all = append(all, r.took(small))
		silent.silent = false
		r.took(bulk)
		r.run(r.now.Add(200*time.Millisecond), func() bool { return false })
	}
	slices.Sort(all)
	t.Logf("median %v, worst %v; %v", all[10], all[19], r.check.seen)
	require.Less(t, all[10], 20*time.Millisecond)
	require.Less(t, all[19], 50*time.Millisecond)
	require.Zero(t, r.check.seen["rail_condemned"])
	require.Equal(t, 20, r.check.seen["rail_suspected"], "and nobody else")
}

// railWith is the rail that carries the first slice of a request.
func (r *race) railWith(k *known) *wire {
	for _, p := range r.out {
		if p.first == k.local {
			return p.wire
		}
	}
	require.FailNow(r.check.t, "nothing is out")
	return nil
}

func TestARailThatIsGoodAgainCarriesSoon(t *testing.T) {
	r := newRace(t, Options{}, 50*megabyte, 50*megabyte, 50*megabyte, 50*megabyte)
	r.took(r.start(64<<20, High))
	bulk := r.start(128<<20, High)
	r.run(r.now.Add(10*time.Millisecond), func() bool { return false })
	bad := r.wire(2)
	bad.failed = 1
	r.calm = false
	r.rigged = broken(errs.ScopeRail)
	r.run(r.now.Add(100*time.Millisecond), func() bool { return r.check.seen["rail_paused"] > 0 })
	require.Equal(t, 1, r.check.seen["rail_paused"])
	bad.failed, r.calm, bad.busy = 0, true, r.now
	for _, q := range r.outOn(bad) {
		r.complete(q, r.rigged, 0)
	}
	good := r.now
	carried := bad.carried
	r.run(r.now.Add(time.Second), func() bool { return bad.carried-carried > 512<<10 })
	t.Logf("%v until 512 KiB were carried", r.now.Sub(good))
	require.Less(t, r.now.Sub(good), 30*time.Millisecond)
	r.took(bulk)
}

func idealTime(bytes, rate float64) time.Duration { return time.Duration(bytes / rate * 1e9) }
