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
)

func TestEndsAreBlamedFromWhatOtherRailsShow(t *testing.T) {
	r := newRig(t, Options{})
	one := r.ends(1, 0, [2]string{"a", "A"}, [2]string{"b", "B"})
	two := r.ends(2, 0, [2]string{"a", "C"}, [2]string{"b", "D"})
	r.warm(to(r.core, one))
	r.warm(to(r.core, two))
	health := func(id plan.LinkID, i int) int { return r.core.rail(id, railOf(id, i, 1)).health.Value() }
	fail := func(id plan.LinkID, i int, side errs.Side) {
		x := r.core.rail(id, railOf(id, i, 1))
		r.core.railFailed(x, rail.Failed, errs.New(errs.Lost, "test", "broken").WithScope(errs.ScopeRail, side), r.now)
	}
	fail(one, 0, errs.SideUnknown)
	require.Equal(t, []int{900, 1000, 1000, 1000}, []int{health(one, 0), health(one, 1), health(two, 0),
		health(two, 1)}, "the path")
	fail(one, 0, errs.SideLocal)
	require.Equal(t, []int{800, 1000, 900, 1000}, []int{health(one, 0), health(one, 1), health(two, 0),
		health(two, 1)}, "our end, said")
	fail(one, 0, errs.SideRemote)
	require.Equal(t, []int{700, 1000, 900, 1000}, []int{health(one, 0), health(one, 1), health(two, 0),
		health(two, 1)}, "their end has no other rail")
	fail(two, 0, errs.SideUnknown) // rail 0 of the first peer is paused by now, others work: it must be end "a"
	require.Equal(t, []int{600, 1000, 800, 1000}, []int{health(one, 0), health(one, 1), health(two, 0),
		health(two, 1)}, "our end, concluded")
}

// A slice that was called back may be answered by another way: its success clears no failure of its rail.
func TestASuccessThatWasAskedForMendsNothing(t *testing.T) {
	r := newRig(t, Options{Rail: rail.Settings{Threshold: 2}, Retries: 9})
	id := r.link(1, 0, 1, 1<<20)
	failing := r.submit(to(r.core, id), High, kib, clock.Never)
	r.finish(0, broken(errs.ScopeRail))
	called := r.submit(to(r.core, id), High, kib, clock.Never)
	_, err := r.core.Cancel(called, 0, 1, r.now)
	require.Nil(t, err)
	r.step()
	r.finish(0, nil)
	require.Equal(t, rail.Up, r.core.rail(id, railOf(id, 0, 1)).life.State())
	for len(r.out) == 0 {
		r.wait(ms)
	}
	r.finish(0, broken(errs.ScopeRail))
	require.Equal(t, rail.Paused, r.core.rail(id, railOf(id, 0, 1)).life.State(), "its second failure in a row")
	require.Equal(t, Pending, r.status(failing).State)
}

// A delivery of long ago does not show that an end works now.
func TestOldSightingsDoNotCount(t *testing.T) {
	for _, recently := range []bool{false, true} {
		r := newRig(t, Options{Rail: rail.Settings{Threshold: 1}})
		broke, witness := r.ends(1, 0, [2]string{"b", "B"}), r.ends(3, 0, [2]string{"b", "E"})
		failing := r.ends(2, 0, [2]string{"a", "C"}, [2]string{"b", "D"})
		r.warm(to(r.core, broke))
		r.warm(to(r.core, witness))
		if !recently {
			r.now = r.now.Add(sightingTTL)
		}
		r.warm(to(r.core, failing))
		lost := errs.New(errs.Lost, "test", "broken").WithScope(errs.ScopeRail, errs.SideUnknown)
		r.core.railFailed(r.core.rail(broke, railOf(broke, 0, 1)), rail.Failed, lost, r.now)
		r.core.railFailed(r.core.rail(failing, railOf(failing, 1, 1)), rail.Failed, lost, r.now)
		blamed := r.core.rail(witness, railOf(witness, 0, 1)).health.Value() < rail.HealthMax
		require.Equal(t, !recently, blamed, "end b works, recently %v", recently)
	}
}

