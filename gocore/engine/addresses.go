package engine

import (
	"cmp"
	"runtime"
	"sync"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
)

// Stacks such as vLLM know their KV cache as a list of addresses: one range a block and layer, in as many regions as
// there are layers. An address list is that list, looked up once. A transfer then names ranges by index, and all ranges
// of a pair of regions become the parts of one task.

// AddressesMost bounds the ranges of an address list.
const AddressesMost = 1 << 24

// groupsMost bounds the tasks that the ranges of one call are gathered in. Beyond it each range is a task of its own.
const groupsMost = 1024

// home is a region that holds ranges of an address list.
type home struct {
	id   mem.RegionID
	addr uint64
	size uint64
}

// spot is where a range of an address list lies.
type spot struct {
	home   uint32
	offset uint64 // from the region's first byte
	bytes  uint64
}

// addressList is ranges by address, each inside one region. It is immutable once it is a grid's.
type addressList struct {
	homes []home
	spots []spot // nil where all ranges follow one rule: spot i lies i strides behind the first
	n     int

	byAddress bool // homes are the regions in which addresses were found, not those that the ranges were given in

	first  spot
	stride uint64
	byID   map[mem.RegionID]uint32
}

// add appends a range that lies in a region.
func (l *addressList) add(in home, offset, bytes uint64) {
	last := len(l.spots) - 1
	var at uint32
	if last >= 0 && l.homes[l.spots[last].home].id == in.id {
		at = l.spots[last].home
	} else if known, ok := l.byID[in.id]; ok {
		at = known
	} else {
		at = uint32(len(l.homes))
		l.homes = append(l.homes, in)
		l.byID[in.id] = at
	}
	l.spots = append(l.spots, spot{at, offset, bytes})
	l.n++
}

func (l *addressList) reset() {
	if l.byID == nil {
		l.byID = make(map[mem.RegionID]uint32)
	}
	clear(l.byID)
	l.homes, l.spots, l.n, l.byAddress = l.homes[:0], l.spots[:0], 0, false
}

// compact recognises ranges of one length at one distance in one region, and keeps the rule instead of the ranges.
func (l *addressList) compact() {
	l.byID = nil
	if l.n < 2 || len(l.homes) != 1 {
		return
	}
	l.first, l.stride = l.spots[0], l.spots[1].offset-l.spots[0].offset // modulo 2^64: a list may run backwards
	for i, s := range l.spots {
		if s.bytes != l.first.bytes || s.offset != l.first.offset+uint64(i)*l.stride {
			return
		}
	}
	l.spots = nil
}

// at returns range i, which must be below n.
func (l *addressList) at(i uint64) spot {
	if l.spots != nil {
		return l.spots[i]
	}
	return spot{l.first.home, l.first.offset + i*l.stride, l.first.bytes}
}

// NewAddresses prepares n ranges by address, each inside one region: of our own memory with OwnMemory, else of the
// segment. at and bytes are read before the call returns; a stride of 0 gives all ranges one length. The list is a grid
// for AddPages, GridPages and CloseGrid: its pages are its ranges. A peer that was not spoken to yet is asked for its
// regions.
func (e *Engine) NewAddresses(segment SegmentID, n int, at, bytes Indexes) (GridID, error) {
	if err := e.usable(); err != nil {
		return 0, err
	}
	if n < 1 || n > AddressesMost {
		return 0, errs.New(errs.InvalidArgument, "addresses", "a list has 1 to %d ranges, not %d", AddressesMost, n)
	}
	if err := cmp.Or(at.check("addresses", n), bytes.check("lengths", n)); err != nil {
		return 0, err
	}
	list := new(addressList)
	list.reset()
	c := e.newCall()
	defer c.Discard()
	to := Remote{Segment: segment}
	var err *errs.Error
	if segment == OwnMemory {
		err = c.placeLocal(list, n, 0, 0, &at, &bytes)
	} else {
		err = c.placeRemote(list, n, to, 0, &at, &bytes)
	}
	runtime.KeepAlive(&at)
	runtime.KeepAlive(&bytes)
	if err != nil {
		return 0, err
	}
	list.compact()
	return e.grids.add(&grid{segment: segment, list: list, pages: uint64(n)}), nil
}

