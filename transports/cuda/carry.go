package cuda

import (
	"runtime/debug"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/cuda/driver"
	"github.com/tent-engine/tent/transports/kit"
)

// carry copies one slice, or returns why it must not.
func (t *cuda) carry(s *transport.Slice, l *link) *errs.Error {
	local, remote := t.regions.Lookup(s.LocalKey), l.to.regions.Lookup(transport.LocalKey(s.RemoteKey))
	write := s.Op == transport.Write
	switch {
	case l.to.life.Closed():
		return l.gone(errs.PeerUnreachable)
	case remote == nil || local == nil || kit.CheckLocal(s, local.Addr, local.Size, local.ReadOnly) != errs.OK:
		return refused(errs.AddressNotRegistered)
	case remote.door.Admits(t.self.ID, s.Epoch) != kit.DoorOpen: // its task began before the last fence
		return transport.Fenced(Name)
	case !l.peer.Self && !remote.Permission.Allows(write) || write && remote.ReadOnly:
		return refused(errs.PermissionDenied)
	case !kit.InsideRemote(s, remote.Size):
		return refused(errs.InvalidArgument)
	}
	work := t.room.take()
	defer t.room.giveBack(work)
	return work.move(s, local, remote)
}

// move copies a slice between two regions; one of them is a device's at least.
func (w *room) move(s *transport.Slice, local, remote *region) *errs.Error {
	w.copies.Reset()
	write, ordinal := s.Op == transport.Write, max(local.ordinal, remote.ordinal)
	switch {
	case ordinal < 0:
		return refused(errs.InvalidArgument) // two ends of the host
	case local.ordinal >= 0 && remote.ordinal >= 0:
		kit.EachPart(s, func(at uintptr, offset, n uint64) { w.add(write, at, remote.Addr+uintptr(offset), n) })
		return ended(w.copies.Carry(source(write, local, remote)))
	}
	if err := w.pin(ordinal); err != nil {
		return ended(err)
	}
	hostIsLocal := local.ordinal < 0
	out := write != hostIsLocal // from the device into the host's memory
	if !out {
		if err := w.cross(s, remote.Addr, hostIsLocal, false); err != nil {
			return err
		}
	}
	used := w.pinned
	kit.EachPart(s, func(at uintptr, offset, n uint64) {
		device := at
		if hostIsLocal {
			device = remote.Addr + uintptr(offset)
		}
		w.add(out, device, used, n) // out: from the device to us
		used += uintptr(n)
	})
	if err := ended(w.copies.Carry(ordinal)); err != nil || !out {
		return err
	}
	return w.cross(s, remote.Addr, hostIsLocal, true)
}

// source is the device whose engine copies between two: that of the bytes.
func source(write bool, local, remote *region) int {
	if write {
		return local.ordinal
	}
	return remote.ordinal
}

// add lists a range between a place here and another one: forward is from here to there.
func (w *room) add(forward bool, here, there uintptr, n uint64) {
	if forward {
		w.copies.Add(there, here, n)
	} else {
		w.copies.Add(here, there, n)
	}
}

// pin makes sure that there is pinned memory.
func (w *room) pin(ordinal int) (err error) {
	if w.pinned == 0 {
		w.pinned, err = driver.Pin(ordinal, sliceMax)
		w.on = ordinal
	}
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
		gone = gone || guarded(to, from) != nil
		used += uintptr(n)
	})
	side := errs.SideRemote
	if hostIsLocal {
		side = errs.SideLocal
	}
	if gone {
		return refused(errs.AddressNotRegistered).WithScope(errs.ScopeSlice, side)
	}
	return nil
}

// guarded copies bytes of the host, and returns where they were not there.
func guarded(to, from []byte) (fault *mem.Fault) {
	defer mem.Guard(&fault, debug.SetPanicOnFault(true))
	copy(to, from)
	return nil
}

// ended makes the end of a slice from an error of the driver.
func ended(err error) *errs.Error {
	if err == nil {
		return nil
	}
	e := *errs.From(Name, err) // another one: the driver keeps the error of a lost device
	return (&e).WithScope(errs.ScopeSlice, errs.SideLocal)
}
