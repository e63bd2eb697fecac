package cuda

import (
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/cuda/driver"
	"github.com/tent-engine/tent/transports/host/hazard"
	"github.com/tent-engine/tent/transports/kit"
)

// begin posts the copies of slices by one visit to the driver, as long as none has to cross to pinned memory first.
func (t *copier) begin(list []kit.Beginning[link]) {
	burst := t.room.takeBurst()
	for i := range list {
		b := &list[i]
		if work, err := t.listed(burst, b.Slice, b.Link); err == nil {
			b.Rest = work
		} else {
			b.Err = err
		}
	}
	burst.Post()
	t.room.giveBurstBack(burst)
}

// listed lists the copies of one slice in a burst, or returns why they must not be made.
func (t *copier) listed(burst *driver.Burst, s *transport.Slice, l *link) (*room, *errs.Error) {
	local, from := t.regions.Lookup(s.LocalKey), l.imports.table.Lookup(s.RemoteKey)
	if err := t.allowed(s, local, from); err != nil {
		return nil, err
	}
	if cause := lostBetween(local, from); cause != nil {
		return nil, t.lose(cause)
	}
	slot := l.enter(from, s.Epoch)
	switch slot {
	case hazard.Revoked:
		return nil, l.revoked(from)
	case hazard.Busy:
		return nil, l.taken()
	}
	c, err := wayOf(s, local, from) // inside: a mapping is taken down when nobody is
	if err != nil {
		l.view.Leave(slot)
		return nil, t.ended(c.by, err)
	}
	c.kernel = t.CopyKernel && openToKernels(local, from)
	work := t.room.take(s)
	work.link, work.slot, work.slice, work.way = l, slot, s, c
	if err := work.prepare(burst); err != nil {
		work.leave()
		return nil, err
	}
	return work, nil
}

// allowed returns why a slice may not move between two regions.
func (t *copier) allowed(s *transport.Slice, local *region, from *imported) *errs.Error {
	switch {
	case local == nil || from == nil:
		return t.refused(errs.AddressNotRegistered)
	case kit.CheckLocal(s, local.Addr, local.Size, local.ReadOnly) != errs.OK:
		return t.refused(kit.CheckLocal(s, local.Addr, local.Size, local.ReadOnly))
	case s.Op == transport.Write && !from.writes || s.Op == transport.Read && !from.reads:
		return t.refused(errs.PermissionDenied)
	case !kit.InsideRemote(s, from.size):
		return t.refused(errs.InvalidArgument)
	}
	return nil
}

// enter takes a slot for touching a region. This engine's slices need fewer than there are, so one is free soon: see
// hazard.Taken.
func (l *link) enter(from *imported, epoch transport.Epoch) hazard.Slot {
	hint := hazard.Hint()
	slot := l.view.Enter(from.name, hazard.Epoch(epoch), hint)
	if slot == hazard.Busy {
		slot = l.view.Await(from.name, hazard.Epoch(epoch), hint, func() bool { return l.Left() || l.Gone() != nil })
	}
	return slot
}

// taken is the error of a slice that has found no slot. The link's slices that wait need not try.
func (l *link) taken() *errs.Error {
	if cause := l.Gone(); cause != nil {
		return cause
	}
	cause := hazard.Taken(l.t.name, l.Peer.Address)
	l.Renew(cause)
	return cause
}

// way is how the bytes of a slice go.
type way struct {
	base     uintptr // of the remote region, as the copy engines here reach it
	by       int     // the device that copies
	mine     bool    // our end is memory of a device
	theirs   bool    // the peer's end is
	direct   bool    // devices reach both ends
	outwards bool    // from our end to the peer's
	kernel   bool    // processors of the device may copy
}

var _ [hazard.Slots - kit.PostedMost]struct{} // a burst waits for no slot that it holds itself

// intoHost reports whether bytes go from a device to memory of the host, if one end is the host's.
func (c *way) intoHost() bool { return c.outwards == c.mine }

// wayOf finds the way of a slice between two regions. Between two devices of one process, the engine is that of the
// bytes' source; memory of another process is opened for our own device.
func wayOf(s *transport.Slice, local *region, from *imported) (c way, err error) {
	c = way{base: from.base, by: max(local.ordinal, from.ordinal), mine: local.ordinal >= 0, theirs: from.ordinal >= 0,
		outwards: s.Op == transport.Write}
	c.direct = reachable(local, from)
	switch {
	case !c.mine && !c.theirs:
		err = errs.New(errs.InvalidArgument, "cuda.copy", "both ends are memory of the host")
	case from.mapping != nil:
		c.by = from.copier(local)
		c.base, err = from.mapping.On(c.by)
	case c.mine && c.theirs && c.outwards:
		c.by = local.ordinal
	case c.mine && c.theirs:
		c.by = from.ordinal
	}
	return c, err
}

// reachable reports whether devices reach both regions by themselves.
func reachable(local *region, from *imported) bool {
	return (local.ordinal >= 0 || local.pinned.Load()) &&
		(from.ordinal >= 0 || from.pinned != nil && from.pinned.Load())
}

// openToKernels reports whether processors of the device that copies reach both regions. Copy engines need no access
// to memory of another device of this process, and a kernel without it ends its device.
func openToKernels(local *region, from *imported) bool {
	switch {
	case local.ordinal < 0 || from.ordinal < 0:
		return false
	case from.mapping != nil || local.ordinal == from.ordinal:
		return true
	}
	return local.plain.Load() && from.plain && driver.Join(local.ordinal, from.ordinal) == nil
}

