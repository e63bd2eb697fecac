package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
)

// A request by address goes on in the region that is there when the old one refuses it, also where its local one was
// closed. A fence of before keeps it away from both.
func TestARequestByAddressGoesOnUnlessItWasFenced(t *testing.T) {
	refused := errs.New(errs.AddressNotRegistered, "hand", "closed").WithScope(errs.ScopeSlice, errs.SideRemote)
	for _, fenced := range []bool{false, true} {
		w := newWorkshop(t, "hand")
		h := w.hands[0]
		own, far := w.region("own"), w.region("far")
		r := w.request(own, far)
		r.Remote = Remote{Offset: uint64(far.Addr) + 8192}
		id, err := w.Move(&r)
		require.NoError(t, err)
		h.await(t, "the slice", func() bool { return len(h.slices) == 1 })
		require.NoError(t, w.CloseRegion(t.Context(), own.ID))
		if fenced {
			require.NoError(t, w.FenceRegion(t.Context(), far.ID, ""))
		}
		require.NoError(t, w.CloseRegion(t.Context(), far.ID))
		now, err := w.Register(Memory{Addr: far.Addr + 4096, Size: far.Size - 4096, Location: "cpu:0",
			Permission: mem.GlobalReadWrite})
		require.NoError(t, err)
		h.complete(refused)
		if fenced {
			w.requireEnd(id, dispatch.Failed, errs.AddressNotRegistered)
			require.Empty(t, h.slices)
			continue
		}
		h.await(t, "the slice in the other region", func() bool { return len(h.slices) == 1 })
		s := h.slices[0]
		require.EqualValues(t, w.regions.get(now).key(0), s.RemoteKey)
		require.EqualValues(t, 4096, s.Remote)
		require.Equal(t, own.Addr, s.Local)
		h.complete(nil)
		require.Equal(t, dispatch.Completed, w.Wait(id, 10*time.Second))
		w.regions.retire.wait(t.Context())
		require.Zero(t, own.uses.Load())
	}
}

// The owner offers the memory at the address for reading now.
func TestARequestByAddressNeedsTheRightsOfTheRegionThatIsThereNow(t *testing.T) {
	w := newWorkshop(t, "hand")
	h := w.hands[0]
	own, far := w.region("own"), w.region("far")
	r := w.request(own, far)
	r.Remote = Remote{Offset: uint64(far.Addr)}
	id, err := w.Move(&r)
	require.NoError(t, err)
	h.await(t, "the slice", func() bool { return len(h.slices) == 1 })
	require.NoError(t, w.CloseRegion(t.Context(), far.ID))
	_, err = w.Register(Memory{Addr: far.Addr, Size: far.Size, Location: "cpu:0", Permission: mem.GlobalReadOnly,
		ReadOnly: true})
	require.NoError(t, err)
	h.complete(errs.New(errs.AddressNotRegistered, "hand", "closed").WithScope(errs.ScopeSlice, errs.SideRemote))
	w.requireEnd(id, dispatch.Failed, errs.PermissionDenied)
}
