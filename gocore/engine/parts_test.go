package engine

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

func TestTheSmallestRegionThatHoldsARangeIsFound(t *testing.T) {
	random := rand.New(rand.NewPCG(11, 0))
	for _, overlapping := range []bool{false, true} {
		table := &regionTable{}
		var all []*region
		for i := range 60 {
			r := &region{Region: mem.Region{ID: table.reserve(), Addr: uintptr(1000 * (i + 1)),
				Size: uint64(1 + random.IntN(1000))}}
			if overlapping {
				r.Addr, r.Size = uintptr(1+random.IntN(60_000)), uint64(1+random.IntN(20_000))
			}
			require.Nil(t, table.add(r))
			all = append(all, r)
		}
		for range 5000 {
			addr, length := uintptr(random.IntN(70_000)), uint64(1+random.IntN(3000))
			var want *region
			for _, r := range all {
				if addr >= r.Addr && mem.Contains(r.Size, uint64(addr-r.Addr), length) &&
					(want == nil || r.Size < want.Size) {
					want = r
				}
			}
			got := table.find(addr, length)
			if want == nil {
				require.Nil(t, got, "seed 11, %d bytes at %d", length, addr)
				continue
			}
			require.NotNil(t, got, "seed 11, %d bytes at %d", length, addr)
			require.Equal(t, want.Size, got.Size, "seed 11, %d bytes at %d", length, addr)
		}
		for _, r := range all {
			require.Same(t, r, table.leave(r.ID))
			require.Same(t, r, table.leave(r.ID), "until it is out of every peer's reach")
			require.True(t, table.outOfReach(r))
			require.False(t, table.outOfReach(r))
			require.Nil(t, table.leave(r.ID))
		}
		require.Nil(t, table.find(1000, 1))
	}
}

func TestRegionIdsAreNeverUsedTwice(t *testing.T) {
	table, seen := &regionTable{}, map[mem.RegionID]bool{}
	for range 1000 {
		id := table.reserve()
		require.NotZero(t, id)
		require.False(t, seen[id])
		seen[id] = true
		table.giveBack(id)
	}
}

func TestThePageTellsAFreedBatchFromItsSuccessor(t *testing.T) {
	p := newPage(16)
	first, second := dispatch.BatchID(1<<32|3), dispatch.BatchID(2<<32|3)
	p.publish(first, dispatch.Pending, 10, 2, 0)
	word := p.cell(3).word
	p.publish(first, dispatch.Pending, 10, 2, 0)
	require.NotEqual(t, word, p.cell(3).word, "every change shows in the word")
	require.Equal(t, dispatch.Pending, p.state(first))
	require.Equal(t, dispatch.Invalid, p.state(second))
	p.publish(second, dispatch.Completed, 20, 0, 5)
	require.Equal(t, dispatch.Invalid, p.state(first))
	p.retire(first) // late: its slot belongs to another one
	require.Equal(t, dispatch.Completed, p.state(second))
	p.retire(second)
	require.Equal(t, dispatch.Invalid, p.state(second))
}

// Numbers below 2^32 have the generation 0, as the cells that no batch has had.
func TestAnIDThatNeverWasOneIsInvalidAtOnce(t *testing.T) {
	w := newWorkshop(t, "hand")
	for _, id := range []dispatch.BatchID{0, 7, 1<<32 - 1, 7<<32 | 3, math.MaxUint64} {
		require.Equal(t, dispatch.Invalid, w.Wait(id, time.Hour), "%#x", uint64(id))
		require.Equal(t, 1, w.WaitMany([]dispatch.BatchID{id}, 1, time.Hour))
		require.Zero(t, w.Elapsed(id))
		_, err := w.Summary(id)
		require.Equal(t, errs.InvalidEntry, errs.CodeOf(err))
	}
}

// recorder is a transport that writes down each call. It has only the methods that an outbox uses.
type recorder struct {
	transport.Transport
	told []string
	take int
}

func (r *recorder) Submit(list []*transport.Slice) int {
	for _, s := range list {
		r.told = append(r.told, fmt.Sprint("submit ", s.Id))
	}
	return min(len(list), r.take)
}

func (r *recorder) Withdraw(list []*transport.Slice) {
	for _, s := range list {
		r.told = append(r.told, fmt.Sprint("withdraw ", s.Id))
	}
}

