package ascend

import (
	"testing"

	"github.com/stretchr/testify/require"

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
				r.await("the fence at the link", far.closed.Load)
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
