package tests

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/request"
	"github.com/tent-engine/tent/gocore/transport"
)

const leasedPage = 512

func span(offset, size uint64) engine.Range { return engine.Range{Offset: offset, Size: size} }

// pagesOf are pages of a region as the ranges of a lease.
func pagesOf(pages ...int) (list []engine.Range) {
	for _, page := range pages {
		list = append(list, engine.Range{Offset: uint64(page) * leasedPage, Size: leasedPage})
	}
	return list
}

// movePages moves all pages of a lease, in their order, to or from the begin of the peer's memory.
func (l *leasing) movePages(op transport.Op, lease mem.RegionID, order ...int) error {
	l.Helper()
	layout, size := engine.Layout{PageBytes: leasedPage}, uint64(len(order)*leasedPage)
	near, _, err := l.peer.NewGrid(engine.OwnMemory, []engine.GridRegion{{Addr: address(l.own), Size: size}}, layout)
	require.NoError(l, err)
	defer l.peer.CloseGrid(near)
	far, n, err := l.peer.NewGrid(l.at, []engine.GridRegion{{Region: lease, Size: size}}, layout)
	require.NoError(l, err)
	defer l.peer.CloseGrid(far)
	require.Equal(l, len(order), n)
	src, dst := make([]int64, n), make([]int64, n)
	for i, page := range order {
		src[i], dst[i] = int64(i), int64(page)
	}
	batch, err := l.peer.Pages(request.Terms{Op: op}, &engine.Pages{Local: near, Remote: far, N: n,
		Src: engine.IndexesOf(src), Dst: engine.IndexesOf(dst)}, nil)
	if err != nil {
		return err
	}
	if sum := ended(l.T, l.peer, batch); sum.State != dispatch.Completed {
		return sum.Err
	}
	return nil
}

// A lease of pages gives these pages, in the order in which they were listed, and no byte between two of them. Pages
// that follow one another are one range.
func TestALeaseOfPagesGivesThemAlone(t *testing.T) {
	for _, w := range leaseWorlds() {
		t.Run(w.name, func(t *testing.T) {
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			random := rand.New(rand.NewPCG(seed, 1))
			l := newLeasing(t, w, leasingBytes)
			expected := bytes.Clone(l.theirs)
			for round := range 6 {
				pages := random.Perm(leasingBytes / leasedPage)[:1+random.IntN(40)]
				id, token := l.share(engine.Share{Ranges: pagesOf(pages...)})
				found, err := l.peer.FindLease(t.Context(), l.at, token)
				require.NoError(t, err)
				require.Equal(t, id, found.ID)
				require.EqualValues(t, len(pages)*leasedPage, found.Size)
				order := random.Perm(len(pages))
				fill(l.own, 2+round)
				require.NoError(t, l.movePages(transport.Write, id, order...))
				for i, page := range order {
					copy(expected[pages[page]*leasedPage:], l.own[i*leasedPage:][:leasedPage])
				}
				require.Equal(t, expected, l.theirs)
				clear(l.own)
				require.NoError(t, l.movePages(transport.Read, id, order...))
				for i, page := range order {
					require.Equal(t, expected[pages[page]*leasedPage:][:leasedPage], l.own[i*leasedPage:][:leasedPage])
				}
				at := random.IntN(len(pages))
				fill(l.own, 20+round)
				require.NoError(t, l.move(transport.Write, token, uint64(at*leasedPage)+8, leasedPage-8))
				copy(expected[pages[at]*leasedPage+8:], l.own[:leasedPage-8])
				require.Equal(t, errs.InvalidArgument, errs.CodeOf(l.move(transport.Write, token, 1, found.Size)))
				require.NoError(t, l.owner.CloseRegion(t.Context(), id))
				require.Error(t, l.movePages(transport.Write, id, order...))
				require.Error(t, l.move(transport.Write, token, 0, 1))
				require.Equal(t, expected, l.theirs)
			}
		})
	}
}

