package shm

import (
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

// Submit enters slices into the queue of their class. Where they are little and nothing as urgent waits, their caller
// copies them before it returns; else copy workers do, or a waiter (Poll).
func (t *Transport) Submit(slices []*transport.Slice) (accepted int) {
	if len(slices) == 0 {
		return 0
	}
	rail := slices[0].Rail
	l := t.links.Lookup(rail.Link)
	if l == nil || rail.Index != 0 || rail.Generation == 0 {
		return 0
	}
	q := &t.queue
	bytes := uint64(0)
	q.mu.Lock()
	if l.Live.Load() != rail.Generation {
		q.mu.Unlock()
		return 0
	}
	urgent := q.classes.Waiting()&(2<<kit.ClassOf(slices[0].Class)-1) != 0
	for _, s := range slices {
		if !q.enterLocked(s, l, l.find(s.RemoteKey)) {
			break
		}
		accepted++
		bytes += s.Length
	}
	if accepted < len(slices) && !l.hungry {
		l.hungry = true
		q.hungry = append(q.hungry, l)
	}
	q.mu.Unlock()
	if accepted > 0 && !urgent && bytes <= t.settings.InlineBytes && t.inlining.CompareAndSwap(false, true) {
		c := t.borrow()
		t.serve(c, biteParts, t.settings.InlineBytes)
		t.give(c)
		t.inlining.Store(false) // one at a time: slices that completions submit in here are entered, not copied inside
	}
	t.rouse()
	return accepted
}

// Withdraw completes waiting slices; a slice that is being copied completes by itself, within a piece.
func (t *Transport) Withdraw(slices []*transport.Slice) {
	q := &t.queue
	c := t.borrow()
	defer t.give(c)
	for len(slices) > 0 {
		q.mu.Lock()
		for len(slices) > 0 && !c.ends.full() {
			if e := q.findLocked(slices[0]); e != nil {
				l := e.link
				if end, ended := q.abandonLocked(e, errWithdrawn); ended {
					c.ends.add(l, end)
				}
			}
			slices = slices[1:]
		}
		q.roomLocked(&c.ends)
		q.mu.Unlock()
		c.ends.deliver(t.sink)
	}
}

var errWithdrawn = errs.New(errs.Withdrawn, "shm.withdraw", "withdrawn before it was copied").
	WithScope(errs.ScopeSlice, errs.SideLocal)

// Fence ends the rail's generation and completes its waiting slices. The link goes up again in the next generation.
func (t *Transport) Fence(rail transport.Rail) {
	if l := t.links.Lookup(rail.Link); l != nil {
		l.Fence(rail, errWithdrawn)
	}
}

// abandon completes the waiting slices of a link that are over.
func (t *Transport) abandon(l *link, cause *errs.Error) {
	q := &t.queue
	c := t.borrow()
	defer t.give(c)
	for more := true; more; {
		q.mu.Lock()
		more = q.abandonLinkLocked(l, cause, &c.ends)
		q.roomLocked(&c.ends)
		q.mu.Unlock()
		c.ends.deliver(t.sink)
	}
}

// abandonLinkLocked ends the waiting entries of a link that are over; true when out was full first.
func (q *queue) abandonLinkLocked(l *link, cause *errs.Error, out *ends) (more bool) {
	for class := range kit.Classes {
		list := q.classes.List(class)
		for e := list.First(); e != nil; {
			next := list.Next(&e.place)
			if e.link == l && l.Over(e.slice) {
				if out.full() {
					return true
				}
				if end, ended := q.abandonLocked(e, cause); ended {
					out.add(l, end)
				}
			}
			e = next
		}
	}
	return false
}
