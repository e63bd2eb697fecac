package engine

import (
	"sort"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/segment"
)

// The peer's side of a lease with several ranges: each of them is a remote region, and so a slice has one of them. A
// move lies inside one range. Pages of a grid and ranges of a call may lie in different ones, and become one task for
// each.

// further returns the range of a lease that holds bytes behind its first range, and their offset in it. It makes the
// error of bytes that leave a region, or that lie in two ranges.
func (p *peer) further(first *remoteRegion, offset, length uint64) (*remoteRegion, uint64, *errs.Error) {
	t := p.regions.Load()
	ranges := t.description.Ranges(first.ID)
	whole := first.Size
	if n := len(ranges); n > 0 {
		whole = ranges[n-1].Start + ranges[n-1].Size
	}
	if !mem.Contains(whole, offset, length) {
		return nil, 0, errs.New(errs.InvalidArgument, "submit",
			"%d bytes at offset %d leave the remote region %q of %d bytes",
			length, offset, first.Name, whole).OfPeer(p.identity.Address)
	}
	r := rangeOf(ranges, offset)
	if !mem.Contains(r.Size, offset-r.Start, length) {
		return nil, 0, errs.New(errs.InvalidArgument, "submit",
			"%d bytes at offset %d lie in two ranges of the lease %q, the second one begins at %d", length, offset,
			first.Name, r.Start+r.Size).OfPeer(p.identity.Address).
			WithHint("move the bytes of each range by themselves, or as pages of a grid")
	}
	return t.byID[r.ID], offset - r.Start, nil
}

// rangeOf returns the range that holds a byte of a lease.
func rangeOf(ranges []segment.Region, offset uint64) *segment.Region {
	return &ranges[sort.Search(len(ranges), func(i int) bool { return ranges[i].Start > offset })-1]
}

// isScattered reports whether an operand lies in several ranges of a lease. Its peer has been resolved before.
func (c *Call) isScattered(at Remote, length uint64) bool {
	h, err := c.engine.segments.get(at.Segment)
	if err != nil {
		return false
	}
	t := h.peer.regions.Load()
	if t == nil {
		return false
	}
	lease, is := t.description.Lease(h.regionOf(at))
	return is && mem.Contains(lease.Size, at.Offset, length)
}

// pagesOfLease appends the tasks of one pair of regions, of which the remote one is a lease with several ranges.
func (c *Call) pagesOfLease(own *region, from *GridRegion, to Remote, list *places) *errs.Error {
	if list.rows > 1 {
		return errs.New(errs.InvalidArgument, "pages", "pages of %d rows, over a lease of several ranges", list.rows).
			WithHint("make a grid whose pages are the rows")
	}
	g := newGathering()
	defer gatherings.Put(g)
	here, begin := home{own.ID, uint64(own.Addr), own.Size}, uint64(from.Addr-own.Addr)
	due := c.terms.Due()
	for i, at := range list.RemoteAt {
		_, there, offset, err := c.resolve(due, Remote{to.Segment, to.Region, to.Offset + at}, list.Bytes)
		if err != nil {
			return indexed(i, err)
		}
		g.near.add(here, begin+list.LocalAt[i], list.Bytes)
		g.far.add(home{there.ID, 0, there.Size}, offset, list.Bytes)
	}
	g.all(len(list.LocalAt))
	return c.gather(g, &g.near, &g.far, to.Segment)
}
