package hazard

import (
	"context"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
)

// pair is an owner with one region, and a peer's view of it, both in this process.
func pair(t testing.TB) (*Table, *Page, *View, Region) {
	table := NewTable(1000)
	page, err := table.NewPage(os.Getpid(), -1)
	require.NoError(t, err)
	view, err := NewView(page.Fd())
	require.NoError(t, err)
	r, err := table.Add()
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		require.NoError(t, table.Close(ctx))
		view.Unmap()
	})
	return table, page, view, r
}

func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

func enter(t testing.TB, v *View, r Region) Slot {
	s := v.Enter(r, v.Permit(r), 0)
	require.GreaterOrEqual(t, s, Slot(0))
	return s
}

func TestPermitOfBeforeAFenceIsRefusedAfterIt(t *testing.T) {
	table, _, view, r := pair(t)
	before := view.Permit(r)
	require.NoError(t, table.Revoke(soon(t), r, nil, true))
	require.Equal(t, Revoked, view.Enter(r, before, 0))
	require.NotEqual(t, before, view.Permit(r))
	view.Leave(enter(t, view, r))
}

func TestRevokedRegionStaysClosedUntilItsIndexIsAnother(t *testing.T) {
	table, _, view, r := pair(t)
	before := view.Permit(r)
	require.NoError(t, table.Revoke(soon(t), r, nil, false))
	require.Zero(t, view.Permit(r))
	require.NoError(t, table.Revoke(soon(t), r, nil, true), "a close that is tried again")
	require.Zero(t, view.Permit(r), "a fence does not open what was closed")
	table.Remove(r)
	require.Equal(t, errs.AddressNotRegistered, errs.CodeOf(table.Revoke(soon(t), r, nil, true)))
	next, err := table.Add()
	require.NoError(t, err)
	require.Equal(t, r.Index, next.Index)
	require.Zero(t, view.Permit(r))
	require.Equal(t, Revoked, view.Enter(r, before, 0))
	require.Equal(t, Revoked, view.Enter(next, before, 0))
	view.Leave(enter(t, view, next))
}

func TestRevocationFromOnePeerLeavesTheOthers(t *testing.T) {
	table, page, view, r := pair(t)
	other, err := table.NewPage(os.Getpid(), -1)
	require.NoError(t, err)
	otherView, err := NewView(other.Fd())
	require.NoError(t, err)
	t.Cleanup(otherView.Unmap)
	accepted := otherView.Permit(r)
	s := otherView.Enter(r, accepted, 0)
	require.NoError(t, table.Revoke(soon(t), r, page, true), "who copies by another page is not waited for")
	otherView.Leave(s)
	require.NoError(t, table.Revoke(soon(t), r, page, false))
	require.Zero(t, view.Permit(r))
	require.Equal(t, accepted, otherView.Permit(r))
	late, err := table.NewPage(os.Getpid(), -1)
	require.NoError(t, err)
	lateView, err := NewView(late.Fd())
	require.NoError(t, err)
	t.Cleanup(lateView.Unmap)
	require.NotZero(t, lateView.Permit(r), "a page made later has the regions of before")
}

func TestRevokeWaitsForItsRegionOnly(t *testing.T) {
	table, _, view, r := pair(t)
	other, err := table.Add()
	require.NoError(t, err)
	inOther := enter(t, view, other)
	defer view.Leave(inOther)
	inside := enter(t, view, r)
	left := make(chan struct{})
	done := make(chan error, 1)
	go func() {
		err := table.Revoke(t.Context(), r, nil, false)
		select {
		case <-left:
		default:
			t.Error("the revocation ended before the copier left")
		}
		done <- err
	}()
	for view.Permit(r) != 0 {
		unix.Getpid() // the revocation has begun when the permit is gone
	}
	holder, held := table.Held(r)
	require.True(t, held)
	require.Equal(t, Holder{os.Getpid(), int(inside), r}, holder)
	close(left)
	view.Leave(inside)
	require.NoError(t, <-done)
	_, held = table.Held(r)
	require.False(t, held)
}

func TestWaitEndsInTimeAndNamesTheHolder(t *testing.T) {
	table, page, view, r := pair(t)
	s := enter(t, view, r)
	for _, keep := range []bool{true, false} {
		err := table.Revoke(soon(t), r, nil, keep)
		var held *HeldError
		require.ErrorAs(t, err, &held)
		require.Equal(t, Holder{os.Getpid(), int(s), r}, held.Holder)
		require.Equal(t, errs.Timeout, errs.CodeOf(err))
	}
	table.Remove(r)
	_, inside := table.Held(r)
	require.True(t, inside, "removed, and still held")
	require.Error(t, table.Retire(soon(t), page))
	_, inside = table.Held(r)
	require.True(t, inside, "the page is kept for as long as a slot counts")
	view.Leave(s)
	require.NoError(t, table.Retire(soon(t), page))
	_, inside = table.Held(r)
	require.False(t, inside)
}