// placeLocal finds the own regions of ranges. size is that of the operand in which offsets count; 0 makes them
// addresses.
func (c *Call) placeLocal(list *addressList, n int, base uintptr, size uint64, at, bytes *Indexes) *errs.Error {
	var own *region
	for i := range n {
		offset, length, err := rangeAt(i, at, bytes, size, "local")
		if err != nil {
			return err
		}
		if own, err = c.placeOwn(list, own, uint64(base)+offset, length); err != nil {
			return indexed(i, err)
		}
	}
	return nil
}

// placeOwn appends a range of our own memory and returns its region, which that of the range before may be.
func (c *Call) placeOwn(list *addressList, before *region, addr, length uint64) (*region, *errs.Error) {
	own := before
	if !own.holds(uintptr(addr), length) {
		var err *errs.Error
		if own, err = c.engine.ownRegion(uintptr(addr), length); err != nil {
			return nil, err
		}
	}
	list.add(home{own.ID, uint64(own.Addr), own.Size}, addr-uint64(own.Addr), length)
	return own, nil
}

// placeRemote finds the regions of a peer. size is that of the operand in which offsets count; 0 makes them addresses,
// or offsets in the region that the segment was opened on.
func (c *Call) placeRemote(list *addressList, n int, to Remote, size uint64, at, bytes *Indexes) *errs.Error {
	due := c.terms.Due()
	for i := range n {
		offset, length, err := rangeAt(i, at, bytes, size, "remote")
		if err != nil {
			return err
		}
		_, there, found, err := c.resolve(due, Remote{to.Segment, to.Region, to.Offset + offset}, length)
		if err != nil {
			return indexed(i, err)
		}
		list.add(home{there.ID, there.Addr, there.Size}, found, length)
	}
	list.byAddress = c.byAddress
	return nil
}

// rangeAt reads range i, which lies inside an operand of size bytes; 0 is any size.
func rangeAt(i int, at, bytes *Indexes, size uint64, side string) (offset, length uint64, err *errs.Error) {
	offset, ok := at.at(i)
	length, good := bytes.at(i)
	switch {
	case !ok || !good || length == 0:
		return 0, 0, errs.New(errs.InvalidArgument, "ranges", "%s range [%d] begins at %d and has the length %d: it "+
			"must not begin below 0 and has at least 1 byte", side, i, int64(offset), int64(length))
	case size != 0 && !mem.Contains(size, offset, length):
		return 0, 0, errs.New(errs.InvalidArgument, "ranges",
			"range [%d]: %d bytes at offset %d leave the %s range of %d bytes", i, length, offset, side, size)
	}
	return offset, length, nil
}

// pair is the regions of a range, here and there, and its length: ranges with the same pair share a task.
type pair struct {
	near, far uint32
	bytes     uint64
}

// gathering sorts the ranges of one call by their pairs.
type gathering struct {
	near, far addressList // of ranges that were not prepared
	groups    map[pair]int
	pairs     []pair // of each group
	after     []int  // the group that followed each one the last time: lists go through the layers in turns
}

var gatherings = sync.Pool{New: func() any { return &gathering{groups: make(map[pair]int)} }}

// newGathering returns an empty one.
func newGathering() *gathering {
	g := gatherings.Get().(*gathering)
	g.near.reset()
	g.far.reset()
	clear(g.groups)
	g.pairs, g.after = g.pairs[:0], g.after[:0]
	return g
}

func freeGathering(g *gathering) { gatherings.Put(g) }

// group returns the number of a pair's group, which is a new one if it is the number of groups so far. last is the
// group of the range before.
func (g *gathering) group(key pair, last int) int {
	if last < 0 {
		g.groups[key], g.pairs, g.after = 0, append(g.pairs, key), append(g.after, 0)
		return 0
	}
	at := g.after[last]
	if g.pairs[at] == key {
		return at
	}
	at, known := g.groups[key]
	if !known {
		at = len(g.pairs)
		g.groups[key], g.pairs, g.after = at, append(g.pairs, key), append(g.after, at)
	}
	g.after[last] = at
	return at
}