func (r *recorder) Fence(transport.Rail) { r.told = append(r.told, "fence") }

func TestAnOutboxKeepsTheOrderOfDecisionsAndGivesBackWhatWasNotTaken(t *testing.T) {
	slices := make([]*transport.Slice, 6)
	for i := range slices {
		slices[i] = &transport.Slice{Id: uint64(i)}
	}
	told := &recorder{take: 2}
	e := &Engine{}
	o := &outbox{engine: e, port: &port{transport: told}}
	o.add(orderSubmit, transport.Rail{}, slices[:2])
	o.add(orderSubmit, transport.Rail{}, slices[2:3])
	o.add(orderWithdraw, transport.Rail{}, slices[1:2])
	o.add(orderFence, transport.Rail{}, nil)
	o.add(orderSubmit, transport.Rail{Generation: 1}, slices[3:])
	o.drain()
	require.Equal(t, []string{"submit 0", "submit 1", "submit 2", "withdraw 1", "fence", "submit 3", "submit 4",
		"submit 5"}, told.told)
	require.Equal(t, []*transport.Slice{slices[2], slices[5]}, e.inbox.refused)
	require.True(t, o.empty())
}

func TestReadyThatOvertakesItsRefusalIsToldAgain(t *testing.T) {
	e := &Engine{}
	p := &port{}
	p.transport = &eager{port: p}
	o := &outbox{engine: e, port: p}
	o.add(orderSubmit, transport.Rail{Index: 4}, []*transport.Slice{{}})
	o.drain()
	require.Len(t, e.inbox.refused, 1)
	require.Len(t, e.inbox.notices, 1)
	require.Equal(t, noticeReady, e.inbox.notices[0].kind)
	require.EqualValues(t, 4, e.inbox.notices[0].rail.Index)
}

// eager says Ready before the outbox has written down that it took nothing.
type eager struct {
	transport.Transport
	port *port
}

func (x *eager) Submit([]*transport.Slice) int { x.port.readies.Add(1); return 0 }

func TestAGridKnowsItsPagesAndRefusesWhatDoesNotFit(t *testing.T) {
	region := []GridRegion{{Addr: 4096, Size: 1000}}
	for _, c := range []struct {
		layout Layout
		pages  uint64
		says   string
	}{
		{Layout{PageBytes: 100}, 10, ""},
		{Layout{PageBytes: 100, Offset: 50}, 9, ""},
		{Layout{PageBytes: 100, Stride: 300}, 4, ""},
		{Layout{PageBytes: 100, Rows: 2, RowStride: 500}, 5, ""},
		{Layout{PageBytes: 1000}, 1, ""},
		{Layout{}, 0, "page_bytes is 0"},
		{Layout{PageBytes: 1001}, 0, "does not fit"},
		{Layout{PageBytes: 100, Rows: 2}, 0, "row_stride"},
		{Layout{PageBytes: 100, Rows: 1 << 40, RowStride: 1 << 40}, 0, "does not fit"},
		{Layout{PageBytes: 100, Offset: 1<<64 - 50}, 0, "does not fit"},
	} {
		g, err := newGrid(OwnMemory, region, c.layout)
		if c.says != "" {
			require.NotNil(t, err, "%+v", c.layout)
			require.Contains(t, err.Error(), c.says)
			continue
		}
		require.Nil(t, err, "%+v", c.layout)
		require.Equal(t, c.pages, g.pages, "%+v", c.layout)
		l := g.layout
		last := l.Offset + (g.pages-1)*l.Stride + (l.Rows-1)*l.RowStride + l.PageBytes
		require.LessOrEqual(t, last, uint64(1000), "the last page must be inside")
	}
	_, err := newGrid(OwnMemory, []GridRegion{{Size: 10}, {Size: 11}}, Layout{PageBytes: 1})
	require.Equal(t, errs.InvalidArgument, err.Code)
}

