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
	s := v.Enter(r, v.Epoch(), 0)
	require.GreaterOrEqual(t, s, Slot(0))
	return s
}

// TestCloseWaitsForRevocationsOfOthers lets one be under way that nothing holds up any more.
func TestCloseWaitsForRevocationsOfOthers(t *testing.T) {
	table, _, _, r := pair(t)
	pages, err := table.shut(r, nil, ForGood)
	require.NoError(t, err)
	closed := make(chan error, 1)
	go func() { closed <- table.Close(within(t, 10*time.Second)) }()
	require.Eventually(t, func() bool {
		table.mu.Lock()
		defer table.mu.Unlock()
		return table.pages[0].retired
	}, 10*time.Second, time.Millisecond)
	table.reopen(r, nil, pages, ForGood)
	require.NoError(t, <-closed)
}

func TestEpochOfBeforeAFenceIsRefusedAfterIt(t *testing.T) {
	table, page, view, r := pair(t)
	for _, only := range []*Page{nil, page} {
		before, permit := view.Epoch(), view.Permit(r)
		require.NoError(t, table.Revoke(soon(t), r, only, table.next()))
		require.Equal(t, Revoked, view.Enter(r, before, 0))
		require.Greater(t, view.Epoch(), before, "the peer reads the epoch where it looks")
		require.NotEqual(t, permit, view.Permit(r))
		view.Leave(enter(t, view, r))
	}
}

// The epoch is the region's: it holds on pages that are made after the fence.
func TestAFenceHoldsOnLaterPages(t *testing.T) {
	table, _, _, r := pair(t)
	require.NoError(t, table.Revoke(soon(t), r, nil, 7))
	late, err := table.NewPage(os.Getpid(), -1)
	require.NoError(t, err)
	view, err := NewView(late.Fd())
	require.NoError(t, err)
	t.Cleanup(view.Unmap)
	require.EqualValues(t, 7, view.Epoch())
	require.Equal(t, Revoked, view.Enter(r, 6, 0))
	view.Leave(enter(t, view, r))
	next, err := table.Add()
	require.NoError(t, err)
	view.Leave(view.Enter(next, 0, 0))
}

// A page that is made while a fence waits for another one has the epoch as soon as the fence has ended.
func TestAPageMadeDuringAFenceHearsOfIt(t *testing.T) {
	table, _, view, r := pair(t)
	inside := enter(t, view, r)
	done := make(chan error, 1)
	go func() { done <- table.Revoke(t.Context(), r, nil, 3) }()
	for view.Permit(r) != 0 {
		unix.Getpid() // the fence has begun when the permit is gone
	}
	late, err := table.NewPage(os.Getpid(), -1)
	require.NoError(t, err)
	lateView, err := NewView(late.Fd())
	require.NoError(t, err)
	t.Cleanup(lateView.Unmap)
	require.Equal(t, Revoked, lateView.Enter(r, lateView.Epoch(), 0))
	view.Leave(inside)
	require.NoError(t, <-done)
	require.EqualValues(t, 3, lateView.Epoch())
	lateView.Leave(enter(t, lateView, r))
}

// next is the epoch of the next fence, as an engine counts them.
func (t *Table) next() Epoch {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.epoch + 1
}

func TestRevokedRegionStaysClosedUntilItsIndexIsAnother(t *testing.T) {
	table, _, view, r := pair(t)
	before := view.Permit(r)
	require.NoError(t, table.Revoke(soon(t), r, nil, ForGood))
	require.Zero(t, view.Permit(r))
	require.NoError(t, table.Revoke(soon(t), r, nil, table.next()), "a close that is tried again")
	require.Zero(t, view.Permit(r), "a fence does not open what was closed")
	table.Remove(r)
	require.Equal(t, errs.AddressNotRegistered, errs.CodeOf(table.Revoke(soon(t), r, nil, table.next())))
	next, err := table.Add()
	require.NoError(t, err)
	require.Equal(t, r.Index, next.Index)
	require.Zero(t, view.Permit(r))
	require.NotEqual(t, before, view.Permit(next))
	require.Equal(t, Revoked, view.Enter(r, view.Epoch(), 0))
	view.Leave(enter(t, view, next))
}

