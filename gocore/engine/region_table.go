package engine

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// regionTable is the set of open regions: looked up by address without a lock, changed under mu. A change costs the
// same however many there are (region_tree.go).
type regionTable struct {
	tree    regionTree    // the open ones, without leases; changed under mu
	epoch   atomic.Uint64 // grows with every change that peers can see; written under mu
	changes atomic.Uint64 // grows with every change; written under mu
	retire  regionWork

	mu     sync.Mutex
	leases regionTree         // the open leases, which no address means
	slots  []regionSlot       // by slot of RegionID
	free   []uint32           // slots, the one that was given back last at the end
	open   int                // slots with an open region
	going  int                // slots with a closed one
	named  map[string]*region // the open ones that have a name
	log    regionLog          // an entry for each step of epoch
}

// regionSlot is a number of a region, for one after the other.
type regionSlot struct {
	region     *region // open, or closed and not yet known to be out of every peer's reach; nil: neither
	generation uint32  // the latest
	going      bool    // it is closed
}

// slotLocked returns the slot of a region that is open or on its way out, nil if it is neither.
func (t *regionTable) slotLocked(id mem.RegionID) *regionSlot {
	if slot := uint32(id); uint64(slot) < uint64(len(t.slots)) {
		if s := &t.slots[slot]; s.region != nil && s.generation == uint32(id>>32) {
			return s
		}
	}
	return nil
}

// list returns the open regions, by address and then size. Leases are none.
func (t *regionTable) list() []*region {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.tree.appendTo(nil)
}

// offered returns the open regions and leases.
func (t *regionTable) offered() []*region {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.offeredLocked()
}

func (t *regionTable) offeredLocked() []*region { return t.leases.appendTo(t.tree.appendTo(nil)) }

// treeOf returns the tree that has a region.
func (t *regionTable) treeOf(r *region) *regionTree {
	if r.lease != nil {
		return &t.leases
	}
	return &t.tree
}

// len returns the number of open regions and leases.
func (t *regionTable) len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.open
}

// find returns the smallest open region that holds [addr, addr+length), or nil.
func (t *regionTable) find(addr uintptr, length uint64) *region {
	return t.findFor(transport.Write, addr, length)
}

// findFor is find for an operation: a READ writes to its region, so one with a read-only buffer is not for it.
func (t *regionTable) findFor(op transport.Op, addr uintptr, length uint64) *region {
	end := addr + uintptr(length)
	if end < addr {
		return nil
	}
	written := op == transport.Read
	found, sure := t.tree.find(addr, end, written)
	if !sure {
		t.mu.Lock()
		defer t.mu.Unlock()
		found, _ = t.tree.find(addr, end, written)
	}
	return found
}

// get returns an open region or lease, or nil.
func (t *regionTable) get(id mem.RegionID) *region {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.slotLocked(id); s != nil && !s.going {
		return s.region
	}
	return nil
}

// reachable returns a region or lease that peers may still reach: it is open, or was closed and is on its way out.
func (t *regionTable) reachable(id mem.RegionID) *region {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.slotLocked(id); s != nil {
		return s.region
	}
	return nil
}

// add makes a region visible, or all ranges of a lease. The first comes last, so readers without the lock see it with
// all others or not at all. A name of it that is in use is an error.
func (t *regionTable) add(list ...*region) *errs.Error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.nameFreeLocked(list[0].Name); err != nil {
		return err
	}
	for _, r := range slices.Backward(list) {
		t.slots[uint32(r.ID)].region = r
		t.open++
		if r.Name != "" {
			if t.named == nil {
				t.named = map[string]*region{}
			}
			t.named[r.Name] = r
		}
		r.life.advance(eventPublished)
		t.treeOf(r).add(r)
		t.changedLocked(r)
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
		t.slots = append(t.slots, regionSlot{})
	}
	s := &t.slots[slot]
	if s.generation++; s.generation == 0 { // after 4 billion regions in this slot
		s.generation = 1
	}
	return mem.RegionID(uint64(s.generation)<<32 | uint64(slot))
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
	s := t.slotLocked(id)
	if s == nil {
		return nil
	}
	r := s.region
	if s.going {
		return r
	}
	s.going = true
	t.open--
	t.going++
	if r.Name != "" {
		delete(t.named, r.Name)
	}
	t.treeOf(r).remove(r)
	t.changedLocked(r)
	return r
}

// outOfReach notes that no peer can reach the region any more. It returns false if another call has noted it.
func (t *regionTable) outOfReach(r *region) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.slotLocked(r.ID)
	if s == nil || !s.going {
		return false
	}
	s.region, s.going = nil, false
	t.going--
	r.out.Store(true)
	return true
}

// all are the open regions and leases, and those that are on their way out.
func (t *regionTable) all() []*region {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := t.offeredLocked()
	for i := 0; i < len(t.slots) && len(list) < t.open+t.going; i++ {
		if t.slots[i].going {
			list = append(list, t.slots[i].region)
		}
	}
	return list
}

// touch makes peers ask again: a transport has changed a descriptor of the region.
func (t *regionTable) touch(id mem.RegionID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.changes.Add(1)
	t.stepLocked(id)
}

// changedLocked notes that a region came or went, and lets peers hear of it if they may touch it.
func (t *regionTable) changedLocked(r *region) {
	t.changes.Add(1)
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
	if !complete || 2*len(changed) > t.open {
		return nil, nil, 0, false
	}
	seen := make(map[mem.RegionID]bool, len(changed))
	for _, id := range changed {
		if seen[id] {
			continue
		}
		seen[id] = true
		if s := t.slotLocked(id); s != nil && !s.going && s.region.Permission != mem.LocalReadWrite {
			open = append(open, s.region)
		} else {
			closed = append(closed, id)
		}
	}
	return open, closed, t.epoch.Load(), true
}

// regionLogMax bounds the changes that are remembered. A peer that knows an older description gets all regions.
const regionLogMax = 1 << 14

// regionLog names the regions of the latest changes, one for each step of the table's epoch. Its zero value is empty.
type regionLog struct {
	left uint64 // changes before the first one of ids
	ids  []mem.RegionID
}

// add notes the next change.
func (l *regionLog) add(id mem.RegionID) {
	if len(l.ids) == 2*regionLogMax { // seldom, so that a change costs one entry on average
		l.left += regionLogMax
		l.ids = append(l.ids[:0], l.ids[regionLogMax:]...)
	}
	l.ids = append(l.ids, id)
}

// since returns the regions that changed after the first changes, some perhaps several times, and whether the log goes
// back so far.
func (l *regionLog) since(changes uint64) (ids []mem.RegionID, complete bool) {
	if changes < l.left || changes > l.left+uint64(len(l.ids)) {
		return nil, false
	}
	return l.ids[changes-l.left:], true
}
