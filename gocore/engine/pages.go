package engine

import (
	"math/bits"
	"runtime"
	"strconv"
	"sync"
	"unsafe"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// Layout says where page i of a region is: it has Rows rows of PageBytes bytes each; row r of page i begins at
// Offset + i*Stride + r*RowStride.
type Layout struct {
	PageBytes uint64
	Stride    uint64 // 0: pages follow one another
	Offset    uint64
	Rows      uint64 // 0: 1
	RowStride uint64 // needed when Rows > 1
}

// GridRegion is one of the equal ranges of a grid: by address for our own memory, by region and offset for a peer's.
type GridRegion struct {
	Addr   uintptr
	Region mem.RegionID
	Offset uint64
	Size   uint64
}

// GridID names a grid of an engine.
type GridID int64

// grid is pages of equal regions, prepared once. It is immutable.
type grid struct {
	segment SegmentID // -1: our own memory
	regions []GridRegion
	layout  Layout
	pages   uint64 // in each region
}

// OwnMemory is the segment of a grid over our own memory.
const OwnMemory SegmentID = -1

type gridTable struct {
	mu   sync.RWMutex
	byID map[GridID]*grid
	last GridID
}

// NewGrid checks a grid and returns its id and the number of pages in each region.
func (e *Engine) NewGrid(segment SegmentID, regions []GridRegion, layout Layout) (GridID, int, error) {
	if err := e.usable(); err != nil {
		return 0, 0, err
	}
	if segment != OwnMemory {
		if _, err := e.segments.get(segment); err != nil {
			return 0, 0, err
		}
	}
	g, err := newGrid(segment, regions, layout)
	if err != nil {
		return 0, 0, err
	}
	t := &e.grids
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last++
	t.byID[t.last] = g
	return t.last, int(g.pages), nil
}

// CloseGrid forgets a grid.
func (e *Engine) CloseGrid(id GridID) {
	e.grids.mu.Lock()
	delete(e.grids.byID, id)
	e.grids.mu.Unlock()
}

// GridPages returns the number of pages in each region of a grid.
func (e *Engine) GridPages(id GridID) (int, error) {
	g, err := e.grids.get(id)
	if err != nil {
		return 0, err
	}
	return int(g.pages), nil
}

func (t *gridTable) get(id GridID) (*grid, *errs.Error) {
	t.mu.RLock()
	g := t.byID[id]
	t.mu.RUnlock()
	if g == nil {
		return nil, errs.New(errs.InvalidEntry, "pages", "grid %d does not exist or was closed", int64(id))
	}
	return g, nil
}

func newGrid(segment SegmentID, regions []GridRegion, l Layout) (*grid, *errs.Error) {
	if l.Rows == 0 {
		l.Rows = 1
	}
	if l.Stride == 0 {
		l.Stride = l.PageBytes
	}
	switch {
	case len(regions) == 0:
		return nil, errs.New(errs.InvalidArgument, "pages", "a grid has at least one region")
	case l.PageBytes == 0:
		return nil, errs.New(errs.InvalidArgument, "pages", "page_bytes is 0")
	case l.Rows > 1 && l.RowStride < l.PageBytes:
		return nil, errs.New(errs.InvalidArgument, "pages", "row_stride %d is less than page_bytes %d", l.RowStride, l.PageBytes)
	}
	size := regions[0].Size
	for i := range regions {
		if regions[i].Size != size {
			return nil, errs.New(errs.InvalidArgument, "pages", "region %d has %d bytes, region 0 has %d", i, regions[i].Size, size).
				WithHint("a grid is made of equal regions")
		}
	}
	high, rows := bits.Mul64(l.Rows-1, l.RowStride)
	reach, carry := bits.Add64(rows, l.PageBytes, 0)
	first, carry2 := bits.Add64(reach, l.Offset, 0)
	if high|carry|carry2 != 0 || first > size {
		return nil, errs.New(errs.InvalidArgument, "pages", "the first page does not fit into regions of %d bytes", size)
	}
	return &grid{segment, append([]GridRegion(nil), regions...), l, (size-first)/l.Stride + 1}, nil
}

// PagesRequest moves page Src[i] of each region of Local to or from page Dst[i] of its counterpart in Remote.
type PagesRequest struct {
	Terms
	Local, Remote GridID
	N             int
	Src, Dst      Indexes
	Note          *Note
	Durable       bool // the transfer ends when the files that it writes are on stable storage
}

// places are where the pages of one call lie in each pair of its regions: transport.Pieces that are used again.
type places struct {
	transport.Pieces
	rows int // pieces that are one page
}

var placesPool = sync.Pool{New: func() any { return new(places) }}

func freePlaces(lists []*places) {
	for i, l := range lists {
		lists[i] = nil
		placesPool.Put(l)
	}
}

// rowsOf returns how many pieces are one page.
func rowsOf(lists []*places, of *transport.Pieces) int {
	for _, l := range lists {
		if &l.Pieces == of {
			return l.rows
		}
	}
	return 1
}

// Pages starts a transfer of pages, one task a region with all of its pages. It returns its batch.
func (e *Engine) Pages(r *PagesRequest) (dispatch.BatchID, error) {
	if err := e.usable(); err != nil {
		return 0, err
	}
	c := newCall()
	defer c.free()
	err := c.pages(e, r)
	runtime.KeepAlive(r) // and with it the index slices, which are read by address
	if err != nil {
		return 0, err
	}
	if err := c.notify(e, r.Note); err != nil {
		return 0, err
	}
	if err := c.settle(r.Durable); err != nil {
		return 0, err
	}
	return e.start(c)
}

// pages appends the tasks of a page request.
func (c *call) pages(e *Engine, r *PagesRequest) *errs.Error {
	if err := r.Terms.Check(); err != nil {
		return err
	}
	local, err := e.grids.get(r.Local)
	if err != nil {
		return err
	}
	remote, err := e.grids.get(r.Remote)
	if err != nil {
		return err
	}
	if err := r.check(local, remote); err != nil {
		return err
	}
	list := placesPool.Get().(*places)
	c.lists = append(c.lists, list)
	if err := r.locate(local, remote, list); err != nil {
		return err
	}
	for i := range local.regions {
		if err := c.pagesOf(e, r, local, remote, i, list); err != nil {
			return err
		}
	}
	return nil
}

func (r *PagesRequest) check(local, remote *grid) *errs.Error {
	switch {
	case local.segment != OwnMemory || remote.segment == OwnMemory:
		return errs.New(errs.InvalidArgument, "pages", "the local grid must be over own memory and the remote grid over a segment")
	case r.N < 1:
		return errs.New(errs.InvalidArgument, "pages", "there are no pages to move")
	case len(local.regions) != len(remote.regions):
		return errs.New(errs.InvalidArgument, "pages", "the local grid has %d regions, the remote one %d",
			len(local.regions), len(remote.regions))
	case local.layout.PageBytes != remote.layout.PageBytes || local.layout.Rows != remote.layout.Rows:
		return errs.New(errs.InvalidArgument, "pages", "local pages have %d x %d bytes, remote ones %d x %d",
			local.layout.Rows, local.layout.PageBytes, remote.layout.Rows, remote.layout.PageBytes)
	}
	if err := r.Src.check("source pages", r.N); err != nil {
		return err
	}
	return r.Dst.check("destination pages", r.N)
}

// locate turns the indexes of pages, which must be inside the grids, into places of their rows.
func (r *PagesRequest) locate(local, remote *grid, list *places) *errs.Error {
	near, far := &local.layout, &remote.layout
	list.rows, list.Bytes = int(near.Rows), near.PageBytes
	from, to := list.LocalAt[:0], list.RemoteAt[:0]
	for i := range r.N {
		src, ok := r.Src.at(i)
		if !ok || src >= local.pages {
			return outside("source", i, int64(src), local.pages)
		}
		dst, ok := r.Dst.at(i)
		if !ok || dst >= remote.pages {
			return outside("destination", i, int64(dst), remote.pages)
		}
		a, b := near.Offset+src*near.Stride, far.Offset+dst*far.Stride
		for range near.Rows {
			from, to = append(from, a), append(to, b)
			a, b = a+near.RowStride, b+far.RowStride
		}
	}
	list.LocalAt, list.RemoteAt = from, to
	return nil
}

func outside(which string, i int, page int64, pages uint64) *errs.Error {
	return errs.New(errs.InvalidArgument, "pages", "%s index [%d] is %d, the grid has pages 0 to %d", which, i, page, pages-1)
}

// pagesOf appends the task of one pair of regions. Bounds were checked page by page; the whole ranges are bound once.
func (c *call) pagesOf(e *Engine, r *PagesRequest, local, remote *grid, region int, list *places) *errs.Error {
	from, to := &local.regions[region], &remote.regions[region]
	own := e.regions.find(from.Addr, from.Size)
	if own == nil {
		return e.notRegistered(from.Addr, from.Size)
	}
	p, there, base, err := c.resolve(e, r.Due(), Remote{remote.segment, to.Region, to.Offset}, to.Size)
	if err != nil {
		return err
	}
	length := uint64(len(list.LocalAt)) * list.Bytes
	if err := c.bind(&r.Terms, p, own, there, length); err != nil {
		return err
	}
	spec := dispatch.TaskSpec{Terms: r.Terms, Plan: c.plan, Local: from.Addr, Remote: base,
		Length: length, Parts: &list.Pieces}
	if len(list.LocalAt) == 1 { // no more than a range
		spec.Local, spec.Remote, spec.Parts = spec.Local+uintptr(list.LocalAt[0]), spec.Remote+list.RemoteAt[0], nil
	}
	c.specs = append(c.specs, spec)
	return nil
}

// RangesRequest moves N ranges between one local and one remote range; offsets count from the bases.
type RangesRequest struct {
	Terms
	Local                              uintptr
	LocalSize                          uint64
	Remote                             Remote
	RemoteSize                         uint64
	N                                  int
	LocalOffsets, RemoteOffsets, Bytes Indexes
	Note                               *Note
	Durable                            bool // as in PagesRequest
}

// Ranges starts a transfer of ranges, one task each, and returns its batch.
func (e *Engine) Ranges(r *RangesRequest) (dispatch.BatchID, error) {
	if err := e.usable(); err != nil {
		return 0, err
	}
	c := newCall()
	defer c.free()
	err := c.ranges(e, r)
	runtime.KeepAlive(r)
	if err != nil {
		return 0, err
	}
	if err := c.notify(e, r.Note); err != nil {
		return 0, err
	}
	if err := c.settle(r.Durable); err != nil {
		return 0, err
	}
	return e.start(c)
}

func (c *call) ranges(e *Engine, r *RangesRequest) *errs.Error {
	if err := r.Terms.Check(); err != nil {
		return err
	}
	if r.N < 1 {
		return errs.New(errs.InvalidArgument, "ranges", "there are no ranges to move")
	}
	for _, x := range []struct {
		what string
		of   *Indexes
	}{{"local_offsets", &r.LocalOffsets}, {"remote_offsets", &r.RemoteOffsets}, {"lengths", &r.Bytes}} {
		if err := x.of.check(x.what, r.N); err != nil {
			return err
		}
	}
	own := e.regions.find(r.Local, r.LocalSize)
	if own == nil {
		return e.notRegistered(r.Local, r.LocalSize)
	}
	p, there, base, err := c.resolve(e, r.Due(), r.Remote, r.RemoteSize)
	if err != nil {
		return err
	}
	for i := range r.N {
		from, ok1 := r.LocalOffsets.at(i)
		to, ok2 := r.RemoteOffsets.at(i)
		n, ok3 := r.Bytes.at(i)
		switch {
		case !ok1 || !ok2 || !ok3 || n == 0:
			return errs.New(errs.InvalidArgument, "ranges", "range [%d] has offsets %d and %d and the length %d: offsets must not be negative and lengths at least 1",
				i, int64(from), int64(to), int64(n))
		case !mem.Contains(r.LocalSize, from, n):
			return errs.New(errs.InvalidArgument, "ranges", "range [%d]: %d bytes at offset %d leave the local range of %d bytes", i, n, from, r.LocalSize)
		case !mem.Contains(r.RemoteSize, to, n):
			return errs.New(errs.InvalidArgument, "ranges", "range [%d]: %d bytes at offset %d leave the remote range of %d bytes", i, n, to, r.RemoteSize)
		}
		if i == 0 || e.policies.Sized() {
			if err := c.bind(&r.Terms, p, own, there, n); err != nil {
				return err
			}
		}
		c.specs = append(c.specs, dispatch.TaskSpec{Terms: r.Terms, Plan: c.plan, Local: r.Local + uintptr(from),
			Remote: base + to, Length: n})
	}
	return nil
}

func itoa(i int) string { return strconv.Itoa(i) }

func addressOf(values []int64) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(values))) }
