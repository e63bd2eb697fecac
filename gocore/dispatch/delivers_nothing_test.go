package dispatch

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/rail"
	"github.com/tent-engine/tent/gocore/transport"
)

// A rail that connects and then loses all that it is given is paused, for ever longer, and has one try between two
// pauses. Connections come up over a path MTU black hole, and pings are answered. A delivery ends that.
func TestARailThatConnectsAndDeliversNothingIsTriedEverMoreRarely(t *testing.T) {
	r := newRig(t, Options{})
	id := r.ends(1, 0, [2]string{"a", "A"}, [2]string{"b", "B"})
	p := to(r.core, id)
	generation := 1
	sick := func() *railState { return r.core.rail(id, railOf(id, 0, generation)) }
	// move sends bytes over both rails; those of the sick one are lost, or brought where it is well.
	move := func(well bool) (used bool) {
		r.submit(p, High, 4<<20, clock.Never)
		var stuck []*transport.Slice
		for i := 0; i < len(r.out); {
			if s := r.out[i]; s.Rail.Index == 0 && !well {
				stuck = append(stuck, s)
				r.out = append(r.out[:i:i], r.out[i+1:]...)
			} else {
				r.finish(i, nil)
				i = 0
			}
		}
		for _, s := range stuck {
			r.core.RailDown(id, s.Rail, nil, r.now)
			r.core.Complete(0, []transport.Completion{{Slice: s, Id: s.Id, Err: withdrawn}}, r.now)
		}
		r.step()
		r.drain()
		if len(stuck) > 0 {
			generation++
			r.core.RailUp(id, transport.RailInfo{Rail: railOf(id, 0, generation), Local: "a", Remote: "A",
				BytesMax: 1 << 20, Bandwidth: 1e9}, r.now)
			r.step()
		}
		return len(stuck) > 0
	}
	for _, pause := range []time.Duration{30, 60, 120, 240, 300, 300} {
		for sick().life.State() != rail.Paused {
			require.True(t, move(false))
			require.LessOrEqual(t, generation, 9, "three, and one behind each pause but the last")
		}
		require.NotContains(t, r.probes, sick().id, "an answer would prove nothing")
		last := r.events[len(r.events)-1]
		require.Equal(t, event.RailPaused, last.Kind)
		require.Equal(t, pause*time.Second, last.Took)
		require.Equal(t, strconv.Itoa(generation-1)+" generations in a row delivered nothing", last.Note)
		for until := r.now.Add(last.Took); r.now < until; {
			require.Equal(t, rail.Paused, sick().life.State())
			require.False(t, move(false))
			require.NotContains(t, r.probes, sick().id, "an answer would prove nothing")
			r.wait(min(time.Second, until.Sub(r.now)))
		}
	}
	require.Equal(t, 9, generation)
	require.False(t, move(true), "it is well")
	require.Equal(t, rail.Up, sick().life.State())
	require.Positive(t, sick().carried)
	require.True(t, move(false))
	require.Equal(t, rail.Up, sick().life.State(), "it has shown that it can")
}

// Tasks leave it for another transport, if there is one.
func TestTasksLeaveALinkThatDeliversNothing(t *testing.T) {
	r := newRig(t, Options{Failovers: 1})
	sick, other := r.link(1, 0, 1, 1<<20), r.link(1, 1, 1, 1<<20)
	b := r.submit(to(r.core, sick, other), High, 64*kib, clock.Never)
	for generation := 2; r.out[0].Rail.Link == transport.Link(sick); generation++ {
		require.LessOrEqual(t, generation, 4)
		r.railUp(sick, 0, generation, 1<<20) // new connections take over
		r.finish(0, withdrawn)
	}
	r.drain()
	require.Equal(t, Completed, r.status(b).State)
	require.EqualValues(t, 1, r.status(b).Failovers)
}

// Where it is the peer's only rail it is used all the same, rather than nothing: as soon as it is well, bytes move.
func TestTheOnlyRailIsUsedAlthoughItsLastGenerationsDeliveredNothing(t *testing.T) {
	r := newRig(t, Options{})
	id := r.link(1, 0, 1, 1<<20)
	b := r.submit(to(r.core, id), High, 64*kib, clock.Never)
	for generation := 1; generation < 6; generation++ {
		require.Len(t, r.out, 1)
		r.core.RailDown(id, railOf(id, 0, generation), broken(errs.ScopeRail), r.now)
		r.finish(0, withdrawn)
		down := r.events[len(r.events)-1]
		require.Equal(t, event.RailDown, down.Kind)
		require.Equal(t, generation > 3, down.Note != "", "the log knows from then on")
		r.railUp(id, 0, generation+1, 1<<20)
		r.step()
	}
	state := func() rail.State { return r.core.rail(id, railOf(id, 0, 6)).life.State() }
	require.Equal(t, rail.Paused, state())
	r.drain()
	require.Equal(t, Completed, r.status(b).State)
	require.Equal(t, rail.Up, state())
}