// A grid has the layers of a cache, each of them a lease of pages: a page of the grid is one of every lease.
func TestAPageOfSeveralLeasesIsOneOfEach(t *testing.T) {
	for _, w := range leaseWorlds() {
		t.Run(w.name, func(t *testing.T) {
			l := newLeasing(t, w, leasingBytes)
			want := bytes.Clone(l.theirs)
			fill(l.own, 2)
			layers := [][]int{{10, 20, 30}, {60, 50, 40}, {70, 7, 77}}
			layout, size := engine.Layout{PageBytes: leasedPage}, uint64(3*leasedPage)
			var here, there []engine.GridRegion
			for i, pages := range layers {
				id, _ := l.share(engine.Share{Ranges: pagesOf(pages...)})
				here = append(here, engine.GridRegion{Addr: address(l.own) + uintptr(i)*uintptr(size), Size: size})
				there = append(there, engine.GridRegion{Region: id, Size: size})
				copy(want[pages[1]*leasedPage:][:leasedPage], l.own[(3*i+2)*leasedPage:])
			}
			near, _, err := l.peer.NewGrid(engine.OwnMemory, here, layout)
			require.NoError(t, err)
			far, _, err := l.peer.NewGrid(l.at, there, layout)
			require.NoError(t, err)
			batch, err := l.peer.Pages(request.Terms{Op: transport.Write}, &engine.Pages{Local: near, Remote: far, N: 1,
				Src: engine.IndexesOf([]int64{2}), Dst: engine.IndexesOf([]int64{1})}, nil)
			require.NoError(t, err)
			require.Equal(t, dispatch.Completed, ended(t, l.peer, batch).State)
			require.Equal(t, want, l.theirs)
		})
	}
}

// A move lies inside one range of a lease. One that crosses from a range to the next says where the border is.
func TestAMoveAcrossTheRangesOfALeaseIsRefused(t *testing.T) {
	l := newLeasing(t, worlds()[0], leasingBytes)
	before := bytes.Clone(l.theirs)
	_, token := l.share(engine.Share{Name: "kv", Ranges: pagesOf(4, 5, 9, 2, 3)})
	fill(l.own, 2)
	err := l.move(transport.Write, token, leasedPage, 2*leasedPage)
	require.Equal(t, errs.InvalidArgument, errs.CodeOf(err))
	require.ErrorContains(t, err, `lie in two ranges of the lease "kv", the second one begins at 1024`)
	err = l.move(transport.Write, token, 4*leasedPage, leasedPage+1)
	require.ErrorContains(t, err, `leave the remote region "kv" of 2560 bytes`)
	require.Equal(t, before, l.theirs)
	require.NoError(t, l.move(transport.Write, token, 3*leasedPage, 2*leasedPage), "pages 2 and 3 are one range")
	same(t, l.theirs[2*leasedPage:4*leasedPage], 2, 0)
	require.NoError(t, l.move(transport.Write, token, 0, 2*leasedPage))
	same(t, l.theirs[4*leasedPage:6*leasedPage], 2, 0)
}

// Ranges of a call may lie in different ranges of a lease that was opened by its name, too.
func TestRangesOfACallFindThoseOfALease(t *testing.T) {
	for _, w := range leaseWorlds() {
		t.Run(w.name, func(t *testing.T) {
			l := newLeasing(t, w, leasingBytes)
			expected := bytes.Clone(l.theirs)
			l.share(engine.Share{Name: "kv", Ranges: pagesOf(7, 3, 100)})
			fill(l.own, 2)
			far, bytes := []int64{2*leasedPage + 1, 100, leasedPage}, []int64{9, 50, leasedPage}
			batch, err := l.peer.Ranges(request.Terms{Op: transport.Write}, &engine.Ranges{Local: address(l.own),
				LocalSize: leasingBytes, Remote: engine.Remote{Segment: segment(t, l.peer, l.owner, "kv")},
				RemoteSize: 3 * leasedPage, N: 3, LocalOffsets: engine.IndexesOf([]int64{0, 9, 59}),
				RemoteOffsets: engine.IndexesOf(far), Bytes: engine.IndexesOf(bytes)}, nil)
			require.NoError(t, err)
			require.Equal(t, dispatch.Completed, ended(t, l.peer, batch).State)
			copy(expected[100*leasedPage+1:], l.own[:9])
			copy(expected[7*leasedPage+100:], l.own[9:59])
			copy(expected[3*leasedPage:], l.own[59:59+leasedPage])
			require.Equal(t, expected, l.theirs)
		})
	}
}

