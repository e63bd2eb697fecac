package engine

import (
	"cmp"
	"slices"
	"sync/atomic"
	"unsafe"
)

// regionTree has regions in order of address, then size, then id. It is a B+ tree (Bayer and McCreight, "Organization
// and maintenance of large ordered indexes", 1972). One goroutine at a time changes it; find may run beside that.
//
// # Why a reader needs no lock
//
// A change builds the nodes that it needs anew, and puts them into the tree by one store: of a pointer in the lowest
// node that stays as it is, or of the root. That is a leaf in place of a leaf where neither the leaf's first address
// nor its furthest end has changed, so a change costs the same beside any number of regions. Nothing but these pointers
// changes in a node that readers can reach.
//
// A reader that meets one such store sees the tree before it or after it. One that meets two could miss both of a
// region that comes and of one that it replaces, so changes counts each of them before its store: a reader that finds
// the count as it was has met one at most, and the others look again.
type regionTree struct {
	root    atomic.Pointer[regionNode] // nil: no regions
	changes atomic.Uint64
}

// regionNode is a node of the tree.
//
// Each entry knows the furthest end of its regions and of its neighbours before it, as in an interval tree (Cormen et
// al., "Introduction to algorithms", 14.3). So a lookup leaves out entries that end too early: it costs the depth of
// the tree where regions do not overlap.
type regionNode struct {
	count   uint32
	leaf    bool
	entries [entriesMax]regionEntry
}

// regionEntry is a region in a leaf, and a node in one that is not. It has all that a change of a neighbour asks for:
// with many regions each look at the nodes below is a cache miss.
type regionEntry struct {
	addr  uintptr        // of the first region
	end   uintptr        // the furthest of the entry's own regions
	reach uintptr        // the furthest end up to here in this node
	to    unsafe.Pointer // *region in a leaf; *regionNode in another node, where a change may store another one
}

const (
	entriesMax  = 15             // of a node, which has 512 bytes then
	entriesJoin = entriesMax / 2 // neighbours that have no more together become one
)

// looksMost bounds the looks of a lookup beside changes. The next one is the last: it keeps changes away.
const looksMost = 8

// find returns the smallest region that holds [addr, end), or nil; one that may be written, if it is to be. It returns
// false where it met too many changes.
func (t *regionTree) find(addr, end uintptr, written bool) (_ *region, sure bool) {
	for range looksMost {
		before := t.changes.Load()
		found := t.root.Load().smallest(addr, end, written, nil)
		if t.changes.Load() == before {
			return found, true
		}
	}
	return nil, false
}

// add adds a region.
func (t *regionTree) add(r *region) {
	t.changes.Add(1)
	root := t.root.Load()
	if root == nil {
		root = &regionNode{leaf: true}
	}
	first, second := root.insert(r)
	if second != nil {
		first = (&regionNode{}).replaced(0, 0, over(first), over(second))
	}
	t.put(first)
}

// remove removes a region that is in the tree.
func (t *regionTree) remove(r *region) {
	t.changes.Add(1)
	root := t.root.Load().remove(r)
	for root != nil && root.count == 1 && !root.leaf {
		root = root.entries[0].below()
	}
	t.put(root)
}

// put stores the root, unless a store below it has made the change.
func (t *regionTree) put(root *regionNode) {
	if root != t.root.Load() {
		t.root.Store(root)
	}
}

// appendTo appends all regions, in order. It must not run beside a change.
func (t *regionTree) appendTo(list []*region) []*region { return t.root.Load().appendTo(list) }

func (n *regionNode) appendTo(list []*region) []*region {
	if n == nil {
		return list
	}
	list = slices.Grow(list, int(n.count))
	for i := range n.count {
		if e := &n.entries[i]; n.leaf {
			list = append(list, e.region())
		} else {
			list = e.below().appendTo(list)
		}
	}
	return list
}

func (e *regionEntry) region() *region    { return (*region)(e.to) }
func (e *regionEntry) below() *regionNode { return (*regionNode)(atomic.LoadPointer(&e.to)) }

// over returns the entry of a node.
func over(n *regionNode) regionEntry {
	return regionEntry{addr: n.entries[0].addr, end: n.entries[n.count-1].reach, to: unsafe.Pointer(n)}
}

