package dispatch

import (
	"iter"

	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/transport"
)

// The tables that links and rails come and go in. Each shrinks again: a peer or a file that was opened and closed
// leaves nothing behind, so a core that has seen a million of them walks no longer lists than one that has seen one.

// linkTable gives links their ids: a slot that is reused, and a generation that is not.
type linkTable struct {
	links       []*link  // by slot; 0 is none, vacant ones are nil
	generations []uint32 // of the link that is in the slot, or comes next
	vacant      []uint32
}

func (t *linkTable) insertLink(l *link) {
	if len(t.vacant) == 0 {
		t.vacant = append(t.vacant, uint32(len(t.links)))
		t.links, t.generations = append(t.links, nil), append(t.generations, 0)
	}
	last := len(t.vacant) - 1
	slot := t.vacant[last]
	t.vacant = t.vacant[:last]
	l.id = plan.LinkID(t.generations[slot])<<32 | plan.LinkID(slot)
	t.links[slot] = l
}

func (t *linkTable) deleteLink(l *link) {
	slot := l.id.Slot()
	t.links[slot] = nil
	t.generations[slot]++
	t.vacant = append(t.vacant, slot)
}

// link returns a link by its id, nil if it was removed.
func (t *linkTable) link(id plan.LinkID) *link {
	if slot := int(id.Slot()); slot < len(t.links) {
		if l := t.links[slot]; l != nil && l.id == id {
			return l
		}
	}
	return nil
}

// linksOf yields the links of a transport.
func (t *linkTable) linksOf(transport uint8) iter.Seq[*link] {
	return func(yield func(*link) bool) {
		for _, l := range t.links {
			if l != nil && l.spec.Transport == transport && !yield(l) {
				return
			}
		}
	}
}

// rail returns the rail of exactly this generation, nil if it has moved on.
func (c *Core) rail(id plan.LinkID, rail transport.Rail) *railState {
	l := c.link(id)
	if l == nil || int(rail.Index) >= len(l.rails) {
		return nil
	}
	if r := l.rails[rail.Index]; r != nil && r.id.Generation == rail.Generation {
		return r
	}
	return nil
}

// endTable numbers the names of rails' ends, as rail.Blame compares them, for as long as a rail has them.
type endTable struct {
	byName map[string]*end
	vacant []int
	next   int // number, when none is vacant
}

type end struct {
	number int
	rails  int
}

func (t *endTable) acquireEnd(name string) int {
	e := t.byName[name]
	if e == nil {
		e = &end{number: t.next}
		if last := len(t.vacant) - 1; last >= 0 {
			e.number, t.vacant = t.vacant[last], t.vacant[:last]
		} else {
			t.next++
		}
		t.byName[name] = e
	}
	e.rails++
	return e.number
}

func (t *endTable) releaseEnd(name string) {
	e := t.byName[name]
	if e.rails--; e.rails == 0 {
		t.vacant = append(t.vacant, e.number)
		delete(t.byName, name)
	}
}

// forgetRail releases the record of a rail that has ended and has nothing in flight. It releases the numbers of its
// ends too, and its NIC if it was the last rail there.
func (c *Core) forgetRail(r *railState) {
	c.ends.releaseEnd(r.info.Local)
	c.ends.releaseEnd(r.info.Remote)
	d := r.device
	if d.records--; d.records == 0 {
		c.timers.Stop(&d.timer)
		delete(c.devices, d.key)
	}
}

// retire keeps the record of a replaced rail while slices are outstanding on it.
func (c *Core) retire(r *railState) {
	if r.slices > 0 {
		r.link.retired = append(r.link.retired, r)
	} else {
		c.forgetRail(r)
	}
}

// forgetRetired drops the records of replaced rails after their last slice has come back.
func (c *Core) forgetRetired(l *link) {
	kept := l.retired[:0]
	for _, r := range l.retired {
		if r.slices > 0 {
			kept = append(kept, r)
		} else {
			c.forgetRail(r)
		}
	}
	clear(l.retired[len(kept):])
	l.retired = kept
}

// forgetRails drops the records of all rails of a link that is removed.
func (c *Core) forgetRails(l *link) {
	for r := range l.records() {
		c.forgetRail(r)
	}
	l.rails, l.retired = nil, nil
}
