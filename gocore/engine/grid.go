package engine

import (
	"math/bits"
	"sync"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
)

// Layout says where page i of a region is. It has Rows rows of PageBytes bytes each; row r of page i begins at Offset +
// i*Stride + r*RowStride.
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

// grid is pages of equal regions, or ranges by address, prepared once. It is immutable.
type grid struct {
	segment SegmentID // -1: our own memory
	regions []GridRegion
	layout  Layout
	pages   uint64       // in each region
	list    *addressList // ranges by address instead of equal regions
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
	return e.grids.add(g), int(g.pages), nil
}

func (t *gridTable) add(g *grid) GridID {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last++
	t.byID[t.last] = g
	return t.last
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
		return nil, errs.New(errs.InvalidArgument, "pages", "row_stride %d is less than page_bytes %d", l.RowStride,
			l.PageBytes)
	}
	size := regions[0].Size
	for i := range regions {
		if regions[i].Size != size {
			return nil, errs.New(errs.InvalidArgument, "pages", "region %d has %d bytes, region 0 has %d", i,
				regions[i].Size, size).
				WithHint("a grid is made of equal regions")
		}
	}
	high, rows := bits.Mul64(l.Rows-1, l.RowStride)
	reach, carry := bits.Add64(rows, l.PageBytes, 0)
	first, carry2 := bits.Add64(reach, l.Offset, 0)
	if high|carry|carry2 != 0 || first > size {
		return nil, errs.New(errs.InvalidArgument, "pages", "the first page does not fit into regions of %d bytes",
			size)
	}
	return &grid{segment: segment, regions: append([]GridRegion(nil), regions...), layout: l,
		pages: (size-first)/l.Stride + 1}, nil
}