// All ranges of a lease are fenced with it, end with it, and end with its time and its region. Events name it once,
// with the bytes of all.
func TestTheRangesOfALeaseEndTogether(t *testing.T) {
	for _, w := range leaseWorlds() {
		for end, finish := range map[string]func(*leasing, mem.RegionID) error{
			"closed":  func(l *leasing, id mem.RegionID) error { return l.owner.CloseRegion(l.Context(), id) },
			"expired": func(l *leasing, id mem.RegionID) error { return l.owner.Renew(id, time.Nanosecond) },
			"region closed": func(l *leasing, _ mem.RegionID) error {
				return l.owner.CloseRegion(l.Context(), l.region)
			},
		} {
			t.Run(w.name+"/"+end, func(t *testing.T) {
				l := newLeasing(t, w, leasingBytes)
				follower, err := l.owner.Follow()
				require.NoError(t, err)
				defer l.owner.Unfollow(follower)
				id, token := l.share(engine.Share{Name: "kv", Ranges: pagesOf(9, 2, 5, 50), Expires: time.Hour})
				fill(l.own, 2)
				require.NoError(t, l.movePages(transport.Write, id, 0, 1, 2, 3))
				require.NoError(t, l.owner.FenceRegion(t.Context(), l.region, ""))
				require.NoError(t, l.moveAgain(transport.Write, token, 3*leasedPage, leasedPage))
				require.NoError(t, finish(l, id))
				ended := l.awaitEnd(follower, "kv")
				require.Equal(t, end, ended.Note)
				require.EqualValues(t, 4*leasedPage, ended.Bytes)
				fill(l.theirs, 3)
				for at := range uint64(4) {
					require.Error(t, l.reach(transport.Write, id, at*leasedPage, leasedPage))
				}
				same(t, l.theirs, 3, 0)
				require.NoError(t, l.owner.CloseRegion(t.Context(), l.region))
				list, _, err := l.owner.Events(follower, 100)
				require.NoError(t, err)
				for _, each := range list {
					require.NotEqual(t, event.LeaseEnded, each.Kind, "once")
				}
			})
		}
	}
}

// A fence of a region holds for each range of its leases.
func TestAFenceCoversEachRangeOfALease(t *testing.T) {
	const size, half = 16 << 20, 8 << 20
	for _, w := range leaseWorlds() {
		t.Run(w.name, func(t *testing.T) {
			l := newLeasing(t, w, size)
			fill(l.own, 2)
			id, token := l.share(engine.Share{Ranges: []engine.Range{span(half, half), span(0, half)}})
			require.NoError(t, l.move(transport.Write, token, 0, 4096), "both ends know each other")
			var begun []dispatch.BatchID
			for i := range uint64(2) {
				batch, err := l.peer.Move(&engine.Request{Terms: request.Terms{Op: transport.Write}, Length: half,
					Source: address(l.own), Remote: engine.Remote{Segment: l.at, Region: id, Offset: i * half}})
				require.NoError(t, err)
				begun = append(begun, batch)
			}
			require.NoError(t, l.owner.FenceRegion(t.Context(), l.region, ""))
			before := bytes.Clone(l.theirs)
			for _, batch := range begun {
				ended(t, l.peer, batch)
			}
			require.True(t, bytes.Equal(before, l.theirs), "written after the fence")
			for i := range uint64(2) {
				require.NoError(t, l.moveAgain(transport.Write, token, i*half, half))
			}
			same(t, l.theirs[:half], 2, 0)
			same(t, l.theirs[half:], 2, 0)
		})
	}
}

