package engine

import (
	"cmp"
	"slices"
	"sync"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// Pages are page Src[i] of each region of Local, moved to or from page Dst[i] of its counterpart in Remote.
type Pages struct {
	Local, Remote GridID
	N             int
	Src, Dst      Indexes
}

// places are where the pages of one call lie in each pair of its regions: transport.Pieces that are used again.
type places struct {
	transport.Pieces
	rows      int       // pieces that are one page
	stretches []stretch // of ranges by address, in order; empty of others
	before    int       // ranges of the call that earlier tasks of it have
}

// stretch is ranges that follow one another in their call: from a piece on, and from an index of the call on.
type stretch struct{ piece, index uint32 }

var placesPool = sync.Pool{New: func() any { return new(places) }}

// newPlaces returns places without any, for pages of one row.
func newPlaces(bytes uint64) *places {
	l := placesPool.Get().(*places)
	l.Bytes, l.LocalAt, l.RemoteAt = bytes, l.LocalAt[:0], l.RemoteAt[:0]
	l.rows, l.stretches, l.before = 1, l.stretches[:0], 0
	return l
}

// reserve makes room for n places of ranges.
func (l *places) reserve(n int) {
	l.LocalAt, l.RemoteAt = slices.Grow(l.LocalAt, n), slices.Grow(l.RemoteAt, n)
}

// take adds the first of some ranges, which two rows hold, and those behind it that they hold as well. It returns their
// number. index is that of the first in its call.
func (l *places) take(index int, src, dst []uint64, near, far *row) int {
	local, remote := l.LocalAt, l.RemoteAt
	l.stretches = append(l.stretches, stretch{uint32(len(local)), uint32(index)})
	n := 0
	for i, page := range src {
		if !near.holds(page) || !far.holds(dst[i]) {
			break
		}
		local, remote = append(local, near.offsetOf(page)), append(remote, far.offsetOf(dst[i]))
		n++
	}
	l.LocalAt, l.RemoteAt = local, remote
	return n
}

// first returns the index in its call of the first range.
func (l *places) first() int {
	if len(l.stretches) > 0 {
		return int(l.stretches[0].index)
	}
	return 0
}

// indexOf returns the index in its call of a range by address.
func (l *places) indexOf(piece int) uint64 {
	at, found := slices.BinarySearchFunc(l.stretches, uint32(piece), func(s stretch, piece uint32) int {
		return cmp.Compare(s.piece, piece)
	})
	if !found {
		at--
	}
	return uint64(l.stretches[at].index) + uint64(piece) - uint64(l.stretches[at].piece)
}

func freePlaces(lists []*places) {
	for i, l := range lists {
		lists[i] = nil
		placesPool.Put(l)
	}
}

// placesOf returns the places that a task's parts are, nil for parts that are not of this list.
func placesOf(lists []*places, of *transport.Pieces) *places {
	for _, l := range lists {
		if &l.Pieces == of {
			return l
		}
	}
	return nil
}

// Pages starts a transfer of pages, one task a region with all of its pages. It returns its batch. n may be nil.
func (e *Engine) Pages(t Terms, p *Pages, n *Note) (dispatch.BatchID, error) {
	return e.transfer(t, n, func(c *Call) error { return c.AddPages(p) })
}

// pages appends one task for each pair of regions.
func (c *Call) pages(r *Pages) *errs.Error {
	local, err := c.engine.grids.get(r.Local)
	if err != nil {
		return err
	}
	remote, err := c.engine.grids.get(r.Remote)
	if err != nil {
		return err
	}
	if err := r.check(local, remote); err != nil {
		return err
	}
	if err := c.bounds(r.N, max(1, local.layout.Rows)); err != nil { // an address list has no rows
		return err
	}
	if local.list != nil {
		return c.pagesOfLists(r, local, remote)
	}
	list := newPlaces(local.layout.PageBytes)
	c.lists = append(c.lists, list)
	if err := r.locate(local, remote, list); err != nil {
		return err
	}
	for i := range local.regions {
		if err := c.pagesOf(local, remote, i, list); err != nil {
			return err
		}
	}
	return nil
}

func (r *Pages) check(local, remote *grid) *errs.Error {
	switch {
	case local.segment != OwnMemory || remote.segment == OwnMemory:
		return errs.New(errs.InvalidArgument, "pages",
			"the local grid must be over own memory and the remote grid over a segment")
	case r.N < 1:
		return errs.New(errs.InvalidArgument, "pages", "there are no pages to move")
	case (local.list == nil) != (remote.list == nil):
		return errs.New(errs.InvalidArgument, "pages", "an address list goes with an address list, not with a grid")
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
func (r *Pages) locate(local, remote *grid, list *places) *errs.Error {
	near, far := &local.layout, &remote.layout
	list.rows = int(near.Rows)
	list.reserve(r.N)
	from, to := list.LocalAt[:r.N], list.RemoteAt[:r.N]
	r.Src.read(from)
	r.Dst.read(to)
	for i, src := range from {
		dst := to[i]
		if src >= local.pages {
			return outside("source", i, int64(src), local.pages)
		} else if dst >= remote.pages {
			return outside("destination", i, int64(dst), remote.pages)
		}
		from[i], to[i] = near.Offset+src*near.Stride, far.Offset+dst*far.Stride
	}
	list.LocalAt, list.RemoteAt = rowsOf(from, list.rows, near.RowStride), rowsOf(to, list.rows, far.RowStride)
	return nil
}

// rowsOf replaces each place of a page by those of its rows.
func rowsOf(pages []uint64, rows int, stride uint64) []uint64 {
	if rows == 1 {
		return pages
	}
	n := len(pages)
	pages = slices.Grow(pages, n*(rows-1))[:n*rows]
	for i := n - 1; i >= 0; i-- { // from the end: rows take the room behind their page
		for at, row := pages[i], 0; row < rows; row++ {
			pages[i*rows+row] = at + uint64(row)*stride
		}
	}
	return pages
}

func outside(which string, i int, page int64, pages uint64) *errs.Error {
	return errs.New(errs.InvalidArgument, "pages", "%s index [%d] is %d, the grid has pages 0 to %d", which, i, page,
		pages-1)
}

// pagesOf appends the task of one pair of regions. Bounds were checked page by page; the whole ranges are bound once.
func (c *Call) pagesOf(local, remote *grid, region int, list *places) *errs.Error {
	from, to := &local.regions[region], &remote.regions[region]
	own, err := c.engine.ownRegion(c.terms.Op, from.Addr, from.Size)
	if err != nil {
		return err
	}
	at := Remote{remote.segment, to.Region, to.Offset}
	p, there, base, err := c.resolve(c.terms.Due(), at, to.Size)
	if err != nil {
		if c.isScattered(at, to.Size) {
			return c.pagesOfLease(own, from, at, list)
		}
		return err
	}
	length := uint64(len(list.LocalAt)) * list.Bytes
	if err := c.bind(&c.terms, p, own, there, length); err != nil {
		return err
	}
	s := c.task(&c.terms)
	s.Local, s.Remote, s.Length, s.Parts = from.Addr, base, length, &list.Pieces
	if len(list.LocalAt) == 1 { // no more than a range
		s.Local, s.Remote, s.Parts = s.Local+uintptr(list.LocalAt[0]), s.Remote+list.RemoteAt[0], nil
	}
	return nil
}
