package engine

import (
	"cmp"
	"slices"
)

// regionNode is a node of the tree of regions. The tree is a B+ tree (Bayer and McCreight, "Organization and
// maintenance of large ordered indexes", 1972), ordered by address, then size, then id. A published node never changes:
// a change copies the nodes on its path (Driscoll et al., "Making data structures persistent", 1989), five of at most
// 0.9 KiB for 100,000 regions. nil is an empty tree.
//
// Each entry knows the furthest end of its regions and of its neighbours before it, as in an interval tree (Cormen et
// al., "Introduction to algorithms", 14.3). So a lookup leaves out entries that end too early: it costs the depth of
// the tree where regions do not overlap.
type regionNode []regionEntry

// regionEntry is a region in a leaf, and a node in one that is not. It has all that a change of a neighbour asks for:
// with many regions each look at the nodes below is a cache miss.
type regionEntry struct {
	addr   uintptr    // of the first region
	end    uintptr    // the furthest of the entry's own regions
	reach  uintptr    // the furthest end up to here in this node
	region *region    // the first
	below  regionNode // nil in a leaf
}

const (
	entriesMax  = 16             // of a node
	entriesJoin = entriesMax / 2 // neighbours that have no more together become one
)

func over(below regionNode) regionEntry {
	return regionEntry{addr: below[0].addr, end: below[len(below)-1].reach, region: below[0].region, below: below}
}

func (e *regionEntry) compare(r *region) int {
	if e.addr != r.Addr {
		return cmp.Compare(e.addr, r.Addr)
	}
	return cmp.Or(cmp.Compare(e.region.Size, r.Size), cmp.Compare(e.region.ID, r.ID))
}

// with returns the tree with one more region.
func (n regionNode) with(r *region) regionNode {
	first, second := n.insert(r)
	if second == nil {
		return first
	}
	return regionNode{}.replaced(0, 0, over(first), over(second))
}

// without returns the tree without a region that is in it.
func (n regionNode) without(r *region) regionNode {
	n = n.remove(r)
	for len(n) == 1 && n[0].below != nil {
		n = n[0].below
	}
	return n
}

// insert returns the node with one more region, as two halves if it is too long.
func (n regionNode) insert(r *region) (_, second regionNode) {
	at := n.place(r)
	if len(n) == 0 || n[0].below == nil {
		return n.replaced(at+1, 0, regionEntry{addr: r.Addr, end: r.Addr + uintptr(r.Size), region: r}).halves()
	}
	at = max(at, 0)
	first, second := n[at].below.insert(r)
	if second == nil {
		return n.replaced(at, 1, over(first)), nil
	}
	return n.replaced(at, 1, over(first), over(second)).halves()
}

func (n regionNode) halves() (_, second regionNode) {
	if len(n) <= entriesMax {
		return n, nil
	}
	return slices.Clone(n[:len(n)/2]), regionNode{}.replaced(0, 0, n[len(n)/2:]...)
}

// remove returns the node without a region, empty if it was the last.
func (n regionNode) remove(r *region) regionNode {
	at := n.place(r)
	if n[at].below == nil {
		return n.replaced(at, 1)
	}
	switch rest := n[at].below.remove(r); {
	case len(rest) == 0:
		return n.replaced(at, 1)
	case at > 0 && len(n[at-1].below)+len(rest) <= entriesJoin:
		return n.replaced(at-1, 2, over(n[at-1].below.replaced(len(n[at-1].below), 0, rest...)))
	default:
		return n.replaced(at, 1, over(rest))
	}
}

// place returns the index of the last entry that does not begin behind a region, -1 for none.
func (n regionNode) place(r *region) int {
	at, found := slices.BinarySearchFunc(n, r, func(e regionEntry, r *region) int { return e.compare(r) })
	if found {
		return at
	}
	return at - 1
}

// replaced returns a copy with other entries in the place of some.
func (n regionNode) replaced(from, count int, by ...regionEntry) regionNode {
	c := make(regionNode, 0, len(n)-count+len(by))
	c = append(append(append(c, n[:from]...), by...), n[from+count:]...)
	for i := from; i < len(c); i++ {
		c[i].reach = c[i].end
		if i > 0 {
			c[i].reach = max(c[i].reach, c[i-1].reach)
		}
	}
	return c
}

// smallest returns the smallest region that holds [addr, end), or best if none is smaller than that.
func (n regionNode) smallest(addr, end uintptr, best *region) *region {
	low, high := 0, len(n)
	for low < high {
		if middle := int(uint(low+high) >> 1); n[middle].addr <= addr {
			low = middle + 1
		} else {
			high = middle
		}
	}
	for i := low - 1; i >= 0 && n[i].reach >= end; i-- {
		e := &n[i]
		if e.below != nil {
			best = e.below.smallest(addr, end, best)
		} else if e.end >= end && (best == nil || e.region.Size < best.Size) {
			best = e.region
		}
	}
	return best
}

// visit calls the function for every region in order, until it returns false.
func (n regionNode) visit(yield func(*region) bool) bool {
	for i := range n {
		if e := &n[i]; e.below == nil && !yield(e.region) || e.below != nil && !e.below.visit(yield) {
			return false
		}
	}
	return true
}
