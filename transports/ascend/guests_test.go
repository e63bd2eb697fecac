package ascend

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// far is the region as its link knows it.
func (r *rig) far() *remote {
	way, _ := r.a.Transport.(*ascend).ways.Load(r.c.Link)
	return way.(*link).keys.Lookup(r.remote.Key)
}

// A link that is detached while its slices are out hears fences until HIXL has ended it: none returns before that. The
// gate keeps HIXL from it here, as the exchange of the engine does, and a Disconnect that takes its time.
func TestAFenceWaitsForALinkThatIsBeingDetached(t *testing.T) {
	for name, stuck := range map[string]bool{"that ends in time": false, "that HIXL does not end": true} {
		t.Run(name, func(t *testing.T) {
			onRig(t, nil, Settings{}, func(r *rig) {
				r.meets()
				guest, owner := r.a.Transport.(*ascend), r.b.Transport.(*ascend)
				where, _, err := owner.instance.address()
				require.NoError(t, err)
				far := r.far()
				r.h.Hold(true)
				list := r.volley(4)
				n := r.c.Submit(list...)
				r.await("posted slices", func() bool { return r.h.Stats().Requests >= int64(n) })
				guest.instance.gate.Lock()
				guest.Detach(r.c.Link)

				fenced := make(chan error, 1)
				go func() { fenced <- owner.Revoke(t.Context(), r.remote.Operand.Key, nil, transport.ForGood) }()
				r.await("the fence at the link", far.passage.Closed)
				if stuck {
					require.NoError(t, <-fenced)
					guest.instance.gate.Unlock()
				} else {
					guest.instance.gate.Unlock()
					require.NoError(t, <-fenced)
					require.Zero(t, r.h.Stats().Clients, "the fence came back before the link had ended")
				}
				r.remote.Fill(after, 0, rigSize)
				r.h.Hold(false)
				r.c.Wait(t, list[:n]...)
				require.NoError(t, r.remote.Check(after, 0, 0, rigSize), "written behind the fence")
				now, _, err := owner.instance.address()
				require.NoError(t, err)
				require.Equal(t, stuck, where != now, "others pay only where nothing else helps")
				r.await("no link", func() bool { _, is := guest.ways.Load(r.c.Link); return !is })
			})
		})
	}
}

// fences fences the region of posted slices, and checks that none of them reaches it afterwards.
func (r *rig) fences() {
	r.t.Helper()
	r.h.Hold(true)
	list := r.volley(4)
	n := r.c.Submit(list...)
	r.await("posted slices", func() bool { return r.h.Stats().Requests >= int64(n) })
	epoch := r.remote.Fence(r.t, nil)
	r.remote.Fill(after, 0, rigSize)
	r.h.Hold(false)
	for _, end := range r.c.Wait(r.t, list[:n]...) {
		require.NotNil(r.t, end.Err, "a slice of before the fence")
	}
	require.NoError(r.t, r.remote.Check(after, 0, 0, rigSize), "written behind the fence")
	r.c.Hear(r.t, epoch)
	r.works()
}

// A connection that breaks is no end of a guest: the owner asks again, and the guest hears the fence.
func TestAGuestIsEndedByTwoProofs(t *testing.T) {
	onRig(t, nil, Settings{}, func(r *rig) {
		r.meets()
		guests := r.b.Transport.(*ascend).guests.all()
		r.breaks.Store(1)
		r.fences()
		require.Equal(t, guests, r.b.Transport.(*ascend).guests.all())
	})
}

// A guest that was taken for ended lives on. With its next hello the owner knows again of each region that it can
// reach, and the guest hears the fences that it has missed.
func TestAGuestThatWasTakenForEndedIsFencedAgain(t *testing.T) {
	onRig(t, nil, Settings{}, func(r *rig) {
		r.meets()
		other := r.c.Import(t, r.b.Register(t, piece, mem.GlobalReadWrite))
		r.breaks.Store(2)
		epoch := other.Fence(t, nil)
		r.breaks.Store(0)
		require.Empty(t, r.b.Transport.(*ascend).guests.all())
		later := r.c.Import(t, r.b.Register(t, piece, mem.GlobalReadWrite)) // seen by another connection alone
		r.c.Must(t, r.c.Slice(transport.Write, r.c.Rail(t), r.local, 0, later, 0, piece))
		r.c.Hear(t, epoch)
		r.fences()
	})
}
