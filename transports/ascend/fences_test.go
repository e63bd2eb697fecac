package ascend

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	fake "github.com/tent-engine/tent/tests/fakes/ascend"
)

// A fence that comes while HIXL looks at a slice finds it neither waiting nor moving, if HIXL has no room for it then.
// The slice goes back to the queue, and ends there. The gate keeps the carrier from HIXL, as a slow call does.
func TestASliceWithoutRoomIsNotPostedBehindAFence(t *testing.T) {
	onRig(t, fake.LinkSettings{"REQUESTS": "2"}, Settings{}, func(r *rig) {
		r.meets()
		guest, owner := r.a.Transport.(*ascend), r.b.Transport.(*ascend)
		other := r.c.Import(t, r.b.Register(t, 2*piece, mem.GlobalReadWrite))
		rail, far := r.c.Rail(t), r.far()
		r.c.Must(t, r.c.Slice(transport.Write, rail, r.local, 0, other, 0, piece)) // the link sees the other region
		r.h.Hold(true)
		full := []*transport.Slice{r.c.Slice(transport.Write, rail, r.local, 0, other, 0, piece),
			r.c.Slice(transport.Write, rail, r.local, 0, other, piece, piece)}
		r.c.Submit(full...)
		r.await("a full HIXL", func() bool { return r.h.Stats().Requests == 2 })

		guest.instance.gate.Lock()
		old := r.volley(1)
		require.Equal(t, 1, r.c.Submit(old...))
		l := guest.links.Lookup(r.c.Link)
		r.await("the carrier has the slice", func() bool {
			guest.mu.Lock()
			has, calls := l.posted.Len() == len(full)+len(old), l.calls > 0
			guest.mu.Unlock()
			if !has && calls { // it looked before the slice came, and may pass the gate once
				guest.instance.gate.Unlock()
				guest.instance.gate.Lock()
			}
			return has
		})
		fenced := make(chan error, 1)
		go func() { fenced <- owner.Revoke(t.Context(), r.remote.Operand.Key, nil, transport.ForGood) }()
		r.await("the fence at the link", far.passage.Closed)
		guest.instance.gate.Unlock()
		require.NoError(t, <-fenced)
		r.remote.Fill(after, 0, rigSize)
		r.h.Hold(false)
		for _, end := range r.c.Wait(t, full...) {
			require.Nil(t, end.Err)
		}
		require.NotNil(t, r.c.Wait(t, old...)[0].Err, "a slice of before the fence")
		require.NoError(t, r.remote.Check(after, 0, 0, rigSize), "written behind the fence")
	})
}

// A slice waits while its link is not connected, as beside a region that is being closed here. Where the owner's fence
// could not reach the link, its next hello does, and the slice ends.
func TestASliceThatWaitsForAHelloIsNotPostedBehindItsFence(t *testing.T) {
	onRig(t, nil, Settings{}, func(r *rig) {
		r.meets()
		guest, owner := r.a.Transport.(*ascend), r.b.Transport.(*ascend)
		l := guest.links.Lookup(r.c.Link)
		pause := func(n int) {
			guest.mu.Lock()
			guest.paused += n
			guest.changed.Broadcast()
			guest.mu.Unlock()
			guest.kickAll()
		}
		pause(1) // as apart does
		r.await("the link has parted", func() bool {
			guest.mu.Lock()
			defer guest.mu.Unlock()
			return l.connection == shut
		})
		old := r.volley(1)
		require.Equal(t, 1, r.c.Submit(old...))
		r.mute.Store(true)
		require.NoError(t, owner.Revoke(t.Context(), r.remote.Operand.Key, nil, transport.ForGood))
		r.mute.Store(false)
		r.remote.Fill(after, 0, rigSize)
		pause(-1)
		require.NotNil(t, r.c.Wait(t, old...)[0].Err, "a slice of before the fence")
		require.NoError(t, r.remote.Check(after, 0, 0, rigSize), "written behind the fence")
	})
}
