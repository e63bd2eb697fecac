package dispatch

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/transport"
)

func TestARailInsideThisHostIsNotSuspectedForItsSilence(t *testing.T) {
	for _, inside := range []bool{false, true} {
		r := newRig(t, Options{Failovers: 3})
		near := r.core.AddLink(LinkSpec{Peer: 1, PeerName: "peer", Transport: 2,
			Info: &transport.Info{SameHost: inside}})
		r.railUp(near, 0, 1, 1<<20)
		far := r.link(1, 1, 1, 1<<20)
		p, other := to(r.core, near, far), to(r.core, far)
		r.warm(p)
		b := r.submit(p, High, 64*kib, clock.Never)
		for range 600 { // nobody lets our copier run, while the network goes on
			r.submit(other, High, kib, clock.Never)
			r.now = r.now.Add(ms)
			r.finish(len(r.out)-1, nil)
		}
		require.Equal(t, inside, len(r.kinds()) == 0, "inside %v: %v", inside, r.kinds())
		require.Equal(t, inside, r.status(b).Attempts == 1, "inside %v", inside)
		r.drain()
		require.Equal(t, Completed, r.status(b).State)
	}
}

// leaves submits a request for two routes, and returns how long it takes until its bytes are sent over the second one.
func (r *rig) leaves(p *plan.Plan, second plan.LinkID) (after time.Duration) {
	r.T.Helper()
	b, begun := r.submit(p, High, kib, clock.Never), r.now
	for r.out[len(r.out)-1].Rail.Link != transport.Link(second) {
		require.Less(r.T, r.now.Sub(begun), 2*r.core.options.AttemptLimit)
		r.wait(10 * ms)
	}
	after = r.now.Sub(begun)
	r.finish(len(r.out)-1, nil)
	for len(r.out) > 0 { // those of the first one
		r.finish(0, withdrawn)
	}
	require.Equal(r.T, Completed, r.status(b).State)
	return after
}

// Nothing but its tasks shows that a rail inside this host is dead. They leave it for as long as a pause.
func TestASilentRailInsideThisHostIsPausedWhenItsTasksHaveLeftIt(t *testing.T) {
	for _, info := range []transport.Info{{SameHost: true}, {SameHost: true, Delegates: true}} {
		r := newRig(t, Options{Failovers: 1, AttemptLimit: 2 * time.Second, Stall: 10 * time.Second})
		near := r.core.AddLink(LinkSpec{Peer: 1, PeerName: "peer", Transport: 2, Info: &info})
		r.railUp(near, 0, 1, 1<<20)
		far := r.link(1, 1, 1, 1<<20)
		p := to(r.core, near, far)
		require.InDelta(t, 2.5, r.leaves(p, far).Seconds(), 0.6)
		if info.Delegates { // its silence is the peer's, and each is a reason to leave
			require.InDelta(t, 2.5, r.leaves(p, far).Seconds(), 0.6)
			continue
		}
		require.Contains(t, r.kinds(), event.RailPaused)
		for range 3 {
			require.Zero(t, r.leaves(p, far))
		}
		r.wait(r.core.link(near).options.Settings.Cooldown)
		r.step()
		require.InDelta(t, 2.5, r.leaves(p, far).Seconds(), 0.6)
		require.Zero(t, r.leaves(p, far))
	}
}

// The limit of an attempt is looked at when it has passed, whenever the looks at a silent rail fall.
func TestASilentRailIsLeftAtTheLimitOfAnAttempt(t *testing.T) {
	for limit := 2 * time.Second; limit < 3*time.Second; limit += 50 * ms {
		r := newRig(t, Options{Failovers: 1, AttemptLimit: limit, Stall: 10 * time.Second})
		near := r.core.AddLink(LinkSpec{Peer: 1, PeerName: "peer", Transport: 2, Info: &transport.Info{SameHost: true}})
		r.railUp(near, 0, 1, 1<<20)
		far := r.link(1, 1, 1, 1<<20)
		late := r.leaves(to(r.core, near, far), far) - limit
		require.GreaterOrEqual(t, late, time.Duration(0))
		require.LessOrEqual(t, late, r.core.options.CondemnAfter/4+20*ms, "asked at %v, and judged behind that", limit)
	}
}
