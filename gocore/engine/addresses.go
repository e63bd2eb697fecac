package engine

import (
	"cmp"
	"runtime"
	"slices"
	"sync"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
)

// Stacks such as vLLM know their KV cache as a list of addresses: one range a block and layer, in as many regions as
// there are layers. An address list is that list, looked up once. A transfer then names ranges by index, and all ranges
// of a pair of regions become the parts of one task.

// addressesMost bounds the ranges of an address list.
const addressesMost = 1 << 24

// groupsMost bounds the tasks that the ranges of one call are gathered in. Beyond it each range is a task of its own.
const groupsMost = 1024

// NewAddresses prepares n ranges by address, each inside one region: of our own memory with OwnMemory, else of the
// segment. at and bytes are read before the call returns; a stride of 0 gives all ranges one length. The list is a grid
// for AddPages, GridPages and CloseGrid: its pages are its ranges. A peer that was not spoken to yet is asked for its
// regions.
func (e *Engine) NewAddresses(segment SegmentID, n int, at, bytes Indexes) (GridID, error) {
	if err := e.usable(); err != nil {
		return 0, err
	}
	if n < 1 || n > addressesMost {
		return 0, errs.New(errs.InvalidArgument, "addresses", "a list has 1 to %d ranges, not %d", addressesMost, n)
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
		if own, err = c.engine.ownRegion(c.terms.Op, uintptr(addr), length); err != nil {
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
	var there *remoteRegion
	for i := range n {
		offset, length, err := rangeAt(i, at, bytes, size, "remote")
		if err != nil {
			return err
		}
		offset += to.Offset
		if there != nil && c.byAddress && there.is(0, offset, length) { // where the one before it lies
			offset -= there.Addr
		} else if _, there, offset, err = c.resolve(due, Remote{to.Segment, to.Region, offset}, length); err != nil {
			return indexed(i, err)
		}
		list.add(home{there.ID, there.Addr, there.Size}, offset, length)
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
	src, dst  []uint64    // the ranges of two lists that the call names, in its order
	near, far addressList // of ranges that were not prepared
	from, to  reader      // of the two lists
	groups    map[pair]int
	pairs     []pair // of each group
	after     []int  // the group that followed each one the last time: lists go through the layers in turns
}

var gatherings = sync.Pool{New: func() any { return &gathering{groups: make(map[pair]int)} }}

// newGathering returns an empty one, for the caller to put back.
func newGathering() *gathering {
	g := gatherings.Get().(*gathering)
	g.near.reset()
	g.far.reset()
	clear(g.groups)
	g.pairs, g.after = g.pairs[:0], g.after[:0]
	return g
}

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

// choose copies the indexes of a call, since their memory may change meanwhile, and refuses those beyond the lists.
func (g *gathering) choose(r *Pages, near, far uint64) *errs.Error {
	g.room(r.N)
	r.Src.read(g.src)
	r.Dst.read(g.dst)
	for i, src := range g.src { // a negative one is above every bound
		if dst := g.dst[i]; src >= near {
			return outside("source", i, int64(src), near)
		} else if dst >= far {
			return outside("destination", i, int64(dst), far)
		}
	}
	return nil
}

// all names the n ranges of both lists in order.
func (g *gathering) all(n int) {
	g.room(n)
	for i := range n {
		g.src[i], g.dst[i] = uint64(i), uint64(i)
	}
}

func (g *gathering) room(n int) {
	g.src, g.dst = slices.Grow(g.src[:0], n)[:n], slices.Grow(g.dst[:0], n)[:n]
}

// rangesAnywhere appends ranges with addresses for offsets, on a side or on both, in any of its regions.
func (c *Call) rangesAnywhere(r *Ranges) *errs.Error {
	return c.placed(r.Remote.Segment, func(g *gathering) *errs.Error {
		if err := c.placeLocal(&g.near, r.N, r.Local, r.LocalSize, &r.LocalOffsets, &r.Bytes); err != nil {
			return err
		}
		g.all(r.N)
		return c.placeRemote(&g.far, r.N, r.Remote, r.RemoteSize, &r.RemoteOffsets, &r.Bytes)
	})
}

// placed appends the ranges for which place finds regions. It looks a second time where one of these is gone before it
// has a task: the peer was asked meanwhile, for a later range or by another call, and the range is in another one now.
func (c *Call) placed(segment SegmentID, place func(*gathering) *errs.Error) *errs.Error {
	before := c.mark()
	for try := 0; ; try++ {
		g := newGathering()
		err := place(g)
		found := err == nil
		if found {
			err = c.gather(g, &g.near, &g.far, segment)
		}
		gatherings.Put(g)
		if err == nil || !found || try > 0 || err.Code != errs.AddressNotRegistered {
			return err
		}
		_ = c.whole(before, err)
		c.found = nil
	}
}

// pagesOfLists appends ranges of two address lists, by their indexes.
func (c *Call) pagesOfLists(r *Pages, local, remote *grid) *errs.Error {
	g := newGathering()
	defer gatherings.Put(g)
	if err := g.choose(r, local.pages, remote.pages); err != nil {
		return err
	}
	before, asksNobody := c.mark(), c.asksNobody
	c.asksNobody = true // a region that was registered again in pieces would be asked for in every call
	err := c.gather(g, local.list, remote.list, remote.segment)
	c.asksNobody = asksNobody
	if err == nil {
		return nil
	}
	_ = c.whole(before, err)
	return c.placeAnew(g, local.list, remote.list, remote.segment)
}

// placeAnew appends ranges of two address lists in the regions in which they lie now, each looked up by itself.
func (c *Call) placeAnew(named *gathering, near, far *addressList, segment SegmentID) *errs.Error {
	due := c.terms.Due()
	return c.placed(segment, func(g *gathering) *errs.Error {
		g.far.byAddress = far.byAddress
		var own *region
		for i, src := range named.src {
			a, b := near.at(src), far.at(named.dst[i])
			if a.bytes != b.bytes {
				return unequal(i, a.bytes, b.bytes)
			}
			var err *errs.Error
			if own, err = c.placeOwn(&g.near, own, near.homes[a.home].addr+a.offset, a.bytes); err != nil {
				return indexed(i, err)
			}
			_, there, offset, err := c.resolve(due, far.remoteAt(b.home, b.offset, segment), b.bytes)
			if err != nil {
				return indexed(i, err)
			}
			g.far.add(home{there.ID, there.Addr, there.Size}, offset, b.bytes)
		}
		g.all(len(named.src))
		return nil
	})
}

func unequal(i int, here, there uint64) *errs.Error {
	return errs.New(errs.InvalidArgument, "ranges", "range [%d] has %d bytes here and %d bytes there", i, here, there)
}

// gather makes one task of all ranges that share their regions and their length.
func (c *Call) gather(g *gathering, near, far *addressList, segment SegmentID) *errs.Error {
	first := len(c.lists)
	if few, err := c.sortByPair(g, near, far); err != nil {
		return err
	} else if !few {
		freePlaces(c.lists[first:])
		c.lists = c.lists[:first]
		return c.scatter(g, near, far, segment)
	}
	before := 0
	for at, key := range g.pairs {
		list := c.lists[first+at]
		list.before = before
		before += len(list.LocalAt)
		there := far.remoteAt(key.far, 0, segment)
		if err := c.addGroup(near.homes[key.near], far.homes[key.far].size, there, list); err != nil {
			return indexed(list.first(), err)
		}
	}
	return nil
}

// sortByPair appends a list for each group of ranges. It stops where there are too many groups.
func (c *Call) sortByPair(g *gathering, near, far *addressList) (few bool, _ *errs.Error) {
	first, last, homes := len(c.lists), -1, max(len(near.homes), len(far.homes))
	g.from, g.to = near.reader(), far.reader()
	for i := 0; i < len(g.src); {
		g.from.seek(g.src[i])
		g.to.seek(g.dst[i])
		here, there := g.from.row, g.to.row
		if here.bytes != there.bytes {
			return false, unequal(i, here.bytes, there.bytes)
		}
		if last = g.group(pair{here.home, there.home, here.bytes}, last); last == groupsMost {
			return false, nil
		}
		if first+last == len(c.lists) {
			c.openGroup(last, len(g.src), homes, here.bytes)
		}
		i += c.lists[first+last].take(i, g.src[i:], g.dst[i:], here, there)
	}
	return true, nil
}

// openGroup appends the list of a further group of n ranges. The first as many groups as there are regions get room
// for an equal share of the ranges: growing step by step touches fresh memory in every step, on the caller's time.
func (c *Call) openGroup(group, n, homes int, bytes uint64) {
	list := newPlaces(bytes)
	if group < homes {
		list.reserve(n / homes)
	}
	c.lists = append(c.lists, list)
}

// remoteAt is a place in a region of the list: by its address, where the list was made of addresses.
func (l *addressList) remoteAt(at uint32, offset uint64, segment SegmentID) Remote {
	in := &l.homes[at]
	if l.byAddress {
		return Remote{Segment: segment, Offset: in.addr + offset}
	}
	return Remote{segment, in.id, offset}
}

// addGroup appends the task of the ranges of one pair of regions.
func (c *Call) addGroup(here home, size uint64, there Remote, list *places) *errs.Error {
	own, err := c.engine.ownRegion(c.terms.Op, uintptr(here.addr), here.size)
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
func (c *Call) scatter(g *gathering, near, far *addressList, segment SegmentID) *errs.Error {
	for i, src := range g.src {
		a, b := near.at(src), far.at(g.dst[i])
		if a.bytes != b.bytes {
			return unequal(i, a.bytes, b.bytes)
		}
		to := far.remoteAt(b.home, b.offset, segment)
		if err := c.add(&c.terms, uintptr(near.homes[a.home].addr+a.offset), to, a.bytes); err != nil {
			return indexed(i, err)
		}
	}
	return nil
}