// longest is the most bytes of a slice between two regions. One that is pinned when a plan is made may not be any more
// when a slice comes: a room grows for that one.
func longest(local *region, from *imported) transport.Match {
	switch {
	case !reachable(local, from):
		return transport.Match{SliceMax: sliceThrough}
	case local.ordinal < 0 || from.ordinal < 0:
		return transport.Match{SliceMax: slicePinned, SliceLow: sliceThrough}
	}
	return transport.Match{SliceLow: sliceLow}
}

// prepare lists the copies of a slice; one of its ends is a device's at least.
func (w *room) prepare(burst *driver.Burst) *errs.Error {
	s, c := w.slice, &w.way
	if !c.direct {
		if err := w.fill(burst); err != nil {
			return err
		}
	}
	if err := burst.Begin(&w.copies, c.by, laneOf(s)); err != nil {
		return w.link.t.ended(c.by, err)
	}
	if c.direct {
		if c.kernel {
			burst.ByKernel()
		}
		kit.EachPart(s, func(at uintptr, offset, n uint64) { add(burst, c.outwards, at, c.base+uintptr(offset), n) })
		return nil
	}
	used := w.pinned
	kit.EachPart(s, func(at uintptr, offset, n uint64) {
		device := at
		if c.theirs {
			device = c.base + uintptr(offset)
		}
		add(burst, c.intoHost(), device, used, n)
		used += uintptr(n)
	})
	return nil
}

// fill makes sure that a slice has pinned memory, and bytes of the host there that go to a device. The device works at
// the slices before it meanwhile.
func (w *room) fill(burst *driver.Burst) *errs.Error {
	c := &w.way
	if w.pinned == 0 || !c.intoHost() {
		burst.Post()
	}
	if err := w.pin(c.by, w.slice.Length); err != nil {
		return w.link.t.ended(c.by, err)
	}
	if c.intoHost() {
		return nil
	}
	return w.cross(w.slice, c.base, c.theirs, false)
}

// laneOf is the stream of a slice. Each class and direction of a device has its own: no copy waits in a stream behind
// one of a lower class. Priorities of streams are for kernels; a driver ignores them for copies with the host.
func laneOf(s *transport.Slice) int { return 2*kit.ClassOf(s.Class) + int(s.Op&transport.Write) }

var _ [driver.Lanes - 2*kit.Classes]struct{} // as many streams as lanes

// ask asks the driver for the ends of slices that were posted.
func (t *copier) ask(list []kit.Posted, ends []bool) {
	for _, p := range list {
		t.round.Add(&p.(*room).copies)
	}
	t.round.Ask()
	for i, p := range list {
		ends[i] = p.(*room).copies.Ended()
	}
}

var (
	_ [driver.RoundMost - kit.PostedMost]struct{} // room for all of them
	_ [driver.BurstMost - kit.BurstMost]struct{}
)

// Finish implements kit.Posted: it takes the bytes of copies that have ended on into the host's memory.
func (w *room) Finish() *errs.Error {
	defer w.leave()
	err := w.link.t.ended(w.way.by, w.copies.Finish())
	if err != nil || w.way.direct || !w.way.intoHost() {
		return err
	}
	return w.cross(w.slice, w.way.base, w.way.theirs, true)
}

// leave ends the touch of the peer's region, and gives the room back.
func (w *room) leave() {
	w.link.view.Leave(w.slot)
	w.link, w.slice = nil, nil
	w.of.giveBack(w)
}

// add lists a range between a place here and another one: forward is from here to there.
func add(burst *driver.Burst, forward bool, here, there uintptr, n uint64) {
	if forward {
		burst.Add(there, here, n)
	} else {
		burst.Add(here, there, n)
	}
}

// pin makes sure that there is pinned memory for a slice. It frees none, see keepOutgrown. That of a lost device stays
// with the driver until the process ends.
func (w *room) pin(ordinal int, least uint64) error {
	lost := driver.Lost(w.on) != nil
	if w.pinned != 0 && !lost && w.bytes >= least {
		return nil
	}
	if w.pinned != 0 && !lost {
		w.of.keepOutgrown(pinned{w.pinned, w.on})
	}
	w.pinned = 0
	if w.bytes < least {
		w.bytes = max(least, slicePinned) // no other growth follows: that is the longest
	}
	at, err := driver.Pin(ordinal, w.bytes)
	w.pinned, w.on = at, ordinal
	return err
}

// cross copies a slice's parts between the host's memory and the pinned one: out is into the host's.
func (w *room) cross(s *transport.Slice, remote uintptr, hostIsLocal, out bool) *errs.Error {
	used, gone := w.pinned, false
	kit.EachPart(s, func(at uintptr, offset, n uint64) {
		if !hostIsLocal {
			at = remote + uintptr(offset)
		}
		to, from := mem.Bytes(used, int(n)), mem.Bytes(at, int(n))
		if out {
			to, from = from, to
		}
		gone = gone || mem.Copy(to, from) != nil
		used += uintptr(n)
	})
	side := errs.SideRemote
	if hostIsLocal {
		side = errs.SideLocal
	}
	if gone {
		return w.link.t.refused(errs.AddressNotRegistered).WithScope(errs.ScopeSlice, side)
	}
	return nil
}

// ended makes the end of a slice from an error of the driver about a device.
func (t *copier) ended(by int, err error) *errs.Error {
	if err == nil {
		return nil
	}
	if cause := driver.Lost(by); cause != nil {
		return t.lose(cause)
	}
	return errs.From(t.name, err).WithScope(errs.ScopeSlice, errs.SideLocal)
}