// A region's next name has the fences and the bans of the one before, which lets nobody in.
func TestAnotherNameKeepsFencesAndBans(t *testing.T) {
	table, page, view, r := pair(t)
	require.NoError(t, table.Revoke(soon(t), r, nil, 5))
	next, err := table.Succeed(r)
	require.NoError(t, err)
	require.Equal(t, Revoked, view.Enter(r, 9, 0), "the old name")
	require.Equal(t, Revoked, view.Enter(next, 4, 0), "a task of before the fence")
	view.Leave(enter(t, view, next))
	require.NoError(t, table.Revoke(soon(t), next, page, ForGood))
	last, err := table.Succeed(next)
	require.NoError(t, err)
	require.Equal(t, Revoked, view.Enter(last, 1<<40, 0), "a peer that was shut out")
	table.Remove(next)
	_, err = table.Succeed(next)
	require.Equal(t, errs.AddressNotRegistered, errs.CodeOf(err))
}

func TestRevocationFromOnePeerLeavesTheOthers(t *testing.T) {
	table, page, view, r := pair(t)
	other, err := table.NewPage(os.Getpid(), -1)
	require.NoError(t, err)
	otherView, err := NewView(other.Fd())
	require.NoError(t, err)
	t.Cleanup(otherView.Unmap)
	before := otherView.Permit(r)
	s := otherView.Enter(r, 0, 0)
	require.NoError(t, table.Revoke(soon(t), r, page, table.next()), "who copies by another page is not waited for")
	otherView.Leave(s)
	require.NoError(t, table.Revoke(soon(t), r, page, ForGood))
	require.Zero(t, view.Permit(r))
	require.Equal(t, before, otherView.Permit(r))
	otherView.Leave(otherView.Enter(r, 0, 0))
	late, err := table.NewPage(os.Getpid(), -1)
	require.NoError(t, err)
	lateView, err := NewView(late.Fd())
	require.NoError(t, err)
	t.Cleanup(lateView.Unmap)
	require.NotZero(t, lateView.Permit(r), "a page made later has the regions of before")
}

