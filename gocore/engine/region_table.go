package engine

import (
	"iter"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
)

// regionTable is the set of open regions: read without a lock, changed under mu. The cost of a change grows with the
// logarithm of their number (region_tree.go).
type regionTable struct {
	tree   atomic.Pointer[regionNode] // the open ones, without leases
	leases atomic.Pointer[regionNode] // the open leases, which no address means
	epoch  atomic.Uint64              // grows with every change that peers can see; written under mu
	retire sync.WaitGroup

	mu    sync.Mutex
	slots []uint32 // generation by slot of RegionID
	free  []uint32
	byID  map[mem.RegionID]*region // the open ones
	named map[string]*region       // those of them that have a name
	going map[mem.RegionID]*region // closed, and not yet known to be out of every peer's reach
	log   regionLog                // an entry for each step of epoch
}

// list goes over the regions that are open when it begins, by address and then size. Leases are none.
func (t *regionTable) list() iter.Seq[*region] {
	return func(yield func(*region) bool) { rootOf(&t.tree).visit(yield) }
}

// offered goes over the regions and leases that are open when it begins.
func (t *regionTable) offered() iter.Seq[*region] {
	return func(yield func(*region) bool) { _ = rootOf(&t.tree).visit(yield) && rootOf(&t.leases).visit(yield) }
}

func rootOf(tree *atomic.Pointer[regionNode]) regionNode {
	if root := tree.Load(); root != nil {
		return *root
	}
	return nil
}

// treeOf returns the tree that has a region.
func (t *regionTable) treeOf(r *region) *atomic.Pointer[regionNode] {
	if r.lease != nil {
		return &t.leases
	}
	return &t.tree
}

// len returns the number of open regions and leases.
func (t *regionTable) len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.byID)
}

// find returns the smallest open region that holds [addr, addr+length), or nil.
func (t *regionTable) find(addr uintptr, length uint64) *region {
	end := addr + uintptr(length)
	if end < addr {
		return nil
	}
	return rootOf(&t.tree).smallest(addr, end, nil)
}

// get returns an open region or lease, or nil.
func (t *regionTable) get(id mem.RegionID) *region {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byID[id]
}

// add makes a region visible, or all ranges of a lease. The first comes last, so readers without the lock see it with
// all others or not at all. A name of it that is in use is an error.
func (t *regionTable) add(list ...*region) *errs.Error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.nameFreeLocked(list[0].Name); err != nil {
		return err
	}
	if t.byID == nil {
		t.byID, t.named = map[mem.RegionID]*region{}, map[string]*region{}
		t.going = map[mem.RegionID]*region{}
	}
	for _, r := range slices.Backward(list) {
		t.byID[r.ID] = r
		if r.Name != "" {
			t.named[r.Name] = r
		}
		r.life.advance(eventPublished)
		t.publishLocked(rootOf(t.treeOf(r)).with(r), r)
	}
	return nil
}

// nameFree returns an error for a name in use.
func (t *regionTable) nameFree(name string) *errs.Error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.nameFreeLocked(name)
}

func (t *regionTable) nameFreeLocked(name string) *errs.Error {
	if o := t.named[name]; o != nil {
		return errs.New(errs.InvalidArgument, "register", "the name %q is in use by the region of %d bytes", name,
			o.Size).
			WithHint("close that region first or choose another name")
	}
	return nil
}

// reserve gives out a RegionID: slot and generation, never 0.
func (t *regionTable) reserve() mem.RegionID {
	t.mu.Lock()
	defer t.mu.Unlock()
	var slot uint32
	if n := len(t.free); n > 0 {
		slot, t.free = t.free[n-1], t.free[:n-1]
	} else {
		slot = uint32(len(t.slots))
		t.slots = append(t.slots, 0)
	}
	t.slots[slot]++
	return mem.RegionID(uint64(t.slots[slot])<<32 | uint64(slot))
}

func (t *regionTable) giveBack(id mem.RegionID) {
	t.mu.Lock()
	t.free = append(t.free, uint32(id))
	t.mu.Unlock()
}

// leave takes a region out of the open ones and returns it. It also returns one that has left before and is not out of
// every peer's reach; nil if there is nothing to do for it any more.
func (t *regionTable) leave(id mem.RegionID) *region {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.byID[id]
	if r == nil {
		return t.going[id]
	}
	delete(t.byID, id)
	if r.Name != "" {
		delete(t.named, r.Name)
	}
	t.going[id] = r
	t.publishLocked(rootOf(t.treeOf(r)).without(r), r)
	return r
}

// left notes that no peer can reach the region any more. It returns false if another call has noted it.
func (t *regionTable) left(r *region) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, was := t.going[r.ID]
	delete(t.going, r.ID)
	return was
}

// all are the open regions and leases, and those that are on their way out.
func (t *regionTable) all() []*region {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.AppendSeq(slices.Collect(t.offered()), maps.Values(t.going))
}

// touch makes peers ask again: a transport has changed a descriptor of the region.
func (t *regionTable) touch(id mem.RegionID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stepLocked(id)
}

// publishLocked makes a tree visible, with or without r. Peers hear of regions that they may touch.
func (t *regionTable) publishLocked(tree regionNode, r *region) {
	t.treeOf(r).Store(&tree)
	if r.Permission != mem.LocalReadWrite {
		t.stepLocked(r.ID)
	}
}

func (t *regionTable) stepLocked(id mem.RegionID) {
	t.log.add(id)
	t.epoch.Add(1)
}

// since returns the regions that changed after a number of steps: those that are open, and the ids of the others. It
// also returns the number of steps now. Without complete, the change is too long ago, or touches half of the regions.
func (t *regionTable) since(steps uint64) (open []*region, closed []mem.RegionID, now uint64, complete bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	changed, complete := t.log.since(steps)
	if !complete || 2*len(changed) > len(t.byID) {
		return nil, nil, 0, false
	}
	seen := make(map[mem.RegionID]bool, len(changed))
	for _, id := range changed {
		if seen[id] {
			continue
		}
		seen[id] = true
		if r := t.byID[id]; r != nil && r.Permission != mem.LocalReadWrite {
			open = append(open, r)
		} else {
			closed = append(closed, id)
		}
	}
	return open, closed, t.epoch.Load(), true
}
