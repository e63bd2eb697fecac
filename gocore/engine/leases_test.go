package engine

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/security"
)

// A lease that cannot be made leaves no key, no use of its region, no name and none of the counted ranges.
// Something happens here while its second range is registered.
func TestALeaseThatCannotBeMadeLeavesNothing(t *testing.T) {
	for name, c := range map[string]struct {
		meanwhile func(*workshop, *region) error
		code      errs.Code
		goes      bool // the region does
	}{
		"a transport refuses the range": {func(*workshop, *region) error {
			return errs.New(errs.OutOfMemory, "register", "no more")
		}, errs.OutOfMemory, false},
		"its region is closed": {func(w *workshop, whole *region) error {
			return w.CloseRegion(w.t.Context(), whole.ID)
		}, errs.AddressNotRegistered, true},
		"other pages come": {func(w *workshop, whole *region) error {
			return w.RemapRegion(w.t.Context(), whole.ID, 0, 4096)
		}, errs.InvalidEntry, false},
		"its name is taken": {func(w *workshop, _ *region) error {
			w.region("pages")
			return nil
		}, errs.InvalidArgument, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorkshop(t, "hand")
			h, whole := w.hands[0], w.region("kv")
			h.enter = func(r mem.Region) error {
				if r.Addr != whole.Addr+8192 {
					return nil
				}
				return c.meanwhile(w, whole)
			}
			share := Share{Name: "pages", Ranges: []Range{{0, 4096}, {8192, 4096}}}
			_, err := w.Share(whole.ID, share)
			require.Equal(t, c.code, errs.CodeOf(err), "%v", err)
			require.Zero(t, w.leases.count.Load())
			require.Empty(t, whole.parts.list)
			h.locked(func() {
				for _, r := range h.keys {
					require.NotEqual(t, uint64(4096), r.Size, "a key of a range is left")
				}
			})
			if c.goes {
				h.await(t, "the end of the region", func() bool { return len(h.keys) == 0 })
				return
			}
			w.requireUses(0, whole)
			h.enter, share.Name = nil, "others"
			_, err = w.Share(whole.ID, share)
			require.NoError(t, err)
		})
	}
}

// A lease without peers of its own is given to those of its region, never to all. So is each of its ranges, which lies
// in the region's file where that has one.
func TestALeaseIsForThePeersOfItsRegion(t *testing.T) {
	w := newWorkshop(t, "hand")
	whole := w.region("kv")
	names, failure := security.ParseNames("peers", []string{"spiffe://prod/decode"})
	require.NoError(t, failure)
	whole.rule, whole.FdOffset = &rule{Names: names, given: mem.Peers{Admit: names.Admit}}, 1<<20
	list, err := w.partsOf(whole, &Share{Ranges: []Range{{4096, 64}, {16384, 128}}})
	require.NoError(t, err)
	require.Len(t, list, 2)
	for i, at := range []uint64{4096, 16384} {
		require.Same(t, whole.rule, list[i].rule)
		require.True(t, list[i].Peers.Admit("spiffe://prod/decode"))
		require.False(t, list[i].Peers.Admit("spiffe://prod/other"))
		require.Equal(t, whole.Addr+uintptr(at), list[i].Addr)
		require.Equal(t, 1<<20+at, list[i].FdOffset)
	}
	whole.rule = nil
}

func TestOnlyALeaseThatIsOpenIsRenewed(t *testing.T) {
	w := newWorkshop(t, "hand")
	whole := w.region("kv")
	id, err := w.Share(whole.ID, Share{Ranges: []Range{{0, 64}, {4096, 64}}, Expires: time.Hour})
	require.NoError(t, err)
	var further mem.RegionID
	for l := range w.regions.get(id).parts.list {
		further = l.ID
	}
	require.NoError(t, w.Renew(id, time.Hour))
	require.Equal(t, errs.InvalidArgument, errs.CodeOf(w.Renew(id, -1)), "its end would be in the past")
	require.Equal(t, errs.InvalidArgument, errs.CodeOf(w.Renew(whole.ID, time.Hour)), "a region is no lease")
	require.Equal(t, errs.InvalidEntry, errs.CodeOf(w.Renew(further, time.Hour)), "a further range has no end")
	l := w.regions.get(id).lease
	for _, ended := range []bool{true, false} {
		w.leases.mu.Lock()
		l.ended = ended
		w.leases.mu.Unlock()
		require.Equal(t, ended, w.Renew(id, time.Hour) != nil, "its time was up a moment ago")
	}
	require.NoError(t, w.CloseRegion(t.Context(), id))
	require.Equal(t, errs.InvalidEntry, errs.CodeOf(w.Renew(id, time.Hour)))
	require.Empty(t, w.leases.due, "a lease that was closed has no end to come")
}

// However many ranges a lease has, its end is one event, with the bytes of all.
func TestTheEndOfALeaseIsOneEvent(t *testing.T) {
	w := newWorkshop(t, "hand")
	follower, err := w.Follow()
	require.NoError(t, err)
	id, err := w.Share(w.region("kv").ID, Share{Name: "pages", Ranges: []Range{{0, 64}, {4096, 64}, {8192, 64}}})
	require.NoError(t, err)
	require.NoError(t, w.CloseRegion(t.Context(), id))
	list, lost, err := w.Events(follower, 100)
	require.NoError(t, err)
	require.Zero(t, lost)
	list = slices.DeleteFunc(list, func(e event.Event) bool { return e.Kind != event.LeaseEnded })
	require.Len(t, list, 1)
	require.Equal(t, "pages", list[0].Rail)
	require.Equal(t, "closed", list[0].Note)
	require.EqualValues(t, 3*64, list[0].Bytes)
}
