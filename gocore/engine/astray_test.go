package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
)

// stale is a workshop that knows the region far as it was before its memory was registered again, and a request by
// address for that.
func stale(t *testing.T, again Memory) (w *workshop, own, far *region, r Request, now mem.RegionID) {
	w = newWorkshop(t, "hand")
	own, far = w.region("own"), w.region("far")
	r = w.request(own, far)
	r.Remote = Remote{Offset: uint64(far.Addr) + 8192}
	id, err := w.Move(&r)
	require.NoError(t, err)
	h := w.hands[0]
	h.await(t, "the first slice", func() bool { return len(h.slices) == 1 })
	h.complete(nil)
	require.Equal(t, dispatch.Completed, w.Wait(id, 10*time.Second))
	require.NoError(t, w.CloseRegion(t.Context(), far.ID))
	again.Addr, again.Size, again.Location = far.Addr+4096, far.Size-4096, "cpu:0"
	now, err = w.Register(again)
	require.NoError(t, err)
	return w, own, far, r, now
}

var errClosedThere = errs.New(errs.AddressNotRegistered, "hand", "closed").WithScope(errs.ScopeSlice, errs.SideRemote)

// A request by address goes on in the region that is there when the old one refuses it, also where its local one was
// closed. A fence since then keeps it away from both.
func TestARequestByAddressGoesOnUnlessItWasFenced(t *testing.T) {
	for _, fenced := range []bool{false, true} {
		w, own, _, r, now := stale(t, Memory{Permission: mem.GlobalReadWrite})
		h := w.hands[0]
		id, err := w.Move(&r)
		require.NoError(t, err)
		h.await(t, "the slice", func() bool { return len(h.slices) == 1 })
		require.NoError(t, w.CloseRegion(t.Context(), own.ID))
		if fenced {
			require.NoError(t, w.FenceRegion(t.Context(), now, ""))
		}
		h.complete(errClosedThere)
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

// Its owner has closed the region behind the request, and may use the memory for something else.
func TestARequestByAddressOfBeforeACloseDoesNotComeBehindIt(t *testing.T) {
	w := newWorkshop(t, "hand")
	h := w.hands[0]
	own, far := w.region("own"), w.region("far")
	r := w.request(own, far)
	r.Remote = Remote{Offset: uint64(far.Addr)}
	id, err := w.Move(&r)
	require.NoError(t, err)
	h.await(t, "the slice", func() bool { return len(h.slices) == 1 })
	require.NoError(t, w.CloseRegion(t.Context(), far.ID))
	_, err = w.Register(Memory{Addr: far.Addr, Size: far.Size, Location: "cpu:0", Permission: mem.GlobalReadWrite})
	require.NoError(t, err)
	h.complete(errClosedThere)
	w.requireEnd(id, dispatch.Failed, errs.AddressNotRegistered)
	require.Empty(t, h.slices)
}

// The owner offers the memory at the address for reading now.
func TestARequestByAddressNeedsTheRightsOfTheRegionThatIsThereNow(t *testing.T) {
	w, _, _, r, _ := stale(t, Memory{Permission: mem.GlobalReadOnly, ReadOnly: true})
	h := w.hands[0]
	id, err := w.Move(&r)
	require.NoError(t, err)
	h.await(t, "the slice", func() bool { return len(h.slices) == 1 })
	h.complete(errClosedThere)
	w.requireEnd(id, dispatch.Failed, errs.PermissionDenied)
}