func TestIndexesOfEveryWidthAndDirection(t *testing.T) {
	bytes := []byte{1, 0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x80}
	addr := mem.AddressOf(bytes)
	for _, c := range []struct {
		x    Indexes
		i    int
		want uint64
		ok   bool
	}{
		{Indexes{Addr: addr, Width: 1, Unsigned: true, Stride: 1}, 1, 255, true},
		{Indexes{Addr: addr, Width: 1, Stride: 1}, 1, 1<<64 - 1, false},
		{Indexes{Addr: addr, Width: 2, Unsigned: true, Stride: 2}, 0, 0xff01, true},
		{Indexes{Addr: addr, Width: 4, Stride: 4}, 0, 0x2ff01, true},
		{Indexes{Addr: addr, Width: 8, Stride: 8}, 1, 1 << 63, false},
		{Indexes{Addr: addr, Width: 8, Unsigned: true, Stride: 8}, 1, 1 << 63, true},
		{Indexes{Addr: addr + 2, Width: 1, Unsigned: true, Stride: -1}, 2, 1, true},
	} {
		got, ok := c.x.at(c.i)
		require.Equal(t, c.ok, ok, "%+v [%d]", c.x, c.i)
		require.Equal(t, c.want, got, "%+v [%d]", c.x, c.i)
	}
	require.NotNil(t, (&Indexes{Addr: 1, Width: 3}).check("x", 1))
	require.NotNil(t, (&Indexes{Width: 8}).check("x", 1))
}

// Places of pages are those of the formula, for indexes of all forms and pages of several rows. An index that names no
// page is an error that says which, wherever it stands.
func TestPagesLieWhereTheirLayoutSays(t *testing.T) {
	random := rand.New(rand.NewPCG(17, 0))
	var pinned runtime.Pinner
	defer pinned.Unpin()
	for round := range 200 {
		n, pages := 1+random.IntN(50), uint64(1+random.IntN(120))
		near := &grid{pages: pages, layout: Layout{PageBytes: 64, Offset: random.Uint64N(99),
			Stride: random.Uint64N(999), Rows: 1 + random.Uint64N(4), RowStride: random.Uint64N(9999)}}
		far := &grid{pages: pages, layout: near.layout}
		far.layout.Offset, far.layout.Stride, far.layout.RowStride = 7, random.Uint64N(999), random.Uint64N(9999)
		wide, narrow := make([]int64, 2*n), make([]int8, n)
		pinned.Pin(&wide[0])
		pinned.Pin(&narrow[0])
		var here, there []uint64
		for i := range n {
			wide[2*i], narrow[i] = random.Int64N(int64(pages)), int8(random.IntN(int(pages)))
			for row := range near.layout.Rows {
				here = append(here, near.layout.Offset+uint64(wide[2*i])*near.layout.Stride+row*near.layout.RowStride)
				there = append(there, 7+uint64(narrow[i])*far.layout.Stride+row*far.layout.RowStride)
			}
		}
		r := &Pages{N: n, Src: Indexes{Addr: uintptr(unsafe.Pointer(&wide[0])), Width: 8, Stride: 16},
			Dst: Indexes{Addr: uintptr(unsafe.Pointer(&narrow[0])), Width: 1, Stride: 1}}
		if round%2 == 0 { // adjacent words
			adjacent := make([]int64, n)
			for i := range adjacent {
				adjacent[i] = wide[2*i]
			}
			r.Src = IndexesOf(adjacent)
		}
		list := newPlaces(64)
		require.Nil(t, r.locate(near, far, list))
		require.Equal(t, here, list.LocalAt)
		require.Equal(t, there, list.RemoteAt)
		freePlaces([]*places{list})

		bad := random.IntN(n)
		narrow[bad] = -1
		err := r.locate(near, far, newPlaces(64))
		require.NotNil(t, err)
		require.Contains(t, err.Cause, fmt.Sprintf("destination index [%d] is -1, the grid has pages 0 to %d", bad,
			pages-1))
	}
}

func TestLogRecordsThatWereLostAreCountedInTheLog(t *testing.T) {
	const all = 5*logsMax/2 + 1
	e := &Engine{}
	for i := range all {
		e.logs.push(LogRecord{Message: fmt.Sprint(i)})
	}
	require.Empty(t, e.Logs(0))
	require.Empty(t, e.Logs(-1))
	got := e.Logs(3)
	require.Len(t, got, 3)
	lost := 0
	_, err := fmt.Sscanf(got[0].Message, "%d log records were lost", &lost)
	require.NoError(t, err)
	require.LessOrEqual(t, all-lost, logsMax)
	got = append(got[1:], e.Logs(all)...)
	require.Len(t, got, all-lost)
	for i, r := range got {
		require.Equal(t, fmt.Sprint(lost+i), r.Message)
	}
	require.Empty(t, e.Logs(all), "it is told once")
}
