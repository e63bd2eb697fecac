package shm

import (
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/host/hazard"
	"github.com/tent-engine/tent/transports/kit"
)

// Inline copies slices of one rail before it returns. It takes no lock and allocates nothing: a table lookup and a
// hazard slot are all that it adds to the copy, and a look at the clock to the kernel's. It refuses slices that would
// keep its caller for long, that a more urgent slice waits in front of, or that it cannot carry out: Submit says why.
func (t *Transport) Inline(slices []*transport.Slice) bool {
	if len(slices) == 0 {
		return true
	}
	first := slices[0]
	l := t.links.Lookup(first.Rail.Link)
	if l == nil || !l.Up(first.Rail) || t.queue.classes.Waiting()&(1<<kit.ClassOf(first.Class)-1) != 0 {
		return false
	}
	bytes := uint64(0)
	for _, s := range slices {
		bytes += s.Length
	}
	if bytes > t.settings.InlineBytes {
		return false
	}
	hint := hazard.Hint()
	for i := 0; i < len(slices); {
		n := t.inlineRegion(l, slices[i:], hint)
		if n == 0 {
			return false
		}
		i += n
	}
	return true
}

// inlineRegion copies the slices at the front that are of one region and direction, inside one hazard slot. It returns
// how many it copied, 0 if it could not.
func (t *Transport) inlineRegion(l *link, slices []*transport.Slice, hint uint32) (copied int) {
	first := slices[0]
	from := l.find(first.RemoteKey)
	if from == nil || from.base == 0 && from.remote == 0 {
		return 0
	}
	slot := l.view.Enter(from.name, hazard.Epoch(first.Epoch), hint)
	if slot < 0 {
		return 0
	}
	// Else the mapping may be going: unmap looks at the slots afterwards.
	if l.Live.Load() == first.Rail.Generation && l.find(first.RemoteKey) == from {
		if from.base != 0 {
			copied = t.inlineNear(slices, from)
		} else {
			copied = t.inlineFar(l, slices, from)
		}
	}
	l.view.Leave(slot)
	return copied
}

// inlinable reports whether a slice goes on in the slot of the first one, and may be carried out.
func (t *Transport) inlinable(s, first *transport.Slice, from *imported) bool {
	return s.RemoteKey == first.RemoteKey && s.Op == first.Op && s.Epoch == first.Epoch && t.checkLocal(s) == 0 &&
		from.allows(s.Op) && kit.InsideRemote(s, from.size)
}

func (t *Transport) inlineNear(slices []*transport.Slice, from *imported) int {
	for i, s := range slices {
		if !t.inlinable(s, slices[0], from) {
			return i
		}
		if _, ok := t.copyRanges(rangesOf(s, 0, s.Length), from.base, s.Op == transport.Write, s.Length); !ok {
			return i
		}
	}
	return len(slices)
}

// inlineFar joins as many slices as one system call takes.
func (t *Transport) inlineFar(l *link, slices []*transport.Slice, from *imported) int {
	c := t.borrow()
	defer t.give(c)
	n, parts := 0, uint64(0)
	for _, s := range slices {
		more := uint64(1)
		if s.Pieces != nil {
			more = s.Length / s.Pieces.Bytes
		}
		if parts += more; parts > biteParts || c.vector.Bytes()+s.Length > pieceBytes ||
			!t.inlinable(s, slices[0], from) {
			break
		}
		r := rangesOf(s, 0, s.Length)
		for local, remote, bytes := r.next(); bytes > 0; local, remote, bytes = r.next() {
			c.vector.Add(local, from.remote+uintptr(remote), bytes)
		}
		n++
	}
	if n == 0 {
		return 0
	}
	if _, errno := l.move(c, slices[0].Op == transport.Write); errno != 0 {
		return 0
	}
	return n
}