// anywhere appends ranges with addresses for offsets, on a side or on both, in any of its regions.
func (c *Call) anywhere(r *Ranges) *errs.Error {
	g := newGathering()
	defer freeGathering(g)
	if err := c.placeLocal(&g.near, r.N, r.Local, r.LocalSize, &r.LocalOffsets, &r.Bytes); err != nil {
		return err
	}
	if err := c.placeRemote(&g.far, r.N, r.Remote, r.RemoteSize, &r.RemoteOffsets, &r.Bytes); err != nil {
		return err
	}
	return c.gather(g, r.N, &g.near, &g.far, r.Remote.Segment, nil)
}

// listed appends ranges of two address lists, by their indexes.
func (c *Call) listed(r *Pages, local, remote *grid) *errs.Error {
	g := newGathering()
	defer freeGathering(g)
	chosen := chosenBy(r, local.pages, remote.pages)
	before, asksNobody := c.mark(), c.asksNobody
	c.asksNobody = true // a region that was registered again in pieces would be asked for in every call
	err := c.gather(g, r.N, local.list, remote.list, remote.segment, &chosen)
	c.asksNobody = asksNobody
	if err == nil {
		return nil
	}
	_ = c.whole(before, err)
	return c.placeAnew(r.N, local.list, remote.list, remote.segment, &chosen)
}

// placeAnew appends ranges of two address lists in the regions in which they lie now, each looked up by itself.
func (c *Call) placeAnew(n int, near, far *addressList, segment SegmentID, chosen *choice) *errs.Error {
	g := newGathering()
	defer freeGathering(g)
	g.far.byAddress = far.byAddress
	due := c.terms.Due()
	var own *region
	for i := range n {
		a, b, err := chosen.spots(i, near, far)
		if err != nil {
			return err
		}
		if own, err = c.placeOwn(&g.near, own, near.homes[a.home].addr+a.offset, a.bytes); err != nil {
			return indexed(i, err)
		}
		_, there, offset, err := c.resolve(due, far.place(b.home, b.offset, segment), b.bytes)
		if err != nil {
			return indexed(i, err)
		}
		g.far.add(home{there.ID, there.Addr, there.Size}, offset, b.bytes)
	}
	return c.gather(g, n, &g.near, &g.far, segment, nil)
}

// choice is the ranges of two address lists that a call names by indexes. A nil one is all of both, in order.
type choice struct {
	src, dst  *Indexes
	here      []uint64 // the indexes themselves where both are 64-bit and adjacent, as stacks give them
	there     []uint64
	near, far uint64 // ranges of each list
}

func chosenBy(r *Pages, near, far uint64) choice {
	c := choice{src: &r.Src, dst: &r.Dst, near: near, far: far}
	if here, there := r.Src.plain(r.N), r.Dst.plain(r.N); here != nil && there != nil {
		c.here, c.there = here, there
	}
	return c
}

// at returns the ranges that are named in place i.
func (c *choice) at(i int) (src, dst uint64, err *errs.Error) {
	if c == nil {
		return uint64(i), uint64(i), nil
	}
	if c.here != nil {
		src, dst = c.here[i], c.there[i] // a negative one is above every bound
	} else {
		src, dst = c.src.word(i), c.dst.word(i)
	}
	if src >= c.near {
		return 0, 0, outside("source", i, int64(src), c.near)
	}
	if dst >= c.far {
		return 0, 0, outside("destination", i, int64(dst), c.far)
	}
	return src, dst, nil
}

// spots returns where the ranges that are named in place i lie. They must have one length.
func (c *choice) spots(i int, near, far *addressList) (a, b spot, _ *errs.Error) {
	src, dst, err := c.at(i)
	if err != nil {
		return a, b, err
	}
	if a, b = near.at(src), far.at(dst); a.bytes != b.bytes {
		return a, b, unequal(i, a.bytes, b.bytes)
	}
	return a, b, nil
}

