package dispatch

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/transport"
)

// standstillRig is a rig with a slice on each of two rails that have carried bytes.
func standstillRig(t *testing.T) (r *rig, id plan.LinkID) {
	r = newRig(t, Options{})
	id = r.ends(1, 0, [2]string{"a", "A"}, [2]string{"b", "B"})
	p := to(r.core, id)
	r.warm(p)
	r.submit(p, High, 128*kib, clock.Never)
	require.Len(t, r.out, 2)
	return r, id
}

// standStill lets the peer be silent for a time. Its rails then speak one after the other.
func (r *rig) standStill(id plan.LinkID, pause, apart time.Duration, order [2]int) {
	r.pass(pause, nothing)
	r.core.Progress(id, railOf(id, order[0], 1), r.now)
	r.step()
	r.pass(apart, nothing)
	r.core.Progress(id, railOf(id, order[1], 1), r.now)
	r.step()
}

// TestStandstillsOfAPeerTeachNoPatience: they are silences of all of its rails. A rail that breaks behind one is found
// in less time than it took, where three times that was the limit.
func TestStandstillsOfAPeerTeachNoPatience(t *testing.T) {
	const pause = 60 * ms
	for _, order := range [][2]int{{0, 1}, {1, 0}} {
		for _, pauses := range []int{1, 3} {
			r, id := standstillRig(t)
			for range pauses {
				r.standStill(id, pause, ms/2, order)
				for range 4 {
					r.pass(ms, nothing)
					r.core.Progress(id, railOf(id, 0, 1), r.now)
					r.core.Progress(id, railOf(id, 1, 1), r.now)
				}
			}
			require.Empty(t, r.kinds(), "the peer stood still, not a rail")
			broke := r.now
			for len(r.kinds()) == 0 {
				require.Less(t, r.now.Sub(broke), pause/2, "%d standstills", pauses)
				r.pass(ms/2, nothing)
				r.core.Progress(id, railOf(id, 1, 1), r.now)
			}
			require.Equal(t, []event.Kind{event.RailSuspected}, r.kinds())
		}
	}
}

// TestNoRailIsSuspectedForAStandstillOfItsPeer, whenever it ends between the looks at the rails.
func TestNoRailIsSuspectedForAStandstillOfItsPeer(t *testing.T) {
	for pause := 10 * ms; pause < 60*ms; pause += ms / 4 {
		for _, order := range [][2]int{{0, 1}, {1, 0}} {
			r, id := standstillRig(t)
			r.standStill(id, pause, 4*ms, order)
			require.Empty(t, r.kinds(), "%v", pause)
		}
	}
}

// TestADeadRailIsNotTakenForAStandstill: the other one speaks ever more rarely, and each of its silences could be one.
func TestADeadRailIsNotTakenForAStandstill(t *testing.T) {
	r, id := standstillRig(t)
	broke := r.now
	for every := 2 * ms; len(r.kinds()) == 0; every += every / 4 {
		require.Less(t, r.now.Sub(broke), 60*ms)
		r.pass(every, nothing)
		r.core.Progress(id, railOf(id, 1, 1), r.now)
		r.step()
	}
	require.Equal(t, []event.Kind{event.RailSuspected}, r.kinds())
}

// TestASilenceThatWasJudgedTeachesNoPatience: a fault has ended by itself, and the rail speaks again.
func TestASilenceThatWasJudgedTeachesNoPatience(t *testing.T) {
	const fault = 200 * ms
	r, id := standstillRig(t)
	for begin := r.now; r.now.Sub(begin) < fault; {
		r.pass(ms, nothing)
		r.core.Progress(id, railOf(id, 1, 1), r.now)
	}
	require.Equal(t, []event.Kind{event.RailSuspected}, r.kinds())
	r.core.Progress(id, railOf(id, 0, 1), r.now)
	require.Less(t, r.core.rail(id, railOf(id, 0, 1)).meter.Silence(64*kib), fault/4)
}

// The clock of a connection's account ticks every few milliseconds, so its last packet seems to come later and later
// between two ticks. That is no news: the rail is suspected as soon, and not asked a hundred times.
func TestARailIsNotAskedAgainForTheTickOfItsClock(t *testing.T) {
	const tick, lateness = 4 * ms, ms / 2 // of a timer
	for phase := time.Duration(0); phase < tick; phase += tick / 16 {
		r := newRig(t, Options{})
		id := r.ends(1, 0, [2]string{"a", "A"}, [2]string{"b", "B"})
		r.core.link(id).options.SuspectAfter = 2 * tick
		r.warm(to(r.core, id))
		r.now = r.now.Add(phase)
		r.submit(to(r.core, id), High, 128*kib, clock.Never)
		require.Len(t, r.out, 2)
		silent, last := r.out[0].Rail, r.now
		asked, suspected := 0, false
		for next := r.now; !suspected; {
			require.Less(t, r.now.Sub(last), 40*ms)
			if r.now >= next {
				r.core.Progress(id, r.out[1].Rail, r.now)
				next = r.now.Add(ms / 2)
			}
			if r.now = min(next, max(r.core.Deadline(), r.now+1)); asked == 0 && r.now == r.core.Deadline() {
				r.now = r.now.Add(lateness)
			}
			for r.step(); len(r.doubts) > 0; r.step() {
				require.Equal(t, []transport.Rail{silent}, r.doubts)
				asked++
				r.now = r.now.Add(3 * time.Microsecond)
				ticks := time.Duration(r.now/clock.Time(tick) - last/clock.Time(tick))
				r.core.Liveness(Question{0, id, silent}, transport.Signs{Heard: r.now.Add(-ticks * tick)}, r.now)
			}
			suspected = slices.Contains(r.kinds(), event.RailSuspected)
		}
		require.Less(t, asked, 4, phase)
	}
}
