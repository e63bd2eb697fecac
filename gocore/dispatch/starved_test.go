package dispatch

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/transport"
)

// A process that gets the processor late at every step doubts a dead rail late, in real time. Its requests wait for
// that: their stall limit counts the time in which the process was let run, as the detector's clock does.
func TestAStarvedProcessFindsTheHealthyRailBeforeTheStallLimit(t *testing.T) {
	for _, late := range []time.Duration{2 * ms, 20 * ms, 99 * ms, 300 * ms} {
		t.Run(late.String(), func(t *testing.T) {
			r := newRig(t, Options{Stall: 5 * time.Second})
			began := r.now
			id := r.core.AddLink(LinkSpec{Peer: 1, PeerName: "10.0.0.1:7000", Info: &transport.Info{}, Probes: true})
			r.railUp(id, 0, 1, 64*kib)
			r.railUp(id, 1, 1, 64*kib)
			r.submit(to(r.core, id), High, kib, clock.Never)
			r.finish(0, nil)
			b := r.submit(to(r.core, id), High, 128*kib, clock.Never)
			require.NotEmpty(t, r.out)
			asked := map[*transport.Slice]bool{}
			for steps := 0; r.status(b).State == Pending; steps++ {
				require.Less(t, steps, 1_000_000)
				for i := 0; i < len(r.out); i++ { // rail 1 works; rail 0 is mute, and gives back slices
					for _, s := range r.asked {
						asked[s] = true
					}
					if s := r.out[i]; s.Rail.Index == 1 {
						r.finish(i, nil)
						i = -1
					} else if asked[s] {
						r.finish(i, withdrawn)
						i = -1
					}
				}
				for _, rail := range r.probes {
					if rail.Index == 1 {
						r.core.Probed(id, rail, clock.Time(ms), nil, r.now)
					}
				}
				next := r.core.Deadline()
				require.NotEqual(t, clock.Never, next)
				r.now = max(r.now, next).Add(late)
				r.step()
			}
			require.Equal(t, Completed, r.status(b).State, "%v", r.status(b).Err)
			t.Logf("completed after %v", r.now.Sub(began))
		})
	}
}
