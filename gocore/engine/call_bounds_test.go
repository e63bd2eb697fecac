package engine

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// A few bytes name any number of requests. An array has a stride of 0, or pages have as many rows as a region has
// bytes. The engine refuses them before it takes memory for each.
func TestACallOfTooManyRequestsTakesNoMemoryForThem(t *testing.T) {
	w := newWorkshop(t, "hand")
	own, far := w.region("own"), w.region("far")
	layout := Layout{PageBytes: 1, Rows: own.Size, RowStride: 1}
	near, _, err := w.NewGrid(OwnMemory, []GridRegion{{Addr: own.Addr, Size: own.Size}}, layout)
	require.NoError(t, err)
	there, _, err := w.NewGrid(Local, []GridRegion{{Region: far.ID, Size: far.Size}}, layout)
	require.NoError(t, err)
	zero, one := IndexesOf([]int64{0}), IndexesOf([]int64{1})
	zero.Stride, one.Stride = 0, 0
	most := w.config.Engine.MaxPendingRequests
	pages := Pages{Local: near, Remote: there, N: 1 + most/int(own.Size), Src: zero, Dst: zero}
	endless := pages
	endless.N = 1 << 60
	ranges := Ranges{Local: own.Addr, LocalSize: own.Size, Remote: Remote{Region: far.ID}, RemoteSize: far.Size,
		N: 1 << 60, LocalOffsets: zero, RemoteOffsets: zero, Bytes: one}
	addresses := ranges
	addresses.LocalSize = 0
	for name, add := range map[string]func(*Call) error{
		"pages of many rows":        func(c *Call) error { return c.AddPages(&pages) },
		"more pages than there are": func(c *Call) error { return c.AddPages(&endless) },
		"ranges":                    func(c *Call) error { return c.AddRanges(&ranges) },
		"ranges by address":         func(c *Call) error { return c.AddRanges(&addresses) },
	} {
		c, err := w.Begin(Terms{Op: transport.Write})
		require.NoError(t, err)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err = add(c)
		runtime.ReadMemStats(&after)
		require.Equal(t, errs.TooManyRequests, errs.CodeOf(err), "%s: %v", name, err)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(most), name)
		c.Discard()
	}
}

// Requests that fit count with those that the call has already.
func TestTheRequestsOfACallCountTogether(t *testing.T) {
	w := newWorkshop(t, "hand")
	w.config.Engine.MaxPendingRequests = 3
	own, far := w.region("own"), w.region("far")
	c, err := w.Begin(Terms{Op: transport.Write})
	require.NoError(t, err)
	defer c.Discard()
	offsets, lengths := IndexesOf([]int64{0, 64}), IndexesOf([]int64{64, 64})
	two := Ranges{Local: own.Addr, LocalSize: own.Size, Remote: Remote{Region: far.ID}, RemoteSize: far.Size, N: 2,
		LocalOffsets: offsets, RemoteOffsets: offsets, Bytes: lengths}
	require.NoError(t, c.AddRanges(&two))
	require.ErrorContains(t, c.AddRanges(&two), "4 requests in one call are more than max_pending_requests 3")
	require.Len(t, c.specs, 2)
	two.N = 1
	require.NoError(t, c.AddRanges(&two))
}
