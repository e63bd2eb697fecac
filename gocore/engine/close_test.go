package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/errs"
)

// A peer that was stopped inside a lease holds that lease alone. All others are out of the region when CloseRegion has
// returned, and out of the other ranges of a lease when that has expired.
func TestAnEndThatIsHeldInOnePartReachesAllOthers(t *testing.T) {
	w := newWorkshop(t, "hand")
	h := w.hands[0]
	ranges := []Range{{0, 4096}, {8192, 4096}, {16384, 4096}}
	whole := w.region("kv")
	id, err := w.Share(whole.ID, Share{Ranges: ranges})
	require.NoError(t, err)
	first := w.regions.get(id)
	parts := append(first.parts.open(false), first)
	h.held = parts[0].key(0)
	require.ErrorContains(t, w.closeRegion(t.Context(), id, "expired"), "a peer is inside")
	require.Equal(t, 1, h.revoked[first.key(0)])
	require.ErrorContains(t, w.CloseRegion(t.Context(), whole.ID), "a peer is inside")
	require.Equal(t, 1, h.revoked[whole.key(0)])
	h.held = 0
	require.NoError(t, w.CloseRegion(t.Context(), whole.ID))
	require.Nil(t, w.regions.leave(id))
}

// A thread that waits may be inside beside Close and Forget: it looks at the shared page after both.
func TestCallsMayBeInsideBesideForget(t *testing.T) {
	w := newWorkshop(t, "hand")
	own, far := w.region("own"), w.region("far")
	r := w.request(own, far)
	id, err := w.Move(&r)
	require.NoError(t, err)
	const waiters = 32
	states := make(chan dispatch.State)
	for range waiters {
		go func() { states <- w.Wait(id, time.Minute) }()
	}
	require.Empty(t, w.Close(0, true))
	require.NoError(t, w.Forget())
	for range waiters {
		require.Equal(t, dispatch.Canceled, <-states)
	}
	require.Equal(t, dispatch.Canceled, w.Wait(id, time.Minute))
	require.Equal(t, 1, w.WaitMany([]dispatch.BatchID{id}, 1, time.Minute))
	require.NotZero(t, w.Elapsed(id))
	w.requireEnd(id, dispatch.Canceled, errs.Canceled)
}

// A device that gives its slices back to nobody holds their memory, and no thread: the batch has ended for its waiters.
func TestABatchWhoseSlicesNeverComeEndsWithTheEngine(t *testing.T) {
	w := newWorkshop(t, "hand")
	own, far := w.region("own"), w.region("far")
	r := w.request(own, far)
	id, err := w.Move(&r)
	require.NoError(t, err)
	waited := make(chan dispatch.State)
	go func() { waited <- w.Wait(id, time.Minute) }()
	w.mu.Lock()
	w.gone = true
	w.endRest()
	w.unlockAndDrain()
	require.Equal(t, dispatch.Failed, <-waited)
	w.requireEnd(id, dispatch.Failed, errs.EngineClosed)
	w.requireUses(1, own)
	w.hands[0].complete(nil) // it came after all
	w.requireEnd(id, dispatch.Failed, errs.EngineClosed)
	w.requireUses(0, own)
}