func TestAllSlotsTakenIsBusy(t *testing.T) {
	_, _, view, r := pair(t)
	p := view.Permit(r)
	var taken []Slot
	for range Slots {
		taken = append(taken, view.Enter(r, p, 17))
	}
	require.Len(t, unique(taken), Slots)
	require.Equal(t, Busy, view.Enter(r, p, 17))
	require.True(t, view.Inside(r))
	for _, s := range taken {
		view.Leave(s)
	}
	require.False(t, view.Inside(r))
}

func unique(slots []Slot) map[Slot]bool {
	set := map[Slot]bool{}
	for _, s := range slots {
		if s >= 0 {
			set[s] = true
		}
	}
	return set
}

func TestRegionsAreBounded(t *testing.T) {
	table := NewTable(2)
	for range 2 {
		_, err := table.Add()
		require.NoError(t, err)
	}
	_, err := table.Add()
	require.Equal(t, errs.TooManyRequests, errs.CodeOf(err))
}

func TestSlotCostsNoAllocation(t *testing.T) {
	_, _, view, r := pair(t)
	require.Zero(t, testing.AllocsPerRun(100, func() { view.Leave(view.Enter(r, view.Permit(r), Hint())) }))
}

// A peer may write anything into its page: the owner reads it within the bound of the wait and does not fall over.
func TestCorruptPageHarmsNobody(t *testing.T) {
	table, page, view, r := pair(t)
	for i := range page.size / 8 {
		word(&page.shared, i).Store(^uint64(0) >> (i % 64))
	}
	_ = view.Enter(r, view.Permit(r), 0)
	_ = view.Enter(Region{1 << 31, 1}, 1, 0)
	require.Zero(t, view.Permit(Region{^uint32(0), 1}))
	_, _ = table.Held(r)
	require.NoError(t, table.Revoke(soon(t), r, nil, true), "no slot names the region")
	for i := range uint32(Slots) {
		page.slot(i).Store(r.name())
	}
	require.Error(t, table.Revoke(soon(t), r, nil, true))
	for i := range uint32(Slots) {
		page.slot(i).Store(0)
	}
}

func TestPageOfAnotherKindIsRefused(t *testing.T) {
	plain, err := unix.MemfdCreate("plain", unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	defer unix.Close(plain)
	_, err = NewView(plain)
	require.ErrorContains(t, err, "not a sealed memfd")
	require.NoError(t, unix.Ftruncate(plain, int64(sizeOf(10))))
	_, err = unix.FcntlInt(uintptr(plain), unix.F_ADD_SEALS, sealed)
	require.NoError(t, err)
	_, err = NewView(plain)
	require.ErrorContains(t, err, "header")

	table, page, _, _ := pair(t)
	_ = table
	require.ErrorIs(t, unix.Ftruncate(page.Fd(), 0), unix.EPERM, "nobody makes a page shorter")
	page.header().regions++
	_, err = NewView(page.Fd())
	require.NoError(t, err, "the size is rounded up to pages of memory")
	page.header().regions += 4096
	_, err = NewView(page.Fd())
	require.ErrorContains(t, err, "header")
}

func TestCanceledWaitEnds(t *testing.T) {
	table, _, view, r := pair(t)
	s := enter(t, view, r)
	defer view.Leave(s)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.Error(t, table.Revoke(ctx, r, nil, true))
}

// word is any word of a page, for tests that spoil it.
func word(s *shared, i uintptr) *atomic.Uint64 { return (*atomic.Uint64)(mem.Pointer(s.addr + 8*i)) }

// The race that the second look decides: permits change as fast as they can while copiers come and go. After each fence
// nobody may be inside under a permit of before it. All slots but the first are taken, so that the copier comes late to
// the one that the owner looks at first.
func TestNobodyIsInsideUnderAnOldPermit(t *testing.T) {
	table, _, view, r := pair(t)
	other, err := table.Add()
	require.NoError(t, err)
	for i := range Slots - 1 {
		require.Equal(t, Slot(i+1), view.Enter(other, view.Permit(other), 1))
		defer view.Leave(Slot(i + 1))
	}
	var inside atomic.Uint64
	var stop atomic.Bool
	var all sync.WaitGroup
	defer all.Wait()
	defer stop.Store(true)
	all.Go(func() { // one copier: with the owner as many as every machine has cores
		for !stop.Load() {
			p := view.Permit(r)
			if s := view.Enter(r, p, 1); s >= 0 {
				inside.Store(uint64(p))
				for range 20 {
					stop.Load() // touching takes a while
				}
				inside.Store(0)
				view.Leave(s)
			}
		}
	})
	fences := 0
	for end := time.Now().Add(testTime() / 3); time.Now().Before(end); fences++ {
		before := view.Permit(r)
		if err := table.Revoke(t.Context(), r, nil, true); err != nil {
			t.Fatal(err)
		}
		if p := Permit(inside.Load()); p != 0 && p <= before {
			t.Fatalf("fence %d: the copier is inside with permit %#x, the fence began at %#x", fences, p, before)
		}
	}
	t.Logf("%d fences", fences)
}