// A page that is retired while a copier is inside lets nobody else in.
func TestARetiredPageLetsNobodyIn(t *testing.T) {
	table, page, view, r := pair(t)
	inside := enter(t, view, r)
	ctx, cancel := context.WithCancel(soon(t))
	cancel()
	require.Error(t, table.Retire(ctx, page), "somebody is inside")
	require.Zero(t, view.Permit(r))
	require.Equal(t, Revoked, view.Enter(r, 1<<40, 1))
	_, held := table.Held(r)
	require.True(t, held, "the page counts as long as it is held")
	view.Leave(inside)
	require.NoError(t, table.Revoke(soon(t), r, nil, table.next()))
	_, held = table.Held(r)
	require.False(t, held)
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
		err := table.Revoke(t.Context(), r, nil, ForGood)
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
	for _, epoch := range []Epoch{1, ForGood} {
		err := table.Revoke(soon(t), r, nil, epoch)
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
	var taken []Slot
	for range Slots {
		taken = append(taken, view.Enter(r, 0, 17))
	}
	require.Len(t, unique(taken), Slots)
	require.Equal(t, Busy, view.Enter(r, 0, 17))
	looks := 0
	require.Equal(t, Busy, view.Await(r, 0, 17, func() bool { looks++; return looks > 3 }), "nobody wants it any more")
	require.Equal(t, 4, looks)
	require.Equal(t, Busy, view.Await(r, 0, 17, func() bool { return false }), "a second is enough")
	view.Leave(taken[5])
	require.Equal(t, taken[5], view.Await(r, 0, 17, func() bool { return false }))
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
	require.Zero(t, testing.AllocsPerRun(100, func() { view.Leave(view.Enter(r, view.Epoch(), Hint())) }))
}

// A peer may write anything into its page: the owner reads it within the bound of the wait and does not fall over.
func TestCorruptPageHarmsNobody(t *testing.T) {
	table, page, view, r := pair(t)
	for i := range page.size / 8 {
		word(&page.shared, i).Store(^uint64(0) >> (i % 64))
	}
	_ = view.Enter(r, view.Epoch(), 0)
	_ = view.Enter(Region{1 << 31, 1}, 1, 0)
	require.Zero(t, view.Permit(Region{^uint32(0), 1}))
	_, _ = table.Held(r)
	require.NoError(t, table.Revoke(soon(t), r, nil, table.next()), "no slot names the region")
	for i := range uint32(Slots) {
		page.slot(i).Store(r.name())
	}
	require.Error(t, table.Revoke(soon(t), r, nil, table.next()))
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

	huge, err := unix.MemfdCreate("huge", unix.MFD_ALLOW_SEALING|unix.MFD_HUGETLB)
	if err == nil { // there need not be a page
		defer unix.Close(huge)
		require.NoError(t, unix.Ftruncate(huge, 2<<20))
		_, err = unix.FcntlInt(uintptr(huge), unix.F_ADD_SEALS, sealed)
		require.NoError(t, err)
		_, err = NewView(huge)
		require.ErrorContains(t, err, "huge pages")
	}

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
	require.Error(t, table.Revoke(ctx, r, nil, table.next()))
}

// word is any word of a page, for tests that spoil it.
func word(s *shared, i uintptr) *atomic.Uint64 { return (*atomic.Uint64)(mem.Pointer(s.addr + 8*i)) }

// The race that the second look decides: permits change as fast as they can while copiers come and go. After each fence
// nobody may be inside in an epoch of before it. All slots but the first are taken, so that the copier comes late to
// the one that the owner looks at first.
func TestNobodyIsInsideInAnOldEpoch(t *testing.T) {
	table, _, view, r := pair(t)
	other, err := table.Add()
	require.NoError(t, err)
	for i := range Slots - 1 {
		require.Equal(t, Slot(i+1), view.Enter(other, view.Epoch(), 1))
		defer view.Leave(Slot(i + 1))
	}
	var inside atomic.Uint64
	var stop atomic.Bool
	var all sync.WaitGroup
	defer all.Wait()
	defer stop.Store(true)
	all.Go(func() { // one copier: with the owner as many as every machine has cores
		for !stop.Load() {
			epoch := view.Epoch()
			if s := view.Enter(r, epoch, 1); s >= 0 {
				inside.Store(uint64(epoch) + 1)
				for range 20 {
					stop.Load() // touching takes a while
				}
				inside.Store(0)
				view.Leave(s)
			}
		}
	})
	fences := 0
	for end := time.Now().Add(min(testTime(), time.Second)); time.Now().Before(end); fences++ {
		epoch := table.next()
		if err := table.Revoke(t.Context(), r, nil, epoch); err != nil {
			t.Fatal(err)
		}
		if in := inside.Load(); in != 0 && in <= uint64(epoch) {
			t.Fatalf("the copier is inside in epoch %d, the fence was in %d", in-1, epoch)
		}
	}
	t.Logf("%d fences", fences)
}

// A page that is withheld is refused to those that come, until it is offered again; those that are there keep it.
func TestAPageThatIsWithheldIsRefused(t *testing.T) {
	_, page, view, r := pair(t)
	come := func() error {
		v, err := NewView(page.Fd())
		if err == nil {
			v.Unmap()
		}
		return err
	}
	require.True(t, page.Withhold())
	require.False(t, page.Withhold(), "one looks at a time")
	require.ErrorIs(t, come(), unix.ESTALE)
	view.Leave(enter(t, view, r))
	require.False(t, page.Left())
	page.Offer()
	require.NoError(t, come())
	require.True(t, page.Withhold())
	view.Quit() // while the owner looks
	page.Offer()
	require.True(t, page.Left(), "nothing that the peer says is lost")
	require.False(t, page.Withhold())
}