// Pages that come behind a region are reached by the ranges of its leases.
func TestRemappedPagesAreReachedByRangesOfLeases(t *testing.T) {
	for _, w := range remapWorlds() {
		t.Run(w.name, func(t *testing.T) {
			const pages = 6
			kv := newGrowable(t, pages)
			kv.back(t, 0, pages)
			l := &leasing{T: t, owner: w.open(t, nil), peer: w.open(t, nil)}
			l.own = offeredShared(t, l.peer, len(kv.bytes))
			l.region = offer(t, l.owner, kv.bytes, "")
			l.at = segment(t, l.peer, l.owner, "")
			page := uint64(kv.page)
			_, token := l.share(engine.Share{Ranges: []engine.Range{span(4*page, page), span(page, page)}})
			require.NoError(t, l.move(transport.Write, token, page, page))
			for _, part := range [][2]int{{0, 1}, {0, 3}, {1, 2}, {3, pages}, {0, pages}} {
				kv.back(t, part[0], part[1])
				require.NoError(t, l.owner.RemapRegion(t.Context(), l.region, uint64(part[0])*page,
					uint64(part[1]-part[0])*page))
				fill(l.own, part[1])
				require.NoError(t, l.moveAgain(transport.Write, token, 0, page))
				require.NoError(t, l.moveAgain(transport.Write, token, page, page))
				same(t, kv.bytes[4*page:5*page], part[1], 0)
				same(t, kv.bytes[page:2*page], part[1], 0)
			}
		})
	}
}

// apart is a page's range at every second page.
func apart(n uint64) (list []engine.Range) {
	for i := range n {
		list = append(list, engine.Range{Offset: 2 * i * leasedPage, Size: leasedPage})
	}
	return list
}

// Lists of ranges that make no sense are refused with the reason, and leave nothing behind.
func TestListsOfRangesThatMakeNoSenseAreRefused(t *testing.T) {
	l := newLeasing(t, worlds()[0], 3<<20)
	many := apart(1025)
	for want, list := range map[string][]engine.Range{
		"there are no ranges":             {},
		"range [1]: 0 bytes at offset 0":  {span(8, 8), span(0, 0)},
		"range [1]: 9 bytes at offset":    {span(0, 8), span(3<<20-8, 9)},
		"at offsets 8 and 10 overlap":     {span(10, 8), span(0, 2), span(8, 3)},
		"at offsets 512 and 512 overlap":  pagesOf(1, 5, 1),
		"1025 ranges that do not follow":  many,
		"2 bytes at offset 1844674407370": {span(1<<64-1, 2)},
	} {
		_, err := l.owner.Share(l.region, engine.Share{Ranges: list})
		require.Equal(t, errs.InvalidArgument, errs.CodeOf(err), want)
		require.ErrorContains(t, err, want)
	}
	id, token := l.share(engine.Share{Ranges: many[:1024]})
	fill(l.own, 2)
	order := make([]int, 1024)
	for i := range order {
		order[i] = i
	}
	require.NoError(t, l.movePages(transport.Write, id, order...))
	for i := range order {
		same(t, l.theirs[2*i*leasedPage:(2*i+1)*leasedPage], 2, i*leasedPage)
		same(t, l.theirs[(2*i+1)*leasedPage:(2*i+2)*leasedPage], 1, (2*i+1)*leasedPage)
	}
	require.NoError(t, l.move(transport.Read, token, 1023*leasedPage, leasedPage))
}

// The ranges of all leases of an engine are bounded. The places of leases that have ended are free again.
func TestRangesOfLeasesAreBounded(t *testing.T) {
	l := newLeasing(t, worlds()[0], 3<<20)
	many := apart(1024)
	for i := range 2 {
		var all []mem.RegionID
		for range 64 {
			id, err := l.owner.Share(l.region, engine.Share{Ranges: many})
			require.NoError(t, err, i)
			all = append(all, id)
		}
		_, err := l.owner.Share(l.region, engine.Share{Size: 1})
		require.Equal(t, errs.TooManyRequests, errs.CodeOf(err))
		require.ErrorContains(t, err, "65536 ranges")
		for _, id := range all {
			require.NoError(t, l.owner.CloseRegion(t.Context(), id))
		}
	}
}