func unequal(i int, here, there uint64) *errs.Error {
	return errs.New(errs.InvalidArgument, "ranges", "range [%d] has %d bytes here and %d bytes there", i, here, there)
}

// gather makes one task of all ranges that share their regions and their length.
func (c *Call) gather(g *gathering, n int, near, far *addressList, segment SegmentID, chosen *choice) *errs.Error {
	first, last := len(c.lists), -1
	homes := max(len(near.homes), len(far.homes))
	for i := range n { // as chosen.spots, which is a call a range
		src, dst, err := chosen.at(i)
		if err != nil {
			return err
		}
		a, b := near.at(src), far.at(dst)
		if a.bytes != b.bytes {
			return unequal(i, a.bytes, b.bytes)
		}
		if key := (pair{a.home, b.home, a.bytes}); last < 0 || g.pairs[last] != key {
			last = g.group(key, last)
			if last == groupsMost {
				freePlaces(c.lists[first:])
				c.lists = c.lists[:first]
				return c.scatter(n, near, far, segment, chosen)
			}
			if first+last == len(c.lists) {
				c.open(first, i, n, homes, a.bytes)
			}
		}
		list := c.lists[first+last]
		list.LocalAt = append(list.LocalAt, a.offset)
		list.RemoteAt = append(list.RemoteAt, b.offset)
		if len(g.pairs) > 1 {
			list.order = append(list.order, uint32(i))
		}
	}
	before := 0
	for at, key := range g.pairs {
		list := c.lists[first+at]
		list.before = before
		before += len(list.LocalAt)
		there := far.place(key.far, 0, segment)
		if err := c.group(near.homes[key.near], far.homes[key.far].size, there, list); err != nil {
			return indexed(list.first(), err)
		}
	}
	return nil
}

// open appends a list for a further group, found at range i of n. The first as many groups as there are regions get
// room for an equal share of the ranges: growing step by step touches fresh memory in every step, on the caller's time.
// The order of the first group is written down once it is not alone.
func (c *Call) open(first, i, n, homes int, bytes uint64) {
	list, groups := newPlaces(bytes), len(c.lists)-first
	if groups < homes {
		list.reserve(n / homes)
	}
	if groups == 1 {
		alone := c.lists[first]
		for k := range i {
			alone.order = append(alone.order, uint32(k))
		}
	}
	c.lists = append(c.lists, list)
}

// place is a place in a region of the list: by its address, where the list was made of addresses.
func (l *addressList) place(at uint32, offset uint64, segment SegmentID) Remote {
	in := &l.homes[at]
	if l.byAddress {
		return Remote{Segment: segment, Offset: in.addr + offset}
	}
	return Remote{segment, in.id, offset}
}

// group appends the task of the ranges of one pair of regions.
func (c *Call) group(here home, size uint64, there Remote, list *places) *errs.Error {
	own, err := c.engine.ownRegion(uintptr(here.addr), here.size)
	if err != nil {
		return err
	}
	length := uint64(len(list.LocalAt)) * list.Bytes
	base, err := c.reach(&c.terms, own, there, size, length)
	if err != nil {
		return err
	}
	s := c.task(&c.terms)
	s.Local, s.Remote, s.Length, s.Parts = uintptr(here.addr), base, length, &list.Pieces
	return nil
}

// scatter makes a task of each range: there are too many pairs to gather them.
func (c *Call) scatter(n int, near, far *addressList, segment SegmentID, chosen *choice) *errs.Error {
	for i := range n {
		a, b, err := chosen.spots(i, near, far)
		if err != nil {
			return err
		}
		to := far.place(b.home, b.offset, segment)
		if err := c.add(&c.terms, uintptr(near.homes[a.home].addr+a.offset), to, a.bytes); err != nil {
			return indexed(i, err)
		}
	}
	return nil
}
