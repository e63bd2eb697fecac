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

// stuck lists the notes of the events about transports that stand still.
func (r *rig) stuck() (notes []string) {
	for _, e := range r.events {
		if e.Kind == event.TransportStuck {
			notes = append(notes, e.Note)
		}
	}
	return notes
}

// refuseAll takes back all that is out, as a transport does that takes nothing.
func (r *rig) refuseAll() {
	r.core.Refuse(r.out, r.now)
	r.out = nil
	r.step()
}

// A transport owes Ready, and has forgotten it. The rail carries something else meanwhile, or nothing.
func TestAFullRailWithoutReadyIsTriedAgain(t *testing.T) {
	for _, busy := range []bool{false, true} {
		r := newRig(t, Options{})
		p := to(r.core, r.link(1, 0, 1, 1<<20))
		first := r.submit(p, High, kib, clock.Never)
		var refused []*transport.Slice
		if busy {
			r.submit(p, High, kib, clock.Never)
			refused, r.out = r.out[1:], r.out[:1]
			r.core.Refuse(refused, r.now)
			r.wait(ms)
			r.finish(0, nil)
		} else {
			r.refuseAll()
		}
		begun := r.now
		for len(r.out) == 0 {
			require.Less(t, r.now.Sub(begun), 3*time.Second)
			r.now = max(r.core.Deadline(), r.now+1)
			r.step()
		}
		require.GreaterOrEqual(t, r.now.Sub(begun), 900*ms, "its Ready may be on its way")
		r.drain()
		require.Equal(t, Completed, r.status(first).State)
		require.Empty(t, r.stuck())
	}
}

// Whether Ready comes or not. The task has another route, or an error.
func TestARailThatTakesNothingIsNamedAndLeft(t *testing.T) {
	for _, ready := range []bool{false, true} {
		r := newRig(t, Options{Failovers: 3, AttemptLimit: 2 * time.Second, Stall: 5 * time.Second})
		full, other := r.link(1, 0, 1, 1<<20), r.link(1, 1, 1, 1<<20)
		alone := r.submit(to(r.core, full), High, kib, clock.Never)
		b := r.submit(to(r.core, full, other), High, kib, clock.Never)
		for end := r.now.Add(9 * time.Second); r.now < end; r.wait(10 * ms) {
			for i := 0; i < len(r.out); i++ {
				if r.out[i].Rail.Link == transport.Link(full) {
					r.core.Refuse(r.out[i:i+1], r.now)
					r.out = append(r.out[:i], r.out[i+1:]...)
					i--
				} else {
					r.finish(i, nil)
					i--
				}
			}
			if ready {
				r.core.Ready(full, railOf(full, 0, 1))
			}
			if r.now.Sub(end) < -6*time.Second {
				continue
			}
			require.Equal(t, Completed, r.status(b).State, "behind the limit of an attempt")
		}
		require.EqualValues(t, 1, r.status(b).Failovers)
		require.Equal(t, Failed, r.status(alone).State)
		require.Equal(t, errs.Timeout, r.status(alone).Err.Code)
		require.Equal(t, []string{stuckFull}, r.stuck())
	}
}

// A rail that was fenced ends its generation at once. Where its transport does not do that, requests take another way,
// and those without one have the cause in their error.
func TestAFencedRailThatDoesNotEndIsNamed(t *testing.T) {
	r := newRig(t, Options{Failovers: 3, FenceNetwork: 2 * time.Second})
	id, other := r.link(1, 0, 1, 1<<20), r.link(1, 1, 1, 1<<20)
	b := r.submit(to(r.core, id, other), High, kib, clock.Never)
	alone := r.submit(to(r.core, id), High, kib, clock.Never)
	r.core.fenceRail(r.core.link(id).rails[0], r.now)
	r.step()
	require.Len(t, r.out, 3, "the bytes of the one with another way")
	r.finish(2, nil)
	for begun := r.now; r.now < begun.Add(5*time.Second); r.core.Answered(1, r.now) {
		require.Equal(t, r.now >= begun.Add(2*time.Second), len(r.stuck()) > 0)
		r.pass(100*ms, nothing)
	}
	require.Equal(t, []string{stuckFence}, r.stuck())
	require.ErrorContains(t, r.core.whyWaiting(r.core.link(id), r.now), "has not ended its last rail")
	require.Equal(t, Pending, r.status(b).State, "its first slice may still land")
	for len(r.out) > 0 {
		r.finish(0, withdrawn)
	}
	require.Equal(t, Completed, r.status(b).State)
	require.Equal(t, Pending, r.status(alone).State)
}