// insert adds a region, and returns the node for this one's place: itself if a store below it was enough. Two nodes
// are for its place if it was full.
func (n *regionNode) insert(r *region) (_, second *regionNode) {
	at := n.place(r)
	if n.leaf {
		return n.inserted(at+1, regionEntry{addr: r.Addr, end: r.Addr + uintptr(r.Size), to: unsafe.Pointer(r)})
	}
	at = max(at, 0)
	first, second := n.entries[at].below().insert(r)
	if second == nil {
		return n.with(at, first), nil
	}
	return n.replaced(at, 1, over(first)).inserted(at+1, over(second)) // both by one store
}

// inserted returns a copy with one more entry, in two halves if the node was full.
func (n *regionNode) inserted(at int, e regionEntry) (_, second *regionNode) {
	if n.count < entriesMax {
		return n.replaced(at, 0, e), nil
	}
	const half = entriesMax / 2
	first, second := n.replaced(half, entriesMax-half), n.replaced(0, half)
	if at <= half {
		return first.replaced(at, 0, e), second
	}
	return first, second.replaced(at-half, 0, e)
}

// remove takes a region out, and returns the node for this one's place: itself if a store below it was enough. No node
// is left of the last region.
func (n *regionNode) remove(r *region) *regionNode {
	at := n.place(r)
	if n.leaf {
		return n.replaced(at, 1)
	}
	rest := n.entries[at].below().remove(r)
	if rest == nil {
		return n.replaced(at, 1)
	}
	if at > 0 && rest.count < entriesJoin {
		if before := n.entries[at-1].below(); before.count+rest.count <= entriesJoin {
			return n.replaced(at-1, 2, over(before.replaced(int(before.count), 0, rest.entries[:rest.count]...)))
		}
	}
	return n.with(at, rest)
}

// with returns the node with another one below it: itself after a store, unless addresses or ends have changed.
func (n *regionNode) with(at int, below *regionNode) *regionNode {
	e, now := &n.entries[at], over(below)
	switch {
	case e.addr != now.addr || e.end != now.end:
		return n.replaced(at, 1, now)
	case e.below() != below:
		atomic.StorePointer(&e.to, unsafe.Pointer(below))
	}
	return n
}

// place returns the index of the last entry that does not begin behind a region, -1 for none.
func (n *regionNode) place(r *region) int {
	at := n.upTo(r.Addr)
	for at >= 0 && n.entries[at].addr == r.Addr && behind(n.first(at), r) {
		at--
	}
	return at
}

// behind reports whether the first of two regions at one address comes after the second.
func behind(o, r *region) bool {
	return cmp.Or(cmp.Compare(o.Size, r.Size), cmp.Compare(o.ID, r.ID)) > 0
}

// first returns the first region of an entry.
func (n *regionNode) first(at int) *region {
	for ; !n.leaf; at = 0 {
		n = n.entries[at].below()
	}
	return n.entries[at].region()
}

// upTo returns the index of the last entry that begins at an address or before it, -1 for none.
func (n *regionNode) upTo(addr uintptr) int {
	low, high := 0, int(n.count)
	for low < high {
		if middle := int(uint(low+high) >> 1); n.entries[middle].addr <= addr {
			low = middle + 1
		} else {
			high = middle
		}
	}
	return low - 1
}

// replaced returns a copy with other entries in the place of some, nil if none is left.
func (n *regionNode) replaced(from, count int, by ...regionEntry) *regionNode {
	length := int(n.count) - count + len(by)
	if length == 0 {
		return nil
	}
	c := &regionNode{count: uint32(length), leaf: n.leaf}
	copy(c.entries[:], n.entries[:from])
	copy(c.entries[from:], by)
	copy(c.entries[from+len(by):], n.entries[from+count:n.count])
	reach := uintptr(0)
	if from > 0 {
		reach = c.entries[from-1].reach
	}
	for i := from; i < length; i++ {
		reach = max(reach, c.entries[i].end)
		c.entries[i].reach = reach
	}
	return c
}

// smallest returns the smallest region that holds [addr, end), or best if none is smaller than that. Where it is to be
// written, regions that may not be count for nothing.
func (n *regionNode) smallest(addr, end uintptr, written bool, best *region) *region {
	if n == nil {
		return best
	}
	for i := n.upTo(addr); i >= 0 && n.entries[i].reach >= end; i-- {
		e := &n.entries[i]
		switch {
		case e.end < end:
		case !n.leaf:
			best = e.below().smallest(addr, end, written, best)
		case (best == nil || e.region().Size < best.Size) && !(written && e.region().ReadOnly):
			best = e.region()
		}
	}
	return best
}
