package dispatch

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/transport"
)

// slow makes the core believe that one rail of a link is a thousand times slower than the others.
func (r *rig) slow(id plan.LinkID, index uint16) {
	for i, rail := range r.core.link(id).rails {
		rail.meter.Reset(1e9)
		if uint16(i) == index {
			rail.meter.Reset(1e6)
		}
	}
	r.core.activate(r.core.link(id))
}

// A hedged slice is asked back in the step that sends its bytes elsewhere. So the slow rail need not carry them, and
// nobody waits for it. Where each rail becomes slow in turn, the same bytes are sent three times at most.
func TestHedgedSlicesAreWithdrawnAtOnceAndAreFew(t *testing.T) {
	const most = 3 // as hedge.go promises
	r := newRig(t, Options{})
	id := r.link(1, 0, 2, 1<<20)
	b := r.submit(to(r.core, id), High, 64*kib, clock.Never)
	require.Len(t, r.out, 1)
	for range most - 1 {
		last := r.out[0]
		r.slow(id, last.Rail.Index)
		fresh := r.step()
		require.Equal(t, []*transport.Slice{last}, r.asked)
		require.Len(t, fresh, 1)
		require.NotEqual(t, last.Rail.Index, fresh[0].Rail.Index)
		require.Equal(t, [2]uint64{last.Remote, last.Length}, [2]uint64{fresh[0].Remote, fresh[0].Length})
		r.finish(0, withdrawn)
	}
	r.slow(id, r.out[0].Rail.Index)
	require.Empty(t, r.step(), "sent %d times", most)
	require.Empty(t, r.asked)
	require.False(t, r.status(b).State.Terminal())
	r.drain()
	require.Equal(t, Completed, r.status(b).State)
	require.EqualValues(t, most-1, r.core.hedged)
}
