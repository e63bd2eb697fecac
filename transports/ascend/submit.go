package ascend

import (
	"slices"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

// entry is an accepted slice. It is guarded by ascend.mu.
//
//	free ──Submit──▶ waiting ──the carrier──▶ posted ──asked──▶ completed, free
//	                 waiting ──Withdraw, Fence, news──────────▶ completed, free
//	                                          posted ──cut────▶ completed, free
type entry struct {
	slice   *transport.Slice
	id      uint64
	link    *link
	own     *region
	far     *remote
	place   kit.Element[entry] // in the list of free ones, the queue, or the posted ones
	request uint64             // of HIXL; 0: it has none, or has forgotten it
	due     clock.Time         // it is late then; set when it is first posted
	guilty  *errs.Error        // its own failure, which ends the link
}

// forbidden reports whether the owner has fenced the slice.
func (e *entry) forbidden() bool { return e.far.refuses(e.slice.Epoch) != nil }

// all means each entry.
func all(*entry) bool { return true }

// Submit implements transport.Transport. Every check is made here: a request that HIXL refuses may cost the link.
func (t *ascend) Submit(list []*transport.Slice) (n int) {
	if len(list) == 0 {
		return 0
	}
	l := t.links.Lookup(list[0].Rail.Link)
	if l == nil {
		return 0
	}
	t.mu.Lock()
	if which := list[0].Rail; which.Index != 0 || which.Generation == 0 || which.Generation != l.generation ||
		l.cause != nil {
		t.mu.Unlock()
		return 0
	}
	l.slabLocked()
	var ends []transport.Completion
	for _, s := range list {
		e := l.free.PopFront()
		if e == nil {
			if !l.starved {
				l.starved = true
				t.starving = append(t.starving, l)
			}
			break
		}
		n++
		*e = entry{slice: s, id: s.Id, link: l, own: t.regions.Lookup(s.LocalKey), far: l.keys.Lookup(s.RemoteKey)}
		if err := e.check(); err != nil {
			ends = l.endLocked(ends, e, err)
			continue
		}
		l.queue.PushBack(kit.ClassOf(s.Class), e, &e.place)
	}
	if !l.listed && l.queue.Len() > 0 {
		l.listed = true
		t.active = append(t.active, l)
	}
	wakes := l.connection == shut || l.blindLocked()
	t.mu.Unlock()
	if wakes {
		l.wake()
	}
	t.bell.ring()
	t.complete(ends)
	return n
}

// slabLocked makes the link's entries, at its first slice.
func (l *link) slabLocked() {
	if l.slab == nil {
		l.slab = make([]entry, slicesMax)
		for i := range l.slab {
			l.free.PushBack(&l.slab[i], &l.slab[i].place)
		}
	}
}

// check returns why a slice may not be carried out.
func (e *entry) check() *errs.Error {
	s := e.slice
	switch {
	case e.own == nil || e.own.entry.gone.Load():
		return refused(errs.AddressNotRegistered, errs.SideLocal, "no region has the local key")
	case e.far == nil:
		return refused(errs.AddressNotRegistered, errs.SideRemote, "no imported region has the remote key")
	}
	if code := kit.CheckLocal(s, e.own.Addr, e.own.Size, e.own.ReadOnly); code != errs.OK {
		return refused(code, errs.SideLocal, "the local range is not in its region, or not for this use")
	}
	if err := e.far.refuses(s.Epoch); err != nil {
		return err
	}
	switch write := s.Op == transport.Write; {
	case !e.far.permission.Allows(write) || write && e.far.fixed:
		return refused(errs.PermissionDenied, errs.SideRemote, "the owner of the region does not allow it")
	case !kit.InsideRemote(s, e.far.size):
		return refused(errs.InvalidArgument, errs.SideRemote, "the remote range is not in its region")
	}
	return nil
}

// endLocked frees an entry, and appends its completion.
func (l *link) endLocked(ends []transport.Completion, e *entry, err *errs.Error) []transport.Completion {
	c := transport.Completion{Slice: e.slice, Id: e.id, Err: err}
	if err == nil {
		c.Bytes = e.slice.Length
	}
	e.slice, e.own, e.far, e.guilty = nil, nil, nil, nil
	l.free.PushFront(e, &e.place)
	return append(ends, c)
}

// dropLocked ends waiting slices that are meant; without a cause each by its fence.
func (l *link) dropLocked(ends []transport.Completion, cause *errs.Error,
	meant func(*entry) bool) []transport.Completion {
	for class := range kit.Classes {
		list := l.queue.List(class)
		for e := list.First(); e != nil; {
			next := list.Next(&e.place)
			if meant(e) {
				l.queue.Leave(class, &e.place)
				end := cause
				if end == nil {
					end = e.far.refuses(e.slice.Epoch)
				}
				ends = l.endLocked(ends, e, end)
			}
			e = next
		}
	}
	return ends
}

// failPostedLocked ends the posted slices, of which nothing moves any more. Those that have failed have their own
// errors, their neighbours the link's.
func (l *link) failPostedLocked(ends []transport.Completion) []transport.Completion {
	for e := l.posted.First(); e != nil; e = l.posted.First() {
		err := e.guilty
		if fence := e.far.refuses(e.slice.Epoch); err == nil && fence != nil {
			err = fence
		}
		if err == nil {
			err = collateral(l.cause)
		}
		e.place.Leave()
		ends = l.endLocked(ends, e, err)
	}
	return ends
}

// complete hands completions over, and says Ready to rails that are owed it.
func (t *ascend) complete(ends []transport.Completion) {
	if len(ends) == 0 {
		return
	}
	t.sink.Complete(ends)
	t.mu.Lock()
	t.changed.Broadcast()
	var ready []transport.Rail
	t.starving = slices.DeleteFunc(t.starving, func(l *link) bool {
		if l.starved = l.free.Len() == 0; !l.starved && l.generation != 0 {
			ready = append(ready, l.rail(l.generation))
		}
		return !l.starved
	})
	t.mu.Unlock()
	for _, rail := range ready {
		t.sink.Ready(rail)
	}
}

// Withdraw implements transport.Transport. Slices that HIXL has end by themselves, at their limit at the latest: it has
// no way to take one back.
func (t *ascend) Withdraw(list []*transport.Slice) {
	if len(list) == 0 {
		return
	}
	var ends []transport.Completion
	cause := refused(errs.Withdrawn, errs.SideLocal, "asked back before it was posted")
	t.mu.Lock()
	for _, l := range t.active {
		ends = l.dropLocked(ends, cause, func(e *entry) bool { return slices.Contains(list, e.slice) })
	}
	t.mu.Unlock()
	t.complete(ends)
}

// Fence implements transport.Transport. The link ends before the slices that are out do, and its rail comes back.
func (t *ascend) Fence(rail transport.Rail) {
	l := t.links.Lookup(rail.Link)
	if l == nil {
		return
	}
	cause := refused(errs.Withdrawn, errs.SideLocal, "the rail was fenced")
	t.mu.Lock()
	if rail.Index != 0 || rail.Generation == 0 || rail.Generation != l.generation || l.cause != nil {
		t.mu.Unlock()
		return
	}
	l.generation, l.cause = 0, cause
	ends := l.dropLocked(nil, cause, all)
	t.mu.Unlock()
	l.wake()
	t.complete(ends)
}