// A time-out has no more to tell than where the slice was: it lowers one end, or both where nobody knows.
func TestATimeOutIsBlamedOnTheEndWhereTheSliceWas(t *testing.T) {
	for side, want := range map[errs.Side][]int{
		errs.SideLocal:   {900, 900, 1000},
		errs.SideRemote:  {900, 1000, 900},
		errs.SideUnknown: {900, 900, 900},
	} {
		r := newRig(t, Options{})
		id := r.ends(1, 0, [2]string{"a", "A"}, [2]string{"a", "B"}, [2]string{"b", "A"})
		r.warm(to(r.core, id))
		late := errs.New(errs.Timeout, "test", "no completion").WithScope(errs.ScopeRail, side)
		r.core.railFailed(r.core.rail(id, railOf(id, 0, 1)), rail.Failed, late, r.now)
		var health []int
		for i := range want {
			health = append(health, r.core.rail(id, railOf(id, i, 1)).health.Value())
		}
		require.Equal(t, want, health, "%v", side)
	}
}

// A rail may lose health for the failure of another one with which it shares an end. It shows by probes that it works,
// though nothing was sent over it: else it would be avoided for as long as others have room.
func TestAnIdleRailOfABlamedEndIsProbed(t *testing.T) {
	r := newRig(t, Options{})
	failing := r.ends(1, 0, [2]string{"a", "A"})
	beside := r.ends(2, 0, [2]string{"a", "C"}, [2]string{"b", "D"})
	r.warm(to(r.core, failing))
	r.warm(to(r.core, beside))
	r.wait(time.Second) // every timer of an idle rail has run
	idle := r.core.rail(beside, railOf(beside, 0, 1))
	r.submit(to(r.core, failing), High, kib, clock.Never)
	r.finish(0, errs.New(errs.Lost, "test", "broken").WithScope(errs.ScopeRail, errs.SideLocal))
	r.drain()
	require.Equal(t, 900, idle.health.Value())
	for i := 0; idle.health.Value() == 900; i++ { // from then on the two rails are equals
		require.Less(t, i, 500, "the peer is wanted all the time")
		r.submit(to(r.core, beside), High, kib, clock.Never)
		require.EqualValues(t, 1, r.out[len(r.out)-1].Rail.Index, "the healthy rail has room")
		for _, probed := range r.probes {
			if probed == idle.id {
				r.core.Probed(beside, probed, 1000, nil, r.now)
			}
		}
		r.drain()
		r.wait(10 * ms)
	}
}

// The two notes of the failover seed, which people grep for, and our own.
func TestARailThatIsBackSaysWhy(t *testing.T) {
	for want, back := range map[string]func(r *rig, id plan.LinkID){
		"cooldown expired":                 func(r *rig, _ plan.LinkID) { r.wait(50 * ms) },
		"un-paused by successful transfer": func(r *rig, _ plan.LinkID) { r.finish(0, nil) },
		"probes answered": func(r *rig, id plan.LinkID) {
			r.core.Probed(id, railOf(id, 0, 1), 1000, nil, r.now)
			r.step()
		},
	} {
		r := newRig(t, Options{Rail: rail.Settings{Threshold: 1, Cooldown: 50 * ms}, Retries: 9})
		id := r.link(1, 0, 1, 1<<20)
		r.submit(to(r.core, id), High, kib, clock.Never)
		r.finish(0, broken(errs.ScopeRail))
		require.Equal(t, []event.Kind{event.RailPaused}, r.kinds())
		for i := 0; len(r.out) == 0; i++ { // it is the only rail, and used all the same
			require.Less(t, i, 100)
			r.wait(ms)
		}
		back(r, id)
		last := r.events[len(r.events)-1]
		require.Equal(t, event.RailRecovered, last.Kind, want)
		require.Equal(t, want, last.Note)
	}
}
